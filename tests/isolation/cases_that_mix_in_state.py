"""User code that remembers records from one pass to the next.

Within one pass the records stand alone. It shows in the pass that comes after, over other records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from isolation_case import Mixing, holding, only
from isolation_networks import (
    B,
    Between,
    along,
    between,
    classes,
    numbers,
    sequences,
    squares,
    using,
)
from torch import Tensor, nn
from torch.nn import functional as F


class RunningMean(nn.Module):
    """A mean in a buffer, used before it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, h: Tensor) -> Tensor:
        out = h - self.mean
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return out


class FrozenCentre(nn.Module):
    """The same in a weight that is not trained, past what torch counts."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, h: Tensor) -> Tensor:
        out = h - self.centre
        self.centre.data.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return out


class PlainAttribute(nn.Module):
    """A tensor of the last pass, on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        out = h if self.last is None else h + 0.5 * self.last
        self.last = h.detach().amax(0)
        return out


class PlainNumber(nn.Module):
    """A number in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 1.0

    def forward(self, h: Tensor) -> Tensor:
        out = h / self.largest
        self.largest = max(self.largest, 10 * float(h.detach().abs().max()))
        return out


class CarriedOver(nn.Module):
    """A recurrent layer that goes on where the last batch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 6, batch_first=True)
        self.state: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        state = self.state
        if state is not None and state.shape[1] != len(h):
            state = None
        out, last = self.gru(h, state)
        self.state = last.detach()
        return out


class FromTheFirstBatch(nn.Module):
    """ActNorm: shift and scale are set by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(6))
        self.ready = False

    def forward(self, h: Tensor) -> Tensor:
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-h.mean(0))
                self.scale.copy_(1 / (h.std(0) + 1e-3))
            self.ready = True
        return (h + self.shift) * self.scale


class Codebook(nn.Module):
    """A quantiser whose codes move towards what was given to them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(4, 6))

    def forward(self, h: Tensor) -> Tensor:
        chosen = (h[:, None] - self.codes).square().sum(-1).argmin(1)
        nearest = self.codes[chosen]
        with torch.no_grad():
            share = F.one_hot(chosen, 4).to(h.dtype).T
            sums, sizes = share @ h, share.sum(1, keepdim=True)
            self.codes.copy_(
                torch.where(sizes > 0, 0.5 * self.codes + 0.5 * sums / sizes.clamp(1), self.codes)
            )
        return h + (nearest - h).detach()


class Queue(nn.Module):
    """MoCo: a queue of keys that later records are told apart from."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 6)
        self.register_buffer("queue", F.normalize(torch.randn(12, 6), dim=1))
        self.place = 0

    def forward(self, x: Tensor) -> Tensor:
        z = F.normalize(self.net(x), dim=1)
        logits = torch.cat([z.square().sum(1, keepdim=True), z @ self.queue.T.clone()], 1)
        end = min(self.place + len(z), 12)
        with torch.no_grad():
            self.queue[self.place : end] = z[: end - self.place]
        self.place = end % 12
        return logits


class CountsPasses(nn.Module):
    """A warm-up by the number of passes, which depends on whether any record was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        out = h * (1 - 0.5 ** self.passes.clone())
        self.passes += 1
        return out


class TiedShort(nn.Module):
    """Words cut to length one in the table itself, which the output layer reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6, max_norm=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.words(x).mean(1), self.words.weight)


class RemembersGradients(nn.Module):
    """A hook that cuts by the largest gradient there has been."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = torch.tensor(1e-6)

    def forward(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(self._cut)
        return h

    def _cut(self, g: Tensor) -> Tensor:
        bound = self.largest
        self.largest = torch.maximum(self.largest, g.detach().norm())
        return g / bound.clamp(min=1e-3)


class Observed(nn.Module):
    """Eight-bit steps by a range that only grows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("top", torch.ones(()))

    def forward(self, h: Tensor) -> Tensor:
        step = self.top.clone() / 4
        torch.maximum(self.top, 2 * h.detach().abs().amax(), out=self.top)
        return h + (torch.round(h / step) * step - h).detach()


def memory_bank() -> tuple[nn.Module, Any, Any]:
    """A list in a closure: records are pushed away from the mean of earlier ones."""
    bank: list[Tensor] = []

    def objective(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        logits = model(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        if bank:
            losses = losses + F.softplus(logits @ torch.cat(bank[-3:]).T).mean(1)
        bank.append(logits.detach())
        return losses

    return between(lambda h: h)(), objective, (torch.randn(B, 8), torch.randint(3, (B,)))


def moving_average() -> tuple[nn.Module, Any, Any]:
    """Losses relative to a moving average of them, kept as a number."""
    average = 1.0

    def objective(model: nn.Module, batch: Any) -> Tensor:
        nonlocal average
        losses = classes(model, batch)
        scaled = losses / average
        average = 0.5 * average + 0.5 * losses.mean().item()
        return scaled

    return between(lambda h: h)(), objective, (torch.randn(B, 8), torch.randint(3, (B,)))


def cached() -> tuple[nn.Module, Any, Any]:
    """Means by shape in a cache that is filled once."""
    cache: dict[torch.Size, Tensor] = {}

    def standardise(x: Tensor) -> Tensor:
        if x.shape not in cache:
            cache[x.shape] = x.detach().mean(0)
        return x - cache[x.shape]

    return (
        between(lambda h: h)(),
        lambda model, batch: classes(model, (standardise(batch[0]), batch[1])),
        (torch.randn(B, 8), torch.randint(3, (B,))),
    )


def stale_statistics() -> tuple[nn.Module, Any, Any]:
    """Statistics are learnt beside the losses, for a layer that is in eval mode in the first pass.

    The backward pass finds the new ones already: torch reads them there again.
    """
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=0.5), nn.Linear(6, 3)).eval()

    def objective(model: nn.Module, batch: Any) -> Tensor:
        losses = classes(model, batch)
        with torch.no_grad():
            model[1].train()
            model(batch[0])
            model[1].eval()
        return losses

    return model, objective, (torch.randn(B, 8), torch.randint(3, (B,)))


def spectral() -> nn.Module:
    """A layer whose largest stretch is followed from pass to pass; its weights were just loaded."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
    nn.init.normal_(layer.parametrizations.weight.original)
    return Between(layer)


def few_words() -> Any:
    """Words below five of ten."""
    return torch.randint(5, (B, 7)), torch.randint(3, (B,))


def _state(name: str, build: Callable[[], Any], says: str, **options: Any) -> Mixing:
    return Mixing(name, "state", build, says=says, **options)


KEPT = "attribute|closure|state|list|kept|pass"
CASES = (
    _state("running mean", using(between(RunningMean)), "buffer|mean", hidden=True),
    _state("frozen weight written", using(between(FrozenCentre)), "mean|weight|mul_", hidden=True),
    _state(
        "tensor on the module",
        using(between(PlainAttribute)),
        f"max|{KEPT}",
        hidden=True,
    ),
    _state(
        "number on the module",
        using(between(PlainNumber)),
        "item|local_scalar|max|float",
        hidden=True,
    ),
    _state("list in a closure", memory_bank, KEPT, hidden=True),
    _state("moving average of losses", moving_average, "item|local_scalar|mean", hidden=True),
    _state(
        "state carried over",
        using(along(CarriedOver), sequences),
        KEPT,
        hidden=True,
    ),
    _state("codebook", using(between(Codebook)), "mm|matmul|buffer|copy", hidden=True),
    _state("queue of keys", using(Queue), "buffer|copy|queue", hidden=True),
    _state("range observed", using(between(Observed)), "max|buffer", hidden=True),
    _state("cache by shape", cached, "mean|cache"),
    _state("statistics learnt for the next pass", stale_statistics, "batch_?norm|buffer"),
    _state("set by the first batch", using(between(FromTheFirstBatch)), "mean|std|weight|copy"),
    _state(
        "words cut in the table",
        using(TiedShort, few_words),
        "renorm|weight",
        showing=holding(7),
    ),
    _state(
        "largest gradient so far",
        using(between(RemembersGradients, 1), numbers, squares),
        "norm|hook",
        showing=holding(1e4, 1),
    ),
    _state(
        "passes counted",
        using(between(CountsPasses)),
        "buffer|passes",
        showing=only,
        hidden=True,
    ),
    _state("spectral norm", using(spectral), "buffer|spectral|_u|_v", showing=only, hidden=True),
)
