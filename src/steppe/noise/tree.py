"""Place 5, correlated noise: a binary tree over the steps.

Dwork et al., Differential privacy under continual observation, 2010; Kairouz et al., Practical
and Private (Deep) Learning without Sampling or Shuffling, 2021; Honaker, Efficient Use of
Differentially Private Binary Trees, 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steppe.accounting import Participation
from steppe.noise.correlated import Correlated
from steppe.noise.factor import Factor
from steppe.noise.streams import TreeStream, node_weight
from steppe.noise.workload import Matrix, Vector
from steppe.utils.validation import fail


@dataclass(frozen=True)
class Tree(Correlated):
    """Noise of a binary tree: a sum over t steps has that of the nodes that t is made of.

    Args:
        honaker: estimate the sum of a node from its children too, which costs nothing and lowers
            the error by a quarter. It needs one more vector of fresh noise in half of the steps.
        momentum: as for `Correlated`; a tree is the same for all.

    Guarantees:
        As for `Correlated`.

    Examples:
        >>> tree = Tree().factor(512, Participation())
        >>> round(tree.rmse(Tree().workload_of(512), Participation()), 2)
        5.15
    """

    honaker: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.honaker, bool):
            raise fail("Tree.honaker", self.honaker, "must be True or False")

    def make(self, steps: int, participation: Participation) -> Factor:
        """The matrices; they depend on the number of steps alone."""
        del participation
        return TreeFactor(steps, self.honaker)


class TreeFactor(Factor):
    """The nodes of a tree.

    A node of height h over the steps (t − 2^h, t] is complete with step t. Plain prefix sums use
    the highest node that ends with each step; with Honaker's estimate all nodes are used.

    Args:
        steps: how many.
        honaker: whether nodes are estimated from their children too.
    """

    def __init__(self, steps: int, honaker: bool) -> None:
        self.steps, self._honaker = steps, honaker
        self.memory = steps.bit_length()

    def first(self, steps: int) -> TreeFactor:
        """The same nodes, as far as they are complete."""
        return TreeFactor(steps, self._honaker)

    def _numbers(self) -> Vector:
        return np.array([self.steps, self._honaker], dtype=np.float64)

    def stream(self) -> TreeStream:
        """The noise, one step after the other."""
        return TreeStream(self.steps, self._honaker)

    def nodes(self) -> list[tuple[int, int]]:
        """(last step counted from 1, height) of all nodes that are used, in the order drawn."""
        found = []
        for end in range(1, self.steps + 1):
            top = (end & -end).bit_length() - 1
            found += [(end, height) for height in (range(top + 1) if self._honaker else (top,))]
        return found

    def encoder(self) -> Matrix:
        """One row for each node: the steps it sums."""
        matrix = np.zeros((len(self.nodes()), self.steps))
        for row, (end, height) in enumerate(self.nodes()):
            matrix[row, end - 2**height : end] = 1.0
        return matrix

    def decoder(self) -> Matrix:
        """What each step adds to the prefix sum before it, in terms of the nodes' noise."""
        rows = {node: row for row, node in enumerate(self.nodes())}
        matrix = np.zeros((self.steps, len(rows)))
        newest: list[Matrix] = [np.zeros(0)] * self.steps.bit_length()
        for end in range(1, self.steps + 1):
            top = (end & -end).bit_length() - 1
            estimate = np.zeros(len(rows))
            for height in range(top + 1) if self._honaker else (top,):
                own = node_weight(height) if self._honaker else 1.0
                if height and self._honaker:
                    estimate = (1 - own) * (estimate + newest[height - 1])
                estimate[rows[end, height]] += own
            matrix[end - 1] = estimate - sum(newest[:top], np.zeros(len(rows)))
            newest[top] = estimate
        return matrix

    def squared_sensitivity(self, participation: Participation) -> float:
        """See `Factor`. Nodes are counted, unless turns are at least b apart."""
        turns = participation.within(self.steps)
        if turns.times > 1 and not turns.exact:
            return super().squared_sensitivity(turns)
        taken = np.arange(self.steps)[:, None] + turns.separation * np.arange(turns.times)
        found = np.zeros(self.steps)
        for height in range(self.steps.bit_length()):
            block = taken >> height
            # Complete within the run and used; turns after its end are in none.
            used = (block + 1) << height <= self.steps
            if not self._honaker:
                used &= block % 2 == 0
            block = np.where(used, block, -1 - np.arange(turns.times))
            same = block[:, :, None] == block[:, None, :]
            found += np.where(used[:, :, None], same, 0).sum((1, 2))
        return float(found.max())
