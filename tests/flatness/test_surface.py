"""Means over batches, second derivatives, one batch at a time, and the model left alone."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator

import pytest
import torch
from flatness_quadratics import batches, first, quadratic_surface, rotated, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from steppe import models
from steppe.errors import ConfigurationError, DataError
from steppe.flatness import Surface


def test_the_mean_is_over_records_and_not_over_batches() -> None:
    matrix, w = rotated([1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    measured = quadratic_surface(matrix).at(w)
    assert measured.loss == pytest.approx((w @ matrix @ w).item(), rel=1e-12)
    assert measured.accuracy is None


def test_hessian_of_a_quadratic() -> None:
    matrix = rotated([5.0, 1.0, -2.0, 0.0])
    vector = torch.randn(4, generator=seeded(), dtype=torch.float64)
    found = quadratic_surface(matrix).hessian_vector(vector)
    torch.testing.assert_close(found, 2 * matrix @ vector)


def test_hessian_of_a_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randint(2, (6,))
    surface = Surface(model, F.cross_entropy, [(x[:4], y[:4]), (x[4:], y[4:])])

    def loss(weights: Tensor) -> Tensor:
        output = torch.func.functional_call(model, surface.split(weights), (x,))
        return F.cross_entropy(output, y)

    hessian = torch.func.jacrev(torch.func.grad(loss))(surface.weights)
    vector = torch.randn(surface.dimension, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(surface.hessian_vector(vector), hessian @ vector)


@pytest.mark.parametrize("name", ["vit", "cnn-tanh-26k", "resnet-20"])
def test_hessian_of_the_networks_is_symmetric(name: str) -> None:
    torch.manual_seed(0)
    options = {"size": 8, "width": 24, "depth": 2} if name == "vit" else {}
    model = models.create(name, **options).double()
    shape = {"vit": (3, 8, 8), "cnn-tanh-26k": (1, 28, 28), "resnet-20": (3, 8, 8)}[name]
    x = torch.randn(4, *shape, generator=seeded(), dtype=torch.float64)
    surface = Surface(model, F.cross_entropy, [(x, torch.arange(4))])
    u, v = torch.randn(2, surface.dimension, generator=seeded(1), dtype=torch.float64)
    there, back = u @ surface.hessian_vector(v), v @ surface.hessian_vector(u)
    assert there.item() == pytest.approx(back.item(), rel=1e-8)
    assert abs(there.item()) > 1e-9


def test_a_linear_loss_has_no_curvature() -> None:
    surface = Surface(
        nn.Linear(2, 1), lambda out, _: out[:, 0], [(torch.ones(3, 2), torch.ones(3))]
    )
    assert not surface.hessian_vector(torch.ones(3)).any()


def test_accuracy_counts_classes_and_positions() -> None:
    logits = torch.tensor([[[5.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [5.0, 0.0]]])
    target = torch.tensor([[0, 0], [0, 0]])
    model = nn.Linear(1, 1)

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return x + 0 * self.inner.bias

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(1)

    surface = Surface(Fixed(), loss, [(logits, target)])
    assert surface.accuracy_at(surface.weights) == 0.75


@pytest.mark.parametrize("classes_second", [True, False])
def test_as_many_classes_as_positions(classes_second: bool) -> None:
    # Records × positions × classes. Read the wrong way round, each record has other classes.
    target = torch.tensor([[1, 2, 0], [1, 1, 0]])
    logits = 5 * torch.eye(3)[target]
    assert not (logits.argmax(1) == target).all(1).any()
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 3, bias=False))
    nn.init.eye_(model[1].weight)

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).transpose(1, 2)

    def last(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(1)

    surface = (
        Surface(Turned(), F.cross_entropy, [(logits, target)])
        if classes_second
        else Surface(model, last, [(logits, target)])
    )
    assert surface.accuracy_at(surface.weights) == 1.0


def test_a_loss_must_be_one_number_for_each_record() -> None:
    data = [(torch.zeros(4, 2), torch.ones(4, 5))]
    for loss in (lambda o, t: (o - t) ** 2, lambda o, t: ((o - t) ** 2).mean()):
        surface = Surface(nn.Linear(2, 5), loss, data)
        with pytest.raises(
            DataError, match=r"The loss has shape .*; it must be \(4,\), one number for each"
        ):
            surface.at(surface.weights)
    empty = Surface(nn.Linear(2, 5), F.mse_loss, [(torch.zeros(0, 2), torch.ones(0, 5))])
    with pytest.raises(DataError, match="one number for each record, and there must be records"):
        empty.at(empty.weights)


def test_there_is_no_curvature_where_the_loss_is_no_number() -> None:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, math.nan)
    surface = Surface(model, F.cross_entropy, [(torch.ones(3, 2), torch.ones(3).long())])
    with pytest.raises(DataError, match="The curvature is not finite; the loss must have finite"):
        surface.hessian_vector(torch.ones(6))


def test_the_model_is_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    surface = Surface(
        model, F.cross_entropy, [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))]
    )
    surface.at(torch.zeros(surface.dimension))
    surface.hessian_vector(torch.ones(surface.dimension))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [layer.training for layer in model] == [True, False, True, True]
    assert all(p.grad is None for p in model.parameters())


def test_frozen_weights_do_not_count() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    assert Surface(model, F.cross_entropy, []).dimension == 8


class Counted:
    """Fresh batches that note how many of them are alive at once."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.most = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(10):
            x = torch.ones(2, dtype=torch.float64)
            self.alive.add(number)
            weakref.finalize(x, self.alive.discard, number)
            self.most = max(self.most, len(self.alive))
            yield x, torch.zeros(2)
            del x


def test_batches_are_let_go() -> None:
    data = Counted()
    surface = Surface(quadratic_surface(rotated([1.0, 2.0])).model, first, data)
    surface.hessian_vector(torch.ones(2, dtype=torch.float64))
    surface.at(torch.ones(2, dtype=torch.float64))
    assert data.most <= 2


def test_refusals() -> None:
    model = quadratic_surface(rotated([1.0, 2.0])).model
    with pytest.raises(ConfigurationError, match="batches='list_iterator': must be iterable more"):
        Surface(model, first, iter(batches()))
    with pytest.raises(
        ConfigurationError, match="model='ReLU': has no trained weights; set requires_grad"
    ):
        Surface(nn.ReLU(), first, batches())
    with pytest.raises(DataError, match="There are no batches; check"):
        Surface(model, first, []).at(torch.zeros(2))
    with pytest.raises(DataError, match=r"batch='Tensor': must be \(inputs, target\)"):
        Surface(model, first, [torch.zeros(3)]).at(torch.zeros(2))
    with pytest.raises(ConfigurationError, match=r"vector=\(3,\): must have shape \(2,\)"):
        Surface(model, first, batches()).hessian_vector(torch.zeros(3))
    with pytest.raises(
        DataError, match="The targets are not classes; accuracy needs whole-number targets"
    ):
        Surface(model, first, batches()).accuracy_at(torch.zeros(2))
