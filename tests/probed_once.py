"""One probe for many runs of one network, in tests that are about something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from steppe.gradients.objective import RecordLosses
from steppe.gradients.one_at_a_time.each_record import EachRecord
from steppe.probing.model_state import form_of
from steppe.probing.probe import probe
from steppe.probing.report import Report


class ProbedOnce:
    """In place of the probe: what it found for the first network of this make.

    It draws the same numbers every time and sees the network and its losses, neither the plan nor
    the optimizer. Every make and every kind of run needs another test in which it is at work.

    Args:
        same_weights: whether networks of one make are told apart by their weights, and by the
            number of records they are tried with, so that nothing is left out but what would be
            the same again.
    """

    def __init__(self, same_weights: bool = False) -> None:
        self._same_weights = same_weights
        self._found: dict[object, tuple[list[int], Report]] = {}

    def __call__(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        objective: Any,
        example: Any,
        *,
        at_once: int = 0,
        activation_bytes: int | None = None,
        isolation: str = "proven",
        one_at_a_time: EachRecord | None = None,
    ) -> Report:
        def found() -> Report:
            return probe(
                model,
                parameters,
                objective,
                example,
                at_once=at_once,
                activation_bytes=activation_bytes,
                isolation=isolation,
                one_at_a_time=one_at_a_time,
            )

        if (
            type(objective) is not RecordLosses or one_at_a_time is not None
        ):  # of which nothing is known
            return found()
        own = [id(weight) for weight in parameters.values()]
        losses = objective._loss, objective._views
        make: tuple[object, ...] = repr(model), *parameters, losses, isolation, form_of(example)
        if self._same_weights:
            values = (str(value.tolist()) for value in model.state_dict().values())
            make += (at_once, *values)
        if make not in self._found:
            self._found[make] = own, found()
        first, report = self._found[make]
        same: dict[int | None, int | None] = dict(zip(first, own, strict=True)) | {None: None}
        layouts = [
            replace(layouts, weights=layouts.weights and tuple(map(same.get, layouts.weights)))
            for layouts in report.layouts
        ]
        return replace(report, layouts=layouts)
