"""Nothing may hide behind weights that start as zero, and weights come back bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.errors import IsolationError
from steppe.probing import Report, probe


def run(model: nn.Module, example: Tensor) -> Report:
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}

    def objective(batch: Any) -> Tensor:
        return model(batch[0]).flatten(1).square().sum(1)

    kept = [(p, p.data_ptr(), p.stride(), p.detach().clone()) for p in model.parameters()]
    try:
        return probe(model, parameters, objective, (example,))
    finally:
        for parameter, place, stride, values in kept:
            assert parameter.data_ptr() == place
            assert parameter.stride() == stride
            assert torch.equal(parameter, values)


def zeroed(layer: nn.Module, *names: str) -> nn.Module:
    for name in names:
        nn.init.zeros_(layer.get_parameter(name))
    return layer


class LowRank(nn.Module):
    """A frozen layer with a trained pair beside it whose second half starts as zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.first = nn.Linear(width, 4, bias=False)
        self.second = zeroed(nn.Linear(4, width, bias=False), "weight")

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.second(self.first(x))


class Residual(nn.Module):
    """A branch that starts as nothing: by its normalisation or by a scale."""

    def __init__(self, scale: Tensor | None = None) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(24, 24, 3, padding=1), nn.GroupNorm(4, 24)
        self.scale = None if scale is None else nn.Parameter(scale)
        if scale is None:
            zeroed(self.norm, "weight")

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm(self.convolution(x))
        return x + (branch if self.scale is None else self.scale * branch)


class LearnedQuery(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 2, 24))
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.query.expand(len(x), -1, -1), x, x)[0]


class FromZeros(nn.Module):
    """A sequence whose state starts as zeros with a row for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 24)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


TOKENS = torch.zeros(1, 30, dtype=torch.long)


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (lambda: LowRank(24), torch.zeros(1, 24)),
        (lambda: LowRank(24), torch.zeros(1, 6, 24)),
        (lambda: LowRank(768), torch.zeros(1, 768)),
        (lambda: zeroed(nn.Linear(6, 3), "weight", "bias"), torch.zeros(1, 6)),
        (lambda: zeroed(nn.Linear(6, 12), "weight", "bias"), torch.zeros(1, 6)),
        (
            lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), zeroed(nn.Linear(8, 3), "weight")),
            torch.zeros(1, 6),
        ),
        (lambda: nn.Sequential(Residual(), Residual()), torch.zeros(1, 24, 6, 6)),
        (lambda: Residual(torch.zeros(24, 1, 1)), torch.zeros(1, 24, 6, 6)),
        (lambda: Residual(torch.zeros(())), torch.zeros(1, 24, 6, 6)),
        (LearnedQuery, torch.zeros(1, 5, 24)),
        (lambda: nn.EmbeddingBag(7, 24, mode="max"), TOKENS),
        (lambda: nn.EmbeddingBag(2, 24, mode="max"), TOKENS),
        (FromZeros, torch.zeros(1, 4, 5)),
    ],
    ids=[
        "low rank",
        "low rank, sequences",
        "low rank, wide",
        "logistic regression, 3 classes",
        "logistic regression, 12 classes",
        "zero head",
        "zero group norm",
        "layer scale",
        "rezero",
        "learned query",
        "largest of a bag",
        "largest of two",
        "zero state",
    ],
)
def test_zeros_at_the_start_are_accepted(make: Callable[[], nn.Module], example: Tensor) -> None:
    torch.manual_seed(0)
    assert run(make(), example).notes == ()


class MeetLater(nn.Module):
    """Low rank with batch statistics between its halves, both of which start as zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(6, 5), nn.Linear(5, 4)
        self.first = zeroed(nn.Linear(6, 5), "weight", "bias")
        self.second = zeroed(nn.Linear(5, 5), "weight", "bias")

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(self.base(x) + self.second(h - h.mean(0, keepdim=True)))


class Gated(nn.Module):
    """Mixes records once its gate has moved to one side."""

    def __init__(self, side: float) -> None:
        super().__init__()
        self.layer, self.gate, self.side = nn.Linear(6, 4), nn.Parameter(torch.zeros(())), side

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h + torch.relu(self.side * self.gate) * h.mean(0)


class MeetLaterPositive(MeetLater):
    """The same beside a weight that must stay above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.full((6,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.spread.log().mean()


@pytest.mark.parametrize(
    "make",
    [
        MeetLater,
        MeetLaterPositive,
        lambda: MeetLater().double(),
        lambda: MeetLater().bfloat16(),
        lambda: Gated(1.0),
        lambda: Gated(-1.0),
    ],
    ids=["float32", "positive", "float64", "bfloat16", "gate up", "gate down"],
)
def test_records_that_meet_behind_zeros_are_refused(make: Callable[[], nn.Module]) -> None:
    model = make()
    with pytest.raises(IsolationError):
        run(model, torch.zeros(1, 6, dtype=next(model.parameters()).dtype))


class Unusual(nn.Module):
    """Weights that are expanded, transposed, tied, and have no numbers at all."""

    def __init__(self) -> None:
        super().__init__()
        self.expanded = nn.Parameter(torch.ones(1).expand(6))
        self.transposed = nn.Parameter(torch.randn(6, 6).t())
        self.tied = self.transposed
        self.same_memory = nn.Parameter(self.transposed.data)
        self.empty = nn.Parameter(torch.zeros(0, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(F.linear(x * self.expanded, self.transposed), self.tied)
        return F.linear(h, torch.cat([self.same_memory, self.empty]))


def after_inference() -> nn.Module:
    """A frozen layer that was made in inference mode, which keeps no count of writes."""
    with torch.inference_mode():
        frozen = nn.Linear(6, 6).requires_grad_(False)
    return nn.Sequential(frozen, nn.Linear(6, 6))


@pytest.mark.parametrize(
    "model",
    [
        Unusual(),
        after_inference(),
        nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)),
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).eval(),
    ],
    ids=["memory", "inference", "orthogonal", "weight norm", "frozen statistics"],
)
def test_weights_of_any_kind_come_back(model: nn.Module) -> None:
    assert run(model, torch.zeros(1, 6)).notes == ()
