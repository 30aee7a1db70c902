import json

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from cflower.errors import FederationError
from cflower.messages.failures import (
    PATIENCE,
    ExchangeOutcome,
    FailureRecord,
    Fault,
    Problem,
    fault_of,
)
from tests.strategy.quadratics import Quadratics, Reports, initial_arrays, strategy_of

GROUPS = (0, 1, 0, 1, 0, 1)
BAD = Problem("is bad")


def answers(heard=(), bad=(), absent=(), dead=()):
    problems = dict.fromkeys(bad, BAD)
    problems |= dict.fromkeys(absent, Problem("did not come", Fault.ABSENT))
    problems |= dict.fromkeys(dead, Problem("is an error: ActorDiedError", Fault.WORKER))
    return ExchangeOutcome(tuple(heard), problems)


def record_of(*rounds, exclude_after=3, present=4):
    failures = FailureRecord()
    for one in rounds:
        failures = failures.trained(one, exclude_after, present)
    return failures


# ------------------------------------------------------------------- who is excluded, and when


def test_bad_replies_are_counted_and_absences_are_not():
    failures = record_of(answers("ab", bad="c", absent="d", dead="e"), answers("abc", bad="d"))
    assert failures.problems == {"c": 1, "d": 1}
    assert failures.noted({"c": BAD, "x": BAD}) == {"c": 2, "d": 1, "x": 1}


@pytest.mark.parametrize("after", [1, 2, 5])
def test_so_many_bad_replies_in_a_row_exclude(after):
    rounds = [answers("ab", bad="c")] * after
    assert record_of(*rounds[1:], exclude_after=after).excluded == {}
    told = f"{after} unusable replies in a row; the last one is bad"
    assert record_of(*rounds, exclude_after=after).excluded == {"c": told}


def test_one_good_reply_starts_the_count_anew_and_an_absence_does_not():
    bad, good = answers("a", bad="c"), answers("ac")
    away, dead = answers("a", absent="c"), answers("a", dead="c")
    assert record_of(bad, bad, good, bad, bad).excluded == {}
    assert set(record_of(bad, away, bad, dead, bad).excluded) == {"c"}


def test_a_second_reply_is_noted_but_the_client_was_heard():
    twice = ExchangeOutcome(("a", "c"), {"c": Problem("came twice")})
    failures = record_of(*[twice] * 9)
    assert failures.problems == {"c": 9}
    assert failures.excluded == {}


def test_zero_never_excludes():
    assert record_of(*[answers("a", bad="c")] * 50, exclude_after=0).excluded == {}


# ----------------------------------------------------------------------- when a run must stop


def stops(failures, last, server_round=9, simulated=True):
    return failures.must_stop(last, server_round, simulated=simulated)


def test_nothing_useful_in_the_first_round_or_in_several_stops():
    nothing, some = answers(bad="abcd"), answers("a", bad="b")
    assert "c: " not in stops(record_of(nothing), nothing, 1)
    assert stops(record_of(nothing), nothing, 1) == (
        "No usable reply in round 1. a: the reply is bad"
    )
    assert stops(record_of(some, nothing, nothing), nothing) == ""
    assert "No usable reply" in stops(record_of(some, *[nothing] * PATIENCE), nothing)
    assert stops(record_of(*[nothing] * 2, some, *[nothing] * 2), nothing) == ""


def test_one_bad_client_that_is_asked_alone_stops_nothing_unless_it_is_the_only_one():
    alone = answers(bad="a")
    assert stops(record_of(*[alone] * 9, exclude_after=0), alone, 1) == ""
    assert stops(record_of(alone, present=1), alone, 1) != ""


def test_most_of_a_simulations_replies_failing_in_several_rounds_stops_it():
    most, half = answers("ab", bad="cde"), answers("abc", bad="def")
    assert stops(record_of(most, most), most) == ""
    told = stops(record_of(*[most] * 3), most)
    assert told == "Most replies failed in 3 rounds in a row, up to round 9. c: the reply is bad"
    assert stops(record_of(*[most] * 3), most, simulated=False) == ""
    assert stops(record_of(*[half] * 9, exclude_after=0), half) == ""
    away = answers("ab", absent="cdefgh")
    assert stops(record_of(*[away] * 9), away) == ""


@pytest.mark.parametrize("simulated", [True, False])
def test_a_dead_worker_stops_at_once(simulated):
    last = answers("a", dead="bcdefghij")
    told = stops(record_of(last), last, 4, simulated)
    assert told.startswith("The run stops in round 4: 9 of 10 replies failed because a worker")
    assert "ActorDiedError" in told
    assert stops(record_of(answers("ab", dead="cd")), answers("ab", dead="cd")) == ""


def test_a_run_in_which_nothing_was_aggregated_is_no_success():
    alone, some = answers(bad="a"), answers("a", bad="b")
    fruitless = record_of(*[alone] * 2)
    assert "No round brought a usable reply" in fruitless.must_not_end(simulated=False)
    ended_badly = record_of(some, answers(bad="abcd"), some, answers(bad="abcd"))
    assert ended_badly.rounds_with_replies == 2
    assert "last 1 round(s)" in ended_badly.must_not_end(simulated=True)
    assert ended_badly.must_not_end(simulated=False) == ""
    assert record_of(answers(bad="abcd"), some).must_not_end(simulated=True) == ""


def test_everyone_excluded_is_told():
    failures = record_of(answers(bad="ab"), exclude_after=1)
    assert "Excluded: a, b" in stops(failures, answers(), 1)


# ------------------------------------------------------------------------------ codes, records


@pytest.mark.parametrize(
    ("code", "fault"),
    [(0, Fault.WORKER), (1, Fault.CLIENT), (2, Fault.CLIENT), (8, Fault.CLIENT)]
    + [(code, Fault.ABSENT) for code in (3, 4, 5)],
)
def test_flowers_error_codes_tell_whose_fault_it_is(code, fault):
    request = Message(RecordDict(), 7, "train")
    request.metadata.__dict__["_message_id"] = "request"
    assert fault_of(Message(Error(code, "x"), reply_to=request)) is fault
    assert fault_of(Message(RecordDict(), reply_to=request)) is Fault.CLIENT


def test_the_record_survives_json():
    failures = record_of(answers("ab", bad="c"), answers(bad="abcd"))
    assert FailureRecord(**json.loads(json.dumps(failures.as_json()))) == failures


# --------------------------------------------------------------------------------- whole runs


def died(message, content, server_round):
    return Message(Error(0, "<class 'ray.exceptions.ActorDiedError'>:<'...'>"), reply_to=message)


def dead_from(start):
    def spoil(message, content, server_round):
        if server_round >= start:
            return died(message, content, server_round)
        return Message(content, reply_to=message)

    return spoil


@pytest.mark.parametrize("start", [1, 3, 10])
def test_a_run_whose_worker_dies_stops_with_that_reason_in_any_round(start):
    clients = Quadratics(GROUPS, spoil=dict.fromkeys(range(1, 6), dead_from(start)))
    strategy = strategy_of()
    with pytest.raises(FederationError, match=rf"round {start}: 5 of 6 .*ActorDiedError"):
        strategy.start(clients.grid(), initial_arrays(), num_rounds=10)
    assert strategy.failures.excluded == {}


def test_a_worker_that_dies_in_the_closing_evaluation_stops_the_run_too():
    clients = Quadratics(GROUPS, spoil_evaluate=dict.fromkeys(range(1, 6), died))
    with pytest.raises(FederationError, match=r"final evaluation: 5 of 6"):
        strategy_of(fraction_evaluate=0.0).start(clients.grid(), initial_arrays(), 4)


def test_a_simulation_whose_last_rounds_all_fail_does_not_complete():
    def fails_from_9(message, content, server_round):
        if server_round >= 9:
            raise ValueError("full")
        return Message(content, reply_to=message)

    clients = Quadratics(GROUPS, spoil=dict.fromkeys(range(6), fails_from_9))
    with pytest.raises(FederationError, match=r"last 2 round\(s\) brought no usable reply"):
        strategy_of().start(clients.grid(), initial_arrays(), num_rounds=10)


def test_an_excluded_client_is_not_asked_and_holds_up_no_split():
    def nan(message, content, server_round):
        content["metrics"]["num-examples"] = float("nan")
        return Message(content, reply_to=message)

    groups, reports = (0, 1, 0, 1), Reports()  # 3 of 4 are less than the heard-share of 0.8
    clients = Quadratics(groups, spoil={0: nan})
    strategy = strategy_of(exclude_after=2, observers=[reports])
    strategy.start(clients.grid(), initial_arrays(), num_rounds=12)
    asked = [seen.server_round for seen in clients.seen if seen.client == 0]
    assert max(asked) == 2
    assert "it is excluded from now on" in reports[1].problems["partition-0"]
    assert [report.failures.problems["partition-0"] for report in reports[:4]] == [1, 2, 2, 2]
    leaves = {leaf.members for leaf in strategy.tree.leaves}
    assert {frozenset(m) - {"partition-0"} for m in leaves} == {
        frozenset({"partition-2"}),
        frozenset({"partition-1", "partition-3"}),
    }
    assert strategy.tree.clients == tuple(f"partition-{i}" for i in range(4))


# ------------------------------------------------------------------- updates out of line


def scaled(factor, rounds=range(1, 99)):
    def spoil(message, content, server_round):
        if server_round in rounds:
            for key, array in message.content["arrays"].items():
                start = array.numpy()
                update = factor * (content["arrays"][key].numpy() - start)
                content["arrays"][key] = type(array)((start + update).astype(np.float32))
        return Message(content, reply_to=message)

    return spoil


def play(ratio, spoil, groups=(0, 0, 0, 0, 0, 0), rounds=4):
    reports = Reports()
    settings = {"exclude_after": 0, "min_available_nodes": 1, "observers": [reports]}
    strategy = strategy_of(max_norm_ratio=ratio, **settings)
    strategy.start(Quadratics(groups, spoil=spoil).grid(), initial_arrays(), num_rounds=rounds)
    return strategy, reports


@pytest.mark.parametrize("client", range(6))
def test_an_update_far_out_of_line_is_set_aside_even_in_the_first_round(client):
    strategy, reports = play(5.0, {client: scaled(100)})
    without, _ = play(0.0, {client: lambda *_: None})
    for report in reports:
        assert list(report.problems) == [f"partition-{client}"]
        assert "more than 5 times" in report.problems[f"partition-{client}"]
    np.testing.assert_allclose(
        strategy.tree.root.model.trained, without.tree.root.model.trained, rtol=1e-6
    )


def test_without_the_setting_only_what_is_not_finite_is_set_aside():
    _, reports = play(0.0, {1: scaled(100), 2: scaled(1e25)}, rounds=2)
    assert [list(report.problems) for report in reports] == [["partition-2"]] * 2
    assert "too long for its norm to be finite" in reports[0].problems["partition-2"]


@pytest.mark.parametrize("groups", [(0,), (0, 1), (0, 1, 2, 0, 1, 2, 1)])
def test_what_is_in_line_passes_in_clusters_of_any_size(groups):
    with_it, reports = play(10.0, {}, groups, rounds=12)
    without, _ = play(0.0, {}, groups, rounds=12)
    assert all(report.problems == {} for report in reports)
    assert [c.members for c in with_it.tree.leaves] == [c.members for c in without.tree.leaves]
