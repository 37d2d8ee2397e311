"""Weights of a run, read from their files and written into a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from steppe.averaging import write_checkpoint
from steppe.errors import ConfigurationError, DataError
from steppe.models import named_in
from steppe.utils import validation


@dataclass(frozen=True)
class WeightFile:
    """A file of weights, of which the head was read.

    Args:
        path: of the file.
        model: the name of the model: `last`, or an average's.
        not_private_reason: why the weights protect nothing, or None.
    """

    path: Path
    model: str
    not_private_reason: str | None

    @classmethod
    def of(cls, path: Path, plan: str) -> WeightFile:
        """Read the head of a file.

        Args:
            path: of the file.
            plan: digest of the run's plan; the file of another run is refused.
        """
        about = _read(path)[0]
        if about.get("plan", plan) != plan:
            rule = "holds the weights of another run"
            raise DataError.about("file", path, rule, "restore it from a copy")
        return cls(path, about.get("model", path.stem), about.get("not_private_reason"))

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name."""
        return _read(self.path)[1]


def write_weights(model: nn.Module, weights: Mapping[str, Tensor], rest: WeightFile) -> None:
    """Give a model weights of a run.

    Args:
        model: the whole model.
        weights: by the names of the whole model, or of its trained part.
        rest: the last weights, for tensors that an average leaves alone, such as frozen ones.
    """
    named = named_in(model, weights)
    try:
        if not model.state_dict().keys() <= named.keys() and rest.path.exists():
            write_checkpoint(model, named_in(model, rest.tensors()) | named)
        else:
            write_checkpoint(model, named)
    except ConfigurationError as error:
        rule = f"does not fit the weights of the run: {error.value} {error.rule}"
        remedy = "pass the network that was trained"
        raise validation.fail("model", type(model).__name__, rule, remedy) from error


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        rule = "cannot be read as safetensors; it is damaged, or another file"
        raise DataError.about("file", path, rule, "restore it from a copy") from error
