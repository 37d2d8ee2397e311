"""Findings of a watched pass, and what is known about each tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

OWNED = "_steppe_owned"
"""The attribute of a tensor that holds its `Owned`."""
RANDOM = "_steppe_random"
"""The attribute of a tensor that was made from random numbers."""
BACKWARD = "a hook or backward()"


@dataclass(frozen=True)
class Finding:
    """A reason why a pass cannot be proven.

    Attributes:
        kind: "mixes", "reads", "writes", "carries", "place" or "no rule".
        operation: torch's name of it.
        layer: the module that was running; `BACKWARD`, with the module if it is known, in the
            backward pass; None in the loss.
        line: the line of the user's code; None if only torch's code was running.
        detail: a description.
    """

    kind: str
    operation: str
    layer: str | None
    line: str | None
    detail: str = ""

    @property
    def place(self) -> str:
        """Operation, layer and line, for error messages."""
        where = f" in {self.layer}" if self.layer else ""
        return f"{self.operation}{where}" + (f", {self.line}" if self.line else "")


@dataclass(frozen=True)
class Asked:
    """Which operation or call of a pass to locate.

    Attributes:
        kind: "operations" or "calls", see `Trace`.
        number: its index.
        records: of the pass.
    """

    kind: str
    number: int
    records: int


@dataclass(frozen=True)
class Owned:
    """The owners of one tensor.

    Attributes:
        owners: with size 1 along axes on which all are equal.
        watch: the number of the pass that found them.
        origin: the operation that mixed records, if there is one.
        memory: the address of the values, because `tensor.data = other` is not an operation.
    """

    owners: Tensor
    watch: int
    origin: Finding | None = None
    memory: int | None = None


class NotIsolated(Exception):
    """Ends a pass that needs a value that does not exist. Users never see it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.place)
        self.finding = finding
