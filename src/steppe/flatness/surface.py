"""A loss as a function of a model's weights, averaged over a data set batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steppe.errors import DataError
from steppe.gradients import per_record
from steppe.utils.batches import each
from steppe.utils.module_modes import evaluating
from steppe.utils.validation import fail

# Called with how much is done and, where it is known, how much there is.
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class MeanScores:
    """Means over the records.

    Attributes:
        loss: mean loss.
        accuracy: share of right classes, or None where targets are not classes.
    """

    loss: float
    accuracy: float | None


class Surface:
    """The mean loss of a model over a data set, at any weights.

    Weights are one flat vector: the trained parameters in the model's order. The model itself is
    never changed; it is evaluated in `eval` mode, with the given weights in place of its own. One
    batch is in memory at a time.

    Args:
        model: any module.
        loss: function of (output, target), for instance `F.cross_entropy`.
        batches: `(*inputs, target)` tuples that can be run through again and again: a list or a
            `DataLoader`, not a generator.

    Guarantees:
        None about privacy: every number measured here depends on the records. On public data that
        is harmless; what it says about private data is not covered by the ε of the training.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> batches = [(torch.ones(4, 2), torch.zeros(4, 1))]
        >>> surface = Surface(model, nn.functional.mse_loss, batches)
        >>> surface.at(torch.tensor([1.0, 2.0]))
        MeanScores(loss=9.0, accuracy=None)
    """

    def __init__(
        self, model: nn.Module, loss: Callable[..., Tensor], batches: Iterable[Any]
    ) -> None:
        if isinstance(batches, Iterator):
            raise fail(
                "batches",
                type(batches).__name__,
                "must be iterable more than once",
                "pass a list or a DataLoader",
            )
        self.model = model
        self._loss = per_record(loss)
        # Losses of torch have the classes on the second axis, most models on the last.
        self._classes_second = self._loss is not loss
        self._batches = batches
        self._own = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._own:
            raise fail(
                "model", type(model).__name__, "has no trained weights", "set requires_grad on some"
            )

    @property
    def dimension(self) -> int:
        """Number of trained weights."""
        return sum(p.numel() for p in self._own.values())

    @property
    def weights(self) -> Tensor:
        """A copy of the model's trained weights as one vector."""
        return torch.cat([p.detach().flatten() for p in self._own.values()])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a flat vector into tensors with the names, shapes and types of the weights."""
        if vector.shape != (self.dimension,):
            raise fail(
                "vector", tuple(vector.shape), f"must have shape ({self.dimension},)", "flatten it"
            )
        pieces = vector.split([p.numel() for p in self._own.values()])
        return {
            name: piece.view(p.shape).to(p)
            for piece, (name, p) in zip(pieces, self._own.items(), strict=True)
        }

    def batches(self) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
        """Inputs and target of each batch, on the device of the weights."""
        device = next(iter(self._own.values())).device
        empty = True
        for batch in self._batches:
            if not isinstance(batch, tuple | list) or len(batch) < 2:
                kind = type(batch).__name__
                raise DataError.about(
                    "batch", kind, "must be (inputs, target)", "check the data set"
                )
            *inputs, target = each(lambda tensor: tensor.to(device), tuple(batch))
            empty = False
            yield tuple(inputs), target
        if empty:
            raise DataError("There are no batches; check the data set.")

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """One loss for each record."""
        losses = self._loss(output, target)
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        if shape != tuple(target.shape[:1]) or not len(target):
            raise DataError(
                f"The loss has shape {shape}; it must be ({len(target)},), one number for each "
                "record, and there must be records. Average over everything but the records."
            )
        return losses

    def at(self, weights: Tensor) -> MeanScores:
        """Mean loss and accuracy with other weights, in one pass over the data.

        Args:
            weights: flat vector.
        """
        parameters = self.split(weights)
        records, loss, right = 0, 0.0, 0.0
        classes = True
        with torch.no_grad(), evaluating(self.model):
            for inputs, target in self.batches():
                output = torch.func.functional_call(self.model, parameters, inputs)
                losses = self.loss(output, target)
                records += len(losses)
                loss += losses.double().sum().item()
                hits = _correct_count(output, target, self._classes_second)
                classes = classes and hits is not None
                right += 0.0 if hits is None else hits
        return MeanScores(loss / records, right / records if classes else None)

    def accuracy_at(self, weights: Tensor) -> float:
        """Accuracy with other weights; refused where targets are not classes."""
        accuracy = self.at(weights).accuracy
        if accuracy is None:
            raise DataError(
                "The targets are not classes; accuracy needs whole-number targets and one logit "
                "for each class. Measure the loss instead."
            )
        return accuracy

    def hessian_vector(self, vector: Tensor) -> Tensor:
        """The Hessian of the mean loss at the model's weights, times a vector.

        Two backward passes over the data, one batch at a time; summed over batches in float64.

        Args:
            vector: flat, with one entry a weight.

        Returns:
            H·vector, flat, in float64.
        """
        directions = list(self.split(vector).values())
        total = torch.zeros(self.dimension, dtype=torch.float64, device=directions[0].device)
        records = 0
        leaves = {name: p.detach().requires_grad_() for name, p in self._own.items()}
        # Fused attention has no second derivative; the plain formula has.
        with torch.enable_grad(), evaluating(self.model), sdpa_kernel(SDPBackend.MATH):
            for inputs, target in self.batches():
                output = torch.func.functional_call(self.model, leaves, inputs)
                losses = self.loss(output, target)
                records += len(losses)
                first = _gradients(losses.sum(), leaves, create_graph=True)
                slope = sum((g * d).sum() for g, d in zip(first, directions, strict=True))
                if isinstance(slope, Tensor) and slope.requires_grad:  # else the loss is linear
                    second = _gradients(slope, leaves)
                    total += torch.cat([part.flatten().double() for part in second])
        if not bool(torch.isfinite(total).all()):
            raise DataError(
                "The curvature is not finite; the loss must have finite derivatives at the "
                "model's weights. Check the weights and the data."
            )
        return total / records


def move_by(surface: Surface, step: Tensor) -> Tensor:
    """The model's weights plus a step, in float64."""
    weights = surface.weights.double()
    return weights + step.to(weights)


def gaussian(surface: Surface, generator: torch.Generator) -> Tensor:
    """One standard normal number for each weight."""
    return torch.randn(surface.dimension, generator=generator, dtype=torch.float64)


def rademacher(surface: Surface, generator: torch.Generator) -> Tensor:
    """One fair sign for each weight."""
    signs = torch.randint(2, (surface.dimension,), generator=generator, dtype=torch.int8)
    return signs.double().mul(2).sub(1)


def _gradients(
    value: Tensor, leaves: Mapping[str, Tensor], create_graph: bool = False
) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        value, list(leaves.values()), create_graph=create_graph, materialize_grads=True
    )


def _correct_count(output: Any, target: Tensor, classes_second: bool) -> float | None:
    """How many records are right, counting the share of right positions where there are several."""
    if not isinstance(output, Tensor) or target.is_floating_point():
        return None
    if output.ndim != target.ndim + 1:
        return None
    last = output.shape[:-1] == target.shape
    second = output.shape[:1] + output.shape[2:] == target.shape
    if not (last or second):
        return None
    axis = 1 if second and (classes_second or not last) else -1
    right = (output.argmax(axis) == target).double()
    return right.flatten(1).mean(1).sum().item() if right.ndim > 1 else right.sum().item()
