"""Shared by the tests of rules: the engine against one record at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum, record_gradients
from steppe.utils.batches import count, each


def squares(output: Tensor) -> Tensor:
    """A loss for each record that tells every entry of the output apart."""
    flat = output.flatten(1)
    scale = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)
    return (scale * (flat - 0.3).square()).mean(1)


def assert_agrees(
    model: nn.Module,
    batch: Any,
    *,
    call: Callable[[nn.Module, Any], Tensor] | None = None,
    tolerance: float = 3e-6,
    bound: float = 0.05,
    paths: set[str] | None = None,
) -> None:
    """Clipped sums and norms equal the reference: with and without λθ, in one piece or several.

    Args:
        model: whose trainable parameters are meant.
        batch: what one call of the objective gets.
        call: model and batch to an output with records first; None calls the model.
        tolerance: relative error allowed.
        bound: the clip.
        paths: the paths that must have been taken, and no others.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    weights = list(parameters.values())

    def objective(piece: Any) -> Tensor:
        return squares(call(model, piece) if call else model(piece))

    truth = record_gradients(objective, weights, batch)
    theta = torch.cat([p.detach().flatten() for p in weights])
    for l2, physical in ((0.0, None), (0.3, None), (0.0, max(count(batch) - 2, 1)), (0.3, 1)):
        engine = ClippedSum(parameters, objective, Flat(bound), l2=l2, physical_batch=physical)
        out = torch.zeros(engine.numel, dtype=truth.dtype)
        norms = engine.add_(out, batch)
        expected = clipped_sum(objective, weights, batch, Flat(bound), l2)
        # The λθ term is guarded by float32's rounding whatever the precision of the weights.
        allowed = max(tolerance, 3e-6) if l2 else tolerance
        error, length = float((out - expected).norm()), float(expected.norm())
        assert error <= allowed * length, f"{l2=} {physical=}: error {error:.1e} of {length:.1e}"
        lengths = (truth + l2 * theta).norm(dim=1)
        torch.testing.assert_close(norms.to(lengths.dtype), lengths, rtol=allowed, atol=1e-7)
    if paths is not None:
        engine = ClippedSum(parameters, objective, Flat(bound))
        assert {
            use.path for use in engine.passes.trace(objective, batch, count(batch)).uses
        } == paths


def assert_agrees_in_double(model: nn.Module, batch: Any, **options: Any) -> None:
    """The same in float64, where an error in the mathematics has nowhere to hide."""

    def widened(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    double = copy.deepcopy(model).double()
    assert_agrees(double, each(widened, batch), **({"tolerance": 1e-12} | options))


def assert_same_output(model: nn.Module, batch: Any, tolerance: float = 0.0) -> None:
    """What the tracer computes is what the model computes."""
    seen: list[Tensor] = []

    def objective(piece: Any) -> Tensor:
        output = model(piece)
        seen.append(output.detach())
        return squares(output)

    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    ClippedSum(parameters, objective, Flat(1.0)).slots(batch)
    expected = model(batch).detach()
    if tolerance:
        torch.testing.assert_close(seen[0], expected, rtol=tolerance, atol=tolerance)
    else:
        assert torch.equal(seen[0], expected)
