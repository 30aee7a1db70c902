import numpy as np
import pandas as pd
import pytest

from cflower.data.client_data import load_client_data
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
from cflower.data.sources import load_source
from cflower.data.text import TOKENS
from cflower.errors import ConfigError, DataError


def clients(count, **settings):
    chosen = DataSettings(**{"shift": "topic"} | settings)
    return [load_client_data(chosen, place, count) for place in range(count)]


def test_each_group_holds_its_half_of_the_plane():
    held = clients(5, dataset="tests.data.toys:xor", group_sizes="2,3")
    assert [client.group for client in held] == [0, 0, 1, 1, 1]
    inputs = [np.concatenate([c.train.inputs, c.decide.inputs, c.report.inputs]) for c in held]
    assert [len(points) for points in inputs] == [100, 100, 67, 67, 66]
    # Of equally large topics, the first by name ("lower") goes to the first group.
    assert all((points[:, 1] < 0).all() for points in inputs[:2])
    assert all((points[:, 1] > 0).all() for points in inputs[2:])
    assert len(np.unique(np.concatenate(inputs), axis=0)) == 400


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "needs the topic of every example"),
        ({"dataset": "tests.data.toys:xor", "num_groups": 3}, "2 topics for 3 groups"),
    ],
)
def test_data_without_the_topics(settings, words):
    with pytest.raises(DataError, match=words):
        clients(3, **settings)


def test_a_topic_that_is_a_number_is_no_input(tmp_path):
    rows = {"size": range(40), "topic": [7, 8] * 20, "label": [0, 0, 1, 1] * 10}
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    first, second = clients(2, dataset=str(tmp_path))
    assert first.train.input_shape == (1,)
    assert set((first.train.inputs % 2).ravel()) == {0}
    assert set((second.train.inputs % 2).ravel()) == {1}


@pytest.fixture
def posts(tmp_path):
    """Ten posts of 45 words per newsgroup: each word has its newsgroup and a number."""
    rows = [
        {"text": " ".join(f"{group[:3]}{n % 7}" for n in range(45)), "label": group}
        for group in ("comp.a", "comp.b", "rec.c")
        for _ in range(10)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    return f"text:{tmp_path}"


def test_text_becomes_windows_labelled_with_the_next_word(posts):
    first, second = clients(2, dataset=posts)
    length = TOKENS["words"].length
    assert first.train.input_shape == (length,)
    assert first.train.labels.shape == (len(first.train), length)
    np.testing.assert_array_equal(first.train.inputs[:, 1:], first.train.labels[:, :-1])
    parts = first.train, first.decide, first.report
    assert sum(map(len, parts)) == 40  # comp: 20 posts of 2 windows
    for client, topic in ((first, "com"), (second, "rec")):
        names = np.array(client.train.class_names)
        assert all(word.startswith(topic) for word in names[client.train.labels].ravel())


def test_text_that_is_none(tmp_path):
    rows = {"text": ["too short", "this too"], "label": [0, 1]}
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(DataError, match="no text of more than 20 words"):
        load_source(DataSettings(f"text:{tmp_path}"))
    with pytest.raises(DataError, match="no column 'text'"):
        load_source(DataSettings("text:digits"))


def test_text_of_characters_needs_no_labels(tmp_path):
    rows = {"text": ["ab" * 70, "a" * 64, "\u4e2d" + "ab" * 32], "author": ["x", "y", "x"]}
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    settings = DataSettings(f"text:{tmp_path}", natural_id_column="author", tokens="characters")
    source = load_source(settings)
    assert source.class_names == ("<unk>", "a", "b", "\u4e2d")
    assert list(source.metadata_of("author")) == ["x"] * 3  # 139 // 64 + 63 // 64 + 64 // 64
    first = source.examples().inputs[np.argmax(source.labels[:, 0] == 2)]
    assert set(first[::2]) | set(first[1::2]) <= {1, 2, 3}


def test_a_newcomers_text_is_numbered_by_the_runs_vocabulary(tmp_path):
    pd.DataFrame({"text": ["xa" * 100, "ab" * 100]}).to_csv(tmp_path / "a.csv", index=False)
    settings = DataSettings("text:its own", tokens="characters")
    data = load_own_data(str(tmp_path), settings, ("<unk>", "b", "a"))
    assert data.train.class_names == ("<unk>", "b", "a")
    labels = np.concatenate([data.train.labels, data.decide.labels, data.report.labels])
    assert {tuple(sorted(set(row))) for row in labels.tolist()} == {(0, 2), (1, 2)}  # x is unknown


def test_tokens_are_for_texts_only():
    with pytest.raises(ConfigError, match="tokens='characters' with dataset='digits'"):
        DataSettings(tokens="characters")
