"""Which layers clusters share, drawn on the page, in Chromium."""

from itertools import pairwise

import pytest

from tests.runs.chromium import IN_CHROMIUM
from tests.runs.folders import edited, made_up_run

pytestmark = IN_CHROMIUM
BLOCKS = "#layers .body"
OUTPUT_LAYERS = "#layers .band"


def run_of(path, own, leaves=2):
    """A run with so many leaves; of those in ``own`` all layers are their own."""
    run = made_up_run(path, clients=2 * leaves)
    with edited(run / "tree.json") as tree:
        clusters = tree["clusters"]
        names = [f"0.{k}" for k in range(leaves)]
        clusters["0"]["children"] = names
        for k, name in enumerate(names):
            members = [f"client-{2 * k}", f"client-{2 * k + 1}"]
            leaf = {"members": members, "own_body": name in own, "edge_clients": []}
            clusters[name] = clusters["0.0"] | leaf
    return run


@pytest.mark.parametrize("width", [390, 1200])
def test_clusters_that_share_layers_have_one_block_and_each_its_output_layer(
    opened, tmp_path, width
):
    visit = opened(run_of(tmp_path / "run", own=["0.1"], leaves=4), width=width)
    shared, own = visit.page.locator(BLOCKS).all()
    of_the_shared, of_its_own = shared.bounding_box(), own.bounding_box()
    assert of_the_shared["height"] > 2 * of_its_own["height"]
    layers = visit.page.locator(OUTPUT_LAYERS)
    places = layers.evaluate_all("all => all.map(a => [a.dataset.key, a.getBBox().y])")
    assert [key for key, _ in places] == [f"layers:0.{k}" for k in (0, 2, 3, 1)]
    texts = visit.page.locator("#layers svg text.strong").all_text_contents()
    outputs = [f"0.{k} · 2 clients" for k in (0, 2, 3, 1)]
    assert texts == ["shared · 6 clients", *outputs[:3], "own · 2 clients", outputs[3]]
    label = layers.first.get_attribute("aria-label")
    assert label.endswith("the layers below it shared with 0.2, 0.3")


def test_a_click_or_enter_on_an_output_layer_picks_its_cluster(opened, tmp_path):
    visit = opened(run_of(tmp_path / "run", own=[]))
    visit.page.locator(OUTPUT_LAYERS).last.click()
    assert visit.page.input_value("#pick-cluster") == "0.1"
    visit.page.keyboard.press("Enter")
    assert visit.page.input_value("#pick-cluster") == ""


def test_nothing_is_drawn_where_no_layers_are_shared(opened, tmp_path):
    visit = opened(run_of(tmp_path / "run", own=["0.0", "0.1"]))
    assert visit.page.locator("#layers *").count() == 0


@pytest.mark.parametrize("leaves", [2, 12, 30])
def test_the_words_of_few_and_many_clusters_do_not_lie_upon_each_other(opened, tmp_path, leaves):
    visit = opened(run_of(tmp_path / "run", own=[], leaves=leaves), width=390)
    boxes = visit.page.locator("#layers .band ~ g rect").evaluate_all(
        "all => all.map(a => a.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == leaves
    assert all(above["bottom"] <= below["top"] for above, below in pairwise(boxes))
    assert all(box["left"] > 0 and box["right"] < 390 for box in boxes)
