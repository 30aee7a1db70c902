import pytest
from flwr.app import Error, Message, RecordDict

from cflower.errors import FederationError
from cflower.messages.failures import (
    PATIENCE,
    BadReplyError,
    ExchangeOutcome,
    FailureRecord,
    Fault,
    Problem,
)
from cflower.messages.replies import content_of
from tests.strategy.quadratics import Quadratics, clusters_of, run, without

GROUPS = (0, 1, 0, 1, 0, 1)
BAD = Problem("is bad")


def outcome(responded=(), bad=(), absent=(), dead=()):
    problems = dict.fromkeys(bad, BAD)
    problems |= dict.fromkeys(absent, Problem("did not come", Fault.ABSENT))
    problems |= dict.fromkeys(dead, Problem("is an error: ActorDiedError", Fault.WORKER))
    return ExchangeOutcome(tuple(responded), problems)


def record_of(*rounds, exclude_after=3, present=4):
    failures = FailureRecord()
    for one in rounds:
        failures = failures.trained(one, exclude_after, present)
    return failures


def test_unusable_replies_are_counted_and_absences_are_not():
    failures = record_of(outcome("ab", bad="c", absent="d", dead="e"), outcome("abc", bad="d"))
    assert failures.problems == {"c": 1, "d": 1}
    assert failures.noted({"c": BAD, "x": BAD}).problems == {"c": 2, "d": 1, "x": 1}


@pytest.mark.parametrize(("after", "times"), [(1, "1 unusable reply"), (5, "5 unusable replies")])
def test_unusable_replies_in_a_row_exclude_a_client(after, times):
    rounds = [outcome("ab", bad="c")] * after
    assert record_of(*rounds[1:], exclude_after=after).excluded == {}
    assert record_of(*rounds * 10, exclude_after=0).excluded == {}  # zero is never
    excluded = record_of(*rounds, exclude_after=after).excluded
    assert excluded == {"c": f"{times} in a row; the last one is bad"}


def rounds_asked(answers, exclude_after=5):
    """The rounds in which a client is asked, given whether its replies to these are usable."""
    failures, asked, answers = FailureRecord(), [], list(answers)
    for server_round in range(1, 500):
        if "c" not in failures.excluded:
            if not answers:
                break
            asked.append(server_round)
            good = answers.pop(0)
            one = outcome("abc") if good else outcome("ab", bad="c")
        else:
            one = outcome("ab")
        failures = failures.trained(one, exclude_after, 3)
        assert ("c" in failures.absent) is bool(failures.counts("pauses") or failures.excluded)
    return asked


def test_an_excluded_client_is_asked_again_after_pauses_that_double_while_it_fails():
    assert rounds_asked(9 * [False]) == [1, 2, 3, 4, 5, 11, 22, 43, 84]
    assert rounds_asked([*5 * [False], True, True]) == [1, 2, 3, 4, 5, 11, 12]
    again = [*5 * [False], False, True, *5 * [False], True]  # a usable reply resets the pause
    assert rounds_asked(again) == [1, 2, 3, 4, 5, 11, 22, 23, 24, 25, 26, 27, 33]


def test_a_usable_reply_resets_the_count_and_an_absence_does_not():
    bad, good = outcome("a", bad="c"), outcome("ac")
    away, dead = outcome("a", absent="c"), outcome("a", dead="c")
    assert record_of(bad, bad, good, bad, bad).excluded == {}
    assert set(record_of(bad, away, bad, dead, bad).excluded) == {"c"}


def test_a_second_reply_is_counted_but_does_not_exclude():
    twice = ExchangeOutcome(("a", "c"), {"c": Problem("came twice")})
    failures = record_of(*[twice] * 9)
    assert (failures.problems, failures.excluded) == ({"c": 9}, {})


def stops(failures, last, server_round=9, simulated=True):
    return failures.must_stop(last, server_round, simulated=simulated)


def test_no_usable_reply_in_the_first_round_or_in_several_stops_the_run():
    nothing, some = outcome(bad="abcd"), outcome("a", bad="b")
    reason = stops(record_of(nothing), nothing, 1)
    assert reason == "No usable reply in round 1: the reply of 4 clients (a, b, c, d) is bad"
    assert stops(record_of(some, nothing, nothing), nothing) == ""
    assert "No usable reply" in stops(record_of(some, *[nothing] * PATIENCE), nothing)
    assert stops(record_of(*[nothing] * 2, some, *[nothing] * 2), nothing) == ""


def test_the_only_sampled_client_stops_nothing_unless_there_is_no_other():
    alone = outcome(bad="a")
    assert stops(record_of(*[alone] * 9, exclude_after=0), alone, 1) == ""
    assert stops(record_of(alone, present=1), alone, 1) != ""


def test_a_simulation_stops_when_most_replies_fail_in_several_rounds():
    most, half = outcome("ab", bad="cde"), outcome("abc", bad="def")
    assert stops(record_of(most, most), most) == ""
    reason = stops(record_of(*[most] * 3), most)
    assert reason == (
        "Most replies failed in 3 rounds in a row, up to round 9: the reply of 3 clients (c, d, e) "
        "is bad"
    )
    assert stops(record_of(*[most] * 3), most, simulated=False) == ""
    assert stops(record_of(*[half] * 9, exclude_after=0), half) == ""
    away = outcome("ab", absent="cdefgh")
    assert stops(record_of(*[away] * 9), away) == ""


def test_a_run_without_usable_replies_is_no_success():
    alone, some = outcome(bad="a"), outcome("a", bad="b")
    fruitless = record_of(*[alone] * 2)
    assert "No round brought a usable reply" in fruitless.must_not_end(simulated=False)
    ended_badly = record_of(some, outcome(bad="abcd"), some, outcome(bad="abcd"))
    assert ended_badly.rounds_with_replies == 2
    assert "last 1 round." in ended_badly.must_not_end(simulated=True)
    assert ended_badly.must_not_end(simulated=False) == ""
    assert record_of(outcome(bad="abcd"), some).must_not_end(simulated=True) == ""


def test_excluded_clients_are_named():
    failures = record_of(outcome(bad="ab"), exclude_after=1)
    assert "excluded are a, b" in stops(failures, outcome(), 1)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        *((0, Fault.WORKER), (1, Fault.CLIENT), (2, Fault.CLIENT), (8, Fault.CLIENT)),
        *((3, Fault.SILENT), (4, Fault.ABSENT), (5, Fault.ABSENT)),
    ],
)
def test_faults_follow_flowers_error_codes(code, fault):
    request = Message(RecordDict(), 7, "train")
    request.metadata.__dict__["_message_id"] = "request"
    with pytest.raises(BadReplyError) as caught:
        content_of(Message(Error(code, "x"), reply_to=request))
    assert caught.value.fault is fault


def errors_from(start, error):
    """Errors instead of replies from a round on."""

    def spoil(message, content, server_round):
        return Message(content if server_round < start else error, reply_to=message)

    return spoil


DEAD, FULL = Error(0, "<class 'ray.exceptions.ActorDiedError'>:<'...'>"), Error(2, "full")


@pytest.mark.parametrize(
    ("message", "failing", "spoil", "problem"),
    [
        ("train", 5, errors_from(1, DEAD), "round 1: 5 of 6 .*ActorDiedError"),
        ("train", 5, errors_from(10, DEAD), "round 10: 5 of 6 .*ActorDiedError"),
        ("evaluate", 5, errors_from(0, DEAD), "final evaluation: 5 of 6"),
        ("train", 6, errors_from(9, FULL), "No usable reply arrived in the last 2 rounds"),
    ],
)
def test_a_run_without_replies_ends_with_the_reason(message, failing, spoil, problem):
    spoils = {"train": {}, "evaluate": {}, message: dict.fromkeys(range(failing), spoil)}
    clients = Quadratics(GROUPS, spoil=spoils["train"], spoil_evaluate=spoils["evaluate"])
    with pytest.raises(FederationError, match=problem):
        run(clients, 10, fraction_evaluate=0.0)


def test_an_excluded_client_is_not_asked_and_delays_no_split():
    def nan(message, content, server_round):
        content["metrics"]["num-examples"] = float("nan")
        return Message(content, reply_to=message)

    clients = Quadratics((0, 1, 0, 1), spoil={0: nan})  # 3 of 4 are less than heard_share = 0.8
    strategy, _, reports = run(clients, exclude_after=2)
    asked = [seen.server_round for seen in clients.seen if (seen.kind, seen.client) == ("train", 0)]
    assert asked == [1, 2, 8]
    assert "it is not asked for some rounds" in reports[1].problems["partition-0"]
    assert [report.failures.problems["partition-0"] for report in reports[:4]] == [1, 2, 2, 2]
    good = without(clusters_of(strategy), "partition-0")
    assert good == without(clients.planted, "partition-0")
    assert strategy.tree.clients == tuple(f"partition-{i}" for i in range(4))


def test_a_real_node_cannot_end_a_run_by_an_error_of_the_simulation_engine():
    alone = outcome(dead=["a"])
    assert "worker" in FailureRecord().must_stop(alone, 2, simulated=True)
    assert FailureRecord().must_stop(alone, 2, simulated=False) == ""
