"""Which tensors of a model are averaged, which are copied, and how they are written back.

The rule, for every average in this room:

* floating-point parameters that are trained (`requires_grad` when the average is made) are
  averaged, in float64 when they are float64 and in float32 otherwise;
* frozen parameters are not changed, so averages of adapters on a large frozen model are small;
* buffers are copied from the latest update, unless floating-point ones are named for averaging.
  A whole number has no meaningful mean, so a buffer of counts is never averaged. Buffers that a
  model does not store (`persistent=False`) are not changed.

Tied weights appear once, under their first name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steppe.errors import ConfigurationError
from steppe.utils.validation import fail


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its shape, and the dtype and device in which its average is kept."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def fit(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or a copy where its dtype or device is another."""
        fits = tensor.dtype == self.dtype and tensor.device == self.device
        return tensor if fits else tensor.to(self.device, self.dtype)


@dataclass(frozen=True)
class CurrentTensors:
    """Tensors at one moment, in the order of a layout. Read only: they are the model's.

    Args:
        averaged: what is averaged.
        copied: the buffers that are copied.
    """

    averaged: list[Tensor]
    copied: list[Tensor]


@dataclass(frozen=True)
class ModelTensors:
    """The tensors of a model that an average keeps, by name.

    Args:
        averaged: what is averaged.
        copied: what is copied from the latest update.
    """

    averaged: dict[str, TensorSpec]
    copied: dict[str, TensorSpec]

    @classmethod
    def of(cls, model: nn.Module, average_buffers: Sequence[str] = ()) -> ModelTensors:
        """The layout of a model.

        Args:
            model: the model.
            average_buffers: names of floating-point buffers to average instead of copying.

        Examples:
            >>> layout = ModelTensors.of(nn.BatchNorm1d(2), average_buffers=["running_mean"])
            >>> list(layout.averaged)
            ['weight', 'bias', 'running_mean']
            >>> list(layout.copied)
            ['running_var', 'num_batches_tracked']
        """
        averaged = {
            name: _accumulator(name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        stored = model.state_dict(keep_vars=True)
        buffers = {name: buffer for name, buffer in model.named_buffers() if name in stored}
        for name in average_buffers:
            _check_buffer(name, buffers)
        named = set(average_buffers)
        averaged |= {n: _accumulator(n, buffer) for n, buffer in buffers.items() if n in named}
        if not averaged:
            rule = "has no trained parameter to average"
            raise fail("model", type(model).__name__, rule, "make the average before freezing it")
        copied = {
            name: TensorSpec(tuple(buffer.shape), buffer.dtype, buffer.device)
            for name, buffer in buffers.items()
            if name not in averaged
        }
        return cls(averaged, copied)

    def fits(self, other: ModelTensors) -> bool:
        """Whether both have the same tensors in the same order."""
        # Equal mappings may still differ in order, and tensors are told apart by their place.
        orders = [(list(layout.averaged), list(layout.copied)) for layout in (self, other)]
        return self == other and orders[0] == orders[1]

    @torch.inference_mode(False)
    def zeros(self, rows: int) -> list[Tensor]:
        """Empty accumulators: for each tensor that is averaged, its part of all rows.

        In a row the tensors of one dtype and device are parts of one block: a pass over them is a
        walk through memory, measurably faster than over tensors that lie apart. They outlive the
        call, so they are no inference tensors of a caller's mode.
        """
        specs = list(self.averaged.values())
        kinds = dict.fromkeys((spec.dtype, spec.device) for spec in specs)
        parts: dict[tuple[torch.dtype, torch.device], Iterator[Tensor]] = {}
        for kind in kinds:
            sizes = [spec.numel() for spec in specs if (spec.dtype, spec.device) == kind]
            block = torch.zeros(rows, sum(sizes), dtype=kind[0], device=kind[1])
            parts[kind] = iter(block.split(sizes, dim=1))
        return [next(parts[spec.dtype, spec.device]).view(rows, *spec.shape) for spec in specs]

    @torch.inference_mode(False)
    def copies(self) -> list[Tensor]:
        """Room for everything that is copied."""
        return [_zeros(spec) for spec in self.copied.values()]

    def now(self, model: nn.Module) -> CurrentTensors:
        """A model's tensors in this layout, converted only where dtype or device differ."""
        own = _weights_and_buffers(model)
        tensors = self._find(own)
        for name, tensor in own.items():
            if tensor.requires_grad and name not in tensors:
                rule = "was frozen or absent when the average was made and is trained now"
                raise fail("parameter", name, rule, "make the average after unfreezing")
        return CurrentTensors(
            [spec.fit(tensors[name].detach()) for name, spec in self.averaged.items()],
            [tensors[name].detach() for name in self.copied],
        )

    @torch.no_grad()
    def write(self, averaged: Iterable[Tensor], copied: Iterable[Tensor], model: nn.Module) -> None:
        """Copy values into a model, rounded to the model's dtype."""
        tensors = self._find(_weights_and_buffers(model))
        for name, value in zip([*self.averaged, *self.copied], [*averaged, *copied], strict=True):
            tensors[name].copy_(value)

    def read(self, checkpoint: Mapping[str, Tensor]) -> CurrentTensors:
        """A checkpoint's tensors in this layout, as they are stored."""
        return CurrentTensors(
            [_pick(checkpoint, name, spec) for name, spec in self.averaged.items()],
            [_pick(checkpoint, name, spec) for name, spec in self.copied.items()],
        )

    @contextmanager
    def restored(self, model: nn.Module) -> Iterator[None]:
        """Put every tensor of the layout back, bit for bit, at the end of the block."""
        tensors = self._find(_weights_and_buffers(model))
        kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in tensors.items():
                    tensor.copy_(kept[name])

    def _find(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, spec in (self.averaged | self.copied).items():
            if name not in own:
                rule = "has no tensor of this name, so it is another model"
                raise fail("model", name, rule, "use the model that the average was made for")
            if own[name].shape != spec.shape:
                rule = f"has shape {tuple(own[name].shape)} here and {spec.shape} in the average"
                raise fail("model", name, rule, "use the model that the average was made for")
            found[name] = own[name]
        return found


def _weights_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that a checkpoint of a model holds: its state dict, with tied weights once.

    Examples:
        >>> layer = nn.Linear(2, 2)
        >>> list(named_tensors(nn.ModuleDict({"a": layer, "b": layer})))
        ['a.weight', 'a.bias']
    """
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


@torch.no_grad()
def write_checkpoint(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint into the model that it came from."""
    require_of(model, weights)
    own = model.state_dict()
    for name, value in weights.items():
        own[name].copy_(value)


def require_of(model: nn.Module, checkpoint: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint of another model. Frozen weights may be missing, nothing else."""
    own = model.state_dict(keep_vars=True)
    seen: set[int] = set()
    for name, value in sorted(checkpoint.items()):
        if not isinstance(own.get(name), Tensor):
            raise _other_model(name, "is in a checkpoint and not in the model")
        _require_shape(name, value, own[name].shape)
        seen.add(id(own[name]))
    for name, tensor in own.items():
        frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        if isinstance(tensor, Tensor) and id(tensor) not in seen and not frozen:
            raise _other_model(name, "is missing from a checkpoint")


def _pick(checkpoint: Mapping[str, Tensor], name: str, spec: TensorSpec) -> Tensor:
    """One tensor of a checkpoint, or the reason why it is not there."""
    if name not in checkpoint:
        raise _other_model(name, "is missing from a checkpoint")
    _require_shape(name, checkpoint[name], spec.shape)
    return checkpoint[name].detach()


def _require_shape(name: str, found: Tensor, wanted: Sequence[int]) -> None:
    if tuple(found.shape) != tuple(wanted):
        shapes = f"{tuple(found.shape)} in a checkpoint and {tuple(wanted)} in the model"
        raise _other_model(name, f"has shape {shapes}")


def _other_model(name: str, rule: str) -> ConfigurationError:
    return fail("checkpoints", name, f"{rule}, so it is another model's", "use the one stored")


def _accumulator(name: str, tensor: Tensor) -> TensorSpec:
    if not tensor.is_floating_point():
        rule = f"has dtype {tensor.dtype}, which has no weight average here"
        raise fail("parameter", name, rule, "train real floating-point parameters")
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return TensorSpec(tuple(tensor.shape), dtype, tensor.device)


def _check_buffer(name: str, buffers: dict[str, Tensor]) -> None:
    if name not in buffers:
        listed = ", ".join(buffers) or "none"
        rule = "is no buffer that the model stores"
        raise fail("average_buffers", name, rule, f"use one of: {listed}")
    if not buffers[name].is_floating_point():
        rule = f"has dtype {buffers[name].dtype}, and whole numbers cannot be averaged"
        raise fail("average_buffers", name, rule, "leave it out: it is copied from the last update")


def _zeros(spec: TensorSpec) -> Tensor:
    return torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)
