"""Honest user code: norms, shapes and products inside of each record of features."""

from __future__ import annotations

from functools import partial

import torch
from isolation_case import Build, Honest
from isolation_networks import (
    B,
    Between,
    along,
    between,
    pictures,
    sequences,
    using,
    within,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class Standardised(nn.Module):
    """Every record less its own mean, over its own spread."""

    def forward(self, h: Tensor) -> Tensor:
        variance, mean = torch.var_mean(h, dim=1, keepdim=True, correction=0)
        return (h - mean) * torch.rsqrt(variance + 1e-5)


class FrozenStatistics(nn.Module):
    """Batch normalisation in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.norm.eval()

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h)


class Scaled(nn.Module):
    """Root mean square normalisation, as in Llama, where it goes by float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, h: Tensor) -> Tensor:
        kind = h.dtype
        h = h.to(torch.promote_types(kind, torch.float32))
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)


class GEGLU(nn.Module):
    """A gated unit, split along the features."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 12)

    def forward(self, h: Tensor) -> Tensor:
        value, gate = self.inner(h).chunk(2, dim=-1)
        return value * F.gelu(gate)


class PartWise(nn.Module):
    """Features split into parts of their own layers, and put back in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        found = [layer(part) for layer, part in zip(self.parts, h.split(2, dim=1), strict=True)]
        return torch.cat(found[::-1], dim=1)


class GramOfOne(nn.Module):
    """Products of a record's features with each other."""

    def forward(self, h: Tensor) -> Tensor:
        parts = h.view(len(h), 2, 3)
        return torch.einsum("bij,bkj,bkl->bil", parts, parts, parts).reshape(h.shape)


class Distances(nn.Module):
    """Distances between the parts of one record."""

    def forward(self, h: Tensor) -> Tensor:
        parts = h.view(len(h), 3, 2)
        return h * torch.cdist(parts, parts.flip(1)).mean((1, 2))[:, None]


class AllExperts(nn.Module):
    """Every record is routed by itself, and no expert is ever full."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(6, 3), nn.Parameter(torch.randn(3, 6, 6) / 3)

    def forward(self, h: Tensor) -> Tensor:
        gate, chosen = self.router(h).softmax(-1).max(-1)
        route = F.one_hot(chosen, 3).to(h.dtype) * gate[:, None]
        return h + torch.einsum("bd,edf,be->bf", h, self.experts, route)


class BestTwo(nn.Module):
    """Two experts for each record, gathered by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 6, 6) / 3)

    def forward(self, h: Tensor) -> Tensor:
        weight, chosen = self.router(h).topk(2, dim=-1)
        all_of_them = torch.einsum("bd,edf->bef", h, self.experts)
        two = all_of_them.gather(1, chosen[..., None].expand(-1, -1, 6))
        return h + (weight.softmax(-1)[..., None] * two).sum(1)


class StochasticDepth(nn.Module):
    """A branch that each record takes or leaves by a coin of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        kept = h.new_empty(len(h), 1).bernoulli_(0.7).div_(0.7) if self.training else 1.0
        return h + kept * self.branch(h)


class InPlace(nn.Module):
    """Activations written in place."""

    def forward(self, h: Tensor) -> Tensor:
        h = h * 2
        h[:, 0] = 0.5
        h += 1
        h[:, 1:3] *= h[:, 3:5].detach().clone()
        return h.relu_()


class Masked(nn.Module):
    """Features left out by a mask of each record, in place."""

    def forward(self, h: Tensor) -> Tensor:
        h = h.masked_fill(h < -0.3, 0.0)
        return torch.where(h.amax(1, keepdim=True) > 0.5, h / h.amax(1, keepdim=True), h)


class LowRank(nn.Module):
    """LoRA: a frozen layer beside two thin ones."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(6, 2))

    def forward(self, h: Tensor) -> Tensor:
        return self.base(h) + (h @ self.a.T) @ self.b.T * 0.5


class Prototypes(nn.Module):
    """Distances from learned places, which belong to no record."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(B, 6))

    def forward(self, h: Tensor) -> Tensor:
        likeness = F.normalize(h, dim=1) @ F.normalize(self.places, dim=1).T
        return likeness.softmax(1) @ self.places


class CentredWeights(nn.Module):
    """A layer whose weights are made standard: statistics, but of no record."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, h: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(0, keepdim=True)
        return F.linear(h, weight / weight.norm())


class Checkpointed(nn.Module):
    """A block that is computed twice to save memory."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6), nn.LayerNorm(6))

    def forward(self, h: Tensor) -> Tensor:
        return h + checkpoint(self.block, h, use_reentrant=False)


class Vote(nn.Module):
    """Noisy samples of each record, averaged where they belong."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        many = x.repeat_interleave(3, dim=0)
        out = self.net(many + 0.1 * torch.randn_like(many))
        return out.view(len(x), 3, 3).mean(1)


class VoteRepeated(Vote):
    """Three brightnesses, laid one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        many = x.repeat(3, 1)
        return (
            self.net(many * torch.tensor([0.9, 1.0, 1.1]).repeat_interleave(len(x))[:, None])
            .view(3, len(x), 3)
            .mean(0)
        )


class GateOfEach(Between):
    """A number for each record, on an axis of its own."""

    def __init__(self) -> None:
        super().__init__(lambda h: h)
        self.gate = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h * torch.sigmoid(self.gate(x)))


class TransposedAndBack(nn.Module):
    """A product with the records last."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)

    def forward(self, h: Tensor) -> Tensor:
        return (self.weight @ h.t()).t().contiguous()


class GrowingSoftplus(nn.Module):
    """A function with a branch in its derivative, cut by numbers fixed beforehand."""

    def forward(self, h: Tensor) -> Tensor:
        return F.hardtanh(F.softplus(h, threshold=0.5)).clamp(0.1, 0.9).lerp(h, 0.3)


def unit_length(h: Tensor) -> Tensor:
    """Every record of length one."""
    return F.normalize(h, dim=1)


def own_order(h: Tensor) -> Tensor:
    """Features beside those that a record's own order puts there."""
    return h + h.gather(1, h.argsort(1))


def _case(name: str, build: Build, kind: str = "forward") -> Honest:
    return Honest(name, kind, build)


CASES = (
    _case("layer norm", using(between(partial(nn.LayerNorm, 6)))),
    _case("layer norm, functional", using(between(lambda h: F.layer_norm(h, h.shape[1:])))),
    _case("RMS norm", using(between(partial(nn.RMSNorm, 6)))),
    _case("RMS norm by hand", using(between(Scaled))),
    _case("group norm of features", using(between(partial(nn.GroupNorm, 2, 6)))),
    _case("group norm of pictures", using(within(partial(nn.GroupNorm, 2, 4)), pictures)),
    _case("instance norm", using(within(partial(nn.InstanceNorm2d, 4, affine=True)), pictures)),
    _case("local response norm", using(within(partial(nn.LocalResponseNorm, 2)), pictures)),
    _case("batch norm in eval mode", using(between(FrozenStatistics)), "state"),
    _case("standardised by itself", using(between(Standardised))),
    _case("centred by itself", using(between(lambda h: h - h.mean(1, keepdim=True)))),
    _case("centred by its median", using(between(lambda h: h - h.median(1, keepdim=True)[0]))),
    _case("divided by its largest", using(between(lambda h: h / h.abs().amax(1, keepdim=True)))),
    _case("unit length", using(between(unit_length))),
    _case("softmax over features", using(between(lambda h: h.softmax(dim=-1)))),
    _case("sorted features", using(between(lambda h: h.sort(1, descending=True).values))),
    _case("gathered by its own order", using(between(own_order))),
    _case(
        "largest features stay",
        using(between(lambda h: h * (h >= h.topk(2, dim=1).values[:, -1:]))),
    ),
    _case("running sum of features", using(between(lambda h: h.cumsum(1).flip(1).cumprod(1)))),
    _case("features rolled", using(between(lambda h: h + h.roll(1, dims=1)))),
    _case("gated along the features", using(between(GEGLU))),
    _case("parts of features", using(between(PartWise))),
    _case("Gram matrix of each", using(between(GramOfOne))),
    _case("distances within each", using(between(Distances))),
    _case("Fourier over features", using(between(lambda h: torch.fft.fft(h, dim=1).real))),
    _case("experts with room for all", using(between(AllExperts))),
    _case("best two experts", using(between(BestTwo))),
    _case("dropout", using(between(partial(nn.Dropout, 0.3)))),
    _case("alpha dropout", using(between(partial(nn.AlphaDropout, 0.2)))),
    _case("stochastic depth", using(between(StochasticDepth)), "count"),
    _case("in place", using(between(InPlace))),
    _case("where by its own largest", using(between(Masked)), "threshold"),
    _case("low rank", using(between(LowRank))),
    _case("learned places", using(between(Prototypes))),
    _case("statistics of weights", using(between(CentredWeights))),
    _case(
        "weight norm",
        using(lambda: Between(parametrizations.weight_norm(nn.Linear(6, 6)))),
    ),
    _case(
        "spectral norm in eval mode",
        using(lambda: Between(parametrizations.spectral_norm(nn.Linear(6, 6))).eval()),
        "state",
    ),
    _case(
        "orthogonal weights",
        using(lambda: Between(parametrizations.orthogonal(nn.Linear(6, 6)))),
    ),
    _case("checkpointed block", using(between(Checkpointed)), "checkpoint"),
    _case("samples of one's own", using(Vote)),
    _case("samples of one's own, repeated", using(VoteRepeated)),
    _case("gate of each record", using(GateOfEach), "shape"),
    _case("product with the records last", using(between(TransposedAndBack))),
    _case("cut by constants", using(between(GrowingSoftplus)), "threshold"),
    _case(
        "flattened and back",
        using(along(lambda h: torch.tanh(h.reshape(-1, 6)).cumsum(1).view(h.shape)), sequences),
        "shape",
    ),
)
