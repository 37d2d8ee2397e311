"""The progress bar: step, ε, loss on public data, time left."""

from __future__ import annotations

import sys
from typing import Any

from steppe.utils.formatting import rounded_up


class Bar:
    """A tqdm bar over the steps of a plan.

    Args:
        shown: whether to show it.
        steps: the number of steps in the plan.
        begun: the number of steps already taken.
    """

    def __init__(self, shown: bool, steps: int, begun: int) -> None:
        self._bar: Any = None
        self._notes: dict[str, str] = {}
        if shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=steps, initial=begun, unit="step", dynamic_ncols=True)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)

    def step(self, epsilon: float | None) -> None:
        """Advance by one step, with an upper bound on the ε spent."""
        if self._bar is not None:
            self._notes["ε at most"] = rounded_up(epsilon)
            self._bar.set_postfix(self._notes, refresh=False)
            self._bar.update()

    def loss(self, loss: float | None) -> None:
        """Show the latest loss on evaluation data."""
        if loss is not None:
            self._notes["public loss"] = f"{loss:.4f}"

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
