"""User code in which random numbers of one record depend on how many others there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from isolation_case import Mixing, without
from isolation_networks import classes, features, using
from torch import Tensor, nn

Weights = Callable[[int], Tensor]


def half(n: int) -> Tensor:
    """Half of the batch counts, by a permutation."""
    return (torch.randperm(n) % 2 == 0).float()


def half_by_order(n: int) -> Tensor:
    """The same by the order of random numbers."""
    return (torch.rand(n).argsort() % 2 == 0).float()


def one_of_many(n: int) -> Tensor:
    """Each with a chance that follows the size, drawn in place."""
    return torch.empty(n).bernoulli_(min(1.0, 4 / n)) + 1 / 8


def just_one(n: int) -> Tensor:
    """One record is chosen."""
    return torch.zeros(n).index_fill_(0, torch.multinomial(torch.ones(n), 1), 1.0)


def dirichlet(n: int) -> Tensor:
    """The Bayesian bootstrap: weights that sum to one."""
    return torch.distributions.Dirichlet(torch.ones(n)).sample()


def evenly(n: int) -> Tensor:
    """One number in each of n parts, in place."""
    return torch.rand(n).add_(torch.arange(n)).div_(n)


def scaled(n: int) -> Tensor:
    """Scaled by the size, in place."""
    return torch.randn(n).mul_(10 / n)


def antithetic(n: int) -> Tensor:
    """DDIM: times in pairs that mirror each other, as many as there are records."""
    times = torch.randint(0, 1000, (n // 2 + 1,))
    return torch.cat([times, 1000 - times - 1])[:n] / 1000


def _weighted(name: str, weights: Weights, says: str, **options: Any) -> Mixing:
    def objective(model: nn.Module, batch: Any) -> Tensor:
        losses = classes(model, batch)
        return losses * weights(len(losses))

    build = using(lambda: nn.Linear(8, 3), features, objective)
    return Mixing(name, "count", build, says=says, **{"showing": without(), **options})


CASES = (
    _weighted("half by a permutation", half, "randperm"),
    _weighted("half by order", half_by_order, "sort"),
    _weighted("chance by size", one_of_many, "bernoulli"),
    _weighted("one is drawn", just_one, "multinomial", seed=10),
    _weighted("weights that sum to one", dirichlet, "dirichlet"),
    _weighted("random softmax", lambda n: torch.randn(n).softmax(0), "softmax"),
    _weighted("random numbers in order", lambda n: torch.rand(n).sort(descending=True)[0], "sort"),
    _weighted("low discrepancy in place", evenly, "add_|place"),
    _weighted("noise scaled in place", scaled, "mul_"),
    _weighted("spread by size", lambda n: torch.empty(n).normal_(0, 10 / n), "normal_"),
    _weighted("normal by size", lambda n: torch.normal(0.0, 1 / n, (n,)), "normal"),
    _weighted("integers up to the size", lambda n: torch.randint(0, n, (n,)) + 0.5, "randint"),
    _weighted("random walk over records", lambda n: torch.rand(n).flip(0).cumsum(0), "cumsum"),
    _weighted("ranks by chance", lambda n: torch.randperm(n).float(), "randperm"),
    _weighted("antithetic times", antithetic, "randint"),
    _weighted("sorted table", lambda n: torch.rand(99).sort()[0][:n], "place", showing=without(0)),
)
