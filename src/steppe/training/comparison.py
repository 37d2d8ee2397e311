"""What the score of the published model is worth: its interval, a baseline, and a ceiling."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from steppe.gradients import per_record
from steppe.records import Records
from steppe.training.evaluation import Evaluation, Scores
from steppe.utils import validation

_NORMAL = 1.959964  # two-sided 95 %
_BATCH, _STEPS, _EPOCHS, _RATE = 256, 2_000, 20, 3e-3


@dataclass(frozen=True)
class HeldOutScore:
    """The published model on the held-out records.

    Args:
        records: how many there are.
        score: "accuracy", or "loss" for a regression.
        value: of the published model.
        low, high: ends of its 95 % interval over held-out records: Wilson's for an accuracy, normal
            for a loss. It does not include what another run's noise would change.
        baseline: the score of the best constant answer: the most frequent label of the held-out
            records, or their mean.
    """

    records: int
    score: str
    value: float
    low: float
    high: float
    baseline: float

    def lines(self) -> list[str]:
        """The comparison as text.

        Examples:
            >>> print(*HeldOutScore(200, "accuracy", 0.9, 0.85, 0.93, 0.6).lines(), sep="\\n")
            published, on 200 held-out records: accuracy 90.00 %, 95 % interval 85.00 to 93.00 %
            always the most frequent label: accuracy 60.00 %
        """
        shares = self.score == "accuracy"
        value, low, high, baseline = (
            f"{100 * number:.2f}" if shares else f"{number:.4f}"
            for number in (self.value, self.low, self.high, self.baseline)
        )
        unit = " %" if shares else ""
        constant = "the most frequent label" if shares else "their mean"
        return [
            f"published, on {self.records:,} held-out records: {self.score} {value}{unit}, 95 % "
            f"interval {low} to {high}{unit}",
            f"always {constant}: {self.score} {baseline}{unit}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def compared(evaluation: Evaluation, model: nn.Module) -> HeldOutScore | None:
    """The comparison of a model with a constant; None without targets that have one.

    Args:
        evaluation: on the held-out records.
        model: with the weights of the published model.
    """
    if not evaluation.has_targets:
        return None
    found = evaluation.answers(model)
    if found is None:
        return None
    right, losses, baseline = found
    if right is not None:
        count, share = len(right), float(right.double().mean())
        low, high = wilson(share, count)
        return HeldOutScore(count, "accuracy", share, low, high, baseline)
    count, mean = len(losses), float(losses.mean())
    half = _NORMAL * float(losses.std()) / math.sqrt(count) if count > 1 else math.inf
    return HeldOutScore(count, "loss", mean, max(0.0, mean - half), mean + half, baseline)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Examples:
        >>> low, high = wilson(0.9, 100)
        >>> round(low, 3), round(high, 3)
        (0.826, 0.945)
    """
    z = _NORMAL**2 / count
    middle = (share + z / 2) / (1 + z)
    half = _NORMAL * math.sqrt(share * (1 - share) / count + z / (4 * count)) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


class Ceiling:
    """The same network trained without privacy, to see what privacy costs.

    Args:
        model: with its initial weights; a copy is trained.
        rows: the private records.
        loss: a function of (output, target).

    Guarantees:
        None: its weights and scores depend on the private records without noise. They are for the
        owner of the data alone, and nothing is written.
    """

    def __init__(self, model: nn.Module, rows: Records, loss: Callable[..., Tensor] | None) -> None:
        if loss is None:
            rule = "needs a loss of (output, target), and the run has an objective"
            raise validation.fail("ceiling", True, rule, "leave it out")
        self._model, self._rows, self._loss = copy.deepcopy(model), rows, per_record(loss)

    def scores(self, evaluation: Evaluation) -> Scores:
        """Train by Adam on the records as they are, and score on the held-out records."""
        model, rows = self._model, self._rows
        model.train()
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.Adam(trained, lr=_RATE)
        in_an_epoch = math.ceil(len(rows) / _BATCH)
        epochs = max(_EPOCHS, math.ceil(_STEPS / in_an_epoch))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * in_an_epoch)
        for _ in range(epochs):
            for chosen in torch.randperm(len(rows), device="cpu").split(_BATCH):
                *inputs, targets = rows.batch(chosen)
                optimizer.zero_grad()
                losses = self._loss(model(*inputs), targets)
                finite = losses[torch.isfinite(losses)]
                finite.sum().div(max(1, len(finite))).backward()
                optimizer.step()
                schedule.step()
        return evaluation.scores(model)
