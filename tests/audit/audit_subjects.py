"""Small models of several families, each with synthetic records, as subjects for the audit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

import steppe
from steppe.audit import AuditedRun
from steppe.private import Private

CLIP = 0.5
RECORDS = 64


def subject_of(
    model: nn.Module,
    data: Any,
    objective: Callable[[nn.Module, Any], Tensor] | None = None,
    sabotage: Callable[[Private, int], None] | None = None,
    **constants: Any,
) -> AuditedRun:
    """A subject that starts every run from a copy of the same model."""
    kernels, public = constants.pop("kernels", None), constants.pop("public", None)
    settings: dict[str, Any] = {
        "delta": 1e-5,
        "noise_multiplier": 1.3,
        "population": RECORDS,
        "batch_size": 8,
        "steps": 10,
        "clip": steppe.Flat(CLIP),
    }

    def build(plan: steppe.Plan, records: Any, source: steppe.SecureSource) -> Private:
        fresh = copy.deepcopy(model)
        optimizer = torch.optim.SGD(fresh.parameters(), lr=0.01)
        private = steppe.make_private(
            fresh,
            optimizer,
            records,
            plan,
            loss=None if objective else F.cross_entropy,
            objective=objective,
            source=source,
            kernels=kernels,
            public=public,
        )
        if sabotage is not None:
            sabotage(private, len(records))
        return private

    return AuditedRun(build, steppe.Plan(**(settings | constants)), data)


def images(channels: int = 3, size: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(RECORDS, channels, size, size), torch.randint(4, (RECORDS,))


def sequences(length: int = 6, width: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randn(RECORDS, length, width), torch.randint(4, (RECORDS,))


def tokens(length: int = 7, vocabulary: int = 11) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return torch.randint(vocabulary, (RECORDS, length)), torch.randint(4, (RECORDS,))


def vectors(width: int = 20) -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    return torch.randn(RECORDS, width), torch.randint(4, (RECORDS,))


class Recurrent(nn.Module):
    """Embedding, LSTM, last state, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.head(states[:, -1])


class LastState(nn.Module):
    """A recurrent layer without gates or with those of a GRU, last state, linear."""

    def __init__(self, kind: type[nn.RNN | nn.GRU]) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Halved(nn.Module):
    """A parametrisation that is not linear."""

    def forward(self, weight: Tensor) -> Tensor:
        return torch.tanh(weight) / 2


class Pooled(nn.Module):
    """A transformer layer, then the mean over positions and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.layer(x).mean(1)))


class Bare(nn.Module):
    """Parameters outside of any layer, and one matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(6, 8) * 0.1)
        self.scale = nn.Parameter(torch.ones(8))
        self.tied = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (x + self.position) * self.scale
        hidden = torch.tanh(self.tied(hidden))
        hidden = hidden @ self.tied.weight
        return self.head(hidden.mean(1))


class Alternating(nn.Module):
    """Positions enter with alternating signs, so that large common parts cancel in the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        signs = torch.tensor([1.0, -1.0]).repeat(x.shape[1] // 2)
        return self.head((self.lift(x) * signs[:, None]).mean(1))


def mlp(**more: Any) -> AuditedRun:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10), nn.Tanh())
    return subject_of(nn.Sequential(model, nn.Linear(10, 4)), vectors(), **more)


def cnn(**more: Any) -> AuditedRun:
    torch.manual_seed(6)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    return subject_of(model, images(), **more)


def lstm(**more: Any) -> AuditedRun:
    torch.manual_seed(7)
    return subject_of(Recurrent(), tokens(), **more)


def gru(**more: Any) -> AuditedRun:
    torch.manual_seed(11)
    return subject_of(LastState(nn.GRU), sequences(), **more)


def rnn(**more: Any) -> AuditedRun:
    torch.manual_seed(12)
    return subject_of(LastState(nn.RNN), sequences(), **more)


def instance_norm(**more: Any) -> AuditedRun:
    torch.manual_seed(13)
    norm = nn.InstanceNorm2d(4, affine=True)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    return subject_of(model, images(), **more)


def rms_norm(**more: Any) -> AuditedRun:
    torch.manual_seed(14)
    model = nn.Sequential(nn.Linear(20, 12), nn.RMSNorm(12), nn.Tanh(), nn.Linear(12, 4))
    return subject_of(model, vectors(), **more)


def embedding_bag(**more: Any) -> AuditedRun:
    torch.manual_seed(15)
    return subject_of(nn.Sequential(nn.EmbeddingBag(11, 8), nn.Linear(8, 4)), tokens(), **more)


def parametrised(**more: Any) -> AuditedRun:
    torch.manual_seed(16)
    first = nn.Linear(20, 12)
    parametrize.register_parametrization(first, "weight", Halved())
    return subject_of(nn.Sequential(first, nn.Tanh(), nn.Linear(12, 4)), vectors(), **more)


def transformer(**more: Any) -> AuditedRun:
    torch.manual_seed(8)
    return subject_of(Pooled(), sequences(), **more)


def bare(**more: Any) -> AuditedRun:
    torch.manual_seed(9)
    return subject_of(Bare(), sequences(), **more)


def alternating(**more: Any) -> AuditedRun:
    torch.manual_seed(10)
    kernels = steppe.Kernels(pinned={"linear 8->16 T=6": "gram"})
    return subject_of(Alternating(), sequences(), kernels=kernels, **more)


def decayed(**more: Any) -> AuditedRun:
    return mlp(l2=0.05, **more)


def decayed_by_part(**more: Any) -> AuditedRun:
    return cnn(l2={"0": 0.05, "5.weight": 0.5}, **more)


def quantile(**more: Any) -> AuditedRun:
    """A bound above the start of most gradients, and a large part of the budget for the count."""
    clip = steppe.Quantile(start=2.0, count_share=0.3)
    return mlp(**({"clip": clip} | more))


def automatic(**more: Any) -> AuditedRun:
    return cnn(clip=steppe.Automatic(CLIP), **more)


def per_layer(**more: Any) -> AuditedRun:
    return mlp(**({"clip": steppe.PerLayer(CLIP, "size")} | more))


def gep(**more: Any) -> AuditedRun:
    clip = steppe.GEP(12, embedding_bound=0.5, residual_bound=0.2)
    return cnn(**({"clip": clip, "public": images()} | more))


FAMILIES = {
    family.__name__: family
    for family in (
        mlp,
        cnn,
        lstm,
        gru,
        rnn,
        instance_norm,
        rms_norm,
        embedding_bag,
        parametrised,
        transformer,
        bare,
        alternating,
        decayed,
        decayed_by_part,
        quantile,
        automatic,
        per_layer,
        gep,
    )
}
