"""Strong defaults by rule, for nothing but data, a model and ε, each with its reason.

Every number follows from public constants: the population, ε and δ, and the size of the model.
Nothing is read from the records, so choosing costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from steppe import _validate
from steppe.averaging import EMA, SWA, Average, PolynomialDecay, Window
from steppe.clipping import Flat
from steppe.models.scattering import ScatteringLinear
from steppe.plan import Plan
from steppe.points import Point
from steppe.training.kinds import COLUMNS, HEAD, NETWORK, NUMBERS, Kind

_GIVEN = "given"
_MOMENTUM = 0.9
_SMALLEST_BATCH = 256
# Of the highest rate at which errors of numbers cannot grow. At the highest itself nothing dies
# down, and networks bend more as they learn.
_OF_THE_HIGHEST = 0.25
PUBLISHED = EMA
BEFOREHAND = "fixed beforehand: choosing the best by private data would cost privacy"


@dataclass(frozen=True)
class Recipe:
    """All constants of a run, with the reason for each.

    Attributes:
        epsilon, delta, population: the budget.
        batch_size, steps, clip, point: of the plan.
        rate, momentum: of SGD.
        reasons: why, by the name of the constant.
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
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        return torch.optim.SGD(trained, lr=self.rate, momentum=self.momentum)

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
    fixed_features: bool = False,
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
    """Constants for a private run; those that are given are kept.

    Args:
        population: number of records.
        epsilon: the budget.
        weights: number of trainable weights.
        fixed_features: whether only a linear layer without bias on fixed features of norm 1
            learns, as in `ScatteringLinear`.
        columns: whether a record is a vector, such as a row of a table.
        curvature: how much a loss of numbers bends, see `losses.curvature`; None for a loss of
            classes.
        delta: δ; the power of ten below 1/population unless given.
        batch_size: expected batch.
        steps: how many.
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
    population = _validate.positive_integer("population", population)
    epsilon = _validate.positive("epsilon", epsilon)
    weights = _validate.positive_integer("weights", weights)
    kind = _kind(fixed_features, columns, curvature)
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
    rules = _rules(kind, population)
    values = {name: rules[name][0] if value is None else value for name, value in given.items()}
    reasons = {name: rules[name][1] if value is None else _GIVEN for name, value in given.items()}
    reasons["rate"] = _GIVEN
    reasons["averages"] = "free; where the rate is not ideal they mend much of it"
    recipe = Recipe(
        epsilon=epsilon,
        population=population,
        rate=math.nan if rate is None else _validate.positive("rate", rate),
        reasons=reasons,
        **values,
    )
    if rate is not None:
        return recipe
    constants = weights, recipe.clip, recipe.momentum, curvature
    found, reasons["rate"] = _rate(kind, recipe.plan(), *constants)
    return replace(recipe, rate=found)


def _kind(fixed_features: bool, columns: bool, curvature: float | None) -> Kind:
    if curvature is not None:
        return NUMBERS
    return HEAD if fixed_features else COLUMNS if columns else NETWORK


def _check_momentum(momentum: Any) -> None:
    if _validate.non_negative("momentum", momentum, "give a value in [0, 1)") >= 1:
        rule = "must lie in [0, 1): at 1 no step is ever forgotten, and the rate would be 0"
        raise _validate.fail("momentum", momentum, rule, "use a value like 0.9")


def _rate(
    kind: Kind, plan: Plan, weights: int, clip: float, momentum: float, curvature: float | None
) -> tuple[float, str]:
    reach = kind.reach * signal_to_noise(plan, weights) ** kind.power
    rate = reach * (1 - momentum) / clip
    highest = math.inf if curvature is None else 2 * (1 + momentum) / curvature
    if rate <= _OF_THE_HIGHEST * highest:
        why = f"lr·C/(1 − momentum) = {reach:.3g}: more where there is less noise"
        return float(f"{rate:.3g}"), why
    why = (
        "a quarter of 2(1 + momentum)/λ, above which errors of numbers may grow; the curvature "
        f"λ = {curvature:g} follows from the sizes of inputs and layers"
    )
    return float(f"{_OF_THE_HIGHEST * highest:.3g}"), why


def _rules(kind: Kind, population: int) -> dict[str, tuple[Any, str]]:
    share = f"{kind.share:.0%} of the records"
    batch = min(round(kind.share * population), kind.largest)
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
        "steps": (kind.steps, f"enough for {kind.name}; more would need more noise in each"),
        "clip": kind.clip,
        "momentum": (_MOMENTUM, "a mean over about ten steps, noise included"),
        "point": kind.point,
    }


def for_model(model: nn.Module, *, population: int, epsilon: float, **given: Any) -> Recipe:
    """`choose` for a model: counts its weights and sees whether its features are fixed.

    Args:
        model: the model.
        population: number of records.
        epsilon: the budget.
        given: constants that are kept, as for `choose`.
    """
    fixed = isinstance(model, ScatteringLinear)
    return choose(
        population=population,
        epsilon=epsilon,
        weights=_count(model),
        fixed_features=fixed,
        **given,
    )


def optimizer_for(
    model: nn.Module, plan: Plan, curvature: float | None = None
) -> tuple[torch.optim.SGD, str]:
    """SGD with momentum, at the rate that the rule gives for a model and a plan of one's own.

    Args:
        model: what is trained.
        plan: with its population known.
        curvature: how much a loss of numbers bends, as for `choose`.

    Returns:
        The optimizer, and it in words with the reason for its rate.

    Examples:
        >>> plan = Plan(epsilon=2.0, delta=1e-5, population=4_000, batch_size=400, steps=200)
        >>> optimizer, why = optimizer_for(nn.Linear(20, 2), plan)
        >>> why
        'SGD(lr=1.69, momentum=0.9), lr·C/(1 − momentum) = 16.9: more where there is less noise'
    """
    if not isinstance(plan.clip, Flat):
        rule = f"is chosen by rule for Flat, and the plan clips by {type(plan.clip).__name__}"
        raise _validate.fail("optimizer", None, rule, "pass torch.optim.SGD(…, lr=0.5), say")
    weights = _count(model)
    if not weights:
        rule = "has no weight that is trained"
        raise _validate.fail("model", type(model).__name__, rule, "call requires_grad_() on some")
    kind = _kind(isinstance(model, ScatteringLinear), False, curvature)
    rate, why = _rate(kind, plan, weights, plan.clip.bound, _MOMENTUM, curvature)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    made = torch.optim.SGD(trained, lr=rate, momentum=_MOMENTUM)
    return made, f"SGD(lr={rate:g}, momentum={_MOMENTUM:g}), {why}"


def _count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


FREE = "free: they cost no privacy, and noise averages out"


def averages(model: nn.Module, steps: int) -> tuple[Average, ...]:
    """The averages that a run keeps: the last fifth or so of it, and for SWA the last two fifths.

    Args:
        model: what is trained.
        steps: how many steps the run has.

    Guarantees:
        Post-processing: no privacy cost, however many are kept.
    """
    late = max(1, steps // 5)
    # The decay has digits enough to tell this horizon from others, and no more: it is in names.
    return (
        EMA(model, decay=round(1 - 2 / (late + 1), 1 + len(str(late)))),
        SWA(model, warmup=0.6, steps=steps),
        Window(model, k=late, block=math.gcd(late, 20)),
        PolynomialDecay(model, gamma=4.0),
    )


def published(model: nn.Module, steps: int) -> Average:
    """That one of the `averages` which is published.

    Args:
        model: what is trained.
        steps: how many steps the run has.

    Examples:
        >>> type(published(nn.Linear(2, 2), steps=200)).__name__
        'EMA'
    """
    return next(kept for kept in averages(model, steps) if isinstance(kept, PUBLISHED))


def signal_to_noise(plan: Plan, weights: int) -> float:
    """How far a step of full gradients goes, against how far noise goes in the whole run.

    All records pulling one way move the sum by batch · C; noise moves each weight by σ · C a step,
    so all of them together by σ · C · √(weights · steps) in the run.

    Args:
        plan: with its population known.
        weights: number of trainable weights.
    """
    return plan.batch_size / (plan.sigma * math.sqrt(weights * plan.total_steps))
