"""What `cflower explain` says of clients that come later."""

from cflower import Recorder
from cflower.runs.events import newcomers
from cflower.runs.explain import explanation
from cflower.runs.record import RunRecord
from tests.strategy.test_gone import run

GROUPS = (*(0, 1) * 6, 0, 1, 2, 2)
LATE, FIRST = range(12, 16), 9


def test_the_story_of_a_cluster_says_when_and_why_newcomers_came(tmp_path):
    recorder = Recorder(tmp_path)
    strategy = run(
        lambda place, now: place if place not in LATE or now >= FIRST else None,
        GROUPS,
        rounds=16,
        more=[recorder],
    )
    record = RunRecord.read(recorder.path)
    explained = explanation(record)
    (opened,) = [leaf.name for leaf in strategy.tree.leaves if len(leaf.members) == 2]
    alone = f"2 of them resembled no cluster, so {opened} was opened"
    assert newcomers(record) == f"4 clients joined in round {FIRST}; {alone}."
    came = {one.client: one for line in record.lines for one in line.placed}
    late = {leaf.name: [c for c in leaf.members if c in came] for leaf in strategy.tree.leaves}
    assert sorted(map(len, late.values())) == [1, 1, 2]
    for cluster, clients in late.items():
        assert {came[client].server_round for client in clients} == {FIRST}
        verb = "opened" if len(clients) == 2 else "joined"
        words = f"round {FIRST}, {verb} by {', '.join(clients)}: "
        assert words in explained.clusters[cluster]
        assert came[clients[0]].reason in explained.clusters[cluster]
