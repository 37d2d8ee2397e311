"""The protocol of every average of weights: update, apply, copy out, save and load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from steppe.averaging.layout import CurrentTensors, ModelTensors
from steppe.errors import MisuseError
from steppe.utils.validation import fail


class AveragedWeights(ABC):
    """Averaged weights of one run, which can be put into a model.

    Guarantees:
        Post-processing of the weights it was given: it reads no data and costs no privacy beyond
        what those weights cost.
    """

    layout: ModelTensors

    @abstractmethod
    def _averaged(self) -> Sequence[Tensor]:
        """The averages, in the order of the layout."""

    @abstractmethod
    def _copied(self) -> Sequence[Tensor]:
        """The copied buffers, in the order of the layout."""

    def weights(self) -> dict[str, Tensor]:
        """The averaged tensors and the copied buffers by name, in the accumulator's dtype."""
        names = [*self.layout.averaged, *self.layout.copied]
        return dict(zip(names, [*self._averaged(), *self._copied()], strict=True))

    def copy_to(self, model: nn.Module) -> None:
        """Overwrite a model's weights with the average, rounded to the model's dtype."""
        self.layout.write(self._averaged(), self._copied(), model)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[nn.Module]:
        """A block in which the model has the averaged weights.

        The model's own weights come back bit for bit at the end, also after an error; whatever the
        block did to them is lost, so evaluate here and do not train.

        Args:
            model: the model that the average was made for.

        Examples:
            >>> from steppe.averaging import EMA
            >>> model = nn.Linear(2, 1)
            >>> average = EMA(model, decay=0.9)
            >>> average.update(model)
            >>> with average.applied(model):
            ...     answer = model(torch.ones(1, 2))
        """
        averaged, copied = self._averaged(), self._copied()
        with self.layout.restored(model):
            self.layout.write(averaged, copied, model)
            yield model


class Average(AveragedWeights):
    """An average that is fed during training, after each step of the optimizer.

    The weights at construction are not counted: they only tell names, shapes and dtypes.

    Args:
        model: the model that will be averaged.
        average_buffers: names of floating-point buffers to average; all others are copied.
    """

    def __init__(self, model: nn.Module, average_buffers: Sequence[str] = ()) -> None:
        self.layout = ModelTensors.of(model, average_buffers)
        self.updates = 0
        self._buffers = self.layout.copies()

    def update(self, model: nn.Module) -> None:
        """Add the model's current weights, which are not changed."""
        self.absorb(self.layout.now(model))

    @torch.no_grad()
    def absorb(self, now: CurrentTensors) -> None:
        """The same from tensors that were read once for many averages."""
        self._take(now.averaged)
        self._count_update(now)

    def _count_update(self, now: CurrentTensors) -> None:
        self.updates += 1
        if self._buffers:
            torch._foreach_copy_(self._buffers, now.copied)

    @property
    @abstractmethod
    def covers(self) -> int:
        """How many updates the average contains at present."""

    @abstractmethod
    def _take(self, current: list[Tensor]) -> None:
        """Absorb the next weights; `updates` does not yet count them."""

    @abstractmethod
    def settings(self) -> dict[str, float]:
        """The constants of the average, which a saved state must share."""

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """The tensors that hold the average, by the name they are saved under."""

    def _saved(self) -> dict[str, Tensor]:
        """The same for a state dict."""
        return self._tensors()

    def _counters(self) -> dict[str, int]:
        return {"updates": self.updates}

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        self.updates = counters["updates"]

    def _copied(self) -> list[Tensor]:
        return self._buffers

    def _require_started(self) -> None:
        if not self.covers:
            raise MisuseError(
                f"No weights have been averaged yet, after {self.updates} updates. Call "
                "update(model) after each training step; averaging starts after the warm-up."
            )

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on, as tensors only, so that safetensors can hold it.

        Tensors may be the live ones, as in torch: save or clone them before the next update.
        """
        return self._state(self._saved())

    def _state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            **{f"setting.{name}": _float(value) for name, value in self.settings().items()},
            **{f"counter.{name}": _int(value) for name, value in self._counters().items()},
            **{f"average.{name}": tensor for name, tensor in tensors.items()},
            **{
                f"buffer.{name}": tensor
                for name, tensor in zip(self.layout.copied, self._buffers, strict=True)
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved state.

        Args:
            state: what `state_dict` gave for an average with the same settings and model.
        """
        self.require_state(state)
        for name, tensor in self._tensors().items():
            tensor.copy_(state[f"average.{name}"])
        for name, buffer in zip(self.layout.copied, self._buffers, strict=True):
            buffer.copy_(state[f"buffer.{name}"])
        self._set_counters({name: int(state[f"counter.{name}"]) for name in self._counters()})

    def require_state(self, state: Mapping[str, Tensor]) -> None:
        """Refuse a state that `load_state_dict` cannot go on from."""
        own = self._state(self._tensors())
        different = sorted(own.keys() ^ state.keys())
        if different:
            rule = "the state belongs to another average or another model"
            raise fail("state_dict", different[0], rule, "load it where it was made")
        for name, value in self.settings().items():
            saved = float(state[f"setting.{name}"])
            if saved != value:
                rule = f"the state was made with {name}={saved:g}"
                raise fail(name, value, rule, "use the same setting to go on")
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                rule = f"has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
                raise fail("state_dict", name, rule, "load it where it was made")


def _float(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _int(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)
