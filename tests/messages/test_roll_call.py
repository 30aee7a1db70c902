import time

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from cflower.errors import FederationError
from cflower.messages.claims import most_common
from cflower.messages.client_names import answer
from cflower.messages.roll_call import RollCall
from tests.messages.scripted_grid import ScriptedGrid


def grid_of(facts):
    """Nodes that answer with these facts; None does not answer, an Error is sent back."""

    def reply(message):
        answered = facts[message.metadata.dst_node_id]
        if answered is None:
            return None
        if isinstance(answered, Error):
            return Message(answered, reply_to=message)
        return answer(message, **answered)

    return ScriptedGrid(reply, facts)


def named(**nodes):
    """Facts of clients by name, at these nodes."""
    return {node: {"client_id": client} for client, node in nodes.items()}


def partitions(count, **facts):
    """Facts of clients p-1, p-2, ... at nodes 1, 2, ..."""
    return {i: {"client_id": f"p-{i}", **facts} for i in range(1, count + 1)}


def gathered(grid, at_least=2, live=None, timeout=60.0):
    """A roll call that has gathered the clients at the nodes that are live at first."""
    roll_call, grid.live = RollCall(timeout=timeout), live or grid.live
    roll_call.gather(grid, at_least)
    return roll_call


def updated(roll_call, grid, live):
    """The roll call after other nodes are connected."""
    grid.live = live
    roll_call.update(grid)
    return roll_call


def test_clients_are_known_by_the_name_they_report():
    roll_call = gathered(grid_of({7: {"client_id": "p-10"}, 5: {"client_id": "p-2", "group": 9}}))
    assert roll_call.clients == ("p-2", "p-10")
    assert roll_call.nodes == {"p-2": 5, "p-10": 7}
    assert roll_call.facts["p-2"] == {"client-id": "p-2", "group": 9}
    assert roll_call.name_of(7) == "p-10"


def test_the_second_of_two_live_nodes_with_one_name_is_refused():
    roll_call = gathered(grid_of({**named(a=1), **named(a=2, b=3)}))
    assert roll_call.nodes == {"a": 1, "b": 3}
    assert roll_call.refused[2].client == "a"
    assert "already holds this name" in roll_call.refused[2].reason


def test_nobody_takes_the_name_of_another_registered_node():
    grid = grid_of({**named(a=1), 2: {"client_id": "site-b"}, 3: {"client_id": "site-b"}})
    grid.get_nodes = lambda: [NodeInfo(node_id=1), NodeInfo(node_id=3, name="site-b")]
    roll_call = gathered(grid)
    assert roll_call.nodes == {"a": 1, "site-b": 3}
    assert "another node is registered by this name" in roll_call.refused[2].reason
    # Also while that node is not connected.
    grid.get_nodes = lambda: [NodeInfo(node_id=1)]
    roll_call = updated(updated(roll_call, grid, {1}), grid, {1, 2})
    assert roll_call.nodes == {"a": 1}


@pytest.mark.parametrize("live", [{1, 2, 9}, {2, 9}])
def test_a_client_that_returns_at_another_node_keeps_its_name(live):
    # A SuperNode killed and restarted without keys: for up to a minute both ids are live.
    grid = grid_of({**named(a=1, b=2), **named(a=9)})
    roll_call = updated(gathered(grid, live={1, 2}), grid, live)
    assert roll_call.nodes == {"a": 1 if 1 in live else 9, "b": 2}
    assert updated(roll_call, grid, {2, 9}).nodes == {"a": 9, "b": 2}
    assert roll_call.refused == {}
    assert roll_call.name_of(9) == "a"


def test_a_client_with_a_problem_is_refused_with_its_own_reason():
    roll_call = gathered(grid_of({1: {"client_id": "a", "problem": "no data"}, **named(b=2)}), 1)
    assert roll_call.clients == ("b",)
    assert roll_call.refused[1][:2] == ("a", "no data")


@pytest.mark.parametrize("facts", [{}, {"num_partitions": 2}])
def test_a_problem_of_all_clients_is_the_error(facts):
    grid = grid_of(partitions(2, problem="no such set", **facts))
    with pytest.raises(FederationError, match=r"^no such set$"):
        gathered(grid, timeout=30 if facts else 0.1)


@pytest.mark.parametrize(
    ("facts", "at_least", "error"),
    [
        (named(a=1), 3, r"needs 3 clients.*has 1.*more SuperNodes"),
        ({}, 2, r"needs 2 .* has 0.*num-supernodes=2"),
    ],
)
def test_too_few_nodes_are_an_error_after_the_timeout(facts, at_least, error):
    with pytest.raises(FederationError, match=error):
        gathered(grid_of(facts), at_least, timeout=0.1)


def test_a_complete_simulation_that_is_too_small_is_an_error_at_once():
    began = time.monotonic()
    with pytest.raises(FederationError, match=r"needs 5 .* has 2.*min-available-nodes=2"):
        gathered(grid_of(partitions(2, num_partitions=2)), 5, timeout=30)
    assert time.monotonic() - began < 5


def test_a_simulation_is_awaited_until_all_its_nodes_are_there():
    grid = grid_of(partitions(4, num_partitions=4))
    reply = grid.answer

    def others_arrive_meanwhile(message):
        grid.live = {1, 2, 3, 4}
        return reply(message)

    grid.answer = others_arrive_meanwhile
    assert gathered(grid, live={1, 2}).clients == ("p-1", "p-2", "p-3", "p-4")


def test_after_the_start_no_round_waits_for_an_answer():
    facts = {**named(a=1, c=3), 2: None}
    grid = grid_of(facts)
    roll_call = gathered(grid, timeout=0.15)
    assert roll_call.clients == ("a", "c")
    assert roll_call.name_of(2) == "2"
    began = time.monotonic()
    for live in ({1, 3}, {1, 2, 3}) * 20:  # it returns again and again
        assert updated(roll_call, grid, live).clients == ("a", "c")
    assert time.monotonic() - began < 1
    facts |= named(b=2)
    assert updated(updated(roll_call, grid, {1, 3}), grid, {1, 2, 3}).clients == ("a", "b", "c")


def test_an_answer_counts_in_the_round_in_which_it_comes():
    arrivals = [[], [1], [], []]
    grid = grid_of(named(a=1, b=2))
    grid.arrivals = arrivals
    roll_call = RollCall(timeout=0.2)
    assert [roll_call.update(grid) for _ in range(2)] == [2, 1]
    assert roll_call.clients == ("a",)
    grid.arrivals = [[2]]
    assert roll_call.update(grid) == 0
    assert roll_call.clients == ("a", "b")
    assert sorted(grid.asked) == [1, 2]


def test_a_client_with_a_mod_that_fails_has_no_name_and_is_asked_once(caplog):
    failed = Error(ErrorCode.MOD_FAILED_PRECONDITION, "fixedclipping_mod expects one ArrayRecord")
    grid = grid_of({5: failed, 6: Error(8, "ClientApp stopped"), **named(a=1)})
    roll_call = gathered(grid, 3)
    assert roll_call.update(grid) == 0
    assert roll_call.clients == ("5", "6", "a")
    assert sorted(grid.asked) == [1, 5, 6]
    (mod, _) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "node(s) 5 failed in the roll call" in mod
    assert "fixedclipping_mod expects one ArrayRecord. A mod" in mod


def test_a_node_that_was_unavailable_is_asked_again_after_the_timeout():
    facts = {**named(a=1), 2: Error(5, "node unavailable")}
    grid, roll_call = grid_of(facts), RollCall(timeout=0.1)
    assert [roll_call.update(grid) for _ in range(5)] == [1] * 5
    assert grid.asked == [1, 2]
    time.sleep(0.11)
    facts |= named(b=2)
    assert roll_call.update(grid) == 0
    assert roll_call.clients == ("a", "b")
    assert roll_call.refused == {}


@pytest.mark.parametrize("first", [{"client_id": "a", "problem": "no data"}, None])
def test_a_refused_client_is_asked_again_when_it_returns(first):
    facts = {1: first, **named(b=2)}
    grid = grid_of(facts)
    roll_call = updated(gathered(grid, 1, timeout=0.2), grid, {2})
    facts |= named(a=1)
    assert updated(roll_call, grid, {1, 2}).nodes == {"a": 1, "b": 2}
    assert roll_call.refused == {}


def test_clients_with_other_data_are_refused_now_and_later():
    usual = {"input_shape": [1, 8, 8], "class_names": ["cat", "dog"]}
    odd = {"b": {"input_shape": [3, 8, 8]}, "d": {"class_names": ["bird"]}}
    facts = [{"client_id": name, **usual, **odd.get(name, {})} for name in "abcd"]
    grid = grid_of(dict(enumerate(facts)))
    roll_call = gathered(grid, 3, live={0, 1, 2}, timeout=0.1)
    roll_call.require(most_common(roll_call.facts[n] for n in roll_call.clients).problem_with)
    assert roll_call.clients == ("a", "c")
    assert "(3, 8, 8), but those of the others have (1, 8, 8)" in roll_call.refused[1].reason
    assert updated(roll_call, grid, {0, 1, 2, 3}).clients == ("a", "c")
    assert "bird, but those of the others are cat, dog" in roll_call.refused[3].reason
    with pytest.raises(FederationError, match=r"needs 3 .* has 2.*: a, c.*refused: b: its inputs"):
        roll_call.gather(grid, 3)


def test_one_node_does_not_make_a_simulation_of_a_federation():
    facts = partitions(3)
    facts[3]["num_partitions"] = 1_000_000
    roll_call = gathered(grid_of(facts), timeout=30)
    assert roll_call.clients == ("p-1", "p-2", "p-3")
    assert not roll_call.simulated


def test_real_nodes_are_never_a_simulation(monkeypatch):
    # The first node reports that it is the only one, but others may still be connecting.
    grid = grid_of(partitions(1, num_partitions=1))
    roll_call = updated(RollCall(timeout=0.3), grid, {1})
    assert roll_call.simulated
    monkeypatch.setattr("flwr.superlink.grid.HttpGrid", ScriptedGrid)
    grid = grid_of(partitions(1, num_partitions=1))
    assert not updated(roll_call, grid, {1}).simulated
    began = time.monotonic()
    with pytest.raises(FederationError):
        roll_call.gather(grid, 2)
    assert time.monotonic() - began >= 0.3


def test_on_another_grid_the_nodes_of_the_last_one_are_forgotten():
    roll_call = updated(RollCall(timeout=0.3), grid_of(named(a=1, b=2)), {1, 2})
    assert updated(roll_call, grid_of(named(c=1)), {1}).clients == ("c",)
    assert list(roll_call.facts) == ["c"] and roll_call.name_of(2) == "2"


def test_a_node_that_does_not_answer_is_logged_once(caplog):
    grid = grid_of({**named(a=1), 7: None, 8: Error(5, "gone"), 9: None})
    nodes = [NodeInfo(node_id=i) for i in (1, 7, 8)] + [NodeInfo(node_id=9, name="site-b")]
    grid.get_nodes = lambda: nodes
    roll_call = gathered(grid, 1, timeout=0.2)
    for _ in range(3):
        roll_call.update(grid)
    (silent,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "(node 7, node 8, site-b), which cannot take part: no answer to the roll call" in silent


def test_the_error_for_too_few_nodes_lists_present_and_absent_clients():
    facts = {**named(a=1, d=4), 2: {"client_id": "b", "problem": "no data"}, 7: None}
    grid = grid_of(facts)
    roll_call = updated(RollCall(timeout=0.2), grid, set(facts))
    grid.live = {1, 2, 7}
    with pytest.raises(FederationError, match=r"needs 4 .* has 1") as caught:
        roll_call.gather(grid, 4)
    for part in ("connected: a", "b: no data", "disconnected: d", "node 7: no answer"):
        assert part in str(caught.value)
    with pytest.raises(FederationError, match=r"has 1; connected: a\. "):
        gathered(grid_of(named(a=1)), 4, timeout=0.2)


@pytest.fixture
def real_nodes(monkeypatch):
    """Scripted nodes count as processes of their own."""
    monkeypatch.setattr("flwr.superlink.grid.HttpGrid", ScriptedGrid)


def sampling(share=0.1, seed=0, timeout=60.0):
    return RollCall(timeout=timeout, share=share, seed=seed)


def test_a_run_that_needs_more_clients_asks_more(real_nodes):
    grid = grid_of(partitions(50))
    assert len(sampling().gather(grid, 30)) == len(grid.asked) == 30


def test_the_sample_of_real_nodes_is_the_seed_s(real_nodes):
    def asked(seed):
        grid = grid_of(partitions(40))
        sampling(seed=seed).gather(grid, 2)
        return grid.asked

    assert asked(0) == asked(0) != asked(1)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [None, {"client_id": "x", "problem": "no data"}])
def test_others_take_the_place_of_sampled_nodes_that_cannot_take_part(real_nodes, answer):
    grid = grid_of(dict.fromkeys(range(100, 140), answer) | partitions(10))
    roll_call = sampling(share=0.02, timeout=1.0)
    assert len(roll_call.gather(grid, 8)) >= 8


def test_all_nodes_of_a_simulation_are_asked_whatever_their_share():
    grid = grid_of(partitions(40, num_partitions=40))
    assert len(sampling().gather(grid, 2)) == 40


def test_clients_refused_for_the_same_reason_share_its_sentence():
    facts = named(**{f"c{i}": i for i in range(30)}, good=30)
    roll_call = RollCall(timeout=0.1)
    roll_call.require(lambda facts: "" if facts.get("client-id") == "good" else "too few examples.")
    with pytest.raises(FederationError) as error:
        roll_call.gather(grid_of(facts), 3)
    assert str(error.value).count("too few examples") == 1
    assert "refused: c0, c1, c2, c3, c4 and 25 more: too few examples" in str(error.value)
