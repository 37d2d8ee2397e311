"""Kinds of models, and the constants of the rules for each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from steppe.models import FixedFrontEnd, Patches
from steppe.points import SAT, Here, Point
from steppe.utils import validation


@dataclass(frozen=True)
class ModelKind:
    """The constants of the rules for a kind of model.

    Args:
        name: a description.
        clip: C, and the reason.
        share: expected batch as a share of the population.
        largest: the largest expected batch.
        steps: number of steps.
        reach: lr · C / (1 − momentum) at a signal-to-noise ratio of 1.
        power: exponent of the signal-to-noise ratio in the rule for the reach.
        point: at which weights gradients are taken, and the reason.
        of_logits: whether the noise in that ratio is the noise of one logit instead of all weights.
        publishes: the name of the published model.
        share_above: an ε above which the batch has another share of the population, and that share.
    """

    name: str
    clip: tuple[float, str]
    share: float
    largest: int
    steps: int
    reach: float
    power: float
    point: tuple[Point, str]
    of_logits: bool = False
    publishes: str = "EMA"
    share_above: tuple[float, float] | None = None

    def share_at(self, epsilon: float) -> float:
        """Expected batch as a share of the population."""
        if self.share_above is None or epsilon <= self.share_above[0]:
            return self.share
        return self.share_above[1]


_SMALL_CLIP = (0.1, "small, so that almost all gradients are clipped to the same norm")

# With batches this large the noise of the run hardly depends on the number of steps. On 10,000
# held-out records, 100 and 200 steps give the same accuracy on Fashion-MNIST; on MNIST 100 are too
# few. The reach is proportional to the signal, as theory says for convex problems.
HEAD = ModelKind(
    name="a linear head on fixed features",
    clip=_SMALL_CLIP,
    share=0.2,
    largest=16_384,
    steps=200,
    reach=600.0,
    power=1.0,
    point=(Here(), "plain DP-SGD: a convex problem has no sharp minima to avoid"),
)
# The features have norm 1, so the noise in a logit is reach · σ · √steps / batch, whatever their
# number. Reaches were chosen on held-out training records of CIFAR-10, Fashion-MNIST and MNIST: see
# `python -m benchmarks.patches_head`.
PATCHES = replace(
    HEAD,
    name="a linear head on patch features",
    share=0.3,
    largest=32_768,
    steps=50,
    reach=1.8,
    of_logits=True,
    publishes="last",
    share_above=(4.0, 0.5),  # at ε = 8 batches of 0.3 have 10 % more noise, at ε = 3 only 4 %
)
HEADS = {
    "features": HEAD,
    "patches": PATCHES,
    "grey patches": replace(PATCHES, steps=100),  # 0.2 to 0.4 points above 50 on held-out records
    "patches and scattering": PATCHES,
}
NETWORK = ModelKind(
    name="a model that learns from the inputs themselves",
    clip=_SMALL_CLIP,
    share=1 / 30,
    largest=8_192,
    steps=600,
    reach=13.0,
    power=0.7,
    point=(SAT(0.03), "sharpness-aware at no privacy cost; a small gain for networks alone"),
)
# With a small clipping norm, a record that is nearly right has as much influence as one that is
# wrong, which drives all probabilities towards 0 and 1. On Adult at ε = 2, C = 1 has the accuracy
# of C = 0.1, but the loss of a logistic model is 0.39 instead of 0.61; C = 2 loses accuracy if
# there is more noise. See `python -m benchmarks.columns`.
COLUMNS = replace(
    NETWORK,
    name="a model of table columns",
    clip=(1.0, "about the norm of a per-example gradient: probabilities stay calibrated"),
)
# Regression losses are unbounded. Noise in the weights counts in full, so the reach is smaller, and
# errors grow from step to step if the rate is too high, so the curvature limits it.
NUMBERS = replace(
    COLUMNS,
    name="a regression",
    clip=(1.0, "about the norm of a per-example gradient: large errors count for more"),
    reach=3.0,
    point=(Here(), "plain DP-SGD: SAT was measured for classification only"),
)


def kind_of(front_end: str | None, columns: bool, curvature: float | None) -> ModelKind:
    """The kind of a model, from the arguments of `choose`."""
    if curvature is not None:
        return NUMBERS
    if front_end is not None:
        return HEADS[validation.one_of("front_end", front_end, list(HEADS))]
    return COLUMNS if columns else NETWORK


def front_end_of(model: nn.Module) -> str | None:
    """The front-end of a model of which only a linear head on fixed features is trained.

    Examples:
        >>> from steppe import models
        >>> front_end_of(models.create("patches-linear", side=28, colours=1))
        'grey patches'
    """
    if not isinstance(model, FixedFrontEnd):
        return None
    if not isinstance(model.front, Patches):
        return "features"
    if model.front.scattering is not None:
        return "patches and scattering"
    return "patches" if model.front.sizes.colours > 1 else "grey patches"


def publishes(model: nn.Module) -> str:
    """The name of the model that a run by recipe publishes.

    Args:
        model: the whole model.
    """
    return kind_of(front_end_of(model), False, None).publishes
