"""What is measured: a model, a batch size, inputs from a seed and the loss of each record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import models
from steppe.utils.validation import fail

SEQUENCE_LENGTH = 20


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Args:
        model: the model's name; its first letter is the family.
        batch: records in a step.
        build: makes a fresh model; call it through `new_model` to get the same weights each time.
        shape: shape of one record, or None for a sequence of words.
        target: the least speed relative to plain training that the project promises.
        micro: size of the micro-batches that must save memory; None where a record is so small
            that memory is not the question.
        physical: micro-batch of the engines that cannot choose one; None means the whole batch.
        in_quick: whether `--quick` measures it.
        rivals: the peers that come closest in a full run; `--quick` leaves out the others, and
            all of them where even the closest is five times slower than the bar.
    """

    model: str
    batch: int
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] | None
    target: float
    micro: int | None = None
    physical: int | None = None
    in_quick: bool = False
    rivals: tuple[str, ...] = ()

    def new_model(self) -> nn.Module:
        """A model with the same weights on every call."""
        torch.manual_seed(0)
        return self.build()

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """What a user passes to `make_private` or calls in a plain loop; a mean over the batch."""
        return mean_loss if self.shape is None else F.cross_entropy

    @property
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """One loss for each record, or a loss that Steppe itself turns into that."""
        return record_losses if self.shape is None else F.cross_entropy

    def new_batch(self, batch: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets, the same on every call."""
        size = self.batch if batch is None else batch
        generator = torch.Generator().manual_seed(1)
        if self.shape is None:
            words = torch.randint(
                models.VOCABULARY, (size, SEQUENCE_LENGTH + 1), generator=generator
            )
            return words[:, :-1].contiguous(), words[:, 1:].contiguous()
        inputs = torch.randn(size, *self.shape, generator=generator)
        return inputs, torch.randint(10, (size,), generator=generator)


CASES = (
    Case(
        "a",
        256,
        models.small_cnn,
        (1, 28, 28),
        0.85,
        micro=32,
        in_quick=True,
        rivals=("opacus-ew", "vmap"),
    ),
    Case("a", 2048, models.small_cnn, (1, 28, 28), 0.85, micro=64, physical=256),
    Case("b", 256, models.cnn_tanh, (3, 32, 32), 0.85, micro=32),
    Case("c", 128, models.gn_resnet10, (1, 28, 28), 0.85, micro=32),
    Case("d", 64, models.wide_resnet_16_4, (3, 32, 32), 0.85, micro=32),
    Case(
        "e-logistic",
        512,
        models.logistic_regression,
        (784,),
        0.72,
        in_quick=True,
        rivals=("opacus-ghost",),
    ),
    Case("e-mlp", 512, models.mlp, (784,), 0.72, in_quick=True, rivals=("opacus-ghost",)),
    Case("f", 16, models.NextWordLSTM, None, 0.62, in_quick=True),
    Case("f", 64, models.NextWordLSTM, None, 0.80, in_quick=True),
    Case("g", 64, models.VisionTransformer, (3, 32, 32), 0.80, micro=32),
)


def record_losses(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each record, averaged over its positions where it has several.

    Examples:
        >>> record_losses(torch.zeros(2, 5, 3), torch.zeros(2, 5, dtype=torch.long)).shape
        torch.Size([2])
    """
    losses = F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    return losses if target.dim() == 1 else losses.view(target.shape[0], -1).mean(1)


def mean_loss(output: Tensor, target: Tensor) -> Tensor:
    """The mean of `record_losses` by one fused call, as plain training computes it."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def select(names: Sequence[str] | None, quick: bool) -> list[Case]:
    """The cases whose model is in `names` (a family's letter or a full name).

    Examples:
        >>> [(case.model, case.batch) for case in select(["e", "f"], quick=False)]
        [('e-logistic', 512), ('e-mlp', 512), ('f', 16), ('f', 64)]
    """
    cases = [case for case in CASES if case.in_quick or not quick]
    if names is None:
        return cases
    known = {case.model for case in cases} | {case.model[0] for case in cases}
    for name in names:
        if name not in known:
            raise fail("models", name, f"must be one of {', '.join(sorted(known))}", "choose again")
    return [case for case in cases if case.model in names or case.model[0] in names]
