"""What can be done with a model that is not proven: how much slower would one at a time be?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steppe.gradients import VMAP, EachRecord, unchanged
from steppe.probing.observed_pass import ProbedModel
from steppe.probing.synthetic import synthetic
from steppe.randomness import global_generators_kept
from steppe.utils.formatting import first_line

# What the sentence names, as it spells it.
OTHER_KINDS = ('isolation="each"', 'isolation="probed"')
_RECORDS, _TIMES = 8, 5


def ways_on(subject: ProbedModel, example: Any) -> str:
    """A sentence about the two other kinds of isolation, with the measured cost of one.

    Args:
        subject: a model that was refused.
        example: a batch whose form is copied.
    """
    probed = (
        'isolation="probed" only tries made-up values, which proves nothing, and the privacy '
        "statement says so"
    )
    generator = torch.Generator().manual_seed(0)
    batch = synthetic(example, _RECORDS, generator)
    each = EachRecord(subject.parameters, subject.model)
    try:
        with global_generators_kept(), unchanged(subject.model), torch.enable_grad():
            each.choose(subject.objective, synthetic(example, 2, generator))
            slow = _seconds(lambda: each.slots(subject.objective, batch, _RECORDS))
            fast = _seconds(lambda: _plain(subject, batch))
    except Exception as error:  # whatever model, loss or torch say about records alone
        return f'Otherwise: isolation="each" does not take it ({first_line(error)}); {probed}.'
    way = "by vmap" if each.way == VMAP else each.way
    times = f"{slow / fast:.1f} times the time of a plain pass of {_RECORDS} records here"
    return (
        f'Otherwise: isolation="each" takes the records through the model {way} ({times}); '
        f"{probed}."
    )


def _plain(subject: ProbedModel, batch: Any) -> None:
    losses = subject.objective(batch).sum()
    torch.autograd.grad(losses, _trained(subject), allow_unused=True)


def _trained(subject: ProbedModel) -> list[Tensor]:
    return [p for p in subject.parameters.values() if p.requires_grad]


def _seconds(run: Callable[[], Any]) -> float:
    run()  # once in vain: first calls set things up
    found: list[float] = []
    while not found or (len(found) < _TIMES and sum(found) < 1.0):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-6)
