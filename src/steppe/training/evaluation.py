"""Scores of a model on evaluation data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from steppe.averaging import Outputs
from steppe.errors import DataError, SteppeError
from steppe.gradients import per_record
from steppe.records import Records, as_records, share_records
from steppe.training.losses import of_numbers
from steppe.utils import validation
from steppe.utils.batches import count
from steppe.utils.formatting import first_line
from steppe.utils.module_modes import evaluating

Scores = dict[str, float]
_AT_ONCE = 1024
# Reserved names in rows of the table and lines of the log.
_TAKEN = ("model", "kind", "step", "epsilon", "seconds")


class Evaluation:
    """Scores models on public or held-out data.

    Args:
        data: one or several inputs and targets, in any form that training data may have; or a
            function of the model that returns numbers by name.
        loss: as in training.
        objective: as in training, instead of `loss`.

    Guarantees:
        Reads only these data. The caller must know that they are not the private ones and that the
        scores may be published.
    """

    def __init__(
        self,
        data: Any,
        loss: Callable[..., Tensor] | None,
        objective: Callable[[nn.Module, Any], Tensor] | None,
    ) -> None:
        self._own = data if callable(data) and not isinstance(data, Records) else None
        self._loss = None if loss is None else per_record(loss)
        self._numbers = of_numbers(loss)
        self._objective = objective
        self._shown = getattr(data, "__name__", type(data).__name__)
        self._rows = None if self._own is not None else _records(data)
        if self._rows is not None and objective is None:
            self._require_targets(self._rows)

    @property
    def has_targets(self) -> bool:
        """Whether there are inputs and targets, which averages of outputs need."""
        return self._rows is not None and self._objective is None

    def rehearse(self, model: nn.Module) -> Scores:
        """`scores`, with errors of the model or the user's function as configuration errors."""
        try:
            return self.scores(model)
        except SteppeError:
            raise
        except Exception as error:  # the user's code may raise anything
            said = first_line(error).rstrip(".")
            raise validation.fail(
                "evaluate",
                self._shown,
                f"the model cannot be scored: {type(error).__name__}: {said}",
                "give records that the model accepts, or a function of the model",
            ) from error

    @torch.no_grad()
    def scores(self, model: nn.Module) -> Scores:
        """Mean loss per record, and accuracy if there are classes; or the user's numbers."""
        with evaluating(model):
            if self._own is not None:
                return _numbers(self._own(model))
            total, right, seen, classes = 0.0, 0, 0, False
            for batch in self._batches():
                size = count(batch)
                if self._objective is not None:
                    total += float(self._objective(model, batch).double().sum())
                else:
                    *inputs, targets = batch
                    outputs = model(*inputs)
                    total += float(self._losses(outputs, targets).double().sum())
                    classes = _has_classes(outputs, targets)
                    if classes:
                        right += int((outputs.argmax(dim=-1) == targets).sum())
                seen += size
        scores = {"loss": total / seen}
        return {"accuracy": right / seen, **scores} if classes else scores

    @torch.no_grad()
    def answers(self, model: nn.Module) -> tuple[Tensor | None, Tensor, float] | None:
        """Which records the model answers rightly, the loss of each, and the score of the best
        constant answer.

        For a regression nothing is right or wrong, and the constant is the mean of the targets.
        None if targets are neither labels nor the numbers of a regression loss.
        """
        right, losses, every = [], [], []
        with evaluating(model):
            for batch in self._batches():
                *inputs, targets = batch
                outputs = model(*inputs)
                if _has_classes(outputs, targets):
                    right.append(outputs.argmax(dim=-1) == targets)
                elif not self._numbers:
                    return None
                losses.append(self._losses(outputs, targets).double())
                every.append(targets)
        targets = torch.cat(every)
        if right:
            most = int(targets.bincount().max())
            return torch.cat(right), torch.cat(losses), most / len(targets)
        constant = targets.double().mean(0).expand(targets.shape).to(targets.dtype)
        return None, torch.cat(losses), float(self._losses(constant, targets).double().mean())

    def inputs_and_targets(self) -> tuple[Tensor, Tensor]:
        """All inputs and targets at once, for records with one input."""
        parts = list(self._batches())
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    def _losses(self, outputs: Any, targets: Any) -> Tensor:
        if self._loss is None:
            raise validation.missing("loss", "pass loss=", "is needed to evaluate")
        return self._loss(outputs, targets)

    def _batches(self) -> Iterator[Any]:
        if self._rows is None:
            return
        for rows in torch.arange(len(self._rows)).split(_AT_ONCE):
            yield self._rows.batch(rows)

    def _require_targets(self, rows: Records) -> None:
        example = rows.example()
        if not isinstance(example, tuple | list) or len(example) < 2:
            raise validation.fail(
                "evaluate",
                type(example).__name__,
                "must give pairs of inputs and targets",
                "pass (inputs, targets), or a function of the model",
            )


def refuse_training_data(data: Any, evaluate: Any) -> None:
    """Reject the private records as evaluation data, as far as `share_records` detects them."""
    if share_records(data, evaluate):
        raise validation.fail(
            "evaluate",
            type(evaluate).__name__,
            "are the private records, but scores on them would be stored and shown",
            "give held-out records; a function of the model may score any data, at your own risk",
        )


def mean_output_scores(found: Outputs, targets: Tensor) -> Scores:
    """The scores of OPA: the mean probabilities of several checkpoints."""
    chosen = found.mean.gather(-1, targets[:, None]).clamp_min(1e-300)
    right = (found.mean_labels == targets).double().mean()
    return {"accuracy": float(right), "loss": float(-chosen.log().mean())}


def vote_scores(found: Outputs, targets: Tensor) -> Scores:
    """The scores of OMV: the majority of several checkpoints, which has no loss."""
    return {"accuracy": float((found.vote_labels == targets).double().mean())}


def _has_classes(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )


def _records(data: Any) -> Records:
    try:
        return as_records(data)
    except DataError as error:  # names `data`, but the error is about `evaluate`
        raise DataError(f"evaluate{str(error).removeprefix('data')}") from None


def _numbers(found: Any) -> Scores:
    if not isinstance(found, Mapping) or not found:
        raise validation.fail(
            "evaluate",
            type(found).__name__,
            "must return numbers by name",
            "for example, return {'accuracy': 0.9}",
        )
    return {str(name): _number(str(name), value) for name, value in found.items()}


def _number(name: str, value: Any) -> float:
    if name in _TAKEN:
        rule = "is reserved in the table and the log"
        raise validation.fail("evaluate", name, rule, "return this number under another name")
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)  # NaN is allowed and stored as null
    except (TypeError, ValueError, OverflowError, RuntimeError):
        shown = type(value).__name__
        raise validation.fail(
            f"evaluate[{name!r}]", shown, "must be a number", "return a number"
        ) from None
