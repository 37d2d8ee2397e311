"""Rows of a regression's outputs for new records."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def rows(output: Tensor, half: Tensor) -> list[dict[str, Any]]:
    """The row of each record; several outputs are numbered.

    Examples:
        >>> import torch
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
