"""What a watched pass finds, and what it knows of each tensor."""

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
    """Something that an operation did which keeps a pass from being proven.

    Attributes:
        kind: "mixes", "reads", "writes", "carries", "place" or "no rule".
        operation: torch's name of it.
        layer: the module that was running, or `BACKWARD`, with more where that is known; None in
            the loss.
        line: the user's own line; None where torch alone was running.
        detail: more about it, in words.
    """

    kind: str
    operation: str
    layer: str | None
    line: str | None
    detail: str = ""

    @property
    def place(self) -> str:
        """Operation, layer and line, for messages."""
        where = f" in {self.layer}" if self.layer else ""
        return f"{self.operation}{where}" + (f", {self.line}" if self.line else "")


@dataclass(frozen=True)
class Asked:
    """What of a pass to say the place of.

    Attributes:
        kind: "operations" or "calls", see `Trace`.
        number: which of those.
        records: of the pass.
    """

    kind: str
    number: int
    records: int


@dataclass(frozen=True)
class Owned:
    """The owners of one tensor.

    Attributes:
        owners: with size 1 along axes where all are alike.
        watch: in which pass they were found, by number.
        origin: what mixed them, if some are mixed.
        memory: where the numbers lay: `tensor.data = other` is no operation.
    """

    owners: Tensor
    watch: int
    origin: Finding | None = None
    memory: int | None = None


class NotIsolated(Exception):
    """A finding after which a pass cannot go on: there is no value. Never shown to users."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.place)
        self.finding = finding
