"""All constants of a run by rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from steppe.averaging import Average
from steppe.clipping import Flat
from steppe.plan import Plan
from steppe.points import Point
from steppe.training.recipes.default_averages import averages
from steppe.training.recipes.learning_rate import MOMENTUM, count, rate_of, sgd
from steppe.training.recipes.model_kinds import ModelKind, front_end_of, kind_of
from steppe.utils import validation

_GIVEN = "given"
_SMALLEST_BATCH = 256


@dataclass(frozen=True)
class Recipe:
    """All constants of a run, with the reason for each.

    Attributes:
        epsilon, delta, population: the budget.
        batch_size, steps, clip, point: of the plan.
        rate, momentum: of SGD.
        reasons: the reason for each constant, by name.
    """

    epsilon: float
    delta: float
    population: int
    batch_size: float
    steps: int
    clip: float
    point: Point
    rate: float
    momentum: float
    reasons: dict[str, str]

    def plan(self) -> Plan:
        """The plan of these constants."""
        return Plan(
            epsilon=self.epsilon,
            delta=self.delta,
            population=self.population,
            batch_size=self.batch_size,
            steps=self.steps,
            clip=Flat(self.clip),
            point=self.point,
        )

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """SGD with the recipe's rate and momentum over the model's trainable weights."""
        return sgd(model, self.rate, self.momentum)

    def averages(self, model: nn.Module) -> tuple[Average, ...]:
        """The averages to keep beside the last weights, see `averages`."""
        return averages(model, self.steps)

    def __str__(self) -> str:
        values = {name: getattr(self, name) for name in self.reasons}
        values["averages"] = "EMA, SWA, UPA, PDA"
        rows = [
            (name, f"{value:g}" if isinstance(value, int | float) else str(value))
            for name, value in values.items()
        ]
        name_width, value_width = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join(
            f"{name:<{name_width}}  {value:<{value_width}}  {self.reasons[name]}"
            for name, value in rows
        )


def choose(
    *,
    population: int,
    epsilon: float,
    weights: int,
    front_end: str | None = None,
    columns: bool = False,
    curvature: float | None = None,
    delta: float | None = None,
    batch_size: float | None = None,
    steps: int | None = None,
    clip: float | None = None,
    momentum: float | None = None,
    rate: float | None = None,
    point: Point | None = None,
) -> Recipe:
    """Choose the constants of a private run. Those that are given are kept.

    Args:
        population: number of records.
        epsilon: the budget.
        weights: number of trainable weights.
        front_end: where only a linear layer without bias, on fixed features of norm 1, is trained,
            as in `FixedFrontEnd`: "patches", "grey patches" for one colour, "patches and
            scattering", or "features" for all others.
        columns: whether a record is a vector, such as a row of a table.
        curvature: the curvature of a regression loss, see `losses.curvature`; None for
            classification.
        delta: δ; the power of ten below 1/population unless given.
        batch_size: expected batch.
        steps: number of steps.
        clip: C.
        momentum: of SGD.
        rate: learning rate.
        point: at which weights gradients are taken.

    Returns:
        The recipe, which prints as a table of names, values and reasons.

    Guarantees:
        The choice depends on the arguments alone, all of them public constants.

    Examples:
        >>> recipe = choose(population=60_000, epsilon=2.0, weights=26_010)
        >>> recipe.batch_size, recipe.steps, recipe.clip, recipe.delta
        (2000, 600, 0.1, 1e-05)
    """
    population = validation.positive_integer("population", population)
    epsilon = validation.positive("epsilon", epsilon)
    weights = validation.positive_integer("weights", weights)
    kind = kind_of(front_end, columns, curvature)
    given: dict[str, Any] = {
        "delta": delta,
        "batch_size": batch_size,
        "steps": steps,
        "clip": clip,
        "momentum": momentum,
        "point": point,
    }
    if momentum is not None:
        _check_momentum(momentum)
    rules = _rules(kind, population, epsilon)
    values = {name: rules[name][0] if value is None else value for name, value in given.items()}
    reasons = {name: rules[name][1] if value is None else _GIVEN for name, value in given.items()}
    reasons["rate"] = _GIVEN
    reasons["averages"] = "no privacy cost; they make up for much of a poor learning rate"
    recipe = Recipe(
        epsilon=epsilon,
        population=population,
        rate=math.nan if rate is None else validation.positive("rate", rate),
        reasons=reasons,
        **values,
    )
    if rate is not None:
        return recipe
    constants = weights, recipe.clip, recipe.momentum, curvature
    found, reasons["rate"] = rate_of(kind, recipe.plan(), *constants)
    return replace(recipe, rate=found)


def for_model(model: nn.Module, *, population: int, epsilon: float, **given: Any) -> Recipe:
    """`choose` for a model: counts its weights and detects fixed features.

    Args:
        model: the model.
        population: number of records.
        epsilon: the budget.
        given: constants that are kept, as for `choose`.
    """
    return choose(
        population=population,
        epsilon=epsilon,
        weights=count(model),
        front_end=front_end_of(model),
        **given,
    )


def _check_momentum(momentum: Any) -> None:
    if validation.non_negative("momentum", momentum, "give a value in [0, 1)") >= 1:
        rule = "must lie in [0, 1): at 1 the learning rate would be 0"
        raise validation.fail("momentum", momentum, rule, "use a value like 0.9")


def _rules(kind: ModelKind, population: int, epsilon: float) -> dict[str, tuple[Any, str]]:
    part = kind.share_at(epsilon)
    share = f"{part:.0%} of the records"
    batch = min(round(part * population), kind.largest)
    return {
        "delta": (
            10.0 ** -(math.floor(math.log10(population)) + 1),
            f"the power of ten below 1/{population}",
        ),
        "batch_size": (
            min(max(batch, _SMALLEST_BATCH), max(1, population // 2)),
            f"large, so that many records share the noise: {share}, {_SMALLEST_BATCH} to "
            f"{kind.largest}, at most half",
        ),
        "steps": (kind.steps, f"enough for {kind.name}; more steps need more noise in each"),
        "clip": kind.clip,
        "momentum": (MOMENTUM, "averages the last ten steps or so, and their noise"),
        "point": kind.point,
    }
