"""Which average to publish: free on public data, at a cost in privacy on private data."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from steppe.averaging.average import AveragedWeights
from steppe.averaging.outputs import Ensemble
from steppe.averaging.permute_and_flip import permute_and_flip
from steppe.randomness import Source, as_source
from steppe.utils.module_modes import evaluating
from steppe.utils.validation import fail, positive, positive_integer

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Choice(Generic[Name]):
    """The choice and its cost.

    Args:
        name: the chosen candidate.
        scores: the scores it was chosen by; None after a private choice, which may not show them.
        epsilon: ε of the choice itself, to be added to that of training (δ stays as it is) unless
            no record was used for both.
        not_private_reason: a sentence that every artefact must carry, or None.
    """

    name: Name
    scores: dict[Name, float] | None
    epsilon: float
    not_private_reason: str | None = None


def choose(scores: Mapping[Name, float], *, public: bool) -> Choice[Name]:
    """The candidate with the best score on public data; the first of equals.

    Args:
        scores: a score for each candidate (a k, a decay, a γ, a cycle, …); larger is better.
        public: True declares that no private record affected the scores. There is no default.

    Returns:
        The choice, with ε = 0.

    Guarantees:
        Free only because the scores are public.

    Examples:
        >>> choose({0.9: 0.81, 0.99: 0.84, 0.999: 0.84}, public=True).name
        0.99
    """
    _require_public(public, "private_choice")
    known = {name: _finite(name, score) for name, score in scores.items()}
    if not known:
        raise fail("scores", {}, "must not be empty", "score at least one candidate")
    return Choice(max(known, key=lambda name: known[name]), known, 0.0)


def tune(
    model: nn.Module,
    candidates: Mapping[Name, AveragedWeights | Ensemble],
    inputs: Tensor,
    targets: Tensor,
    *,
    public: bool,
) -> Choice[Name]:
    """The candidate with the best accuracy on public data.

    Args:
        model: the model; it is restored bit for bit.
        candidates: averages of weights or of outputs, by the setting that made them.
        inputs: public inputs.
        targets: their classes.
        public: True declares that these records are public. There is no default.

    Returns:
        The choice, with every accuracy and ε = 0.

    Guarantees:
        Free only because the data are public.

    Examples:
        >>> from steppe.averaging import SWA
        >>> model = nn.Linear(2, 2)
        >>> average = SWA(model)
        >>> average.update(model)
        >>> tune(model, {"mean": average}, torch.eye(2), torch.arange(2), public=True).name
        'mean'
    """
    _require_public(public, "private_choice on the numbers of right answers")
    scores = {
        name: accuracy(model, candidate, inputs, targets) for name, candidate in candidates.items()
    }
    return choose(scores, public=public)


@torch.no_grad()
def accuracy(
    model: nn.Module, candidate: AveragedWeights | Ensemble, inputs: Tensor, targets: Tensor
) -> float:
    """The share of inputs whose class a candidate finds. The result is as private as the data."""
    if isinstance(candidate, Ensemble):
        labels = candidate.labels(inputs)
    else:
        with candidate.applied(model), evaluating(model):
            labels = torch.cat([model(part).argmax(dim=-1) for part in inputs.split(1024)])
    if targets.shape != labels.shape:
        rule = f"must be {tuple(labels.shape)}, one class for each input"
        raise fail("targets", tuple(targets.shape), rule, "give class indices")
    return (labels == targets).double().mean().item()


def best_checkpoints(scores: Sequence[float], k: int, *, public: bool) -> list[int]:
    """Positions of the k best checkpoints by public data, ordered worst to best.

    In this order an exponential average (`Combined(model, …, decay=β)`) gives the best checkpoint
    the most weight. Of equal scores the later checkpoint counts as better.

    Args:
        scores: a score for each checkpoint, oldest first; larger is better.
        k: how many.
        public: True declares that no private record affected the scores. There is no default.

    Returns:
        Positions in `scores`.

    Guarantees:
        Free only because the scores are public.

    Examples:
        >>> best_checkpoints([0.1, 0.9, 0.5, 0.7], k=3, public=True)
        [2, 3, 1]
    """
    _require_public(public, "private_choice, once for each checkpoint")
    k = positive_integer("k", k)
    if k > len(scores):
        rule = f"is more than the {len(scores)} checkpoints scored"
        raise fail("k", k, rule, "use a smaller k, or score more checkpoints")
    known = [_finite(position, score) for position, score in enumerate(scores)]
    return sorted(range(len(known)), key=lambda position: (known[position], position))[-k:]


def private_choice(
    scores: Mapping[Name, float],
    sensitivity: float,
    epsilon: float,
    source: Source | None = None,
) -> Choice[Name]:
    """A good candidate by private scores: report-noisy-max with exponential noise.

    Args:
        scores: a score for each candidate; larger is better. The candidates themselves must not
            depend on these data, beyond what a private mechanism released.
        sensitivity: the most that one record can change one score: 1 for a number of right
            answers; 1/n for an accuracy when n is public and one record replaces another.
        epsilon: ε of this choice.
        source: None for secure randomness; a `SeededSource` in tests marks the choice.

    Returns:
        The choice and its ε; the scores are not shown.

    Guarantees:
        Pure ε-differential privacy for the neighbours that `sensitivity` was computed for, in exact
        arithmetic: the law is that of adding exponential noise of scale 2·sensitivity/ε to every
        score and reporting the largest, drawn as permute-and-flip (McKenna and Sheldon, 2020;
        Ding et al., 2021), so no rounded noise exists that could leak. Its time depends on the
        scores and is not hidden.

    Examples:
        >>> found = private_choice({3: 810, 5: 842, 10: 990}, sensitivity=1, epsilon=1.0)
        >>> found.name, found.epsilon, found.scores
        (10, 1.0, None)
    """
    budget = Fraction(positive("epsilon", epsilon))
    scale = budget / (2 * Fraction(positive("sensitivity", sensitivity)))
    exact = {name: Fraction(_finite(name, score)) for name, score in scores.items()}
    if not exact:
        raise fail("scores", {}, "must not be empty", "score at least one candidate")
    randomness = as_source(source)
    names = list(exact)
    best = max(exact.values())
    position = permute_and_flip([scale * (best - exact[name]) for name in names], randomness)
    return Choice(names[position], None, float(budget), randomness.not_private_reason)


def _require_public(public: bool, way: str) -> None:
    if public is not True:
        rule = "must be True, since choosing by scores of private records costs privacy"
        raise fail("public", public, rule, f"use public records, or {way}")


def _finite(name: object, score: Any) -> float:
    number = isinstance(score, Real | Tensor)  # a tensor of one number serves
    if not number or not math.isfinite(score):
        # The value is withheld: it may come from private records.
        raise fail("scores", name, "has no finite number for a score", "leave this candidate out")
    return float(score)
