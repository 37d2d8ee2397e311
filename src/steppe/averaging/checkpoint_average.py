"""One average from several checkpoints, after training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from steppe.averaging.average import AveragedWeights
from steppe.averaging.ema import check_decay
from steppe.averaging.layout import ModelTensors
from steppe.utils.validation import fail


class CheckpointAverage(AveragedWeights):
    """The average of checkpoints in the order given: uniform, or exponential.

    One checkpoint is in memory at a time besides the average, which is kept in float64 and so
    loses nothing to the number of checkpoints.

    Args:
        model: the model they belong to.
        checkpoints: tensors by name: `store.last(k)`, or a list of state dicts.
        decay: None for the mean (UPA over what is given); else the constant weight of the past, so
            that the last checkpoint counts most: order them worst to best (`best_checkpoints`).

    Guarantees:
        Post-processing of the checkpoints: no privacy cost. An order taken from private data is
        not; see `private_choice`.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> two = [{"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[5.0]])}]
        >>> CheckpointAverage(model, two).weights()["weight"].item()
        3.0
        >>> CheckpointAverage(model, two, decay=0.25).weights()["weight"].item()
        4.0
    """

    def __init__(
        self,
        model: nn.Module,
        checkpoints: Iterable[Mapping[str, Tensor]],
        decay: float | None = None,
    ) -> None:
        self.layout = ModelTensors.of(model)
        past = None if decay is None else check_decay(decay)
        total: list[Tensor] = []
        self._buffers: list[Tensor] = []
        self.covers = 0
        for checkpoint in checkpoints:
            now = self.layout.read(checkpoint)
            current = [tensor.double() for tensor in now.averaged]
            self.covers += 1
            if self.covers == 1:
                total = [tensor.clone() for tensor in current]
            else:
                torch._foreach_lerp_(total, current, 1 / self.covers if past is None else 1 - past)
            self._buffers = now.copied
        if not self.covers:
            raise fail("checkpoints", [], "must not be empty", "give at least one checkpoint")
        specs = self.layout.averaged.values()
        self._means = [t.to(s.device, s.dtype) for t, s in zip(total, specs, strict=True)]

    def _averaged(self) -> list[Tensor]:
        return self._means

    def _copied(self) -> list[Tensor]:
        return self._buffers
