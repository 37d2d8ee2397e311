"""How much the noise of private training moves a prediction, from checkpoints of one run.

The last checkpoints of a run that has settled, far enough apart, are nearly independent draws of
what the final model could have been (Recycling Scraps, Theorem 3.1). Close or early checkpoints
resemble each other, so that what is measured here is a lower estimate of the spread over
independent runs: choose `burn_in` and `spacing` when taking them from the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steppe.averaging.layout import named_tensors, write_checkpoint
from steppe.utils.validation import fail, non_negative, open_unit, positive, positive_integer


@dataclass(frozen=True)
class Prediction:
    """What an ensemble of checkpoints says about each input.

    Args:
        labels: the class of each input.
        probabilities: mean class probabilities, inputs × classes.
        low: lower ends of the Student-t intervals for the mean probabilities.
        high: upper ends; both are cut to [0, 1].
        agreement: the share of checkpoints that chose the label on their own.
        label_width: width of a t-interval over the *index* of the class, the quantity of the
            paper's Figure 4, for comparison only: it depends on how classes are numbered and
            means something for two classes at most.
        count: how many checkpoints.
        interval: the confidence of the intervals.
    """

    labels: Tensor
    probabilities: Tensor
    low: Tensor
    high: Tensor
    agreement: Tensor
    label_width: Tensor
    count: int
    interval: float


@dataclass(frozen=True)
class Variance:
    """The spread of a statistic over checkpoints.

    Args:
        mean: the mean of the statistic.
        variance: its sample variance.
        standard_error: of the variance, by the jackknife; as if checkpoints were independent.
        count: how many checkpoints.
    """

    mean: float
    variance: float
    standard_error: float
    count: int


def prediction(
    labels: Tensor, count: int, mean: Tensor, scatter: Tensor, votes: Tensor, interval: float
) -> Prediction:
    """Intervals from the sums that `Ensemble.outputs` keeps."""
    half = half_width(scatter, count, interval)
    quantile = _student_quantile(interval, count - 1)
    classes = torch.arange(votes.shape[-1], dtype=torch.float64, device=votes.device)
    shares = votes.double() / count
    centre = (shares * classes).sum(dim=-1, keepdim=True)
    spread = (shares * (classes - centre) ** 2).sum(dim=-1) * count / (count - 1)
    return Prediction(
        labels=labels,
        probabilities=mean,
        low=(mean - half).clamp(min=0),
        high=(mean + half).clamp(max=1),
        agreement=shares.gather(-1, labels.unsqueeze(-1)).squeeze(-1),
        label_width=2 * quantile * (spread / count).sqrt(),
        count=count,
        interval=interval,
    )


def half_width(scatter: Tensor, count: int, interval: float) -> Tensor:
    """Half the width of Student-t intervals for the mean of what several checkpoints say.

    Args:
        scatter: sum of squared deviations from the mean.
        count: how many checkpoints.
        interval: the confidence, in (0, 1).
    """
    interval = open_unit("interval", interval)
    if count < 2:
        rule = "one checkpoint has no spread"
        raise fail("k", count, rule, "use at least two checkpoints")
    return (
        _student_quantile(interval, count - 1) * (scatter.clamp(min=0) / (count - 1) / count).sqrt()
    )


def checkpoint_variance(
    model: nn.Module,
    checkpoints: Iterable[Mapping[str, Tensor]],
    statistic: Callable[[nn.Module], float],
) -> Variance:
    """The variance of any statistic f(θ) over checkpoints, with its standard error.

    Args:
        model: the model they belong to; it is restored bit for bit.
        checkpoints: `store.last(k, burn_in, spacing)`, or a list of state dicts.
        statistic: a number for a model. Computed from private data, it is no longer free.

    Returns:
        Mean, sample variance and its jackknife standard error.

    Guarantees:
        No privacy cost when the statistic reads public data only.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> four = [{"weight": torch.tensor([[float(v)]])} for v in (1, 2, 3, 4)]
        >>> found = checkpoint_variance(model, four, lambda m: m.weight.item())
        >>> found.mean, round(found.variance, 4), round(found.standard_error, 4)
        (2.5, 1.6667, 1.1547)
    """
    own = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
    values = []
    try:
        for checkpoint in checkpoints:
            write_checkpoint(model, checkpoint)
            values.append(float(statistic(model)))
    finally:
        write_checkpoint(model, own)
    return variance_of(torch.tensor(values, dtype=torch.float64))


def variance_of(values: Tensor) -> Variance:
    """The sample variance of a vector and its jackknife standard error."""
    count = values.numel()
    if count < 3:
        rule = "a variance with a standard error needs more values"
        raise fail("k", count, rule, "use at least three checkpoints")
    mean = values.mean()
    squares = (values - mean) ** 2
    total = squares.sum()
    # Leaving value i out takes squaresᵢ · count/(count − 1) from the sum of squares.
    left_out = (total - squares * count / (count - 1)) / (count - 2)
    error = ((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum()).sqrt()
    return Variance(float(mean), float(total / (count - 1)), float(error), count)


def error_bound(k: int, time: float, burn_in: float, mixing: float) -> float:
    """Upper bound on the mean squared error of the sample variance of k equally spaced checkpoints.

    1/k + 3 exp(−(T/k − c₁)/c₂): more checkpoints average better, but lie closer together.

    Args:
        k: how many, at T/k, 2T/k, …, T.
        time: T, the length of the run as the sum of its step sizes.
        burn_in: c₁ of §A.1, the time that forgetting the start takes.
        mixing: c₂ of §A.1, the time in which dependence falls by a factor e.
    """
    k, time = positive_integer("k", k), positive("time", time)
    burn_in, mixing = non_negative("burn_in", burn_in), positive("mixing", mixing)
    exponent = (burn_in - time / k) / mixing
    return 1 / k + 3 * math.exp(exponent) if exponent < 700 else math.inf  # exp ends there


def best_number(time: float, burn_in: float, mixing: float) -> int:
    """The k that minimises `error_bound` (Recycling Scraps, §A.1), at least 2.

    The bound is smallest at k = T / (c₁ + c₂ ln(3T/c₂)); of the two whole numbers around it the
    better one is returned. Theory leaves c₁ and c₂ open: they are assumptions about the run.

    Args:
        time: T, the length of the run as the sum of its step sizes.
        burn_in: c₁.
        mixing: c₂.

    Returns:
        How many checkpoints to use.

    Examples:
        >>> best_number(time=1000.0, burn_in=10.0, mixing=5.0)
        24
    """
    time, mixing = positive("time", time), positive("mixing", mixing)
    burn_in = non_negative("burn_in", burn_in)
    if time < 2 * burn_in:
        rule = f"must be at least 2·burn_in = {2 * burn_in:g}: no choice of k has a bound"
        raise fail("time", time, rule, "train longer, or do without intervals")
    spacing = max(burn_in + mixing * math.log(3 * time / mixing), burn_in)
    below = max(2, math.floor(time / spacing)) if spacing > 0 else 2
    allowed = [k for k in (below, below + 1) if time / k >= burn_in]
    return min(allowed, key=lambda k: error_bound(k, time, burn_in, mixing))


def _student_quantile(interval: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + interval) / 2, freedom))
