"""Values that made-up records do not have: do they reach another record?

Made-up numbers are finite and of size one, and made-up integers are 0 and 1. Some code lets records
meet only at other values: it fills gaps with the mean of the batch, sorts by the count of a padding
token, or rescales a batch in which anything is large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from steppe.clipping.batches import each, tensors_in
from steppe.clipping.probing.isolation import Locator
from steppe.clipping.probing.sight import Subject, look, losses_of, unchanged
from steppe.errors import IsolationError, SteppeError

_WHICH = 1  # in the middle, so that it moves wherever records are sorted
_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "0": torch.zeros_like,
    "1000 times as large": lambda tensor: tensor * 1000,
    "100 times as small": lambda tensor: tensor / 100,
    # Last, since they show what other values do too, with less to say about the reason.
    "inf": lambda tensor: torch.full_like(tensor, float("inf")),
    "NaN": lambda tensor: torch.full_like(tensor, float("nan")),
}
_INTEGERS = (2, 3, 7, -1, -100)
_BELOW = 8


@dataclass(frozen=True)
class _Trial:
    """One value, in one tensor of the batch.

    Each tensor is tried by itself: a label that the loss does not take must not hide what a token
    does.

    Attributes:
        name: of tensor and value, for errors.
        one: one record has the value and the others are usual.
        every: all records have it.
        others: all but that one have it.
        places: whether the tensor may say where rows go, as integers do.
    """

    name: str
    one: Any
    every: Any
    others: Any
    places: bool


def require_deaf_to_values(
    subject: Subject, batch: Any, generator: torch.Generator, seed: int, locator: Locator
) -> str | None:
    """No value of one record may move the losses of the others, be they usual or have it too.

    Values that model or loss do not take are left out.

    Args:
        subject: what is probed.
        batch: made-up records.
        generator: for integers at random.
        seed: of the random numbers of the first passes.
        locator: told what moves with the integers of a record.

    Returns:
        Why this could be checked in part only, or None.
    """
    # Elsewhere an index out of range is no exception: it ends the process's use of the device.
    integers = subject.device.type == "cpu"
    with unchanged(subject.model):
        usual, base = losses_of(subject, batch, seed), look(subject, batch, seed)
        for number, trial in enumerate(_trials(batch, generator, integers), start=1):
            found = _losses_if_taken(subject, trial.one, seed)
            # On other random numbers each time: some models mix records only now and then.
            if not _stayed(usual, found) or not _apart(subject, trial, seed + number):
                raise _heard(trial.name)
            if found is not None and trial.places:
                locator.narrow(base, look(subject, trial.one, seed), _WHICH)
    if integers or not any(map(_counts, tensors_in(batch))):
        return None
    return "integers other than 0 and 1 were not tried: that is done on the CPU alone"


def _apart(subject: Subject, trial: _Trial, seed: int) -> bool:
    """Whether records that have the value do without one that has it."""
    every = _losses_if_taken(subject, trial.every, seed)
    return every is None or _stayed(every, _losses_if_taken(subject, trial.others, seed))


def _counts(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _trials(batch: Any, generator: torch.Generator, integers: bool) -> Iterator[_Trial]:
    for position, tensor in enumerate(tensors_in(batch)):
        if _counts(tensor) and not integers:
            continue
        for value, odd in _odd(tensor, generator):
            one, every, others = (
                _exchanged(batch, position, values)
                for values in (_with_row(tensor, odd), odd, _with_row(odd, tensor))
            )
            name = f"tensor {position} of the batch={value}"
            yield _Trial(name, one, every, others, not tensor.is_floating_point())


def _odd(tensor: Tensor, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Names of values, and the tensor with each of them everywhere."""
    if tensor.is_floating_point():
        yield from ((name, make(tensor)) for name, make in _NUMBERS.items())
    elif tensor.dtype == torch.bool:
        yield from ((str(truth), torch.full_like(tensor, truth)) for truth in (False, True))
    elif _counts(tensor):
        least = torch.iinfo(tensor.dtype).min
        yield from ((str(v), torch.full_like(tensor, v)) for v in _INTEGERS if v >= least)
        drawn = torch.randint(_BELOW, tensor.shape, generator=generator, device="cpu")
        yield f"numbers below {_BELOW}", drawn.to(tensor)


def _with_row(tensor: Tensor, other: Tensor) -> Tensor:
    changed = tensor.clone()
    changed[_WHICH] = other[_WHICH]
    return changed


def _exchanged(batch: Any, position: int, tensor: Tensor) -> Any:
    """The batch with another tensor at one position."""
    numbers = count()
    return each(lambda own: tensor if next(numbers) == position else own, batch)


def _losses_if_taken(subject: Subject, batch: Any, seed: int) -> Tensor | None:
    try:
        return losses_of(subject, batch, seed)
    except SteppeError:
        raise
    except Exception:  # an index out of range, an assertion: such records would stop a step too
        return None


def _stayed(before: Tensor, after: Tensor | None) -> bool:
    """Whether the losses of the other records did, if there are any.

    Not to the last bit: functions such as the sine take another way through a group of numbers in
    which one is large.
    """
    if after is None:
        return True
    if before.shape != after.shape:
        return False
    others = torch.arange(len(before), device=before.device) != _WHICH
    return torch.allclose(before[others], after[others], rtol=1e-5, atol=1e-7, equal_nan=True)


def _heard(name: str) -> IsolationError:
    remedy = (
        "clean the data before it comes to the model, or keep the records apart: fill gaps from "
        "the record itself, and let no product run over all records under a mask"
        if name.endswith(("NaN", "inf"))
        else "cut, sort, rescale and fill every record by itself, before the model or in it"
    )
    return IsolationError(
        f"{name}: must leave the losses of other records as they are, and moved them when one "
        f"record had it or lost it; {remedy}."
    )
