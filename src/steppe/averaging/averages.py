"""Many averages of one run, fed in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from steppe.averaging.average import Average
from steppe.averaging.running import Running, absorb_together, share_rows
from steppe.utils.validation import fail


class Averages:
    """Several averages of the same model, which is read once for all of them in each update.

    The accumulators of running averages move into one block of memory, row by row.

    Args:
        averages: the averages, all made for the same model with the same buffers.

    Guarantees:
        Post-processing: any number of averages costs no privacy.

    Examples:
        >>> from steppe.averaging import EMA, SWA
        >>> model = nn.Linear(2, 1)
        >>> averages = Averages([SWA(model), EMA(model, decay=0.9), EMA(model, decay=0.99)])
        >>> averages.update(model)
        >>> averages[1].covers
        1
    """

    def __init__(self, averages: Sequence[Average]) -> None:
        self._averages = list(averages)
        if not self._averages:
            raise fail("averages", averages, "must not be empty", "give at least one average")
        for index, average in enumerate(self._averages):
            if any(average is earlier for earlier in self._averages[:index]):
                rule = "is in the list twice, so that each update would count twice"
                raise fail("averages", index, rule, "give each average once")
            if not average.layout.fits(self._averages[0].layout):
                rule = "was made for another model than the first"
                raise fail("averages", index, rule, "make one Averages for each model")
        self._running = [average for average in self._averages if isinstance(average, Running)]
        self._others = [average for average in self._averages if not isinstance(average, Running)]
        if self._running:
            share_rows(self._running)

    def update(self, model: nn.Module) -> None:
        """Add the model's current weights to every average."""
        now = self._averages[0].layout.now(model)
        for average in self._others:  # first: one that cannot hold the weights refuses them
            average.absorb(now)
        absorb_together(self._running, now)

    def state_dict(self) -> dict[str, Tensor]:
        """The states of all averages, each under its position."""
        return {
            f"{index}.{name}": tensor
            for index, average in enumerate(self._averages)
            for name, tensor in average.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved state of the same averages in the same order."""
        parts: list[dict[str, Tensor]] = [{} for _ in self._averages]
        for key, tensor in state.items():
            index, _, name = key.partition(".")
            if not index.isdigit() or int(index) >= len(parts):
                rule = f"is no part of {len(parts)} averages"
                raise fail("state_dict", key, rule, "load it where it was made")
            parts[int(index)][name] = tensor
        for average, part in zip(self._averages, parts, strict=True):
            average.require_state(part)
        for average, part in zip(self._averages, parts, strict=True):
            average.load_state_dict(part)

    def __getitem__(self, index: int) -> Average:
        return self._averages[index]

    def __len__(self) -> int:
        return len(self._averages)

    def __iter__(self) -> Iterator[Average]:
        return iter(self._averages)
