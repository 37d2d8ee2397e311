"""Place 1, the protocol: what a plan, an account and a run ask of a way to sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from steppe.accounting import Participation
from steppe.sampling.exact import Words
from steppe.utils.validation import fail

# Who takes part in a step, by its number counted from 0.
Draw: TypeAlias = Callable[[int, Words], Tensor]
# (number of steps, the rate of each group in them), in any order.
Rates: TypeAlias = tuple[tuple[int, tuple[float, ...]], ...]


class Sampler(ABC):
    """A way to decide who takes part in a step: by a coin for every record.

    A sampler may treat groups of records differently; each group then has an account of its own,
    and the worst one counts. Samplers are frozen dataclasses of public constants.
    """

    @property
    def groups(self) -> int:
        """How many groups of records have rates of their own."""
        return 1

    @property
    def public_population(self) -> bool:
        """Whether who takes part depends on the number of records, which must be public then."""
        return False

    @property
    def decides_length(self) -> bool:
        """Whether `length` is known."""
        return False

    def length(self, population: int, batch_size: float) -> int | None:
        """The number of steps, where the sampler decides it; None where the plan does.

        Args:
            population: Declared number of records.
            batch_size: Expected number of participants in a step.
        """
        return None

    def turns(self, population: int, batch_size: float, steps: int) -> Participation | None:
        """In which steps one record can take part; None where it can be in any of them.

        Args:
            population: Declared number of records.
            batch_size: Expected number of participants in a step.
            steps: Number of steps. An error if a record would take part more often.
        """
        return None

    @abstractmethod
    def rates(self, population: int, batch_size: float, start: int, stop: int) -> Rates:
        """The rates of every group in the steps start … stop − 1, exactly as they are drawn.

        Args:
            population: Declared number of records.
            batch_size: Expected number of participants in a step.
            start: The first step, counted from 0.
            stop: One more than the last step.

        Returns:
            (number of steps, rate of each group), each combination once. Where records take turns,
            only the steps of the record that has most of them, with its rate in these.
        """

    @abstractmethod
    def begin(
        self, records: int, population: int, batch_size: float, groups: Sequence[Any] | None
    ) -> Draw:
        """Make the draws of one run.

        Args:
            records: How many records there really are.
            population: Declared number of records, which sets the rates.
            batch_size: Expected number of participants in a step.
            groups: For each group the rows that belong to it; None where there is one group.

        Returns:
            A function of (step, source) that gives sorted row numbers.
        """


def refuse_groups(sampler: Sampler, groups: Sequence[Any] | None) -> None:
    """Refuse groups of records, where the sampler treats all alike."""
    if groups is not None:
        rule = f"cannot be used with {type(sampler).__name__}, which treats all records alike"
        raise fail("groups", type(groups).__name__, rule, "leave them out, or use Periodic")


def members(groups: Sequence[Any] | None, count: int, records: int) -> tuple[Tensor, ...]:
    """The rows of each group, sorted, after a check that every record is in exactly one.

    Args:
        groups: For each group an array of row numbers.
        count: How many groups there must be.
        records: How many records there are.

    Returns:
        One int64 tensor for each group.

    Examples:
        >>> members(([2, 0], [1, 3]), 2, 4)
        (tensor([0, 2]), tensor([1, 3]))
    """
    several = isinstance(groups, Sequence) and not isinstance(groups, str)
    if groups is None or not several or len(groups) != count:
        given = f"{len(groups)} arrays" if several and groups is not None else groups
        rule = f"must be {count} arrays of row numbers, one for each group of records"
        raise fail("groups", given, rule, "pass them as steppe.data.by_parity makes them")
    rows = []
    for position, group in enumerate(groups):
        found = torch.as_tensor(group, device="cpu")
        if found.ndim != 1 or found.is_floating_point() or found.dtype == torch.bool:
            rule = "must be a flat array of whole row numbers"
            raise fail(f"groups[{position}]", found.dtype, rule, "use torch.nonzero on a mask")
        rows.append(found.to(torch.int64).sort().values)
    together = torch.cat(rows).sort().values
    if not torch.equal(together, torch.arange(records, device="cpu")):
        rule = f"must hold each of the {records} rows exactly once, in one group or another"
        raise fail(
            "groups", f"{len(together)} rows", rule, "make the groups a partition of the records"
        )
    return tuple(rows)
