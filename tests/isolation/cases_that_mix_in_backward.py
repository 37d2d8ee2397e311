"""User code whose losses stand alone and whose gradients meet on their way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from isolation_case import Mixing, Pair, among, holding
from isolation_networks import along, between, numbers, sequences, squares, using
from torch import Tensor, nn
from torch.nn import functional as F


class Guarded(nn.Module):
    """A network with something done to the gradient of its hidden layer."""

    def __init__(self, guard: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.guard = nn.Linear(8, 6), nn.Linear(6, 1), guard

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        if h.requires_grad:
            h.register_hook(self.guard)
        return self.b(h)


def nan_guard(g: Tensor) -> Tensor:
    """The whole gradient is thrown away where anything is wrong."""
    return g if torch.isfinite(g).all() else torch.zeros_like(g)


def nan_guard_without_a_question(g: Tensor) -> Tensor:
    """The same with no branch in Python."""
    return torch.where(torch.isfinite(g).all(), g, torch.zeros_like(g))


def clipped(g: Tensor) -> Tensor:
    """Gradients cut to a norm that no ordinary batch reaches."""
    return g * torch.clamp(1e6 / g.norm(), max=1.0)


def clipped_by_largest(g: Tensor) -> Tensor:
    """The same by the largest number, in place."""
    return g.clone().mul_((1e3 / g.abs().max()).clamp_(max=1.0))


def capped(g: Tensor) -> Tensor:
    """Outliers are brought back to two deviations of the batch."""
    bound = 2 * g.std()
    return g.clamp(-bound, bound)


def sparse(g: Tensor) -> Tensor:
    """The twelve largest numbers go back, as in meProp."""
    least = g.abs().flatten().topk(12).values[-1]
    return g * (g.abs() >= least)


def fewer_when_many(g: Tensor) -> Tensor:
    """Large batches take smaller steps."""
    return g * 0.1 if len(g) >= 40 else g


def unit_mean(g: Tensor) -> Tensor:
    """A gradient of mean size one."""
    return g / g.abs().mean()


class FullBackward(nn.Module):
    """The guard of a module, by its full backward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)

        self.act.register_full_backward_hook(
            lambda module, given, out: tuple(
                g if g is None or bool(torch.isfinite(g).all()) else torch.zeros_like(g)
                for g in given
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


class BeforeBackward(nn.Module):
    """The gradient of a module's output made of size one, before it enters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)
        self.act.register_full_backward_pre_hook(lambda module, out: (out[0] / out[0].norm(),))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


class NodeHook(nn.Module):
    """A hook on the node of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        if h.grad_fn is not None:
            h.grad_fn.register_prehook(lambda found: (found[0] - found[0].mean(0),))
        return self.b(h)


class ForwardHook(nn.Module):
    """Statistics of the batch, taken out by a forward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
        self.net[1].register_forward_hook(lambda module, given, out: out - out.mean(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class ForwardPreHook(nn.Module):
    """The same for what a layer is given."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
        self.net[2].register_forward_pre_hook(lambda module, given: (given[0] / given[0].norm(),))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Rescale(torch.autograd.Function):
    """Nothing on the way there; on the way back, the largest number becomes one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / g.abs().max().clamp(min=1e-12)


class RescaleSeldom(Rescale):
    """The same where the largest number is above a million."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / (g.abs().max() / 1e6).clamp(min=1.0)


class Centre(Rescale):
    """On the way back, the mean over the batch is taken off."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g - g.mean(0, keepdim=True)


class RoundedBack(torch.autograd.Function):
    """Gradients in seven steps of the largest, as training in four bits has them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        step = g.abs().max() / 7
        g = torch.round(g / step) * step
        return g @ weight, g.T @ x


class FourBits(nn.Module):
    """A linear layer of four bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)

    def forward(self, h: Tensor) -> Tensor:
        return RoundedBack.apply(h, self.weight)


class Compressed(nn.Module):
    """What is kept for the backward pass is kept in a few steps of the batch's largest number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        def pack(kept: Tensor) -> tuple[Tensor, Tensor]:
            step = kept.detach().abs().max() / 3
            return torch.round(kept.detach() / step), step

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0] * packed[1]):
            return torch.tanh(self.inner(h)).square()


def straight_through_mean(h: Tensor) -> Tensor:
    """The value stays what it is, and the gradient takes off the mean over the batch."""
    mean = h.mean(0)
    return h - (mean - mean.detach())


def straight_through_softmax(h: Tensor) -> Tensor:
    """Hard choices forward, and backward those of a softmax over the wrong axis."""
    soft = h.softmax(0)
    hard = F.one_hot(h.argmax(-1), h.shape[-1]).to(h.dtype)
    return hard + soft - soft.detach()


def huge_target(batch: Any) -> Pair:
    """One target of 10⁸."""
    return holding(1e8, position=1)(batch)


def many(batch: Any) -> Pair:
    """Of 40 records one is left out."""
    return among(40)(batch)


def _guarded(name: str, guard: Callable[[Tensor], Tensor], says: str, **options: Any) -> Mixing:
    build = using(partial(Guarded, guard), numbers, squares)
    return Mixing(name, "hook", build, says=says, **options)


def _net(name: str, model: Callable[[], nn.Module], kind: str, says: str, **options: Any) -> Mixing:
    return Mixing(name, kind, using(model, numbers, squares), says=says, **options)


def _function(name: str, change: Any, says: str, **options: Any) -> Mixing:
    return _net(name, between(change, 1), "backward", says, **options)


INF = float("inf")
CASES = (
    _guarded(
        "guard against NaN",
        nan_guard,
        "hook|item|local_scalar|bool",
        showing=holding(INF, 1),
        hidden=True,
    ),
    _guarded(
        "guard against NaN by where",
        nan_guard_without_a_question,
        "hook|all",
        showing=holding(float("nan"), 1),
        hidden=True,
    ),
    _guarded("cut to a norm", clipped, "hook|norm", showing=huge_target, hidden=True),
    _guarded(
        "cut to a largest number", clipped_by_largest, "hook|max", showing=huge_target, hidden=True
    ),
    _guarded("outliers brought back", capped, "hook|std"),
    _guarded(
        "smaller when many", fewer_when_many, "hook|len|size|number", showing=many, hidden=True
    ),
    _guarded("largest numbers go back", sparse, "hook|topk"),
    _guarded("mean size one", unit_mean, "hook|mean"),
    _net(
        "guard of a module",
        FullBackward,
        "hook",
        "hook|item|local_scalar|bool",
        showing=holding(INF, 1),
        hidden=True,
    ),
    _net("before a module's backward", BeforeBackward, "hook", "hook|norm"),
    _net("hook on a node", NodeHook, "hook", "hook|mean"),
    _net("forward hook", ForwardHook, "hook", "hook|mean"),
    _net("forward pre-hook", ForwardPreHook, "hook", "hook|norm"),
    _function("rescaled on the way back", Rescale.apply, "max"),
    _function("rescaled where large", RescaleSeldom.apply, "max", showing=huge_target, hidden=True),
    _function("centred on the way back", Centre.apply, "mean"),
    _function("rounded on the way back", FourBits, "max"),
    _function("compressed for the way back", Compressed, "max"),
    _function("mean straight through", straight_through_mean, "mean"),
    Mixing(
        "softmax straight through",
        "backward",
        using(along(straight_through_softmax), sequences),
        says="softmax",
    ),
)
