"""No client moves its cluster's model further than a few usual ones."""

from logging import INFO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from cflower.algorithm.robust_mean import LASTING, LONGEST, MOST, Influence
from cflower.algorithm.state import KnownUpdate
from cflower.algorithm.tree import ParameterTree, Weights
from cflower.messages.layout import Layout
from cflower.messages.messenger import ClientMessenger, Keys
from cflower.messages.replies import ClientMetrics, TrainReply
from cflower.messages.roll_call import RollCall
from tests.strategy.quadratics import Quadratics, Reports, initial_arrays, strategy_of

TRAINED = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
CARRYING = ArrayRecord(
    {
        "w": Array(np.zeros(4, np.float32)),
        "running_mean": Array(np.zeros(2, np.float32)),
        "num_batches_tracked": Array(np.zeros((), np.int64)),
    }
)


def reply(client, length, examples=100.0, carried=()):
    trained = np.array([length, 0, 0, 0], np.float32)
    norm = float(length)
    return TrainReply(
        f"c{client}", Weights(trained, np.array(carried, float)), norm, ClientMetrics({}, examples)
    )


def sifted(*replies, model=TRAINED, known=(), ratio=0.0, weight=float, members=None, most=MOST):
    layout = Layout.of(model)
    members = members or tuple(f"c{i}" for i in range(len(replies)))
    tree = ParameterTree.initial(layout.weights(model), members)
    aside = {}
    influence = Influence(tree, dict(known), layout, weight, ratio, most)
    admitted = {one.reply.client: one for one in influence.sift(replies, aside.__setitem__)}
    return admitted, aside, influence.lowered


def pull(admitted, examples=100.0):
    return float(np.linalg.norm(admitted.reply.update.trained)) * examples * admitted.share


def test_what_is_usual_passes_unchanged_and_in_its_order():
    replies = [reply(i, 1 + 0.1 * i, 100 + i) for i in range(8)]
    admitted, aside, lowered = sifted(*replies)
    assert [one.reply for one in admitted.values()] == replies
    assert {one.share for one in admitted.values()} == {1.0}
    assert (aside, lowered) == ({}, {})


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize(("length", "examples"), [(100, 100), (1, 1e12), (1e30, 1e12), (3, 200)])
def test_nobody_pulls_harder_than_a_few_usual_ones(place, length, examples):
    replies = [reply(i, 1.0) for i in range(6)]
    replies[place] = reply(place, length, examples)
    admitted, aside, _ = sifted(*replies)
    odd = admitted.pop(f"c{place}")
    used = float(np.linalg.norm(odd.reply.update.trained))
    assert used == pytest.approx(min(length, LONGEST))
    assert pull(odd, examples) <= MOST * 100 * (1 + 1e-6)
    assert odd.reply.norm == length  # as it is, for eq. 33
    assert aside == {} and {one.share for one in admitted.values()} == {1.0}


def test_a_fifth_of_the_clients_pull_less_than_the_others_together():
    replies = [reply(i, 1.0) for i in range(16)] + [reply(i, 50, 1e12) for i in range(16, 20)]
    admitted, _, lowered = sifted(*replies)
    pulls = [pull(admitted[r.client], r.measured.num_examples) for r in replies]
    assert sum(pulls[16:]) == pytest.approx(sum(pulls[:16]) * 3 / 4)
    assert set(lowered) == {f"c{i}" for i in range(16, 20)}


def test_in_a_small_cluster_nobody_has_more_than_a_quarter_or_its_part():
    admitted, _, _ = sifted(reply(0, 1.0), reply(1, 1.0), reply(2, 1.0, 1e12))
    assert pull(admitted["c2"], 1e12) == pytest.approx(100)
    admitted, _, _ = sifted(*(reply(i, 1.0) for i in range(6)), reply(6, 1.0, 1e12))
    assert pull(admitted["c6"], 1e12) == pytest.approx(200)


def test_ten_times_the_examples_still_count_for_more():
    replies = [reply(0, 1.0, 1000), *(reply(i, 1.0) for i in range(1, 10))]
    admitted, _, lowered = sifted(*replies)
    assert pull(admitted["c0"], 1000) == pytest.approx(300)
    assert lowered == {"c0": pytest.approx(0.3)}


@pytest.mark.parametrize("most", [MOST, 30.0, 100.0])
def test_who_asks_for_it_hears_a_large_client_as_that_many_of_ten(most):
    replies = [reply(0, 1.0, 10_000), *(reply(i, 1.0) for i in range(1, 10))]
    admitted, _, _ = sifted(*replies, most=most)
    assert pull(admitted["c0"], 10_000) == pytest.approx(100 * most)


def test_who_trusts_the_clients_has_eq_2_as_it_is():
    replies = [reply(i, 1.0, carried=(0, 0, 5)) for i in range(5)]
    replies.append(reply(5, 1000, 1e9, (1e9, 0, 5)))
    admitted, _, lowered = sifted(*replies, model=CARRYING, most=0.0)
    assert sorted(admitted) == [one.client for one in replies]
    for one in replies:
        for now, before in zip(admitted[one.client].reply.update, one.update, strict=True):
            np.testing.assert_array_equal(now, before)
        assert admitted[one.client].share == 1.0
    assert lowered == {}
    _, aside, _ = sifted(*replies, model=CARRYING, most=0.0, ratio=10.0)
    assert list(aside) == ["c5"]


def test_where_all_weigh_the_same_only_the_length_counts():
    replies = [reply(i, 1.0, 10.0**i) for i in range(6)]
    admitted, _, lowered = sifted(*replies, weight=lambda examples: 1.0)
    assert {one.share for one in admitted.values()} == {1.0}
    assert lowered == {}


def test_what_is_known_of_absent_members_counts():
    origin = np.zeros(4)
    known = {f"c{i}": KnownUpdate(1, origin, 1.0, 100, origin) for i in range(5)}
    members = tuple(f"c{i}" for i in range(6))
    admitted, _, _ = sifted(reply(5, 100.0), known=known.items(), members=members)
    assert float(np.linalg.norm(admitted["c5"].reply.update.trained)) == pytest.approx(LONGEST)
    assert admitted["c5"].share == pytest.approx(1 / LONGEST)  # in the mean it has the usual length


@pytest.mark.parametrize("size", [1, 2])
def test_of_one_or_two_nobody_can_tell_who_is_right(size):
    replies = [reply(i, 10.0**i) for i in range(size)]
    admitted, _, _ = sifted(*replies)
    assert [one.reply for one in admitted.values()] == replies


def test_statistics_that_are_not_trained_are_bounded_each_by_itself():
    replies = [reply(i, 1.0, carried=(0.1, -0.1, 5.0)) for i in range(6)]
    replies[2] = reply(2, 1.0, carried=(1e30, 1e30, 5.0))
    admitted, _, _ = sifted(*replies, model=CARRYING)
    carried = admitted["c2"].reply.update.carried
    usual = np.hypot(0.1, 0.1)
    assert np.linalg.norm(carried[:2]) == pytest.approx(MOST * usual)
    assert carried[2] == 5.0
    for one in (r for name, r in admitted.items() if name != "c2"):
        np.testing.assert_array_equal(one.reply.update.carried, (0.1, -0.1, 5.0))


def test_the_first_statistics_of_a_round_wait_for_others_although_lengths_are_known():
    origin = np.zeros(4)
    known = {f"c{i}": KnownUpdate(1, origin, 1.0, 100, origin) for i in range(6)}
    replies = [reply(i, 1.0, carried=(0.1, -0.1, 5.0)) for i in range(1, 6)]
    spoilt = reply(0, 1.0, carried=(1e30, 1e30, 5.0))
    admitted, _, _ = sifted(spoilt, *replies, model=CARRYING, known=known.items())
    assert np.linalg.norm(admitted["c0"].reply.update.carried[:2]) < 1


def test_updates_in_line_are_not_kept_waiting_for_the_rest():
    seen = []

    def arriving():
        for i in range(20):
            seen.append(i)
            yield reply(i, 100.0 if i == 5 else 1.0)

    layout = Layout.of(TRAINED)
    tree = ParameterTree.initial(layout.weights(TRAINED), [f"c{i}" for i in range(20)])
    influence = Influence(tree, {}, layout, float)
    order = [(one.reply.client, len(seen)) for one in influence.sift(arriving(), None)]
    assert order[0] == ("c0", 4) and order[-1] == ("c5", 20)
    assert all(count - i <= 5 for i, (_, count) in enumerate(order))


def hostile(factor, examples):
    def spoil(message, content, server_round):
        for key, array in content["arrays"].items():
            start = message.content["arrays"][key].numpy()
            content["arrays"][key] = Array(
                (start + factor * (array.numpy() - start)).astype(np.float32)
            )
        content["metrics"]["num-examples"] = examples
        return type(message)(content, reply_to=message)

    return spoil


@pytest.mark.parametrize(
    ("factor", "examples"), [(-1, 10**12), (-10, 12), (-100, 10**9), (1e30, 12), (100, 10**12)]
)
def test_the_others_reach_their_optimum_with_the_defaults(factor, examples, caplog):
    groups, reports = (0,) * 8, Reports()
    clients = Quadratics(groups, spoil={7: hostile(factor, examples)})
    strategy = strategy_of(criterion=None, observers=[reports], exclude_after=0)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=25)
    honest = [strategy.final_report.clients[f"partition-{i}"] for i in range(7)]
    assert max(client.leaf.metrics["loss"] for client in honest) < 0.2
    if factor < 1e9:
        assert "Client(s) partition-7 count for far less than they claim" in caplog.text


def test_who_stands_out_is_told_of_and_who_does_so_for_long_is_warned_of(caplog):
    caplog.set_level(INFO)
    messenger = ClientMessenger(RollCall(), Keys())
    heard, said = ["a", "b", "c"], []

    def rounds(number, lowered):
        for _ in range(number):
            caplog.clear()
            messenger.tell_lowered(lowered, heard, 3)
            said.extend((r.levelname, r.getMessage().partition(":")[0]) for r in caplog.records)

    rounds(LASTING - 1, {"a": 0.3})
    rounds(1, {})  # in line again
    rounds(LASTING - 1, {"a": 0.3})
    some = "count for less than they claim, down to"
    assert said == [("INFO", f"Client(s) a {some} 0.3 of it")]
    rounds(5, {"a": 0.2})
    far = "count for far less than they claim, or less for long, down to"
    assert said[1:] == [("WARNING", f"Client(s) a {far} 0.2 of it")]
    rounds(5, {"a": 0.2, "b": 0.001, "c": 0.4})
    assert said[2:] == [
        ("INFO", f"Client(s) c {some} 0.4 of it"),
        ("WARNING", f"Client(s) b {far} 0.001 of it"),
    ]
