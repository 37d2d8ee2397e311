"""The arguments of a module: which axis holds the records, and what stands in for a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from steppe.errors import MisuseError
from steppe.gradients import mark
from steppe.probing import squared_outputs, synthetic
from steppe.utils.batches import each, tensors_in

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class RecordAxis:
    """Where a module expects the records.

    Args:
        batch_first: True: on the first axis of every tensor. False: on the second, except in
            tensors that have only one.
    """

    def __init__(self, batch_first: bool) -> None:
        self._batch_first = batch_first

    def of(self, tensor: Tensor) -> int:
        """The axis of the records in an argument."""
        return 0 if self._batch_first or tensor.ndim < 2 else 1

    def swapped(self, nest: Any) -> Any:
        """From the module's order to records first, and from there back."""
        return each(lambda tensor: tensor.transpose(0, self.of(tensor)), nest)

    def require(self, arguments: Arguments, records: int) -> None:
        """Every tensor must hold the drawn records, or it could smuggle in others unseen."""
        for tensor in tensors_in(arguments):
            if tensor.ndim == 0 or tensor.shape[self.of(tensor)] != records:
                # Without its lengths: how many records were drawn is private.
                raise MisuseError(
                    f"argument={tensor.ndim} axes: every tensor given to the module must hold the "
                    f"records of the batch just drawn on axis {self.of(tensor)}, each once; pass "
                    "the batch on whole, and make constants buffers of the module."
                )

    def followed(self, arguments: Arguments, number: int) -> Arguments:
        """Copies of the arguments, marked as made from the records of a pass.

        Gradients are made from them in the step, and until then the caller may write over its own.
        """
        copies = each(Tensor.clone, arguments)
        mark(copies, number)
        return copies

    def made_up(self, arguments: Arguments) -> Arguments:
        """One made-up record in the form of these arguments."""
        generator = torch.Generator().manual_seed(0)
        return self.swapped(synthetic(self.swapped(arguments), 1, generator))

    def without_records(self, output: Any) -> Any:
        """The output of one made-up record with that record taken away."""

        def empty(tensor: Tensor) -> Tensor:
            return tensor.narrow(self.of(tensor), 0, 0) if tensor.ndim else tensor

        return _renewed(empty, output)


def _renewed(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same nest with other tensors; objects that hold some are copied."""
    if isinstance(value, (Tensor, tuple, list)) or type(value) is dict:
        return each(function, value)
    if isinstance(value, MutableMapping):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = _renewed(function, item)
        return made
    if any(isinstance(item, Tensor) for item in getattr(value, "__dict__", {}).values()):
        made = copy.copy(value)
        vars(made).update({k: _renewed(function, item) for k, item in vars(value).items()})
        return made
    return value


def stand_in_objective(module: nn.Module, axis: RecordAxis) -> Callable[[Any], Tensor]:
    """A loss for each record that depends on all that the module says about it.

    The user's loss is computed outside the module and cannot be run on made-up records, so the
    probe uses the sum of the squared outputs in its place.
    """

    def run(batch: Any) -> Any:
        # Late: what it needs of torch takes a while.
        from steppe.compat.loop_isolation.nests import objects_in

        args, kwargs = axis.swapped(batch)
        return list(objects_in(module(*args, **kwargs)))

    return squared_outputs(run)
