"""The report of the probe, with the layer table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from steppe.gradients import Contact, ContactLayout, Path

KINDS = ("proven", "each", "probed")
"""What `isolation` can be asked to be, the default first."""
ISOLATION = {
    "proven": "proven from the operations",
    "isolated": "by construction, records go through the model one at a time",
    "probed": "only tried on values (probed)",
}
"""How it is known that a record's gradient depends on that record alone, in words."""


@dataclass(frozen=True)
class LayerRow:
    """One row of the layer table: an operation with weights, how it is computed, and why."""

    operation: str
    path: str
    why: str
    weights: tuple[str, ...]
    numel: int


@dataclass(frozen=True)
class Report:
    """The results of the probe.

    Attributes:
        layouts: the record axes, one entry for each contact.
        rows: the layer table.
        unused: trained weights that no record uses; only noise moves them.
        bytes_per_record: memory of activations and output gradients per record.
        notes: descriptions of checks that could not be made.
        detached: trained weights that records use and that get no gradient.
        isolation: how isolation is known: "proven" from the operations, "isolated" by processing
            one record at a time, or "probed" on values.
        paths: the functions that passes call on records, if isolation was proven.
    """

    layouts: list[ContactLayout]
    rows: list[LayerRow]
    unused: tuple[str, ...]
    bytes_per_record: int
    notes: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()
    isolation: str = "proven"
    paths: frozenset[Path] | None = None

    def __str__(self) -> str:
        """The layer table as text."""
        head = ("weights", "operation", "path", "size", "why")
        lines = [
            (", ".join(row.weights), row.operation, row.path, f"{row.numel:,}", row.why)
            for row in self.rows
        ]
        lines += [(name, "none", "unused", "", "no record uses it") for name in self.unused]
        lines += [(name, "none", "detached", "", "no gradient returns") for name in self.detached]
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
        text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in [head, *lines]]
        memory = f"memory: {self.bytes_per_record / 2**20:.2f} MB a record"
        isolation = f"isolation: {ISOLATION[self.isolation]}"
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([*text, memory, isolation, *notes])


def row(contact: Contact, path: tuple[str, str], names: Mapping[int, str]) -> LayerRow:
    """The row of the table for one contact.

    Args:
        contact: where weights meet records.
        path: how it is computed, and why.
        names: of the trained weights, by identity.
    """
    leaves = {id(leaf): leaf for tensor in contact.shared for leaf in leaves_of(tensor)}
    weights = tuple(names[key] for key in leaves if key in names)
    name, why = path
    if any(not tensor.is_leaf for tensor in contact.shared):
        why += ", then back to the weights it was computed from"
    numel = sum(leaf.numel() for leaf in leaves.values())
    return LayerRow(contact.name, name, why, weights, numel)


def leaves_of(tensor: Tensor) -> list[Tensor]:
    """The weights that a tensor was computed from."""
    if tensor.grad_fn is None:
        return [tensor]
    found, todo, seen = [], [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [parent for parent, _ in node.next_functions if parent is not None]
    return found
