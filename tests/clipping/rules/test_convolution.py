"""Convolutions: every way against the plain per-record truth, over the whole argument space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat, Kernels
from steppe.clipping.reference import clipped_sum, record_gradients
from steppe.clipping.rules.convolution_geometry import Geometry
from steppe.clipping.rules.convolution_slots import candidates

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
WAYS = ("grouped", "product", "patch gram", "pixel gram")
NOBODY = torch.zeros(0, dtype=torch.long)


def summed_squares(model: nn.Module) -> Callable[[Any], Tensor]:
    """An objective whose gradients differ between records and positions."""
    return lambda x: model(x).flatten(1).sin().square().sum(1)


def compare(
    model: nn.Module,
    x: Tensor,
    *,
    l2: float = 0.0,
    physical_batch: int | None = None,
    kernels: Kernels | None = None,
    tolerance: float = 2e-5,
) -> ClippedSum:
    """Clipped sum and norms of the engine against one record at a time."""
    objective = summed_squares(model)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    clip = Flat(0.7)
    engine = ClippedSum(
        parameters, objective, clip, l2=l2, physical_batch=physical_batch, kernels=kernels
    )
    out = torch.zeros(engine.numel, dtype=next(iter(parameters.values())).dtype)
    norms = engine.add_(out, x)
    truth = clipped_sum(objective, list(parameters.values()), x, clip, l2)
    torch.testing.assert_close(out, truth, rtol=0, atol=tolerance * float(truth.norm()) + 1e-12)
    rows = record_gradients(objective, list(parameters.values()), x)
    rows = rows + l2 * torch.cat([p.detach().flatten() for p in parameters.values()])
    exact = rows.double().norm(dim=1)
    torch.testing.assert_close(norms.double(), exact, rtol=tolerance, atol=1e-6)
    # The reference is rounded too, so this is not the place for a tight lower bound.
    assert (norms.double() >= exact * (1 - 1e-5) - 1e-6).all()
    return engine


class Layer(nn.Module):
    """One convolution with trainable weight and bias, called as given."""

    def __init__(
        self, function: Callable[..., Tensor], weight: Tensor, bias: Tensor | None, **options: Any
    ) -> None:
        super().__init__()
        self.function, self.options = function, options
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight, self.bias, **self.options)


@st.composite
def layers(draw: st.DrawFn, transposed: bool = False) -> tuple[Layer, Tensor]:
    """Any small convolution and a batch that fits it."""
    axes = draw(st.integers(1, 3))
    sizes = st.lists(st.integers(1, 3), min_size=axes, max_size=axes)
    kernel, stride, dilation = draw(sizes), draw(sizes), draw(sizes)
    groups, width, depth = (draw(st.integers(1, 3)) for _ in range(3))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    padding: Any = [draw(st.integers(0, 2)) for _ in range(axes)]
    options: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    if transposed:
        extra = [draw(st.integers(0, s - 1)) for s in stride]
        image = [draw(st.integers(1, 3)) + 2 * p for p in padding]
        options |= {"padding": padding, "output_padding": extra}
        shape = (groups * width, depth, *kernel)
        biases = groups * depth
    else:
        image = [max(s - 2 * p, 1) + draw(st.integers(0, 4)) for s, p in
                 zip(spans, padding, strict=True)]
        if all(s == 1 for s in stride) and draw(st.booleans()):
            padding = "same"
        options["padding"] = padding
        shape = (groups * depth, width, *kernel)
        biases = groups * depth
    torch.manual_seed(draw(st.integers(0, 100)))
    bias = torch.randn(biases) if draw(st.booleans()) else None
    function = (TRANSPOSED if transposed else CONVOLUTIONS)[axes]
    layer = Layer(function, torch.randn(shape), bias, **options)
    return layer, torch.randn(draw(st.integers(1, 4)), groups * width, *image)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # torch's note on speed
@settings(max_examples=30, deadline=None)
@given(layers(), st.sampled_from([0.0, 0.3]))
def test_any_convolution(case: tuple[Layer, Tensor], l2: float) -> None:
    layer, x = case
    compare(layer, x, l2=l2, kernels=Kernels(measure=False), physical_batch=3)


@settings(max_examples=20, deadline=None)
@given(layers(transposed=True), st.sampled_from([0.0, 0.3]))
def test_any_transposed_convolution(case: tuple[Layer, Tensor], l2: float) -> None:
    layer, x = case
    compare(layer, x, l2=l2, kernels=Kernels(measure=False), physical_batch=3)


@settings(max_examples=40, deadline=None)
@given(layers(), st.integers(1, 2))
def test_every_way_gives_the_same_gradients(
    case: tuple[Layer, Tensor], rows: int
) -> None:
    layer, x = case
    if layer.options["padding"] == "same":
        return
    geometry = Geometry(
        tuple(layer.weight.shape[2:]),
        *(tuple(layer.options[name]) for name in ("stride", "padding", "dilation")),
        layer.options["groups"],
    )
    records = len(x)
    x = torch.cat([x, x.flip(1)]) if rows == 2 else x
    weight = layer.weight.detach()
    g = torch.randn_like(geometry.apply(x, weight))
    pairs = zip(x.double().split(rows), g.double().split(rows), strict=True)
    exact = torch.stack([geometry.weight_gradient(a, b) for a, b in pairs])
    factors = torch.rand(records)
    total = torch.einsum("b,b...->...", factors.double(), exact).flatten()
    squares = exact.flatten(1).square().sum(1)
    inner = exact.flatten(1) @ weight.double().flatten()
    scale = float(x.flatten(1).square().sum(1).max() * g.flatten(1).square().sum(1).max())
    for name, way in candidates(x, g, geometry, records, None).items():
        slot = way.make()
        squared = slot.squared_norms().double()
        torch.testing.assert_close(
            squared, squares, rtol=1e-5, atol=3e-6 * scale, msg=lambda m, n=name: f"{n}: {m}"
        )
        assert (squared >= squares * (1 - 2e-6)).all(), name
        out = torch.ones(weight.numel())
        slot.add_(out, factors, NOBODY)
        torch.testing.assert_close(out.double() - 1, total, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(slot.written_out().double(), exact, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(slot.dots(weight).double(), inner, rtol=1e-4, atol=1e-3)
