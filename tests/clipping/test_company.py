"""Mixing that begins with many records, and mixing that happens now and then."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import Report, probe
from steppe.clipping.probing import _OTHER_NUMBERS, _SEED
from steppe.errors import IsolationError, UnsupportedModelError

EXAMPLE = (torch.zeros(1, 8), torch.zeros(1, dtype=torch.long))


def run(
    model: nn.Module, objective: Callable[[Any], Tensor] | None = None, **options: Any
) -> Report:
    def usual(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return probe(model, dict(model.named_parameters()), objective or usual, EXAMPLE, **options)


class Room(nn.Module):
    """Experts that take 16 records each and leave the others as they are."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.experts = nn.Linear(8, 2), nn.Parameter(torch.randn(2, 8, 3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(self.dropout(x)).softmax(-1).max(-1)
        route = F.one_hot(chosen, 2)
        place = (route.cumsum(0) * route).sum(-1)
        route = route * (gate * (place <= 16))[:, None]
        return torch.einsum("bd,edf,be->bf", x, self.experts, route)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_room_for_some_records_is_seen_among_many(dropout: float) -> None:
    run(Room(dropout))
    with pytest.raises(IsolationError, match=r"loss=moves: .* pick some of its records"):
        run(Room(dropout), company=64)


def test_the_hardest_of_a_batch_are_seen_among_many() -> None:
    model = nn.Linear(8, 3)

    def hardest(batch: Any) -> Tensor:
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        least = losses.detach().topk(min(32, len(losses))).values[-1]
        return losses * (losses >= least)

    run(model, hardest)
    with pytest.raises(IsolationError, match="loss=moves"):
        run(model, hardest, company=40)


def test_ordinary_models_do_not_mind_company() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3))
    assert run(model, company=300) == run(model)
    assert model.training
    assert model[1].training


def test_a_model_for_few_records_is_refused_among_many() -> None:
    model = nn.Linear(8, 3)

    def objective(batch: Any) -> Tensor:
        return model(batch[0]).square().sum(1) + torch.zeros(20)[: len(batch[0])]

    run(model, objective)
    with pytest.raises(UnsupportedModelError, match=r"records=50: .* must take any number of them"):
        run(model, objective, company=50)


def test_no_more_records_are_taken_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, most = nn.Linear(8, 3), 0

    def objective(batch: Any) -> Tensor:
        nonlocal most
        most = max(most, len(batch[0]))
        return model(batch[0]).square().sum(1)

    run(model, objective, company=200)
    assert most == 200
    most = 0
    monkeypatch.setattr("steppe.clipping.probing._ROOM", 100 * (8 + 3) * 4)
    run(model, objective, company=200)
    assert most == 100


@pytest.mark.parametrize("of", ["torch", "random", "numpy"])
def test_mixing_in_few_passes_is_refused(of: str) -> None:
    model = nn.Linear(8, 3)
    draw = {
        "torch": lambda: float(torch.rand(())),
        "random": random.random,
        "numpy": np.random.random_sample,
    }[of]

    def objective(batch: Any) -> Tensor:
        x, labels = batch
        if draw() < 0.02:
            x = 0.5 * (x + x.roll(1, 0))
        return F.cross_entropy(model(x), labels, reduction="none")

    with pytest.raises(IsolationError):
        run(model, objective)


def test_mixing_by_chance_is_said_to_be_by_chance() -> None:
    """Just beyond what the rounds before have drawn."""
    model, drawn = nn.Linear(8, 3), set()

    def objective(batch: Any) -> Tensor:
        x, labels = batch
        drawn.add(number := float(torch.rand(())))
        if number in late:
            x = 0.5 * (x + x.roll(1, 0))
        return F.cross_entropy(model(x), labels, reduction="none")

    late = {
        float(torch.rand((), generator=torch.Generator().manual_seed(_SEED + _OTHER_NUMBERS + 9)))
    }
    with pytest.raises(IsolationError, match=r"^loss=mixes records by chance: .*, however seldom"):
        run(model, objective)
    assert len(drawn) > 10


def test_a_model_that_draws_no_numbers_is_not_run_again_for_chance() -> None:
    def passes(model: nn.Module) -> int:
        calls = []

        def objective(batch: Any) -> Tensor:
            calls.append(len(batch[0]))
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

        run(model, objective)
        return calls.count(3)

    assert passes(nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5))) >= passes(nn.Linear(8, 3)) + 30


class Centred(nn.Module):
    """Batch statistics from 16 records on, while training."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training and len(x) >= 16 else x


def test_mixing_in_training_alone_is_seen_beside_dropout() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), Centred(), nn.Linear(8, 3))
    with pytest.raises(IsolationError, match=r"loss=moves"):
        run(model, company=64)
    assert [module.training for module in model.modules()] == [True] * 5
    assert model[1].p == 0.1


def test_a_random_pass_that_is_not_by_dropout_layers_is_noted() -> None:
    class Functional(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.1, self.training)

    report = run(nn.Sequential(nn.Linear(8, 8), Functional(), nn.Linear(8, 3)))
    assert any("was checked in eval mode" in note for note in report.notes)
    assert not run(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 3))).notes


@pytest.mark.parametrize("bound", [10.0, 1000.0])
def test_a_batch_gradient_that_is_cut_is_seen_whatever_the_bound(bound: float) -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                x.register_hook(lambda g: g * (bound / g.norm()).clamp(max=1.0))
            return x

    model = nn.Sequential(nn.Linear(8, 8), Cut(), nn.Linear(8, 1))
    example = (torch.zeros(1, 8), torch.zeros(1, 1))
    with pytest.raises(IsolationError, match=r"a record's gradient must not depend on other"):
        probe(
            model,
            dict(model.named_parameters()),
            lambda batch: F.mse_loss(model(batch[0]), batch[1], reduction="none").sum(1),
            example,
            company=64,
        )


def test_a_batch_gradient_that_is_cut_by_its_number_of_records_is_seen() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                x.register_hook(lambda g: g * (0.1 if len(g) >= 40 else 1.0))
            return x

    with pytest.raises(IsolationError, match=r"when others were left out"):
        run(nn.Sequential(nn.Linear(8, 8), Cut(), nn.Linear(8, 3)), company=64)


def test_a_model_that_cannot_take_one_record_is_refused_beforehand() -> None:
    """`squeeze` drops the axis of one record, and batches of one do come."""
    model = nn.Linear(8, 1)
    with pytest.raises(UnsupportedModelError, match=r"^records=1: .* name the axes to squeeze\.$"):
        probe(
            model,
            dict(model.named_parameters()),
            lambda batch: F.binary_cross_entropy_with_logits(
                model(batch[0]).squeeze(), batch[1], reduction="none"
            ),
            (torch.zeros(1, 8), torch.zeros(1)),
        )


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.02])
def test_records_that_are_changed_by_rare_chance_are_not_taken_for_company(rate: float) -> None:
    class DropPath(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            kept = torch.rand(len(x), 1) >= rate if self.training else torch.ones(len(x), 1)
            return x + kept * self.inner(x)

    report = run(nn.Sequential(DropPath(), nn.Linear(8, 3)), company=64)
    assert any("was checked in eval mode" in note for note in report.notes)
