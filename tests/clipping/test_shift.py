"""Beside the start: nothing may hide behind zeros, and the weights come back bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from steppe.clipping.probing.shift import SHIFTS, Shift, shifted
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import Report, probe
from steppe.clipping.probing.sight import Subject
from steppe.errors import IsolationError


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


class Particular(nn.Module):
    """Wants weights of a kind: positive ones, or exactly those it has."""

    def __init__(self, exactly: bool) -> None:
        super().__init__()
        self.weight, self.exactly = nn.Parameter(torch.full((6,), 0.05)), exactly

    def forward(self, x: Tensor) -> Tensor:
        if self.exactly and not bool((self.weight == 0.05).all()):
            raise ValueError("other weights")
        return (x.abs() @ self.weight).log()[:, None]


class Chooses(nn.Module):
    """Leaves a layer out while its scale is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return h + self.scale * self.second(x) if bool(self.scale.any()) else h


@pytest.mark.parametrize(
    ("model", "alone"),
    [(Particular(exactly=False), False), (Particular(exactly=True), True), (Chooses(), True)],
)
def test_models_that_do_not_run_elsewhere_are_checked_where_they_do(
    model: nn.Module, alone: bool
) -> None:
    notes = run(model, torch.zeros(1, 6)).notes
    assert any("behind those that are zero was not checked" in note for note in notes) == alone


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


def subject(model: nn.Module) -> Subject:
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    return Subject(model, trained, lambda batch: batch)


def test_all_trained_weights_move_and_no_others() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=2), nn.Linear(4, 3), nn.Linear(3, 3))
    model[2].requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    for shift in SHIFTS:
        with shifted(subject(model), shift):
            moved = [p.detach() != old for p, old in zip(model.parameters(), before, strict=True)]
            assert moved[0].all(1).tolist() == [True, True, False, True, True]
            assert not moved[0][2].any()
            assert all(bool(some.all()) for some in moved[1:3])
            assert not any(bool(some.any()) for some in moved[3:])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("keep_zeros", [False, True])
def test_signs_and_zeros_stay_where_they_must(keep_zeros: bool) -> None:
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.bias)
    before = model.weight.detach().clone()
    with shifted(subject(model), Shift(1, keep_signs=True, keep_zeros=keep_zeros)):
        assert torch.equal(model.weight.sign(), before.sign())
        assert not torch.equal(model.weight, before)
        assert bool(model.bias.any()) != keep_zeros


def test_weights_come_back_when_the_block_fails() -> None:
    model = nn.Linear(4, 3)
    before, place = model.weight.detach().clone(), model.weight.data_ptr()

    def fail() -> None:
        with shifted(subject(model), SHIFTS[0]):
            assert not torch.equal(model.weight, before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert torch.equal(model.weight, before)
    assert model.weight.data_ptr() == place
