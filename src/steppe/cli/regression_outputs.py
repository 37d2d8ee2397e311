"""Outputs of a regression for new records, with intervals from its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from steppe.averaging import half_width, write_checkpoint
from steppe.utils.module_modes import evaluating

_AT_ONCE = 1024


@torch.no_grad()
def outputs_with(model: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The outputs of a model with these weights, which stay in it."""
    write_checkpoint(model, weights)
    with evaluating(model):
        return torch.cat([model(part).double() for part in inputs.split(_AT_ONCE)])


def mean_outputs(
    model: nn.Module, checkpoints: Iterable[Mapping[str, Tensor]], inputs: Tensor, interval: float
) -> tuple[Tensor, Tensor, int]:
    """The mean outputs of several checkpoints.

    Args:
        model: of the checkpoints; it has the weights of the last one afterwards.
        checkpoints: of one run.
        inputs: any number along the first dimension.
        interval: confidence of the Student-t intervals, in (0, 1).

    Returns:
        The mean outputs, half the width of their intervals, and the number of checkpoints.
    """
    every = torch.stack([outputs_with(model, weights, inputs) for weights in checkpoints])
    mean = every.mean(0)
    scatter = (every - mean).square().sum(0)
    return mean, half_width(scatter, len(every), interval), len(every)


def rows(output: Tensor, half: Tensor) -> list[dict[str, Any]]:
    """The row of each record; several outputs are numbered.

    Examples:
        >>> rows(torch.tensor([2.0]), torch.tensor([0.5]))
        [{'record': 0, 'output': 2.0, 'low': 1.5, 'high': 2.5}]
    """
    columns = [
        values.reshape(len(output), -1).tolist()
        for values in (output, output - half, output + half)
    ]
    several = output.numel() > len(output)
    return [
        {"record": record}
        | {
            f"{name}_{place}" if several else name: round(value, 6)
            for place, values in enumerate(zip(*parts, strict=True))
            for name, value in zip(("output", "low", "high"), values, strict=True)
        }
        for record, parts in enumerate(zip(*columns, strict=True))
    ]
