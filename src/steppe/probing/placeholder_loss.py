"""A loss for `inspect`, which has a model but no loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steppe.errors import UnsupportedModelError
from steppe.utils import validation
from steppe.utils.batches import count, each, tensors_in


def require_inputs(inputs: tuple[Any, ...]) -> None:
    """Require tensors with the records on the first axis."""
    arrays = [
        type(item).__name__
        for item in inputs
        if hasattr(item, "__array__") and not isinstance(item, Tensor)
    ]
    if arrays or not any(True for _ in tensors_in(inputs)):
        raise validation.fail(
            "inputs",
            tuple(arrays),
            "must be a batch as the model takes it, in tensors",
            "pass torch.zeros(1, ...), and torch.as_tensor(array) for an array",
        )
    count(inputs)


def squared_outputs(run: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
    """A loss for each record that depends on all outputs of a model for it.

    Outputs with the records on another axis, such as the last state of a recurrent layer, are
    transposed.

    Args:
        run: from a batch with the records on the first axis to the model's outputs, nested or not.
    """
    known: dict[tuple[int, ...], list[int | None]] = {}  # by the axes of all outputs

    def outputs(batch: Any) -> list[Tensor]:
        return list(tensors_in(run(batch)))

    def losses(batch: Any) -> Tensor:
        first = None if known else _record_axes(outputs, batch)
        made = outputs(batch)
        form = tuple(output.ndim for output in made)
        if form not in known:  # a model may be switched to other outputs during a run
            known[form] = first or _record_axes(outputs, batch)
        by_record = [
            output.movedim(axis, 0).unsqueeze(-1).flatten(1).square().sum(1)
            for output, axis in zip(made, known[form], strict=True)
            if axis is not None and output.is_floating_point()
        ]
        if not by_record and count(batch) == 1 and len(known) > 1:
            raise UnsupportedModelError(
                "output=an axis less for a batch of one record: must have the records on the same "
                "axis in every batch; give squeeze() its axis in the model, such as squeeze(-1), "
                "because without one it takes out that of the records too."
            )
        if not by_record:
            raise UnsupportedModelError(
                "output=no records: must contain a tensor with an entry for each record; return "
                "the predictions too, or use steppe.make_private(objective=...)."
            )
        return torch.stack(by_record).sum(0)

    return losses


@torch.no_grad()
def _record_axes(outputs: Callable[[Any], list[Tensor]], batch: Any) -> list[int | None]:
    """The axis of every output that grows with the number of records."""
    few = count(batch)
    more = few + 2

    def repeated(n: int) -> Any:
        # The same records, some of them twice, so that all requirements of the model are met.
        return each(lambda tensor: tensor[torch.arange(n, device=tensor.device) % few], batch)

    shapes = [[tensor.shape for tensor in outputs(repeated(n))] for n in (few, more)]
    return [
        next((i for i, sizes in enumerate(zip(*pair, strict=False)) if sizes == (few, more)), None)
        for pair in zip(*shapes, strict=True)
    ]
