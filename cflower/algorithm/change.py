"""Where the paper ends: what goes beyond it plugs into a round here, and nowhere else.

`CFL.run_round` is Algorithm 5. A change observes the round, may revise a criterion's decision, and
may ask the clients something after their training. `cflower.changes` has those that there are.
"""

from collections.abc import Iterable, Mapping, Sequence

from cflower.algorithm.criteria import Decision, Evidence
from cflower.algorithm.state import Ask, CFLState, Pending
from cflower.algorithm.weights import Vector


class Change:
    """Takes part in every round. This one is the paper: it does nothing."""

    def asks(self, state: CFLState, client: str, server_round: int) -> Iterable[Ask]:
        """Further trainings of a member in this round."""
        return ()

    def observed(self, state: CFLState, server_round: int) -> CFLState:
        """The state after the updates of a round have come and newcomers have been placed."""
        return state

    def revised(self, state: CFLState, evidence: Evidence, decision: Decision) -> Decision:
        """The decision on a leaf: the criterion's, or another one."""
        return decision

    def followed(
        self, state: CFLState, decisions: Sequence[Decision], places: Mapping[str, Vector]
    ) -> CFLState:
        """The state after the decisions of a round.

        ``places`` are the updates, shape (k,), of members that trained a split cluster's model.
        """
        return state

    def pending(
        self, state: CFLState, decisions: Sequence[Decision], server_round: int, *, last: bool
    ) -> Pending | None:
        """The questions to the clients after this round, if there are any."""
        return None
