"""Classes by their names in configuration files."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from steppe.errors import ConfigurationError
from steppe.utils.validation import called, fail, missing

Table = Mapping[str, Any]


def build(
    where: str,
    classes: Mapping[str, Callable[..., Any]],
    name: str,
    options: Table,
    **fixed: Any,
) -> Any:
    """Make an object of a class given by name.

    Args:
        where: the table, for messages.
        classes: the known classes by name.
        name: of the class.
        options: its arguments in the file.
        fixed: arguments that the file cannot set.
    """
    made = classes.get(name)
    if made is None:
        raise unknown(f"{where}.name", name, classes)
    parameters = inspect.signature(made).parameters
    free = [key for key in parameters if key not in fixed and not key.startswith("_")]
    check_keys(where, options, free)
    for key, about in parameters.items():
        needed = about.default is about.empty and about.kind not in (
            about.VAR_POSITIONAL,
            about.VAR_KEYWORD,
        )
        if needed and key not in options and key not in fixed:
            raise missing(f"{where}.{key}", f"add {key} = …", f"is needed by {name}")
    given = {key: _tuples(value) for key, value in options.items()}
    inside = keys_of(where, free)
    try:
        with called({**inside, **{f"{name}.{key}": path for key, path in inside.items()}}):
            return made(**fixed, **given)
    except ConfigurationError:
        raise
    except (TypeError, ValueError) as error:
        raise fail(where, dict(options), f"is refused by {name}: {error}", "correct it") from error


def keys_of(table: str, keys: Iterable[str]) -> dict[str, str]:
    """The keys of a table, for `validation.called`: `epsilon` -> `plan.epsilon`."""
    return {key: f"{table}.{key}" for key in keys}


def name_and_options(where: str, given: Any) -> tuple[str, dict[str, Any]]:
    """The name that a table or a text gives, and the rest of the table."""
    if isinstance(given, str):
        return given, {}
    if not isinstance(given, Mapping):
        raise fail(where, given, "must be a name or a table", '{name = "…", …}')
    name = given.get("name")
    if not isinstance(name, str):
        raise fail(f"{where}.name", name, "must name a class", f'add name = "…" to [{where}]')
    return name, {key: value for key, value in given.items() if key != "name"}


def check_keys(where: str, given: Table, known: Iterable[str]) -> None:
    """Reject unknown keys, and suggest the nearest known one."""
    known = list(known)
    for key in given:
        if key not in known:
            raise unknown(f"{where}.{key}" if where else str(key), given[key], known, str(key))


def unknown(
    where: str, value: Any, known: Iterable[str], wrong: str | None = None
) -> ConfigurationError:
    """The error for a name or key that is not known."""
    names = sorted(known)
    wrong = str(value) if wrong is None else wrong
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(wrong.lower(), lower, n=1, cutoff=0.0)
    shown = value if isinstance(value, str | int | float | bool) else type(value).__name__
    listed = ", ".join(names)
    hint = f"did you mean {lower[near[0]]!r}?" if near else "leave it out"
    return fail(where, shown, f"is not known here, only {listed or 'nothing'}", hint)


def optimizers() -> dict[str, Any]:
    """Every optimizer of torch that steps along a dense gradient, without a closure."""
    from torch import optim

    left_out = ("Optimizer", "LBFGS", "SparseAdam")  # the last needs sparse gradients
    return _classes(vars(optim), optim.Optimizer, left_out)


def schedulers() -> dict[str, Any]:
    """The schedulers of torch that a file can describe."""
    from torch.optim import lr_scheduler

    left_out = ("LRScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler")
    return _classes(vars(lr_scheduler), lr_scheduler.LRScheduler, left_out)


def _classes(names: Mapping[str, Any], base: type, leave_out: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: kind
        for name, kind in names.items()
        if isinstance(kind, type)
        and issubclass(kind, base)
        and not name.startswith("_")
        and name not in leave_out
    }


def _tuples(value: Any) -> Any:
    """Arrays of a file as tuples, which frozen classes and torch both accept."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
