"""Which records take part: batches of the update in shuffled epochs, and fresh ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_UPDATE, _FRESH, _STEP = range(3)


class Batches:
    """The rows of every batch of a run. Those of a step depend on the seed and the step alone.

    Methods that draw batches of their own therefore leave those of the update as they are, and a
    resumed run draws what an uninterrupted one would have drawn.

    Args:
        records: how many there are.
        batch_size: of the update.
        seed: of the run.

    Examples:
        >>> batches = Batches(10, 5, seed=0)
        >>> sorted([*batches.update(0).tolist(), *batches.update(1).tolist()])
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, records: int, batch_size: int, seed: int) -> None:
        self.steps_per_epoch = records // batch_size
        self._records, self._batch_size, self._seed = records, batch_size, seed
        self._epoch, self._order = -1, torch.empty(0)

    def update(self, step: int) -> Tensor:
        """The update batch of a step: an epoch has each record once, except a last few."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(self._records, generator=self._generator(_UPDATE, epoch))
        return self._order[place * self._batch_size :][: self._batch_size]

    def fresh(self, step: int, records: int) -> Tensor:
        """So many different records, uniformly, for one step."""
        order = torch.randperm(self._records, generator=self._generator(_FRESH, step))
        return order[:records]

    def seed_of(self, step: int) -> int:
        """The seed of all else that is random in a step: augmentation and dropout."""
        return self._number(_STEP, step)

    def _generator(self, stream: int, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._number(stream, index))

    def _number(self, stream: int, index: int) -> int:
        words = np.random.SeedSequence([self._seed, stream, index]).generate_state(1, np.uint64)
        return int(words[0]) >> 1
