"""The other two kinds of isolation for a model that is not proven, with a measured cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steppe.errors import IsolationError
from steppe.gradients import VMAP, EachRecord, unchanged
from steppe.probing.observed_pass import ProbedModel
from steppe.probing.synthetic import synthetic
from steppe.randomness import global_generators_kept
from steppe.utils.formatting import first_line

# The names in the message.
_OTHER_KINDS = ('isolation="each"', 'isolation="probed"')
_RECORDS, _TIMES = 8, 5


def offer_other_isolation(error: IsolationError, probed: ProbedModel, example: Any) -> None:
    """Add a sentence about the alternatives to an error.

    Args:
        error: why a model is not proven.
        probed: the model.
        example: a batch; its structure, shapes and types are copied.
    """
    error.otherwise, error.mentions = _other_isolation(probed, example), _OTHER_KINDS


def _other_isolation(probed: ProbedModel, example: Any) -> str:
    only_tried = (
        'isolation="probed" only tries synthetic values, which proves nothing, and the privacy '
        "statement says so"
    )
    generator = torch.Generator().manual_seed(0)
    batch = synthetic(example, _RECORDS, generator)
    each = EachRecord(probed.parameters, probed.model)
    try:
        with global_generators_kept(), unchanged(probed.model), torch.enable_grad():
            each.choose(probed.objective, synthetic(example, 2, generator))
            slow = _seconds(lambda: each.slots(probed.objective, batch, _RECORDS))
            fast = _seconds(lambda: _plain(probed, batch))
    except Exception as error:  # whatever error model, loss or torch raise for single records
        return f'Otherwise: isolation="each" does not take it ({first_line(error)}); {only_tried}.'
    way = "by vmap" if each.way == VMAP else each.way
    times = f"{_rounded(slow / fast)} times the time of a plain pass of {_RECORDS} records here"
    return (
        f'Otherwise: isolation="each" takes the records through the model {way} ({times}); '
        f"{only_tried}."
    )


def _rounded(ratio: float) -> str:
    """Rounded to two digits, because more are not reproducible.

    Examples:
        >>> _rounded(1.234), _rounded(43.21), _rounded(4378.6)
        ('1.2', '43', '4,400')
    """
    digits = 1 - math.floor(math.log10(ratio))
    return f"{round(ratio, digits):,.{max(0, min(1, digits))}f}"


def _plain(probed: ProbedModel, batch: Any) -> None:
    losses = probed.objective(batch).sum()
    torch.autograd.grad(losses, _trained(probed), allow_unused=True)


def _trained(probed: ProbedModel) -> list[Tensor]:
    return [p for p in probed.parameters.values() if p.requires_grad]


def _seconds(run: Callable[[], Any]) -> float:
    run()  # not measured, because first calls include set-up
    found: list[float] = []
    while not found or (len(found) < _TIMES and sum(found) < 1.0):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-6)
