"""`PermutationMod` over whole runs with ClientApps in NumPy, alone and with Flower's own mods."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from cflower import PermutationMod
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.errors import FederationError
from cflower.messages.client_names import answer
from cflower.messages.layout import Layout
from cflower.messages.roll_call import RollCall
from cflower.privacy.agreement import ask_first_model, seed_check
from cflower.privacy.permutation import permuted
from cflower.seeding import generator
from cflower.simulation.inline_grid import InlineGrid
from tests.strategy.quadratics import Quadratics, clusters_of, initial_arrays, strategy_of

SEED = b"the secret of these clients"
NUM_CLIENTS = 6


def first_model(statistics=True):
    rng = generator(0, "first")
    zeros = numpy_of(initial_arrays(statistics)).items()
    return {key: rng.normal(size=array.shape).astype(array.dtype) for key, array in zeros}


def record(model):
    return ArrayRecord({key: Array(array) for key, array in model.items()})


def numpy_of(arrays):
    return {key: array.numpy() for key, array in arrays.items()}


def app_of(mods=(), train_mods=(), seeds=None):
    """Quadratic clients, even ones in one group; each with the seed file named for it."""
    clients, app = Quadratics((0, 1) * 3), ClientApp(mods=[at_node(seeds or {}), *mods])

    @app.query("first_model")
    def first(message, context):
        return Message(RecordDict({"arrays": record(first_model())}), reply_to=message)

    @app.train(mods=list(train_mods))
    def train(message, context):
        reply = clients._train(message, context)
        arrays = reply.content["arrays"]  # Flower's mods want them in the order of the message
        order = {key: arrays[key] for key in message.content["arrays"]}
        reply.content["arrays"] = ArrayRecord(order)
        return reply

    app.query("roll_call")(clients._answer)
    app.evaluate()(clients._evaluate)
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


def run(app, model, config=None):
    criterion = NormCriterion(eps1=0.3, eps2=0.6, gamma_max=0.0)
    strategy = strategy_of(criterion=criterion, fraction_evaluate=0.0)
    grid = InlineGrid(app, NUM_CLIENTS, {})
    strategy.start(grid, record(model), 12, train_config=ConfigRecord(config or {}))
    return strategy


def assert_the_same(plain, private):
    """The private run's tree is the plain one's, its models permuted."""
    assert clusters_of(private) == clusters_of(plain)
    assert list(private.tree.clusters) == list(plain.tree.clusters)
    for name, cluster in plain.tree.clusters.items():
        other = private.tree.clusters[name]
        assert other.split_round == cluster.split_round
        stored, model = private.layout.arrays(other.model), plain.layout.arrays(cluster.model)
        for key, array in permuted(stored, SEED, back=True).items():
            np.testing.assert_allclose(array, model[key], atol=1e-5, rtol=0)
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
        model = first_model(statistics=kind == "alone")  # Flower's mods would clip them too
        runs.append(run(app, permuted(model, SEED) if private else model, clipping))
    plain, private = runs
    assert len(plain.tree.leaves) == 2
    assert_the_same(plain, private)
    for name, result in plain.final_report.clients.items():
        loss = private.final_report.clients[name].leaf.metrics["loss"]
        assert loss == pytest.approx(result.leaf.metrics["loss"], abs=1e-4)


def test_the_mod_changes_nothing_without_a_seed_file():
    plain, with_mod = run(app_of(), first_model()), run(app_of([PermutationMod()]), first_model())
    for name, cluster in plain.tree.clusters.items():
        other = with_mod.tree.clusters[name]
        np.testing.assert_array_equal(other.model.trained, cluster.model.trained)


def gathered(app, num_clients=NUM_CLIENTS):
    """A roll call of an app's clients, and their grid."""
    roll_call, grid = RollCall(timeout=5), InlineGrid(app, num_clients, {})
    roll_call.gather(grid, 1)
    return roll_call, grid


def first_model_of(app, num_clients=NUM_CLIENTS):
    roll_call, grid = gathered(app, num_clients)
    return numpy_of(ask_first_model(grid, roll_call, Layout.of(record(first_model()))))


def test_the_first_model_comes_permuted_from_a_client(seeds):
    came = first_model_of(app_of([PermutationMod()], seeds=seeds))
    for key, array in permuted(came, SEED, back=True).items():
        np.testing.assert_array_equal(array, first_model()[key])
    assert (came["w"] == first_model()["w"]).sum() < 8


def test_the_error_names_the_reason_if_no_client_has_a_first_model():
    with pytest.raises(FederationError, match=r"the last one asked: the reply of 100. is an error"):
        first_model_of(ClientApp(), 2)


def named_answers(others, num_clients, silent=()):
    """The first model of a federation in which ``others`` send a model of their own; who is out."""

    def answers(message, context):
        client = context.node_config["partition-id"]
        if message.metadata.message_type == "query.first_model":
            model = first_model()
            if client in silent:
                raise ValueError("boom")
            if client in others:
                model["w"] = model["w"] + others[client]
            rounding = np.float32(1 + 1e-6 * client)  # of another processor
            model["b"] = model["b"] * rounding
            return Message(RecordDict({"arrays": record(model)}), reply_to=message)
        return answer(message, client_id=f"partition-{client}")

    roll_call, grid = gathered(answers, num_clients)
    came = ask_first_model(grid, roll_call, Layout.of(record(first_model())))
    return numpy_of(came)["w"] - first_model()["w"], roll_call


@pytest.mark.parametrize("others", [{0: 1.0}, {3: 1.0}, {0: 1.0, 1: 1.0}, {0: 1.0, 1: -1.0}])
def test_the_first_model_is_that_of_most_clients_and_the_others_take_no_part(others):
    difference, roll_call = named_answers(others, 5)
    np.testing.assert_array_equal(difference, 0)
    refused = {refusal.client: refusal.reason for refusal in roll_call.refused.values()}
    assert set(refused) == {f"partition-{client}" for client in others}
    assert all("is not that of most clients" in reason for reason in refused.values())
    assert not set(roll_call.clients) & set(refused)


def test_more_clients_are_asked_until_most_agree():
    others = dict.fromkeys(range(4), 1.0)
    difference, roll_call = named_answers(others, 20, silent=range(4, 8))
    np.testing.assert_array_equal(difference, 0)
    refused = {refusal.client for refusal in roll_call.refused.values()}
    assert refused <= {f"partition-{client}" for client in others}
    difference, _ = named_answers({}, 5, silent=range(1, 5))  # one alone
    np.testing.assert_array_equal(difference, 0)


def test_clients_of_which_no_most_agree_begin_no_run():
    with pytest.raises(
        FederationError, match=r"first models differ: partition-. against partition-"
    ):
        named_answers({0: 1.0}, 2)


def test_the_roll_call_reports_seeds_that_differ_or_cannot_be_read(seeds, tmp_path):
    (tmp_path / "other").write_bytes(b"the secret of other clients")
    (tmp_path / "short").write_bytes(b"secret")
    seeds |= {2: tmp_path / "other", 3: tmp_path / "short", 4: tmp_path / "missing"}
    del seeds[5]
    roll_call, _ = gathered(app_of([PermutationMod()], seeds=seeds))
    refused = {refusal.client: refusal.reason for refusal in roll_call.refused.values()}
    assert "holds 6 bytes" in refused["partition-3"]
    assert "No such file" in refused["partition-4"]
    facts = [roll_call.facts[name] for name in roll_call.clients]
    problems = seed_check(facts, permuted=True)
    assert [problems(one) != "" for one in facts] == [False, False, True, True]
    assert "its seed differs" in problems(roll_call.facts["partition-2"])
    assert "it has none" in problems(roll_call.facts["partition-5"])
    plain = seed_check(facts, permuted=False)
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


def test_a_first_model_that_does_not_fit_is_skipped(caplog):
    def answers(message, context):
        model = first_model()
        if context.node_config["partition-id"] == 0:
            model["w"] = np.full((3, 4), np.nan, np.float32)
        if message.metadata.message_type == "query.first_model":
            return Message(RecordDict({"arrays": record(model)}), reply_to=message)
        return answer(message, client_id=f"partition-{context.node_config['partition-id']}")

    np.testing.assert_array_equal(first_model_of(answers, 2)["w"], first_model()["w"])
    assert "partition-0 has NaN or infinity in w" in caplog.text
