"""Weights that are replaced, computed, added or frozen during a run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

import steppe
from steppe.errors import IsolationError, MisuseError

N = 60
Change = Callable[[nn.Module], Any]


class Tanh(nn.Module):
    """Two layers in code of a user's own, which goes through the tracer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def plain() -> nn.Module:
    """The same in torch's layers, which need no tracer."""
    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 8))
    model.add_module("tanh", nn.Tanh())
    model.add_module("last", nn.Linear(8, 3))
    return model


def begun(make: Callable[[], nn.Module] = Tanh, isolation: str = "proven") -> Any:
    """A run after its first step."""
    torch.manual_seed(0)
    model = make()
    data = (torch.randn(N, 4), torch.randint(3, (N,)))
    plan = steppe.Plan(
        delta=1e-3,
        noise_multiplier=1.0,
        population=N,
        batch_size=6,
        steps=6,
        clip=steppe.Flat(0.5),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = steppe.make_private(
        model, optimizer, data, plan, loss=F.cross_entropy, isolation=isolation
    )
    run.step(next(iter(run)))
    return run


def replaced(trained: bool) -> Change:
    return lambda layer: setattr(
        layer, "weight", nn.Parameter(torch.randn(8, 4), requires_grad=trained)
    )


def stored_as_a_buffer(layer: nn.Module) -> None:
    weight = layer.weight.detach().clone()
    del layer.weight
    layer.register_buffer("weight", weight)


def computed_once(layer: nn.Module) -> None:
    weight = layer.weight
    del layer.weight
    layer.weight = weight * 1.0


REPLACED: dict[str, Change] = {
    "weight norm": parametrizations.weight_norm,
    "old weight norm": lambda layer: nn.utils.weight_norm(layer),
    "another parameter": replaced(True),
    "another frozen parameter": replaced(False),
    "a buffer": stored_as_a_buffer,
    "a tensor computed from it": computed_once,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("make", [Tanh, plain])
@pytest.mark.parametrize("change", REPLACED.values(), ids=REPLACED)
def test_a_trained_weight_that_is_replaced_is_refused(
    change: Change, make: Callable[[], nn.Module]
) -> None:
    """Noise alone would move it, and what has taken its place would not be trained."""
    run = begun(make)
    batch = next(iter(run))
    change(run.model.first)
    with pytest.raises(MisuseError, match=r"^weights=\['first.weight'\]: must stay in the model"):
        run.step(batch)
    assert run.steps_done == 1


@pytest.mark.parametrize("isolation", ["each", "probed"])
def test_it_is_refused_with_every_kind_of_isolation(isolation: str) -> None:
    run = begun(isolation=isolation)
    batch = next(iter(run))
    parametrizations.weight_norm(run.model.first)
    with pytest.raises(MisuseError, match=r"^weights=\['first.weight'\]: must stay in the model"):
        run.step(batch)


def test_weight_norm_that_is_removed_is_refused() -> None:
    run = begun(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3))))
    batch = next(iter(run))
    parametrize.remove_parametrizations(run.model[0], "weight")
    with pytest.raises(MisuseError, match=r"^weights=\['0.parametrizations.weight.original0', '0"):
        run.step(batch)


def test_a_new_weight_is_refused() -> None:
    run = begun()
    batch = next(iter(run))
    run.model.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(MisuseError, match=r"^weights=\['scale'\]: must be among the trained ones"):
        run.step(batch)
    run.model.scale.requires_grad_(False)
    run.step(batch)


def test_spectral_norm_is_refused_because_it_counts_passes() -> None:
    run = begun()
    batch = next(iter(run))
    parametrizations.spectral_norm(run.model.first)
    with pytest.raises(IsolationError, match="must not change with every forward pass"):
        run.step(batch)


HANDLED: dict[str, Change] = {
    "a parametrisation": lambda layer: parametrize.register_parametrization(
        layer, "weight", Doubled()
    ),
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "other values": lambda layer: layer.weight.data.mul_(3),
}


@pytest.mark.parametrize("make", [Tanh, plain])
@pytest.mark.parametrize("change", HANDLED.values(), ids=HANDLED)
def test_a_weight_that_is_computed_from_the_trained_one_is_trained(
    change: Change, make: Callable[[], nn.Module]
) -> None:
    """The clipped sum is that of one record after another."""
    run = begun(make)
    batch = next(iter(run))
    weight = run.model.first.weight
    change(run.model.first)
    assert any(weight is p for p in run.model.parameters())
    run.step(batch)
    x, y = torch.randn(5, 4) * 3, torch.randint(3, (5,))
    found = torch.zeros(run.engine.width)
    run.engine.add_(found, (x, y))
    wanted = torch.zeros_like(found)
    for i in range(len(x)):
        loss = F.cross_entropy(functional_call(run.model, {}, x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(run.engine.parameters.values()))
        flat = torch.cat([g.flatten() for g in grads])
        wanted += flat * (0.5 / flat.norm()).clamp(max=1.0)
    torch.testing.assert_close(found, wanted)


def test_a_parametrisation_may_be_removed() -> None:
    run = begun(
        lambda: nn.Sequential(
            parametrize.register_parametrization(nn.Linear(4, 3), "weight", Doubled(), unsafe=True)
        )
    )
    batch = next(iter(run))
    parametrize.remove_parametrizations(run.model[0], "weight")
    before = run.model[0].weight.detach().clone()
    run.step(batch)
    assert not torch.equal(run.model[0].weight, before)


class Behind(nn.Module):
    """A tensor that needs a gradient and is no parameter, behind a computed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.other = nn.Linear(4, 3), torch.ones(3, 4, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.last.weight * self.other)


def test_a_tensor_behind_a_weight_that_is_not_trained_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"^weights of shapes=\[\(3, 4\)\]: must be among the tr"):
        begun(Behind)


@pytest.mark.parametrize("make", [Tanh, plain])
@pytest.mark.parametrize("isolation", ["proven", "each"])
def test_a_weight_that_is_frozen_stays_and_the_others_are_trained(
    isolation: str, make: Callable[[], nn.Module]
) -> None:
    run = begun(make, isolation)
    run.model.first.weight.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    for batch in run:
        run.step(batch)
    stayed = [n for n, p in run.model.named_parameters() if torch.equal(p, before[n])]
    assert stayed == ["first.weight"]
    assert run.steps_done == 6
