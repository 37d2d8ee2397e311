"""Batches that are padded to one shape."""

from typing import Any

import pytest
import torch
from private_cases import parts, private
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from silent import Silent
from steppe.errors import ConfigurationError, MisuseError, UnsupportedModelError
from steppe.step import PrivateStep

FIXED: dict[str, Any] = {
    "sampling": steppe.CappedPoisson(fixed_shapes=True),
    "adjacency": "zero-out",
}


class Recording(nn.Module):
    """Notes the shapes of what goes through, there and back."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.seen += [tuple(x.shape), tuple(y.shape)]
        if y.requires_grad:
            y.register_hook(lambda gradient: self.seen.append(tuple(gradient.shape)))
        return y


def seen_in_steps(draws: list[int], views: int = 1, **options: Any) -> list[list[tuple[int, ...]]]:
    """What a model sees in steps that draw so many records each."""
    constants: dict[str, Any] = {"steps": len(draws), "views": views} | options
    physical = constants.pop("physical_batch", None)
    model, _, data, plan = parts(**constants)
    model = Recording(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    augment = None if views == 1 else torch.neg
    loop = steppe.make_private(
        model, optimizer, data, plan,
        loss=F.cross_entropy, physical_batch=physical, augment=augment,
    )  # fmt: skip
    loop._reader._draw = lambda step, source: torch.arange(draws[step])
    steps = []
    for batch in loop:
        assert len(batch[0]) == draws[len(steps)]
        model.seen.clear()
        loop.step(batch)
        steps.append(list(model.seen))
    return steps


def test_with_fixed_shapes_every_step_is_like_every_other() -> None:
    draws = [0, 46, 1, 20]  # four, since before the fifth step the model is probed again
    once = [(46, 6), (46, 3), (46, 3)]
    assert seen_in_steps(draws, **FIXED) == [once] * 4
    pieces = [(12, 6), (12, 3), (12, 3)] * 4
    assert seen_in_steps(draws, physical_batch=13, **FIXED) == [pieces] * 4
    twice = [(92, 6), (92, 3), (92, 3)]
    assert seen_in_steps(draws, views=2, **FIXED) == [twice] * 4
    usual = seen_in_steps(draws, **FIXED | {"sampling": steppe.CappedPoisson()})
    assert [len(step) for step in usual] == [0, 3, 3, 3]
    assert [step[0][0] for step in usual[1:]] == draws[1:]


def test_fixed_shapes_change_no_gradient() -> None:
    """The same draws and the same noise, with and without padding."""
    moved = []
    for sampling in (steppe.CappedPoisson(), steppe.CappedPoisson(fixed_shapes=True)):
        model, optimizer, data, plan = parts(
            clip=steppe.Quantile(), l2=0.1, batch_size=2, steps=25, **FIXED | {"sampling": sampling}
        )
        source = steppe.SeededSource(4)
        loop = steppe.make_private(
            model, optimizer, data, plan, loss=F.cross_entropy, source=source
        )
        sizes = set()
        for batch in loop:
            sizes.add(len(batch[0]))
            loop.step(batch)
        assert min(sizes) == 0
        assert max(sizes) > 3
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        moved.append((weights, loop.engine.clipper.state()["bound"]))
    assert torch.allclose(moved[0][0], moved[1][0], rtol=1e-4, atol=1e-6)
    assert moved[0][1] == pytest.approx(moved[1][1], rel=1e-6)


def test_an_empty_batch_of_fixed_shapes_is_noise_alone() -> None:
    loop = private(steps=2, noise=Silent(), l2=0.1, **FIXED)
    loop._reader._draw = lambda step, source: torch.arange(0)
    batch = next(iter(loop))
    loop._step.take([batch])
    assert not any(p.grad.any() for p in loop.model.parameters())


def test_a_batch_of_fixed_shapes_comes_whole() -> None:
    loop = private(**FIXED)
    batch = next(iter(loop))
    rest = (
        r": must be the whole batch if shapes are fixed, because the number of parts would reveal "
        r"its size; pass the drawn batch to step\(\), and set physical_batch to limit how many "
        r"records pass through the model at once\.$"
    )
    with pytest.raises(MisuseError, match=r"^part=list" + rest):
        loop.accumulate(list(batch))
    with pytest.raises(MisuseError, match=r"^batch=NoneType" + rest):
        loop.step()
    assert loop.steps_done == 0
    loop.step(batch)
    assert loop.steps_done == 1


def test_what_stops_at_zeros_is_refused_before_the_first_step() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            torch._assert_async(x.any(), "nothing there")
            return super().forward(x)

    def make(sampling: steppe.CappedPoisson) -> steppe.Private:
        _, _, data, plan = parts(adjacency="zero-out", sampling=sampling)
        model = Picky(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)

    make(steppe.CappedPoisson())
    with pytest.raises(
        UnsupportedModelError, match=r"^fixed_shapes=True: .*\nRuntimeError: nothing there$"
    ):
        make(steppe.CappedPoisson(fixed_shapes=True))


def test_the_padding_of_the_engine_must_be_the_plans() -> None:
    loop = private(**FIXED)
    loop.engine.padded_to = None
    with pytest.raises(
        ConfigurationError, match=r"^engine\.padded_to=None: must be the plan's 46; make it from"
    ):
        PrivateStep(loop.plan, loop.engine, loop.optimizer, steppe.SecureSource())
