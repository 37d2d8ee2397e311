"""The arguments of a module: their record axis, and synthetic arguments of the same form."""

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
    """The axis on which a module expects the records.

    Args:
        batch_first: True for the first axis of every tensor; False for the second axis, or the
            first axis of tensors that have only one.
    """

    def __init__(self, batch_first: bool) -> None:
        self._batch_first = batch_first

    def of(self, tensor: Tensor) -> int:
        """The axis of the records in an argument."""
        return 0 if self._batch_first or tensor.ndim < 2 else 1

    def swapped(self, nest: Any) -> Any:
        """Move the records to the first axis, or back to the module's axis."""
        return each(lambda tensor: tensor.transpose(0, self.of(tensor)), nest)

    def require(self, arguments: Arguments, records: int) -> None:
        """Require that every tensor contains the drawn records, so that none contains others."""
        for tensor in tensors_in(arguments):
            if tensor.ndim == 0 or tensor.shape[self.of(tensor)] != records:
                # The message shows no lengths, because the number of drawn records is private.
                raise MisuseError(
                    f"argument={tensor.ndim} axes: every tensor given to the module must hold the "
                    f"records of the batch just drawn on axis {self.of(tensor)}, each once; pass "
                    "the whole batch, and make constants buffers of the module."
                )

    def followed(self, arguments: Arguments, number: int) -> Arguments:
        """Copies of the arguments, marked as computed from the records of a pass.

        The step computes gradients from them. Until then the caller may overwrite its own tensors.
        """
        copies = each(Tensor.clone, arguments)
        mark(copies, number)
        return copies

    def synthetic_record(self, arguments: Arguments) -> Arguments:
        """One synthetic record in the form of these arguments."""
        generator = torch.Generator().manual_seed(0)
        return self.swapped(synthetic(self.swapped(arguments), 1, generator))

    def without_records(self, output: Any) -> Any:
        """The output for one synthetic record, with that record removed."""

        def empty(tensor: Tensor) -> Tensor:
            return tensor.narrow(self.of(tensor), 0, 0) if tensor.ndim else tensor

        return _renewed(empty, output)


def _renewed(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The nest with `function` applied to its tensors; objects that hold tensors are copied."""
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


def placeholder_losses(module: nn.Module, axis: RecordAxis) -> Callable[[Any], Tensor]:
    """A per-example loss that depends on all outputs of the module.

    The user's loss is computed outside the module and cannot be run on synthetic records, so the
    probe uses the sum of the squared outputs instead.
    """

    def run(batch: Any) -> Any:
        # Imported late, because the parts of torch that it needs take a while to load.
        from steppe.compat.loop_isolation.nests import objects_in

        args, kwargs = axis.swapped(batch)
        return list(objects_in(module(*args, **kwargs)))

    return squared_outputs(run)
