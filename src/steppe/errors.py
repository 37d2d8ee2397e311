"""What can go wrong, by name.

A message says what was found, what is allowed and what to do, in that order. Configuration errors
are raised before any budget is spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Self


class SteppeError(Exception):
    """Base of every error this package raises on purpose.

    Attributes:
        name: the argument, key or option at fault; empty where the message is free text.
        value: what was given, as the message shows it; empty where nothing was.
        rule: what is allowed, or what is wrong; without a name the whole message.
        remedy: what to do.
        mentions: other arguments that the message names, exactly as it spells them, so that the
            command line can name its options instead.
        otherwise: another sentence, on what else is possible.
    """

    def __init__(self, rule: str = "") -> None:
        super().__init__(rule)
        self.name = self.value = self.remedy = self.otherwise = ""
        self.rule = rule
        self.mentions: tuple[str, ...] = ()

    @classmethod
    def about(
        cls, name: str, value: Any, rule: str, remedy: str = "", mentions: tuple[str, ...] = ()
    ) -> Self:
        """Make (not raise) the error about an argument, a key, an option or a file.

        Args:
            name: what is at fault.
            value: what was given; paths are shown as text.
            rule: what is allowed, or what is wrong.
            remedy: what to do, unless the rule says it.
            mentions: other arguments that the remedy names, exactly as it spells them.

        Examples:
            >>> print(SteppeError.about("delta", 2, "must lie in (0, 1)", "use about 1/N or less"))
            delta=2: must lie in (0, 1); use about 1/N or less.
        """
        error = cls(rule)
        error.name = name
        error.value = repr(str(value) if isinstance(value, PathLike) else value)
        error.remedy, error.mentions = remedy, mentions
        return error

    @classmethod
    def missing(
        cls,
        name: str,
        remedy: str = "",
        rule: str = "is required",
        mentions: tuple[str, ...] = (),
    ) -> Self:
        """Make (not raise) the error about something that was not given, or that has no value.

        Examples:
            >>> print(SteppeError.missing("delta"))
            `delta` is required.
        """
        error = cls(rule)
        error.name, error.remedy, error.mentions = name, remedy, mentions
        return error

    def __str__(self) -> str:
        message = self.rule
        if self.name:
            subject = f"{self.name}={self.value}:" if self.value else f"`{self.name}`"
            message = f"{subject} {self.rule}" + (f"; {self.remedy}" if self.remedy else "")
            message += "" if message.endswith((".", "?")) else "."
        if not self.otherwise:
            return message
        return message + ("" if self.otherwise.startswith("\n") else " ") + self.otherwise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def rename(self, names: Mapping[str, str]) -> None:
        """Call the argument at fault what it was called where it was given.

        Args:
            names: the new name, by the old one; others stay.
        """
        name, bracket, part = self.name.partition("[")
        self.name = names.get(name, name) + bracket + part


class ConfigurationError(SteppeError, ValueError):
    """A public constant of the run breaks a rule."""


class UnsupportedModelError(SteppeError, ValueError):
    """The model cannot be trained privately as it is; the message names the layer."""


class IsolationError(UnsupportedModelError):
    """One record's output depends on another record, so no per-record bound exists."""


class DataError(SteppeError, ValueError):
    """The data set or the batch does not have the declared form."""


class BudgetExhausted(SteppeError, RuntimeError):
    """The plan's last step has been taken; one more would cost more than was declared."""


class MisuseError(SteppeError, RuntimeError):
    """Calls in an order that would void the guarantee."""


class StorageError(SteppeError, RuntimeError):
    """A file of the run cannot be written; earlier entries are intact."""


class DataWarning(UserWarning):
    """The run is allowed, but its data or its records' gradients are probably not as meant."""


class PrivacyWarning(UserWarning):
    """The run is allowed, but its guarantee is weaker than its reader may think."""
