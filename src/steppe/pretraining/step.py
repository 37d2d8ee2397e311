"""One step of pre-training: move the weights, take the gradient, move back, update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.pretraining.batches import Batches
from steppe.pretraining.data import PublicData
from steppe.pretraining.method import MethodRun, Tensors
from steppe.pretraining.objectives import PublicObjective

Augment = Callable[[Tensor], Tensor]


class PublicStep:
    """Takes steps, and computes the gradients that a method asks for.

    Args:
        model: with the layers that the objective needs.
        optimizer: over its trained weights.
        data: the public records.
        batches: which of them take part.
        objective: the loss.
        augment: changes the inputs of every batch, or None.
        batch_size: of the update.

    Attributes:
        gradients: how many gradients of single records were computed so far.

    Guarantees:
        The weights are back where they were, to the last bit, before the optimizer moves them.
        Buffers, such as the statistics of a batch normalisation, follow the update's pass alone.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        data: PublicData,
        batches: Batches,
        objective: PublicObjective,
        augment: Augment | None,
        batch_size: int,
    ) -> None:
        self._model, self._optimizer, self._data, self._batches = model, optimizer, data, batches
        self._objective, self._augment = objective, augment
        self._part = objective.largest_part or batch_size
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.gradients = 0
        self._step, self._update = 0, self._rows(torch.arange(0))

    def take(self, step: int, method: MethodRun) -> float:
        """Take one step.

        Args:
            step: from 0.
            method: decides where the gradient is taken.

        Returns:
            The loss at that place.
        """
        seed = self._batches.seed_of(step)
        torch.manual_seed(seed)
        self._step = step
        self._update = self._rows(self._batches.update(step))
        offset = method.offset(step, self)
        torch.manual_seed(seed + 1)  # so that a method's own passes leave the update's dropout
        with _moved(self.weights, offset):
            gradient, loss = self._gradient(*self._update, parts=1)
        method.observe(gradient)
        for weight, one in zip(self.weights, gradient, strict=True):
            weight.grad = one
        self._optimizer.step()
        return loss

    def of_update_batch(self) -> Tensors:
        """The mean gradient here over the batch that the step updates with."""
        with _same_buffers(self._model):
            return self._gradient(*self._update, parts=1)[0]

    def of_fresh_batch(self, records: int) -> Tensors:
        """The mean gradient here over fresh records, some of which at a time."""
        inputs, targets = self._rows(self._batches.fresh(self._step, records))
        with _same_buffers(self._model):
            return self._gradient(inputs, targets, parts=-(-records // self._part))[0]

    def _rows(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        device = next(self._model.parameters()).device
        inputs, targets = self._data.inputs[rows].to(device), self._data.targets
        if self._augment is not None and len(rows):
            inputs = self._augment(inputs)
        return inputs, None if targets is None else targets[rows].to(device)

    def _gradient(
        self, inputs: Tensor, targets: Tensor | None, parts: int
    ) -> tuple[list[Tensor], float]:
        """The gradient of the mean loss, as a weighted mean over parts, and the loss."""
        total, loss_sum = [torch.zeros_like(weight) for weight in self.weights], 0.0
        x_parts = inputs.tensor_split(parts)
        y_parts = [None] * parts if targets is None else targets.tensor_split(parts)
        for x, y in zip(x_parts, y_parts, strict=True):
            loss = self._objective.loss(self._model, x, y)
            found = torch.autograd.grad(loss, self.weights, materialize_grads=True)
            share = len(x) / len(inputs)
            for sum_, one in zip(total, found, strict=True):
                sum_.add_(one, alpha=share)
            loss_sum += share * float(loss.detach())
        self.gradients += len(inputs)
        return total, loss_sum


@contextmanager
def _moved(weights: Tensors, offset: Tensors | None) -> Iterator[None]:
    """Weights moved by an offset inside the block, and copied back after it."""
    if offset is None:
        yield
        return
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight, by in zip(weights, offset, strict=True):
            weight.add_(by)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, was in zip(weights, before, strict=True):
                weight.copy_(was)


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """A block after which the buffers are as they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, was in before:
                buffer.copy_(was)
