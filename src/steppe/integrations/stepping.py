"""What the loop of transformers sees of a private run: an optimizer and an iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer

from steppe.errors import MisuseError
from steppe.ledger import Account
from steppe.private import Private
from steppe.utils.batches import count, rows


class StepsPrivately(Optimizer):
    """The user's optimizer, whose `step()` takes the private step of the batch that was drawn.

    The private step clips, adds noise and moves the weights by the optimizer itself, once.

    Args:
        inner: the optimizer, which keeps its state and its groups.
        take: takes the private step.
    """

    def __init__(self, inner: Optimizer, take: Callable[[], None]) -> None:
        self.inner, self._take = inner, take

    @property
    def param_groups(self) -> Any:
        """The groups of the optimizer: a scheduler changes its learning rates."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.inner.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        """The default options of the optimizer."""
        return self.inner.defaults

    def state_dict(self) -> Any:
        """That of the optimizer."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state into the optimizer."""
        self.inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the private gradients."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: Any) -> None:
        """Refused: later weights would get no private gradient."""
        raise MisuseError.about(
            "param_group",
            f"{len(param_group.get('params', ()))} weights",
            "cannot be added to a private run",
            "give all weights to the optimizer before train()",
        )

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take the private step."""
        del closure
        self._take()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __repr__(self) -> str:
        return f"StepsPrivately({self.inner!r})"


class DrawnBatches:
    """The batches of one pass, drawn by the plan's sampler, each in the parts of one update.

    Args:
        dataset: the user's, for its length.
        parts: the number of parts of every batch, `gradient_accumulation_steps`.
        steps: the steps in a pass on average.
        private: returns the private object of the run.
        account: returns the account, which charges a step before its records are read.
    """

    def __init__(
        self,
        dataset: Any,
        parts: int,
        steps: int,
        private: Callable[[], Private],
        account: Callable[[], Account],
    ) -> None:
        self.dataset = dataset
        self._parts, self._steps = parts, steps
        self._private, self._account = private, account

    def __len__(self) -> int:
        return self._steps * self._parts

    def __iter__(self) -> Iterator[Any]:
        private, account = self._private(), self._account()
        batches = iter(private)
        for _ in range(min(self._steps, len(private))):
            account.cover(private.steps_done + 1)
            yield from parts_of(next(batches), self._parts)


def parts_of(batch: Any, parts: int) -> Iterator[Any]:
    """A batch in so many parts of about the same size, some of them empty in a small batch.

    Examples:
        >>> import torch
        >>> [part.tolist() for part in parts_of(torch.arange(5), 3)]
        [[0], [1, 2], [3, 4]]
    """
    size = count(batch)
    for part in range(parts):
        begin, end = part * size // parts, (part + 1) * size // parts
        yield batch if parts == 1 else rows(batch, slice(begin, end))
