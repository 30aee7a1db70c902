"""A whole run on the digits with and without permutation, as a user would configure it."""

import json
import math
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from safetensors.numpy import load_file

from cflower import assign, export, server_app, simulate
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError, FederationError, RunFolderError
from cflower.learning.models import build_model
from cflower.privacy.agreement import ask_first_model
from cflower.privacy.permutation import permuted
from cflower.runs.record import RunRecord
from cflower.server_app import initial_model
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid

SEED = b"0123456789abcdef0123456789abcdef"
KEYS = {"dataset-size": 700, "num-server-rounds": 8, "min-available-nodes": 8}
KEYS |= {"local-epochs": 2, "batch-size": 16, "projection-dim": 0}


def run(folder, **keys):
    """The run folder of one run in this process."""
    config = RunConfig.read({**KEYS, "output-dir": str(folder), **keys}).as_keys()
    server = partial(server_app.run, say=lambda text: None)
    simulate(client_app, 8, server_app=server, run_config=config)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A plain run and a private one with the same initial model."""
    folder = tmp_path_factory.mktemp("privacy")
    (folder / "seed").write_bytes(SEED)
    with pytest.MonkeyPatch.context() as patch:
        first: list[ArrayRecord] = []

        def noted(*args):
            first.append(ask_first_model(*args))
            return first[0]

        def the_same(*args):
            if not first:  # the private run needs the model's shape
                return initial_model(*args)
            arrays = {key: array.numpy() for key, array in first[0].items()}
            return ArrayRecord({k: Array(a) for k, a in permuted(arrays, SEED, back=True).items()})

        patch.setattr(server_app, "ask_first_model", noted)
        patch.setattr(server_app, "initial_model", the_same)
        # Of permuted weights the server sees no layers, so a split parts all of them.
        patch.setattr("cflower.algorithm.round.OUTPUT_SHARE", math.inf)
        private = {"privacy": "permutation", "seed-file": str(folder / "seed")}
        hidden = run(folder / "private", **private)
        return run(folder / "plain"), hidden


@pytest.mark.slow
def test_clusters_and_split_rounds_are_those_without_permutation(runs):
    plain, private = (json.loads((path / "summary.json").read_text()) for path in runs)
    assert len(plain["clusters"]) > 1
    assert private["clusters"] == plain["clusters"]
    splits = ([(s["round"], s["cluster"]) for s in run["splits"]] for run in (plain, private))
    assert next(splits) == next(splits)
    keys = "accuracy", "leaf_accuracy", "fl_accuracy", "best_accuracy", "ensemble_accuracy"
    for name, client in plain["clients"].items():
        assert [private["clients"][name][key] for key in keys] == [client[key] for key in keys]


@pytest.mark.slow
def test_edges_and_checkpoints_hold_permuted_vectors_only(runs):
    plain, private = runs
    model = load_file(plain / "models" / "0.safetensors")
    keys = list(build_model("cnn", (1, 8, 8), 10, 0).state_dict())  # in the order of its vector
    private_tree = RunRecord(private).tree
    for cluster in RunRecord(plain).tree.clusters.values():
        for client, update in cluster.edge.items():
            stored = private_tree.clusters[cluster.name].edge[client]
            parts = np.split(update, np.cumsum([model[key].size for key in keys])[:-1])
            arrays = {k: part.reshape(model[k].shape) for k, part in zip(keys, parts, strict=True)}
            moved = permuted(arrays, SEED)
            expected = np.concatenate([moved[key].reshape(-1) for key in keys])
            np.testing.assert_allclose(stored, expected, atol=1e-5, rtol=0)
            assert (stored == update).mean() < 0.2  # most of those are zeros
    held = [p for p in private.rglob("*") if p.is_file()]
    assert not [path for path in held if SEED in path.read_bytes()]


@pytest.mark.slow
def test_a_client_gets_its_true_model_and_a_newcomer_its_cluster(runs, tmp_path):
    plain, private = runs
    seed_file, other = str(private.parents[1] / "seed"), tmp_path / "other"
    other.write_bytes(b"fedcba9876543210")
    true = load_file(export(plain, client="partition-0", output=tmp_path / "plain"))
    back = export(private, client="partition-0", output=tmp_path / "back", seed_file=seed_file)
    for key, array in load_file(back).items():
        np.testing.assert_allclose(array, true[key], atol=1e-5, rtol=0)
    config = RunConfig.read(json.loads((plain / "config.json").read_text())["config"])
    newcomer = load_client_data(config.part(DataSettings), 0, 8)
    ways = [assign(plain, newcomer), assign(private, newcomer, seed_file=seed_file)]
    assert ways[0].cluster == ways[1].cluster
    for one, two in zip(*(way.levels[:-1] for way in ways), strict=True):
        assert one.step is not None
        assert two.step is not None
        assert two.step.similarities == pytest.approx(one.step.similarities, abs=1e-5)
    with pytest.raises(ConfigError, match="are permuted: give --seed-file"):
        export(private, client="partition-0", output=tmp_path / "none")
    with pytest.raises(ConfigError, match="is not the seed file of the run"):
        export(private, client="partition-0", output=tmp_path / "none", seed_file=str(other))
    with pytest.raises(ConfigError, match="are not permuted"):
        export(plain, client="partition-0", output=tmp_path / "none", seed_file=seed_file)
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_run_is_not_resumed_with_another_seed(runs, tmp_path):
    (tmp_path / "seed").write_bytes(b"fedcba9876543210")
    keys = {"privacy": "permutation", "seed-file": str(tmp_path / "seed"), "num-server-rounds": 9}
    with pytest.raises(RunFolderError, match="permuted with another seed"):
        run(runs[1].parent, resume=str(runs[1]), **keys)


def test_layers_of_permuted_weights_and_a_useless_seed_file_are_refused():
    with pytest.raises(ConfigError, match="cannot distinguish layers"):
        RunConfig(privacy="permutation", similarity_layers="conv*")
    with pytest.raises(ConfigError, match="has no effect with privacy='none'"):
        RunConfig(seed_file="/its/seed")


def test_a_private_run_without_a_seed_is_refused(tmp_path):
    with pytest.raises(FederationError, match="needs a secret that all clients share"):
        run(tmp_path / "runs", privacy="permutation")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("server_round", "factor", "refusal"),
    [
        (1, 1.0, ""),
        (1, 1.01, "the first model is not the one"),
        (2, 1.01, ""),
        (2, 0.5, "norm is"),
        (2, 0.0, "norm is 0,"),
        (2, np.nan, "norm is nan"),
    ],
)
def test_a_client_trains_no_model_that_reveals_the_order(server_round, factor, refusal, tmp_path):
    (tmp_path / "seed").write_bytes(SEED)
    keys = {**KEYS, "privacy": "permutation", "seed-file": str(tmp_path / "seed")}
    grid = InlineGrid(client_app, 8, RunConfig.read(keys).as_keys())

    def answered(kind, content):
        message = Message(RecordDict(content), FIRST_NODE_ID, kind)
        (reply,) = grid.send_and_receive([message])
        return reply

    first = answered("query.first_model", {}).content["arrays"]
    sent = {key: Array((factor * array.numpy()).astype("f4")) for key, array in first.items()}
    config = ConfigRecord({"server-round": server_round})
    reply = answered("train", {"arrays": ArrayRecord(sent), "config": config})
    assert reply.has_error() is bool(refusal)
    assert not refusal or refusal in reply.error.reason


def test_one_client_with_another_first_model_does_not_end_a_private_run(tmp_path):
    def app(message, context):
        reply = client_app(message, context)
        first = message.metadata.message_type == "query.first_model"
        if first and context.node_config["partition-id"] == 0:
            (arrays,) = reply.content.array_records.values()
            for key, array in arrays.items():
                arrays[key] = Array(array.numpy() + 1)
        return reply

    (tmp_path / "seed").write_bytes(SEED)
    keys = {"privacy": "permutation", "seed-file": str(tmp_path / "seed"), "num-server-rounds": 2}
    keys |= {"min-available-nodes": 4, "seed": 2}  # with which this client is asked
    config = RunConfig.read({**KEYS, **keys, "output-dir": str(tmp_path / "runs")}).as_keys()
    simulate(app, 8, server_app=partial(server_app.run, say=None), run_config=config)
    (path,) = (tmp_path / "runs").iterdir()
    summary = json.loads((path / "summary.json").read_text())
    assert summary["finished"] and not summary["problems"]
    assert sorted(summary["clients"]) == [f"partition-{i}" for i in range(1, 8)]
