"""A run's configuration as JSON. A resumed run must have the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.errors import ConfigurationError
from steppe.models import stored_constants
from steppe.records import Records
from steppe.training.groups import Objective
from steppe.utils.batches import tensors_in
from steppe.utils.formatting import finite
from steppe.utils.validation import fail
from steppe.utils.weight_files import as_safetensors

_SHORT = 60


def of_model(model: nn.Module) -> dict[str, Any]:
    """The class of a model, and the shape of each weight."""
    return {
        "class": _name(type(model)),
        "weights": {
            name: [_dtype(p), list(p.shape), "trained" if p.requires_grad else "frozen"]
            for name, p in model.named_parameters()
        },
    }


def of_front_end(model: nn.Module | None) -> str | None:
    """The digest of a front-end's stored constants, on which the features depend; None without."""
    constants = stored_constants(model)
    if not constants:
        return None
    return hashlib.sha256(as_safetensors(constants, {}, None)).hexdigest()[:32]


def of_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """The class of an optimizer and the options of its groups, as they are before training."""
    groups = [
        {k: v for k, v in group.items() if k != "params" and not k.startswith("initial_")}
        for group in optimizer.param_groups
    ]
    return {"class": _name(type(optimizer)), "groups": _plain(groups)}


def of_scheduler(scheduler: Any) -> dict[str, Any] | None:
    """The class and state of a scheduler before training."""
    if scheduler is None:
        return None
    return {"class": _name(type(scheduler)), "state": _plain(scheduler.state_dict())}


def of_objective(objective: Objective) -> dict[str, str | None]:
    """The names of the functions that are minimised."""
    return {
        "loss": _of_function(objective.loss),
        "objective": _of_function(objective.function),
        "augment": _of_function(objective.augment),
    }


def of_data(name: str, population: int | None, rows: Records) -> dict[str, Any]:
    """The public facts about private data: name, declared size, shape of a record."""
    example = rows.example()
    record = [[_dtype(tensor), list(tensor.shape[1:])] for tensor in tensors_in(example)]
    return {"name": name, "population": population, "record": record}


def digest(settings: Mapping[str, Any]) -> str:
    """The fingerprint of a configuration."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def require_same(now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Raise an error if the configuration has changed, and name the first difference."""
    found = json.loads(json.dumps(finite(now)))
    for name, was, value in _differences("", then, found):
        raise different(name, was, value)


def different(name: str, was: Any, value: Any) -> ConfigurationError:
    """The error for a setting that changed between a run and its resumption."""
    return fail(
        name,
        _shortened(value),
        f"differs from the value that the run began with, {_shortened(was)!r}",
        "resume with the same configuration, or start a new run",
    )


def _differences(path: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(inner, then.get(key), now.get(key))
    elif then != now:
        yield path, then, now


def _shortened(value: Any) -> Any:
    text = repr(value)
    return value if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _plain(value: Any) -> Any:
    """A value as JSON; objects and functions by their names."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return _name(type(value) if not callable(value) else value)


def _of_function(function: Any) -> str | None:
    return None if function is None else _name(function)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _name(thing: Any) -> str:
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
