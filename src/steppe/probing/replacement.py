"""isolation="probed": replaces one synthetic record at a time, and compares the losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from steppe.gradients import ContactLayout
from steppe.probing.mixing import first_mixing, require_isolation, require_repeatable
from steppe.probing.observed_pass import ProbedModel, observe
from steppe.probing.record_axis import Locator
from steppe.probing.synthetic import Style, synthetic, with_other_record

_RECORDS = 3
_MORE = 5  # the record axis of a tensor that does not change is the one that grows


def located(
    probed: ProbedModel,
    example: Any,
    generator: torch.Generator,
    style: Style,
    seed: int,
) -> list[ContactLayout]:
    """The layouts of every contact, if no record changes the loss of another.

    Args:
        probed: what is probed.
        example: a batch; its structure, shapes and types are copied.
        generator: of the synthetic values.
        style: of the synthetic values.
        seed: of the random numbers of the passes.
    """
    locator = Locator(observe(probed, synthetic(example, _RECORDS, generator, style), seed))
    for uniform in (False, True):
        batch = synthetic(example, _RECORDS, generator, style)
        base = observe(probed, batch, seed)
        for which in range(_RECORDS):
            other = with_other_record(batch, which, generator, style, uniform)
            replaced = observe(probed, other, seed)
            culprit = _culprit(probed, batch, other, which, seed)
            require_isolation(base, replaced, which, culprit)
            locator.narrow(base, replaced, which)
    if locator.ambiguous:
        locator.recount(observe(probed, synthetic(example, _MORE, generator, style), seed))
    return locator.layouts()


def _culprit(
    probed: ProbedModel, batch: Any, other: Any, which: int, seed: int
) -> Callable[[], str | None]:
    """Finds the layer to name; runs the model again, so it is only called for an error."""

    def find() -> str | None:
        before = observe(probed, batch, seed, modules=True)
        require_repeatable(before, observe(probed, batch, seed))
        return first_mixing(before, observe(probed, other, seed, modules=True), which)

    return find
