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
        records: in any form that `make_private` accepts.
        name: of the data in the ledger.
        classes, groups, public: as for `make_private`.
        also_read: what was read from the private records before, such as the range of a column, as
            text for the privacy statement. It is added to `also_read` of the records.
        held_out: the share of the records that was kept out of training, for the statement; see
            `steppe.data.read`.
        columns: the names of the inputs of a record, for the checks' messages.
        checks: whether the owner's checks read the records before the first step; see
            `steppe.records.check_for_owner`.
        ceiling: whether the same network may be trained on them without privacy afterwards, by
            `Trainer.ceiling()`. The statement says so.
    """

    records: Any
    name: str = "data"
    classes: int | None = None
    groups: Sequence[Any] | None = None
    public: Any = None
    also_read: str | Sequence[str] = ()
    held_out: float | None = None
    columns: Sequence[str] = ()
    checks: bool = True
    ceiling: bool = False

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
        public_batch: records of a plain step on the public records of `PrivateData`, between
            private steps; None takes no such steps.
        public_every: private steps after which such a step is taken.
    """

    loss: Callable[..., Tensor] | None = F.cross_entropy
    function: Callable[[nn.Module, Any], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    public_batch: int | None = None
    public_every: int = 1

    def __post_init__(self) -> None:
        if self.public_batch is not None:
            validation.positive_integer("public_batch", self.public_batch)
        validation.positive_integer("public_every", self.public_every)
        if self.function is not None:
            object.__setattr__(self, "loss", None)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The configuration file of a run. The defaults mean that there is none.

    Args:
        toml: its text, which `resume` finds in the run's folder.
        keys: argument name -> key of the file, for errors of the ledger.
        reasons: the reason for each constant that was chosen by rule, by name.
        inputs: how the user's files were converted to inputs and labels.
        python_only: names of arguments that were given in Python and that no file can contain.
        whole: the model of which a part is trained; None if all of it is.
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
        publish: the published model: "last", or the name of an average of weights, which may be
            shortened if it is unambiguous, such as "EMA". None for the EMA if the averages are
            chosen by rule, and for the last weights otherwise.
        store_every: steps between stored checkpoints; None stores none.
        keep: which stored checkpoints are kept; None for all.
        checkpoint_every: steps between resumable checkpoints; None for a twentieth of the plan.
        evaluate_every: steps between evaluations; None for a tenth of the plan.
        origin: the configuration file of the run. `Config.trainer` sets it.
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
            rule = "selects stored checkpoints, but none are stored"
            raise validation.fail("keep", keep, rule, "set store_every, or leave it out")


@dataclass(frozen=True, kw_only=True)
class Charging:
    """Where the run's privacy cost is recorded.

    Args:
        ledger: a ledger, or its file, that several runs on the same data share; None for a ledger
            of this run alone.
        block: steps that are charged at a time; None for the number between two resumable
            checkpoints, at most 50.
    """

    ledger: Ledger | str | Path | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        _count(self, "block")


# The trainer's arguments that accept a group, and the field that a plain value sets.
_GROUPS: dict[str, tuple[type, str]] = {
    "data": (PrivateData, "records"),
    "loss": (Objective, "loss"),
    "run": (Saving, "folder"),
    "ledger": (Charging, "ledger"),
}
# Other names of fields in `make_private` and configuration files.
_OTHER_NAMES = {"data_name": "name", "objective": "function"}
_ARGUMENT_OF = {
    item.name: argument for argument, (group, _) in _GROUPS.items() for item in fields(group)
}


def grouped(argument: str, given: Any) -> Any:
    """An argument as its group. A plain value becomes a group with this one field.

    Examples:
        >>> grouped("ledger", "patients.jsonl")
        Charging(ledger='patients.jsonl', block=None)
    """
    group, plain = _GROUPS[argument]
    return given if isinstance(given, group) else group(**{plain: given})


def into_groups(given: Mapping[str, Any]) -> dict[str, Any]:
    """Put fields of groups, given by their own names, into their groups.

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
    """Reject arguments that `Trainer` does not have, and name the group that has them, if any.

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
    """Check a number of steps; None is allowed."""
    if getattr(group, name) is not None:
        count = validation.positive_integer(name, getattr(group, name))
        object.__setattr__(group, name, count)


def _group_of(name: str) -> str | None:
    return _ARGUMENT_OF.get(_OTHER_NAMES.get(name, name))
