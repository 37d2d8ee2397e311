"""What a model may do with the outputs of traced layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steppe.clipping import ClippedSum, Flat


class _Then(nn.Module):
    """A layer, then a change of its output, in place or not."""

    def __init__(self, layer: nn.Module, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = layer, in_place

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            made = self.layer(x, x, x)[0]
        else:
            made = self.layer(x)
            made = made[0] if isinstance(made, tuple) else made
        if self.in_place:
            made += 1.0
            made.mul_(2.0)
        else:
            made = (made + 1.0) * 2.0
        return made.sin()


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 4), (4,)),
    "linear, three axes": (lambda: nn.Linear(4, 4), (5, 4)),
    "linear, four axes": (lambda: nn.Linear(4, 4), (2, 5, 4)),
    "linear without bias": (lambda: nn.Linear(4, 4, bias=False), (5, 4)),
    "convolution": (lambda: nn.Conv2d(4, 4, 3), (4, 6, 6)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 6, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 6, 6)),
    "layer norm": (lambda: nn.LayerNorm(4), (5, 4)),
    "GRU": (lambda: nn.GRU(4, 4, batch_first=True), (5, 4)),
    "attention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (5, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_may_be_changed_in_place(name: str) -> None:
    """As without a tracer: the change is not refused, not lost, not seen by the backward pass."""
    build, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = build(), torch.randn(7, *shape)
    sums = []
    for in_place in (False, True):
        model = _Then(layer, in_place)
        weights = dict(model.named_parameters())
        engine = ClippedSum(weights, lambda batch, m=model: m(batch).flatten(1).sum(1), Flat(0.5))
        sums.append(torch.zeros(engine.width))
        engine.add_(sums[-1], x)
    torch.testing.assert_close(sums[1], sums[0])
    assert sums[0].norm() > 0.1
