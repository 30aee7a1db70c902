"""The mean updates of one round: of every leaf, and of the groups that may become leaves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cflower.algorithm.aggregation import Sum
from cflower.algorithm.weights import Update, Weights
from cflower.ordering import only


class Mean(NamedTuple):
    """The mean update of a leaf (eq. 2)."""

    whole: Weights
    weight: float
    """The sum of its members' weights."""
    groups: Mapping[int, Weights] = {}
    """That of each group of its members."""
    group_of: Mapping[str, int] = {}
    """The group of each member that replied."""
    common: Weights | None = None
    """That of the body, the first entries, by all leaves that share it; see `layers`."""

    @property
    def moved(self) -> Weights:
        """The update that the leaf's model follows."""
        if self.common is None:
            return self.whole
        output = self.whole.trained[len(self.common.trained) :]
        return Weights(np.concatenate([self.common.trained, output]), self.common.carried)

    def of(self, clients: Iterable[str]) -> Weights:
        """The mean update of the group that most of these are in; the whole mean if it is none."""
        counts = Counter(only(self.group_of, clients).values())
        return self.groups.get(max(counts, key=counts.__getitem__, default=-1), self.whole)


@dataclass
class RoundMeans:
    """Adds up the updates of a round one by one, so that none has to be kept."""

    empty: Callable[[], Sum]
    """A new sum."""
    group_of: Mapping[str, int]
    """The number of each client's group among those of its leaf."""
    sums: dict[str, dict[int, Sum]] = field(default_factory=lambda: defaultdict(dict))
    """By leaf and group; -1 for members of none."""
    weights: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    replied: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self, leaf: str, client: str, update: Weights | Update, weight: float, scale: float
    ) -> None:
        """Add a client's update with this weight, shortened by a factor."""
        group = self.group_of.get(client, -1)
        if group not in self.sums[leaf]:
            self.sums[leaf][group] = self.empty()
        self.sums[leaf][group].add(update, weight, scale)
        self.replied[leaf].append(client)
        self.weights[leaf] += weight

    def means(self) -> dict[str, Mean]:
        """The mean update of each leaf; the sums are used up."""
        return {name: self._of(name) for name in [*self.sums]}

    def _of(self, name: str) -> Mean:
        of_groups, whole = self.sums.pop(name), self.empty()
        if len(of_groups) == 1:
            (whole,) = of_groups.values()
            return Mean(whole.mean(), self.weights[name])
        groups = {group: one.mean() for group, one in of_groups.items() if group >= 0}
        for one in of_groups.values():
            whole.merge(one)  # type: ignore[arg-type]  # all of a leaf are of one kind
        return Mean(
            whole.mean(), self.weights[name], groups, only(self.group_of, self.replied[name])
        )
