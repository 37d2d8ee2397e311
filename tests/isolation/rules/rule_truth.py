"""The truth about an operation: what moves when the numbers of one record change.

Every element of every argument is given an owner at random: nobody, one of three records, or many.
Then the operation runs on real numbers, again and again, with one record's elements changed; only
elements that the rule gives to this record, or to many, may move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from steppe.isolation.owners import FREE, MIXED, TYPE
from steppe.isolation.rules import rule_of
from steppe.isolation.watch import Watch

RECORDS = 3
Change = Callable[[Tensor], Tensor]


class Given:
    """An argument: its numbers, and how other ones are drawn.

    Args:
        values: the numbers, which may be a view of any strides.
        draw: makes other numbers of the same form.
        free: whether no record is in it.
        along: axes along which owners may differ; all unless given.
    """

    def __init__(
        self,
        values: Tensor,
        draw: Callable[[], Tensor],
        free: bool = False,
        along: Sequence[int] | None = None,
    ) -> None:
        self.values, self.draw, self.free = values, draw, free
        self.along = range(values.ndim) if along is None else [a % values.ndim for a in along]


def numbers(*shape: int, free: bool = False, along: Sequence[int] | None = None) -> Given:
    """Numbers from N(0, 1)."""
    return Given(torch.randn(shape), lambda: torch.randn(shape), free, along)


def positive(*shape: int, free: bool = False, along: Sequence[int] | None = None) -> Given:
    """Numbers from (0, 1)."""
    return Given(
        torch.rand(shape) * 0.9 + 0.05, lambda: torch.rand(shape) * 0.9 + 0.05, free, along
    )


def whole(
    least: int, most: int, *shape: int, free: bool = False, along: Sequence[int] | None = None
) -> Given:
    """Integers from least to most."""
    return Given(
        torch.randint(least, most + 1, shape),
        lambda: torch.randint(least, most + 1, shape),
        free,
        along,
    )


def truths(*shape: int, free: bool = False, along: Sequence[int] | None = None) -> Given:
    """Truth values."""
    return Given(torch.rand(shape) < 0.5, lambda: torch.rand(shape) < 0.5, free, along)


def imaginary(*shape: int, free: bool = False, along: Sequence[int] | None = None) -> Given:
    """Complex numbers."""

    def draw() -> Tensor:
        return torch.complex(torch.randn(shape), torch.randn(shape))

    return Given(draw(), draw, free, along)


def fixed(values: Tensor) -> Given:
    """Numbers that stay as they are."""
    return Given(values, lambda: values, free=True)


def _owners(given: Given, style: int) -> Tensor | None:
    """Owners of an argument: None, all alike, by an axis, or one by one."""
    shape = given.values.shape
    if given.free or style == 0:
        return None
    if style == 1 or not given.along:
        return torch.randint(-1, RECORDS, (1,) * len(shape), dtype=TYPE)
    if style == 2:
        axis = list(given.along)[int(torch.randint(len(given.along), ()))]
        axes = [axis]
    else:
        axes = [a for a in given.along if style == 4 or torch.rand(()) < 0.7]
    sizes = [size if axis in axes else 1 for axis, size in enumerate(shape)]
    owners = torch.randint(-1, RECORDS, sizes, dtype=TYPE)
    if style == 4:
        owners = torch.where(torch.rand(sizes) < 0.15, MIXED, owners)
    return owners


def _each(value: Any, change: Callable[[Given], Any]) -> Any:
    if isinstance(value, Given):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_each(item, change) for item in value])
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return value


def tensors_among(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_among(item)


class Wrong(Exception):
    """A rule gave an element to the wrong record."""


def require_truth(make: Callable[[], tuple[Any, tuple[Any, ...]]], times: int = 40) -> int:
    """Compare a rule with what the operation does, for owners drawn at random.

    Args:
        make: makes the function and its arguments anew, with `Given` for tensors; it may call
            several operations, on views and in place.
        times: how many owners to try.

    Returns:
        How many trials had some record's numbers in them.
    """
    tried = 0
    for trial in range(times):
        torch.manual_seed(trial)
        function, arguments = make()
        givens: list[Given] = []
        _each(list(arguments), lambda g, found=givens: found.append(g))
        owners = [_owners(given, int(torch.randint(5, ()))) for given in givens]
        if all(o is None for o in owners):
            continue
        tried += 1
        watch = Watch(RECORDS, rule_of, None, lambda: None)
        with torch.no_grad():
            place = iter(range(len(givens)))

            def adopted(
                given: Given, watch: Watch = watch, place: Any = place, owners: Any = owners
            ) -> Tensor:
                own = owners[next(place)]
                values = given.values.clone(memory_format=torch.preserve_format)
                if own is not None:
                    watch.adopt(values, own)
                return values

            inputs = _each(list(arguments), adopted)
            torch.manual_seed(0)
            with watch:
                first = function(*inputs)
            results = [*tensors_among(first), *tensors_among(inputs)]
            known = [watch.owners(tensor) for tensor in results]
            base = [tensor.detach().clone() for tensor in results]
            if any(f.kind == "no rule" for f in watch.findings):
                raise Wrong(f"no rule: {[f.operation for f in watch.findings]}")
            for record in range(RECORDS):
                for _ in range(2):
                    place = iter(range(len(givens)))

                    def changed(
                        given: Given, place: Any = place, record: int = record, owners: Any = owners
                    ) -> Tensor:
                        own = owners[next(place)]
                        values = given.values.clone(memory_format=torch.preserve_format)
                        if own is not None:
                            theirs = (own == record) | (own == MIXED)
                            values.copy_(torch.where(theirs, given.draw(), values))
                        return values

                    again = _each(list(arguments), changed)
                    torch.manual_seed(0)
                    second = function(*again)
                    for before, after, own in zip(
                        base, [*tensors_among(second), *tensors_among(again)], known, strict=True
                    ):
                        _compare(before, after, own, record, trial)
    return tried


def _compare(before: Tensor, after: Tensor, own: Tensor, record: int, trial: int) -> None:
    if before.shape != after.shape:
        raise Wrong(f"shape {tuple(before.shape)} became {tuple(after.shape)}")
    if own.ndim != before.ndim:
        raise Wrong(f"owners of {own.ndim} axes for {tuple(before.shape)}")
    whose = own.expand(before.shape)
    same = (before == after) | ((before != before) & (after != after))
    if before.is_floating_point() or before.is_complex():
        same |= (before - after).abs() <= 1e-4 * (1 + before.abs())
    allowed = (whose == record) | (whose == MIXED)
    bad = ~same & ~allowed
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise Wrong(
            f"trial {trial}: record {record} moved the element at {where} of "
            f"{tuple(before.shape)}, which is said to be of {int(whose[where])} "
            f"({FREE} is nobody)"
        )
