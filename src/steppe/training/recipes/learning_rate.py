"""The learning rate by rule: higher if there is less noise."""

from __future__ import annotations

import math

import torch
from torch import nn

from steppe.clipping import Flat
from steppe.plan import Plan
from steppe.training.recipes.model_kinds import ModelKind, front_end_of, kind_of
from steppe.utils import validation

MOMENTUM = 0.9
# The share of the highest stable rate of a regression that the rule allows. At the highest rate
# errors do not shrink, and the curvature of networks grows during training.
_OF_THE_HIGHEST = 0.25


def signal_to_noise(plan: Plan, weights: int) -> float:
    """The largest length of a step, relative to the length of the noise of the whole run.

    If all records agree, the sum has length batch · C. The noise has standard deviation σ · C per
    weight and step, so its length over the run is σ · C · √(weights · steps).

    Args:
        plan: with its population known.
        weights: number of trainable weights.
    """
    return plan.batch_size / (plan.sigma * math.sqrt(weights * plan.total_steps))


def rate_of(
    kind: ModelKind, plan: Plan, weights: int, clip: float, momentum: float, curvature: float | None
) -> tuple[float, str]:
    """The learning rate of SGD, and why.

    Args:
        kind: of the model.
        plan: with its population known.
        weights: number of trainable weights.
        clip: C.
        momentum: of SGD.
        curvature: the curvature of a regression loss; None for classification.
    """
    noisy = 1 if kind.of_logits else weights
    reach = kind.reach * signal_to_noise(plan, noisy) ** kind.power
    rate = reach * (1 - momentum) / clip
    highest = math.inf if curvature is None else 2 * (1 + momentum) / curvature
    if rate <= _OF_THE_HIGHEST * highest:
        why = f"lr·C/(1 − momentum) = {reach:.3g}: more where there is less noise"
        return float(f"{rate:.3g}"), why
    why = (
        "a quarter of 2(1 + momentum)/λ, above which SGD may diverge; the curvature "
        f"λ = {curvature:g} follows from the sizes of inputs and layers"
    )
    return float(f"{_OF_THE_HIGHEST * highest:.3g}"), why


def optimizer_for(
    model: nn.Module, plan: Plan, curvature: float | None = None
) -> tuple[torch.optim.SGD, str]:
    """SGD with momentum and a learning rate by rule, for any model and plan.

    Args:
        model: to train.
        plan: with its population known.
        curvature: the curvature of a regression loss, as for `choose`.

    Returns:
        The optimizer, and a description with the reason for its rate.

    Examples:
        >>> plan = Plan(epsilon=2.0, delta=1e-5, population=4_000, batch_size=400, steps=200)
        >>> optimizer, why = optimizer_for(nn.Linear(20, 2), plan)
        >>> why
        'SGD(lr=1.69, momentum=0.9), lr·C/(1 − momentum) = 16.9: more where there is less noise'
    """
    if not isinstance(plan.clip, Flat):
        rule = f"is chosen by rule for Flat only, and the plan's clip is {type(plan.clip).__name__}"
        raise validation.missing("optimizer", "pass an optimizer, such as torch.optim.SGD", rule)
    weights = count(model)
    if not weights:
        rule = "has no trainable weight"
        raise validation.fail("model", type(model).__name__, rule, "call requires_grad_() on some")
    kind = kind_of(front_end_of(model), False, curvature)
    rate, why = rate_of(kind, plan, weights, plan.clip.bound, MOMENTUM, curvature)
    return sgd(model, rate, MOMENTUM), f"SGD(lr={rate:g}, momentum={MOMENTUM:g}), {why}"


def sgd(model: nn.Module, rate: float, momentum: float) -> torch.optim.SGD:
    """SGD over the model's trainable weights."""
    return torch.optim.SGD(_trained(model), lr=rate, momentum=momentum)


def count(model: nn.Module) -> int:
    """The number of trainable weights."""
    return sum(weight.numel() for weight in _trained(model))


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]
