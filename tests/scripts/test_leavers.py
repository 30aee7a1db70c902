"""Who is there when, in the federations whose clients leave."""

import pytest
from families.leavers import GROUPS, LEAVING, PER_GROUP, Leavers

ROUNDS = 7


def there(presence, server_round):
    presence.now = server_round
    return {i for i in range(GROUPS * presence.size) if not presence.is_away(i)}


@pytest.mark.parametrize("family", [name for name in LEAVING if "renamed" not in name])
def test_clients_that_leave_are_there_in_the_first_round_only_and_of_all_groups_in_turn(family):
    presence = Leavers(family, ROUNDS)
    assert there(presence, 0) == there(presence, 1) == set(range(GROUPS * PER_GROUP))
    staying = set(presence.staying)
    assert len(staying) == GROUPS * PER_GROUP - LEAVING[family]
    assert all(there(presence, now) == staying for now in range(2, ROUNDS + 2))
    left = [sum(i // presence.size == group for i in presence.leaving) for group in range(GROUPS)]
    assert max(left) - min(left) <= 1


def test_clients_under_new_names_are_there_in_one_round_each():
    presence = Leavers("3-renamed", ROUNDS)
    staying, seen = set(presence.staying), set[int]()
    assert len(staying) == GROUPS * PER_GROUP
    for now in range(1, ROUNDS + 1):
        new = there(presence, now) - staying
        assert len(new) == GROUPS and not new & seen
        seen |= new
    assert there(presence, ROUNDS + 1) == staying
