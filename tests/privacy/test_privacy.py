"""`PermutationMod` over whole runs with ClientApps in NumPy, alone and with Flower's own mods."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from cflower import PermutationMod
from cflower.algorithm.criteria import NormCriterion
from cflower.errors import FederationError
from cflower.messages.client_names import answer
from cflower.messages.layout import Layout
from cflower.messages.roll_call import RollCall
from cflower.privacy.permutation import permuted, turn_back
from cflower.privacy.permutation_mod import SeedAgreement, ask_first_model
from cflower.seeding import generator
from cflower.simulation.inline_grid import InlineGrid
from tests.strategy.quadratics import found, strategy_of

SEED = b"the secret of these clients"
SHAPES = {"w": (12, 8), "bn.running_mean": (6,), "b": (4,)}
CENTERS = generator(0, "centers").normal(size=(2, 100)).astype(np.float32)
NUM_CLIENTS = 6


def first_model(counters=True):
    rng = generator(0, "first")
    model = {key: rng.normal(size=shape).astype(np.float32) for key, shape in SHAPES.items()}
    return model | ({"bn.num_batches_tracked": np.zeros(3, np.int64)} if counters else {})


def record(model):
    return ArrayRecord({key: Array(array) for key, array in model.items()})


def numpy_of(arrays):
    return {key: array.numpy() for key, array in arrays.items()}


def app_of(mods=(), train_mods=(), seeds=None):
    """Quadratic clients, even ones in one group; each with the seed file named for it."""
    app = ClientApp(mods=[at_node(seeds or {}), *mods])

    @app.query("roll_call")
    def roll_call(message, context):
        name = f"partition-{context.node_config['partition-id']}"
        return answer(message, client_id=name, num_partitions=NUM_CLIENTS)

    @app.query("first_model")
    def first(message, context):
        return Message(RecordDict({"arrays": record(first_model())}), reply_to=message)

    @app.train(mods=list(train_mods))
    def train(message, context):
        client = context.node_config["partition-id"]
        model = numpy_of(message.content["arrays"])
        trained = np.concatenate([model["w"].ravel(), model["b"]])
        trained += 0.5 * (CENTERS[client % 2] - trained)
        model["w"], model["b"] = trained[:96].reshape(12, 8), trained[96:]
        model["bn.running_mean"] = np.arange(6, dtype=np.float32) * client
        if "bn.num_batches_tracked" in model:
            model["bn.num_batches_tracked"] += np.array([1, 2, 3])
        metrics = MetricRecord({"num-examples": 10 + client})
        content = RecordDict({"arrays": record(model), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        model = numpy_of(message.content["arrays"])
        center = CENTERS[context.node_config["partition-id"] % 2]
        distance = np.linalg.norm(np.concatenate([model["w"].ravel(), model["b"]]) - center)
        metrics = MetricRecord({"loss": float(distance), "num-examples": 2})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def at_node(seeds):
    """Puts each node's seed file into its node config, as its SuperNode would."""

    def mod(message, context, call_next):
        path = seeds.get(context.node_config["partition-id"])
        if path is not None:
            context.node_config["seed-file"] = str(path)
        return call_next(message, context)

    return mod


@pytest.fixture
def seeds(tmp_path):
    (tmp_path / "seed").write_bytes(SEED)
    return dict.fromkeys(range(NUM_CLIENTS), tmp_path / "seed")


def run(app, model, config=None, rounds=12):
    criterion = NormCriterion(eps1=0.6, eps2=1.2, gamma_max=0.0)
    strategy = strategy_of(criterion=criterion, fraction_evaluate=0.0)
    grid = InlineGrid(app, NUM_CLIENTS, {})
    strategy.start(grid, record(model), rounds, train_config=ConfigRecord(config or {}))
    return strategy


def assert_the_same(plain, private, atol=0.0):
    """The private run's tree is the plain one's, its models permuted."""
    assert found(private) == found(plain)
    assert {n: c.split_round for n, c in private.tree.clusters.items()} == {
        n: c.split_round for n, c in plain.tree.clusters.items()
    }
    for name, cluster in plain.tree.clusters.items():
        stored = private.layout.arrays(private.tree.clusters[name].model)
        model = plain.layout.arrays(cluster.model)
        back = turn_back(stored, SEED)
        for key, array in model.items():
            np.testing.assert_allclose(back[key], array, atol=atol, rtol=0)
        assert (stored["w"] == model["w"]).sum() < 8


MODS = {
    "alone": [],
    "clipping": [fixedclipping_mod],
    "local differential privacy": [LocalDpMod(2.0, 0.01, 1.0, 1e-5)],
}


@pytest.mark.parametrize("kind", MODS)
def test_a_private_run_is_the_plain_one_permuted(kind, seeds):
    clipping = {"clipping_norm": 2.0}
    runs = []
    for private in (False, True):
        # Flower's noise comes from NumPy's global generator.
        np.random.seed(0)  # noqa: NPY002
        mods = [PermutationMod()] if private else []
        app = app_of(mods, MODS[kind], seeds if private else None)
        model = first_model(counters=kind == "alone")  # Flower's mods cannot clip integers
        runs.append(run(app, permuted(model, SEED) if private else model, clipping))
    plain, private = runs
    assert len(plain.tree.leaves) == 2
    assert_the_same(plain, private, atol=1e-5)
    for name, result in plain.final_report.clients.items():
        told = private.final_report.clients[name]
        assert told.leaf.metrics["loss"] == pytest.approx(result.leaf.metrics["loss"], abs=1e-4)


def test_a_node_without_a_seed_file_sends_what_it_always_sent():
    plain, with_mod = run(app_of(), first_model()), run(app_of([PermutationMod()]), first_model())
    for name, cluster in plain.tree.clusters.items():
        np.testing.assert_array_equal(
            with_mod.tree.clusters[name].model.trained, cluster.model.trained
        )


def facts_of(seeds):
    roll_call = RollCall(timeout=5)
    grid = InlineGrid(app_of([PermutationMod()], seeds=seeds), NUM_CLIENTS, {})
    roll_call.gather(grid, 1)
    return roll_call, grid


def test_the_first_model_comes_permuted_from_a_client(seeds):
    roll_call, grid = facts_of(seeds)
    came = numpy_of(ask_first_model(grid, roll_call, Layout.of(record(first_model()))))
    for key, array in turn_back(came, SEED).items():
        np.testing.assert_array_equal(array, first_model()[key])
    assert (came["w"] == first_model()["w"]).sum() < 8


def test_when_nobody_has_a_first_model_the_reason_is_told():
    app = ClientApp()
    roll_call = RollCall(timeout=5)
    grid = InlineGrid(app, 2, {})
    roll_call.gather(grid, 1)
    with pytest.raises(FederationError, match="the last one asked: 1001 answered"):
        ask_first_model(grid, roll_call, Layout.of(record(first_model())))


def test_seeds_that_differ_or_cannot_be_read_are_told_in_the_roll_call(seeds, tmp_path):
    (tmp_path / "other").write_bytes(b"the secret of other clients")
    (tmp_path / "short").write_bytes(b"secret")
    seeds |= {2: tmp_path / "other", 3: tmp_path / "short", 4: tmp_path / "missing"}
    del seeds[5]
    roll_call, _ = facts_of(seeds)
    refused = {refusal.client: refusal.reason for refusal in roll_call.refused.values()}
    assert "holds 6 bytes" in refused["partition-3"]
    assert "No such file" in refused["partition-4"]
    told = [roll_call.facts[name] for name in roll_call.clients]
    problems = SeedAgreement.among(told, permuted=True).problem_with
    assert [problems(facts) != "" for facts in told] == [False, False, True, True]
    assert "its seed differs" in problems(roll_call.facts["partition-2"])
    assert "it has none" in problems(roll_call.facts["partition-5"])
    plain = SeedAgreement.among(told, permuted=False).problem_with
    assert "privacy = 'none'" in plain(roll_call.facts["partition-0"])
    assert plain(roll_call.facts["partition-5"]) == ""
    assert SEED.decode() not in str(roll_call.facts)


@pytest.mark.slow
def test_a_real_node_takes_no_path_from_the_server(tmp_path):
    (tmp_path / "seed").write_bytes(SEED)
    grid = InlineGrid(app_of([PermutationMod()]), 2, {"seed-file": str(tmp_path / "seed")})
    for context in grid._contexts.values():
        context.node_config["data-path"] = "/its/own"
    roll_call = RollCall(timeout=5)
    roll_call.gather(grid, 1)
    assert "permutation" not in roll_call.facts["partition-0"]


def test_a_first_model_that_does_not_fit_is_passed_over(caplog):
    def answers(message, context):
        model = first_model()
        if context.node_config["partition-id"] == 0:
            model["w"] = np.full((12, 8), np.nan, np.float32)
        if message.metadata.message_type == "query.first_model":
            return Message(RecordDict({"arrays": record(model)}), reply_to=message)
        return answer(message, client_id=f"partition-{context.node_config['partition-id']}")

    grid, roll_call = InlineGrid(answers, 2, {}), RollCall()
    roll_call.gather(grid, 2)
    came = numpy_of(ask_first_model(grid, roll_call, Layout.of(record(first_model()))))
    np.testing.assert_array_equal(came["w"], first_model()["w"])
    assert "the model of partition-0 has NaN or infinity in w" in caplog.text
