"""What goes beyond the paper: questions about splits, joins, moves, and the personal step."""

from cflower.algorithm.change import Change
from cflower.changes.joins import Joins
from cflower.changes.moves import Moves
from cflower.changes.new_starts import NewStarts
from cflower.changes.splits import SplitQuestions


def changes_of(trial_rounds: int, *, moving: bool) -> tuple[Change, ...]:
    """The changes that two settings of the Strategy switch on, in the order of a round."""
    if not trial_rounds:  # the clients judge nothing
        return (Moves(),) if moving else ()
    questions = SplitQuestions()
    return (Moves(), questions, NewStarts(), Joins()) if moving else (questions,)
