"""Mixing that begins with many records, and mixing that happens now and then."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.errors import IsolationError, UnsupportedModelError
from steppe.probing import Report, probe

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
def test_room_for_some_records_is_seen_among_few(dropout: float) -> None:
    with pytest.raises(IsolationError, match=r"aten\.cumsum \(test_among_many"):
        run(Room(dropout))


def test_the_hardest_of_a_batch_are_seen_among_few() -> None:
    model = nn.Linear(8, 3)

    def hardest(batch: Any) -> Tensor:
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        least = losses.detach().topk(min(32, len(losses))).values[-1]
        return losses * (losses >= least)

    with pytest.raises(IsolationError, match=r"loss=mixes records in aten\.topk"):
        run(model, hardest)


def test_ordinary_models_do_not_mind_company() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3))
    assert run(model, at_once=300) == run(model)
    assert model.training
    assert model[1].training


def test_a_model_for_few_records_is_refused_among_many() -> None:
    model = nn.Linear(8, 3)

    def objective(batch: Any) -> Tensor:
        return model(batch[0]).square().sum(1) + torch.zeros(20)[: len(batch[0])]

    with pytest.raises(UnsupportedModelError, match=r"records=50: .* must take any number of them"):
        run(model, objective, at_once=50)


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

    def steps() -> None:
        report = run(model, objective)
        parameters = dict(model.named_parameters())
        engine = ClippedSum(parameters, objective, Flat(1.0), layouts=report.layouts)
        engine.passes.paths = report.paths
        batch = (torch.randn(6, 8), torch.zeros(6, dtype=torch.long))
        for _ in range(2000):
            engine.add_(torch.zeros(engine.numel), batch)

    with pytest.raises(IsolationError, match=r"mixes|other operations than proven"):
        steps()


class Centred(nn.Module):
    """Batch statistics from 16 records on, while training."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training and len(x) >= 16 else x


def test_mixing_in_training_alone_is_seen_beside_dropout() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), Centred(), nn.Linear(8, 3))
    with pytest.raises(IsolationError, match=r"2 \(Centred\).*aten\.mean|number of records"):
        run(model, at_once=64)
    assert [module.training for module in model.modules()] == [True] * 5
    assert model[1].p == 0.1


def test_a_random_pass_is_proven_as_any_other() -> None:
    class Functional(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.1, self.training)

    report = run(nn.Sequential(nn.Linear(8, 8), Functional(), nn.Linear(8, 3)))
    assert report.isolation == "proven"
    assert not report.notes
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
            at_once=64,
        )


def test_a_batch_gradient_that_is_cut_by_its_number_of_records_is_seen() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                x.register_hook(lambda g: g * (0.1 if len(g) >= 40 else 1.0))
            return x

    with pytest.raises(IsolationError, match=r"^number of records=decides"):
        run(nn.Sequential(nn.Linear(8, 8), Cut(), nn.Linear(8, 3)), at_once=64)


def test_a_model_that_cannot_take_one_record_is_refused_beforehand() -> None:
    """`squeeze` drops the axis of one record, and batches of one do come."""
    model = nn.Linear(8, 1)
    with pytest.raises(UnsupportedModelError, match=r"^records=1: .* name the axes to squeeze\.\n"):
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

    report = run(nn.Sequential(DropPath(), nn.Linear(8, 3)), at_once=64)
    assert report.isolation == "proven"
    assert not report.notes
