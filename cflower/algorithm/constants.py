"""All constants that decide, each with the reason for its value.

docs/how-it-works/auto.md lists the ranges in which nothing changes. Constants that only limit work
or memory are in the modules that use them.
"""

ERROR = 0.01
"""Probability that chance alone makes a member sure of its part, two parts distant, or an update
longer than all others: a usual level, strict because many members are tested in every round."""
SIGNIFICANT = 1 / 80
"""One-sided p-value of a significant vote, which models of the clients' own need: nine clients of
ten suffice."""
PROBABLE = 0.05
"""One-sided p-value of a vote by which a split is made: the criterion's evidence speaks for it
already, so it need not be as small as where nothing else does."""
LIKELY = 0.25
"""One-sided p-value of a likely gain: enough for a split, and against a join."""
FEW = 3
"""Fewest rounds or clients that show what is usual: of two, either could be the exception. Two
rounds with the same parts are enough for the right ones, but bring more false proposals."""
ETA = 3
"""η of the polynomial-decay averages: an average covers about the last 1 / (η + 1) of the rounds,
and the parts must have been the same for as long."""
HEARD_SHARE = 0.8
"""Share of the members that must be known and sure. A lower share takes uneven labels for groups
(half of the members: in one of four federations); a higher one lets four of 20 clients prevent a
split."""
SUFFICIENT = 50
"""Members with two updates that suffice for a decision on any cluster."""
LEAST_SHARE = 0.03
"""A client has a class if this share of its bias updates is the class's: less is noise."""
LEAST_NEXT_TO_ONE = 8
"""Members of a part next to which one member alone may be another: in true groups of 5, the one
that differed most was split off late in two of 25 runs."""
RESEMBLES = 0.5
"""Cosine from which updates resemble each other (60 degrees), or parts still move the same way;
between two leaves, relative to the cosine within them."""
LONG = 2.0
"""Ratio of an update's norm to the usual one, from which it is unusually long."""
MOST = 3.0
"""A client counts for at most so many usual ones. A fifth of the clients at this limit have three
sevenths of the whole, so the others outweigh them."""
ENOUGH_EXAMPLES = 30
"""Held-out examples of all clients together that a paired test needs."""
