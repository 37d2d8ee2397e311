"""Honest user code in hooks, backward passes, branches, state and counts that look dangerous."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from isolation_case import Honest
from isolation_networks import Between, along, between, numbers, sequences, squares, using
from torch import Tensor, nn
from torch.nn import functional as F


class Guarded(nn.Module):
    """A network with something done to the gradient of its hidden layer."""

    def __init__(self, guard: Callable[[Tensor], Tensor | None]) -> None:
        super().__init__()
        self.a, self.b, self.guard = nn.Linear(8, 6), nn.Linear(6, 1), guard

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        if h.requires_grad:
            h.register_hook(self.guard)
        return self.b(h)


def cut_each(g: Tensor) -> Tensor:
    """Every record's own gradient is cut to its own norm."""
    return g / g.flatten(1).norm(dim=1).clamp(min=0.1)[:, None]


def replaced(g: Tensor) -> Tensor:
    """Numbers that are none become zero, each by itself."""
    return torch.nan_to_num(g, nan=0.0, posinf=1e4, neginf=-1e4)


def finite_alone(g: Tensor) -> Tensor:
    """The same by a question to each number."""
    return torch.where(torch.isfinite(g), g, torch.zeros_like(g))


def finite_records(g: Tensor) -> Tensor:
    """Records whose gradient is not finite count nothing."""
    fine = torch.isfinite(g).flatten(1).all(dim=1)
    return torch.where(fine[:, None], g, 0.0)


def in_place(g: Tensor) -> None:
    """The largest number of each record, in place."""
    g.div_(g.abs().amax(1, keepdim=True).clamp_(min=1.0))


class OfModules(nn.Module):
    """Full backward hooks that treat every number alike."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)
        self.act.register_full_backward_hook(
            lambda module, given, out: tuple(None if g is None else g.clamp(-1, 1) for g in given)
        )
        self.act.register_full_backward_pre_hook(lambda module, out: (out[0] * 0.5,))
        self.a.register_forward_hook(lambda module, given, out: out - out.mean(1, keepdim=True))
        self.b.register_forward_pre_hook(lambda module, given: (given[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


class Reverse(torch.autograd.Function):
    """A gradient turned round, for adversarial domains."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.neg() * ctx.scale, None


class Step(torch.autograd.Function):
    """A spike with a smooth slope of its own, as in spiking networks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g / (1 + 5 * x.abs()).square()


class RoundedBack(torch.autograd.Function):
    """A product whose gradient is rounded in steps of each record's own largest number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        step = g.abs().amax(1, keepdim=True).clamp(min=1e-12) / 7
        return torch.round(g / step) * step * 2


class Spiking(nn.Module):
    """Spikes over time, with a state in a loop."""

    def forward(self, h: Tensor) -> Tensor:
        level = torch.zeros_like(h[:, 0])
        spikes = []
        for t in range(h.shape[1]):
            level = 0.8 * level + h[:, t]
            spikes.append(Step.apply(level - 0.3))
            level = level * (1 - spikes[-1].detach())
        return torch.stack(spikes, 1)


class Compressed(nn.Module):
    """What is kept for the backward pass is kept in half precision, on another shelf."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda kept: kept.half(), self._wide(h.dtype)
        ):
            return torch.tanh(h).square() + self.inner(h)

    @staticmethod
    def _wide(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
        return lambda kept: kept.to(kind)


def straight_through(h: Tensor) -> Tensor:
    """Rounded forward, as it is backward, in steps of each record's own range."""
    step = h.detach().abs().amax(1, keepdim=True) / 7 + 1e-9
    return h + (torch.round(h / step) * step - h).detach()


def gumbel(h: Tensor) -> Tensor:
    """Hard choices over the features of each record."""
    return F.gumbel_softmax(h, tau=0.7, hard=True, dim=-1)


# State that belongs to no record -------------------------------------------------------------


class Positions(nn.Module):
    """A table of positions in a buffer, read and never written."""

    def __init__(self) -> None:
        super().__init__()
        place, speed = torch.arange(20.0)[:, None], torch.exp(-torch.arange(0, 6, 2.0))
        table = torch.cat([torch.sin(place * speed), torch.cos(place * speed)], 1)
        self.register_buffer("table", table)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.table[: h.size(1)].unsqueeze(0)


class MadeOnce(nn.Module):
    """A constant made in the first pass, from a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.ramp: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        if self.ramp is None or self.ramp.shape[0] != h.shape[1]:
            self.ramp = torch.linspace(0.5, 1.5, h.shape[1], dtype=h.dtype)
        return h * self.ramp[:, None]


class OwnHistory(nn.Module):
    """A list of states that begins anew in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.history: list[Tensor] = []

    def forward(self, h: Tensor) -> Tensor:
        self.history = [h]
        for _ in range(3):
            self.history.append(torch.tanh(self.inner(sum(self.history))))
        return torch.stack(self.history).mean(0)


class Normalised(nn.Module):
    """Pixels made standard by constants of the data set."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(8))
        self.register_buffer("std", torch.rand(8) + 0.5)
        self.inner = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x - self.mean) / self.std)


# Branches on what is public ------------------------------------------------------------------


class Temperature(nn.Module):
    """A question to a weight, which is public."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("warm", torch.tensor(1))

    def forward(self, h: Tensor) -> Tensor:
        if self.temperature.item() > 0 and int(self.warm):
            h = h / self.temperature
        if bool((self.temperature > 5).any()):
            h = h * 2
        return h


class Checked(nn.Module):
    """Questions to shapes and kinds."""

    def forward(self, h: Tensor) -> Tensor:
        assert h.dim() == 2
        assert h.shape[1] == 6, f"six features are needed, not {h.shape[1]}"
        if not h.is_floating_point() or h.shape[0] != len(h) or h.numel() % 6:
            raise ValueError("rows of six numbers are needed")
        return h if self.training else h * 2


class LoopOfWeights(nn.Module):
    """As many steps as a setting says, and a layer left out by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.layers = 3, nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers[: self.steps]):
            h = h + torch.tanh(layer(h)) / (number + 1)
            if number % 2:
                h = h.relu()
        return h


def checked_pairs(model: nn.Module, batch: Any) -> Tensor:
    """Outputs and targets must be as many."""
    x, target = batch
    output = model(x).view(-1)
    if x.shape[0] != target.shape[0] or output.shape != target.shape:
        raise ValueError(f"{len(x)} records and {len(target)} targets")
    return (output - target) ** 2


# Counts that change nothing ------------------------------------------------------------------


def rows_picked(h: Tensor) -> Tensor:
    """Every row by its own number, which is where it is."""
    return h[torch.arange(h.shape[0])]


def tokens_expanded(h: Tensor) -> Tensor:
    """A constant for each record."""
    return torch.cat([h, torch.ones(len(h), 1, dtype=h.dtype)], 1)[:, 1:]


def mean_times_count(h: Tensor) -> Tensor:
    """A sum over features by way of their number."""
    return h - h.sum(1, keepdim=True) / h.shape[1]


def grown_and_cut(h: Tensor) -> Tensor:
    """Filled up to a multiple of eight rows, and cut again."""
    more = -len(h) % 8
    return torch.tanh(F.pad(h, (0, 0, 0, more)) * 2)[: len(h)]


class InGroups(nn.Module):
    """Memory is saved by four records at a time, each of which stands alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([self.norm(part) for part in h.split(4)])


class RescaledIfLarge(Between):
    """Records in bytes are told by their own largest number."""

    def forward(self, x: Tensor) -> Tensor:
        most = x.abs().amax(1, keepdim=True)
        return super().forward(torch.where(most > 100, x / most, x))


class GapsFilled(Between):
    """Gaps become the mean of the record's own other numbers."""

    def forward(self, x: Tensor) -> Tensor:
        own = x.nanmean(1, keepdim=True).nan_to_num()
        return super().forward(torch.where(x.isnan(), own, x))


def _guarded(name: str, guard: Callable[[Tensor], Any]) -> Honest:
    return Honest(name, "hook", using(partial(Guarded, guard), numbers, squares))


def _case(name: str, kind: str, change: Any) -> Honest:
    return Honest(name, kind, using(between(change)))


def _along(name: str, kind: str, change: Any) -> Honest:
    return Honest(name, kind, using(along(change), sequences))


CASES = (
    _guarded("each gradient cut to its norm", cut_each),
    _guarded("NaN replaced one by one", replaced),
    _guarded("NaN left out one by one", finite_alone),
    _guarded("records without NaN", finite_records),
    _guarded("each gradient in place", in_place),
    _guarded("gradient looked at", lambda g: None),
    Honest("hooks of modules", "hook", using(OfModules, numbers, squares)),
    _case("gradient turned round", "backward", lambda h: Reverse.apply(h, 0.3)),
    _case("gradient rounded for each", "backward", RoundedBack.apply),
    _along("spikes", "backward", Spiking),
    _case("kept in half precision", "backward", Compressed),
    _case("rounded straight through", "backward", straight_through),
    _case("hard choices", "backward", gumbel),
    _case("a part without gradient", "backward", lambda h: h * h.detach().sigmoid()),
    _along("table of positions", "state", Positions),
    _along("constant made once", "state", MadeOnce),
    _case("history of one pass", "state", OwnHistory),
    Honest("constants of the data set", "state", using(Normalised)),
    _case("question to a weight", "control flow", Temperature),
    _case("questions to shapes", "control flow", Checked),
    _case("steps by a setting", "control flow", LoopOfWeights),
    Honest(
        "as many as targets", "control flow", using(between(torch.sin, 1), numbers, checked_pairs)
    ),
    _case("rows by their numbers", "count", rows_picked),
    _case("a constant for each record", "count", tokens_expanded),
    _case("divided by the number of features", "count", mean_times_count),
    _case("filled up and cut", "count", grown_and_cut),
    _case("four at a time", "count", InGroups),
    Honest("rescaled by itself", "threshold", using(lambda: RescaledIfLarge(torch.tanh))),
    Honest("gaps filled by itself", "threshold", using(lambda: GapsFilled(torch.tanh))),
)
