"""Groups of a trainer's arguments, as configuration files group them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from steppe.averaging import Keep
from steppe.errors import ConfigurationError
from steppe.ledger import Ledger
from steppe.training import arguments
from steppe.utils import validation


@dataclass(frozen=True, kw_only=True)
class PrivateData:
    """The private records, and what is declared about them: `[data]` of a configuration file.

    Args:
        records: in any form that `make_private` takes.
        name: what the data are called in the ledger.
        classes, groups, public: as for `make_private`.
        also_read: what was read from the private records before, such as the range of a column, in
            words that the privacy statement repeats, after what `records.also_read` says.
    """

    records: Any
    name: str = "data"
    classes: int | None = None
    groups: Sequence[Any] | None = None
    public: Any = None
    also_read: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        arguments.text("data.name", self.name)
        object.__setattr__(self, "also_read", arguments.texts("also_read", self.also_read))


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimised.

    Args:
        loss: a function of (output, target), as for `make_private`.
        function: instead of `loss`, a function of (model, batch) that returns one loss for each
            record; `objective` of `make_private`.
        augment: as for `make_private`.
    """

    loss: Callable[..., Tensor] | None = F.cross_entropy
    function: Callable[[nn.Module, Any], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.function is not None:
            object.__setattr__(self, "loss", None)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The configuration file that a run comes from; its defaults mean that there is none.

    Args:
        toml: the file that `resume` is to find in the run's folder.
        keys: the file's names for what a ledger refuses, by the arguments' own names.
        reasons: why each constant that was chosen by rule is what it is, by its name.
        inputs: how the user's own files became inputs and labels, which a resumed run must share.
        python_only: names of the arguments that no file can hold and the run was given.
        whole: the model of which the run trains a part; None where it trains all of it.
    """

    toml: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None
    python_only: Sequence[str] = ()
    whole: nn.Module | None = None


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What a run writes, and when: `[train]` of a configuration file.

    Args:
        folder: the run's folder; None makes a new one under `runs/`.
        publish: the model to use, in `published.safetensors`: "last", or an average of weights by
            as much of its name as tells it from the others, such as "EMA". None for the EMA where
            the averages are those of `recipes.averages`, and for the last weights elsewhere.
        store_every: steps from one stored checkpoint to the next; None stores none.
        keep: which stored checkpoints stay; None for all.
        checkpoint_every: steps from one resumable checkpoint to the next; None for a twentieth of
            the plan.
        evaluate_every: steps from one evaluation to the next; None for a tenth of the plan.
        origin: the configuration file that the run comes from. `Config.trainer` sets it.
    """

    folder: str | Path | None = None
    publish: str | None = None
    store_every: int | None = None
    keep: Keep | None = None
    checkpoint_every: int | None = None
    evaluate_every: int | None = None
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        for name in ("store_every", "checkpoint_every", "evaluate_every"):
            _count(self, name)
        keep: Any = self.keep
        if not isinstance(keep, Keep | None):
            rule = "must be a steppe.averaging.Keep"
            raise validation.fail("keep", keep, rule, "use Keep(last=20)")
        if keep is not None and self.store_every is None:
            rule = "chooses among stored checkpoints, and none are stored"
            raise validation.fail("keep", keep, rule, "set store_every, or leave it out")


@dataclass(frozen=True, kw_only=True)
class Charging:
    """Where the run's privacy cost is written down.

    Args:
        ledger: a ledger, or its file, that several runs on the same data share; None for one of
            this run's own.
        block: steps that are charged at a time; None for as many as lie between two resumable
            checkpoints, 50 at most.
    """

    ledger: Ledger | str | Path | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        _count(self, "block")


# The trainer's arguments that take a group, and the field that a plain value stands for.
_GROUPS: dict[str, tuple[type, str]] = {
    "data": (PrivateData, "records"),
    "loss": (Objective, "loss"),
    "run": (Saving, "folder"),
    "ledger": (Charging, "ledger"),
}
# What `make_private` and configuration files call a field, where it is not the field's own name.
_OTHER_NAMES = {"data_name": "name", "objective": "function"}
_ARGUMENT_OF = {
    item.name: argument for argument, (group, _) in _GROUPS.items() for item in fields(group)
}


def grouped(argument: str, given: Any) -> Any:
    """An argument as its group, which a plain value stands for.

    Examples:
        >>> grouped("ledger", "patients.jsonl")
        Charging(ledger='patients.jsonl', block=None)
    """
    group, plain = _GROUPS[argument]
    return given if isinstance(given, group) else group(**{plain: given})


def into_groups(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by names of their own, with those of a group put into it.

    Examples:
        >>> into_groups({"ledger": "patients.jsonl", "block": 5, "progress": False})
        {'ledger': Charging(ledger='patients.jsonl', block=5), 'progress': False}
    """
    found = {name: value for name, value in given.items() if name in _GROUPS}
    inside: dict[str, dict[str, Any]] = {name: {} for name in _GROUPS}
    for name, value in given.items():
        if name not in _GROUPS:
            argument = _group_of(name)
            (found if argument is None else inside[argument])[_OTHER_NAMES.get(name, name)] = value
    for argument, (group, plain) in _GROUPS.items():
        if values := inside[argument]:
            own = {plain: found[argument]} if argument in found else {}
            found[argument] = group(**own, **values)
    return found


def refuse_unknown(given: Iterable[str]) -> None:
    """Refuse arguments that `Trainer` does not take, and name the group that has them, if one does.

    Examples:
        >>> refuse_unknown(["classes"])
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: classes=…: is an argument of steppe.training.PrivateData;
        write data=PrivateData(records=…, classes=…).
    """
    for name in given:
        argument = _group_of(name)
        if argument is None:
            raise TypeError(f"Trainer() got an unexpected keyword argument {name!r}")
        group, plain = _GROUPS[argument]
        inside = f"{group.__name__}({plain}=…, {_OTHER_NAMES.get(name, name)}=…)"
        raise ConfigurationError(
            f"{name}=…: is an argument of steppe.training.{group.__name__}; write "
            f"{argument}={inside}."
        )


def _count(group: Saving | Charging, name: str) -> None:
    """Keep a number of steps as a plain integer; None stays."""
    if getattr(group, name) is not None:
        count = validation.positive_integer(name, getattr(group, name))
        object.__setattr__(group, name, count)


def _group_of(name: str) -> str | None:
    return _ARGUMENT_OF.get(_OTHER_NAMES.get(name, name))
