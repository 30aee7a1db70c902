import time

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo

from cflower.errors import FederationError
from cflower.messages.client_names import answer
from cflower.messages.data_spec import most_common
from cflower.messages.roll_call import RollCall
from tests.strategy.scripted_grid import ScriptedGrid


def grid_of(facts):
    """Nodes that answer with these facts; None stays silent, an Error is sent back."""

    def reply(message):
        said = facts[message.metadata.dst_node_id]
        if said is None:
            return None
        if isinstance(said, Error):
            return Message(said, reply_to=message)
        return answer(message, **said)

    return ScriptedGrid(reply, facts)


def test_clients_are_known_by_the_name_they_tell():
    grid = grid_of({7: {"client_id": "p-10"}, 5: {"client_id": "p-2", "num_examples": 9}})
    roll_call = RollCall()
    assert roll_call.gather(grid, 2) == ("p-2", "p-10")
    assert roll_call.nodes == {"p-2": 5, "p-10": 7}
    assert roll_call.facts["p-2"] == {"client-id": "p-2", "num-examples": 9}
    assert roll_call.name_of(7) == "p-10"


def test_an_app_that_does_not_know_the_question_goes_by_its_node_id():
    unknown = Error(
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "ValueError: No query function registered"
    )
    roll_call = RollCall()
    assert roll_call.gather(grid_of({12: unknown, 4: unknown}), 2) == ("4", "12")


def test_an_app_that_answers_another_query_goes_by_its_node_id():
    def other(message):
        return Message(RecordDict({"other": ConfigRecord({"x": 1})}), reply_to=message)

    roll_call = RollCall()
    assert roll_call.gather(ScriptedGrid(other, [3]), 1) == ("3",)


def test_a_node_is_asked_once():
    grid, roll_call = grid_of({1: {"client_id": "a"}, 2: {"client_id": "b"}}), RollCall()
    roll_call.gather(grid, 2)
    for _ in range(3):
        assert roll_call.update(grid) == 0
    assert sorted(grid.asked) == [1, 2]


def test_a_node_that_leaves_and_returns_is_the_same_client():
    grid, roll_call = grid_of({1: {"client_id": "a"}, 2: {"client_id": "b"}}), RollCall()
    roll_call.gather(grid, 2)
    grid.live = {2}
    roll_call.update(grid)
    assert roll_call.clients == ("b",)
    assert roll_call.name_of(1) == "a"
    grid.live = {1, 2}
    roll_call.update(grid)
    assert roll_call.nodes == {"a": 1, "b": 2}
    assert sorted(grid.asked) == [1, 2]


def test_a_client_that_returns_at_another_node_keeps_its_name():
    grid = grid_of({1: {"client_id": "a"}, 2: {"client_id": "b"}, 9: {"client_id": "a"}})
    roll_call, grid.live = RollCall(), {1, 2}
    roll_call.gather(grid, 2)
    grid.live = {2, 9}
    roll_call.update(grid)
    assert roll_call.nodes == {"a": 9, "b": 2}
    assert roll_call.name_of(9) == "a"
    assert roll_call.refused == {}


def test_of_two_live_nodes_with_one_name_the_first_holds_it():
    roll_call = RollCall()
    grid = grid_of({1: {"client_id": "a"}, 2: {"client_id": "a"}, 3: {"client_id": "b"}})
    roll_call.gather(grid, 2)
    assert roll_call.nodes == {"a": 1, "b": 3}
    assert roll_call.refused[2].client == "a"
    assert roll_call.refused[2].reason.startswith("another node already holds this name")


def test_a_refused_twin_takes_the_name_over_when_its_holder_is_gone():
    # A SuperNode killed and restarted without keys: for up to a minute both ids are live.
    grid = grid_of({1: {"client_id": "a"}, 2: {"client_id": "b"}, 9: {"client_id": "a"}})
    roll_call, grid.live = RollCall(), {1, 2}
    roll_call.gather(grid, 2)
    grid.live = {1, 2, 9}
    roll_call.update(grid)
    assert roll_call.nodes == {"a": 1, "b": 2}
    grid.live = {2, 9}
    roll_call.update(grid)
    assert roll_call.nodes == {"a": 9, "b": 2}
    assert roll_call.refused == {}
    assert roll_call.name_of(9) == "a"


def test_a_client_with_a_problem_is_refused_in_its_words():
    grid = grid_of({1: {"client_id": "a", "problem": "no data"}, 2: {"client_id": "b"}})
    roll_call = RollCall()
    assert roll_call.gather(grid, 1) == ("b",)
    assert roll_call.refused[1][:2] == ("a", "no data")


def test_a_problem_that_all_share_is_the_error():
    grid = grid_of({i: {"client_id": f"p-{i}", "problem": "no such set"} for i in (1, 2)})
    with pytest.raises(FederationError, match=r"^no such set$"):
        RollCall(timeout=0.1).gather(grid, 2)


def test_too_few_nodes_are_told_after_the_timeout():
    grid = grid_of({1: {"client_id": "a"}})
    with pytest.raises(FederationError, match=r"needs 3 SuperNodes.*has 1.*more SuperNodes"):
        RollCall(timeout=0.1).gather(grid, 3)


def test_no_nodes_at_all_are_told_how_to_get_some():
    with pytest.raises(FederationError, match=r"needs 2 .* has 0: add .*num-supernodes=2"):
        RollCall(timeout=0.1).gather(grid_of({}), 2)


def test_a_simulation_that_is_complete_but_too_small_is_told_at_once():
    grid = grid_of({i: {"client_id": f"p-{i}", "num_partitions": 2} for i in (1, 2)})
    began = time.monotonic()
    with pytest.raises(FederationError, match=r"needs 5 .* has 2.*min-available-nodes=2"):
        RollCall(timeout=30).gather(grid, 5)
    assert time.monotonic() - began < 5


def test_a_simulation_is_awaited_until_all_its_nodes_are_there():
    facts = {i: {"client_id": f"p-{i}", "num_partitions": 4} for i in range(1, 5)}
    grid = grid_of(facts)
    grid.live = {1, 2}
    reply = grid.answer

    def others_arrive_meanwhile(message):
        grid.live = set(facts)
        return reply(message)

    grid.answer = others_arrive_meanwhile
    assert RollCall(timeout=5).gather(grid, 2) == ("p-1", "p-2", "p-3", "p-4")


def test_a_node_that_never_answers_does_not_stop_those_who_did():
    grid = grid_of({1: {"client_id": "a"}, 2: None, 3: {"client_id": "c"}})
    roll_call = RollCall(timeout=0.15)
    assert roll_call.gather(grid, 2) == ("a", "c")
    assert roll_call.name_of(2) == "2"


def test_a_node_that_was_unavailable_is_asked_again():
    facts = {1: {"client_id": "a"}, 2: Error(5, "node unavailable")}
    grid, roll_call = grid_of(facts), RollCall(timeout=0.1)
    assert roll_call.update(grid) == 1
    facts[2] = {"client_id": "b"}
    assert roll_call.update(grid) == 0
    assert roll_call.clients == ("a", "b")


def test_a_node_that_never_answers_holds_up_one_round_only():
    facts = {1: {"client_id": "a"}, 2: None}
    grid, roll_call = grid_of(facts), RollCall(timeout=0.3)
    assert roll_call.update(grid) == 1
    began = time.monotonic()
    assert roll_call.update(grid) == 0
    assert time.monotonic() - began < 0.2


def test_a_refused_client_is_asked_again_when_it_comes_back():
    facts = {1: {"client_id": "a", "problem": "no data"}, 2: {"client_id": "b"}}
    grid, roll_call = grid_of(facts), RollCall()
    roll_call.gather(grid, 1)
    grid.live = {2}
    roll_call.update(grid)
    facts[1] = {"client_id": "a"}
    grid.live = {1, 2}
    roll_call.update(grid)
    assert roll_call.nodes == {"a": 1, "b": 2}
    assert roll_call.refused == {}


def test_who_does_not_go_with_the_others_is_refused_now_and_later():
    facts = {
        i: {"client_id": name, "input_shape": shape, "class_names": ["x", "y"]}
        for i, (name, shape) in enumerate(
            [("a", [1, 8, 8]), ("b", [3, 8, 8]), ("c", [1, 8, 8]), ("d", [2])]
        )
    }
    grid, roll_call = grid_of(facts), RollCall(timeout=0.1)
    grid.live = {0, 1, 2}
    clients = roll_call.gather(grid, 3)
    roll_call.require(most_common(roll_call.facts[name] for name in clients).problem_with)
    assert roll_call.clients == ("a", "c")
    assert roll_call.refused[1].reason.startswith("its inputs have shape (3, 8, 8), but those of")
    grid.live = {0, 1, 2, 3}
    roll_call.update(grid)
    assert roll_call.clients == ("a", "c")
    assert roll_call.refused[3].client == "d"
    with pytest.raises(FederationError, match=r"needs 3 .* has 2 \(a, c\); refused: b: its inputs"):
        roll_call.gather(grid, 3)


def test_a_simulation_in_which_all_are_refused_is_told_at_once():
    facts = {"problem": "no such set", "num_partitions": 2}
    grid = grid_of({i: {"client_id": f"p-{i}", **facts} for i in (1, 2)})
    began = time.monotonic()
    with pytest.raises(FederationError, match=r"^no such set$"):
        RollCall(timeout=30).gather(grid, 2)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("facts", [{"class_names": 5}, {"class_names": [1, 2]}, {"input_shape": 5}])
def test_a_late_joining_node_with_facts_of_the_wrong_kind_is_refused(facts):
    usual = {"input_shape": [3], "class_names": ["cat", "dog"]}
    said = {i: {"client_id": f"p-{i}", **usual} for i in (1, 2)}
    grid = grid_of({**said, 3: {"client_id": "p-3", **usual, **facts}})
    roll_call, grid.live = RollCall(), {1, 2}
    roll_call.gather(grid, 2)
    roll_call.require(most_common(roll_call.facts.values()).problem_with)
    grid.live = {1, 2, 3}
    assert roll_call.update(grid) == 0
    assert roll_call.clients == ("p-1", "p-2")
    assert roll_call.refused[3].reason.startswith("what it tells of itself is wrong: ")


def test_one_node_does_not_make_a_simulation_of_a_federation():
    facts = {i: {"client_id": f"p-{i}"} for i in (1, 2, 3)}
    facts[3]["num_partitions"] = 1_000_000
    roll_call = RollCall(timeout=30)
    assert roll_call.gather(grid_of(facts), 2) == ("p-1", "p-2", "p-3")
    assert not roll_call.simulated


def test_real_nodes_are_never_a_simulation(monkeypatch):
    # The first node alone tells that it is all there is: the others may still be coming.
    grid = grid_of({1: {"client_id": "p-1", "num_partitions": 1}})
    roll_call = RollCall(timeout=0.3)
    roll_call.update(grid)
    assert roll_call.simulated
    monkeypatch.setattr("flwr.superlink.grid.HttpGrid", ScriptedGrid)
    roll_call.update(grid)
    assert not roll_call.simulated
    began = time.monotonic()
    with pytest.raises(FederationError):
        roll_call.gather(grid, 2)
    assert time.monotonic() - began >= 0.3


def test_a_node_that_does_not_answer_is_named_and_named_once(caplog):
    grid = grid_of({1: {"client_id": "a"}, 7: None, 8: Error(5, "gone\x1b[31m")})
    roll_call = RollCall(timeout=0.2)
    assert roll_call.gather(grid, 1) == ("a",)
    for _ in range(3):
        roll_call.update(grid)
    said = [r.getMessage() for r in caplog.records if "not in the roll call" in r.getMessage()]
    assert len(said) == 1
    assert "node 7 did not answer within 0.2 s" in said[0]
    assert "node 8 answered with an error: gone [31m" in said[0]


def test_a_silent_node_is_named_as_it_is_registered(caplog):
    grid = grid_of({1: {"client_id": "a"}, 7: None})
    grid.get_nodes = lambda: [NodeInfo(node_id=1), NodeInfo(node_id=7, name="site-b")]
    RollCall(timeout=0.2).gather(grid, 1)
    assert "site-b did not answer within 0.2 s" in caplog.text


def test_the_error_about_too_few_nodes_names_who_is_there_and_who_is_not():
    facts = {1: {"client_id": "a"}, 2: {"client_id": "b", "problem": "no data"}, 7: None}
    grid, roll_call = grid_of({**facts, 4: {"client_id": "d"}}), RollCall(timeout=0.2)
    roll_call.update(grid)
    grid.live = {1, 2, 7}
    with pytest.raises(FederationError) as caught:
        roll_call.gather(grid, 4)
    assert str(caught.value).startswith(
        "This run needs 4 SuperNodes (min-available-nodes) and has 1 (a); refused: b: no data; "
        "left again: d: connected as well: node 7 did not answer within 0.2 s, as happens while "
    )
