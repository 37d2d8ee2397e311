"""The index of a store, which is checked completely when it is read.

The names of files in it are opened and removed, so a name that the store would not have given is
refused, whoever wrote it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steppe.errors import DataError

FORMAT = 1
FILE = "index.json"

# Of each tensor by name: its type and its sizes.
Shapes = dict[str, list[Any]]

_CHECKPOINT = re.compile(r"\d{9,}-[0-9a-f]{16}\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoreEntry:
    """One checkpoint: what the index says about it.

    Args:
        step: how many private steps had been taken.
        epsilon: ε spent until then, at most, or None where it was not given or nothing is promised.
        kind: "model", or the name of something derived from it.
        file: its name in the folder.
        sha256: of the whole file.
        size: of the whole file, in bytes.
    """

    step: int
    epsilon: float | None
    kind: str
    file: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Index:
    """What a store holds.

    Args:
        plan: digest of the plan that the checkpoints are of, or None.
        shapes: of the tensors of each kind of checkpoint.
        entries: the checkpoints.
        not_private_reason: why some of them are not private, or None.
    """

    plan: str | None = None
    shapes: Mapping[str, Shapes] = field(default_factory=dict)
    entries: tuple[StoreEntry, ...] = ()
    not_private_reason: str | None = None

    def to_json(self) -> bytes:
        """What `read_index` reads."""
        found = {
            "format": FORMAT,
            "plan": self.plan,
            "shapes": self.shapes,
            "entries": [vars(entry) for entry in self.entries],
            "not_private_reason": self.not_private_reason,
        }
        return json.dumps(found).encode()  # on one line: an indent makes it several times slower


def read_index(folder: Path) -> Index | None:
    """The index of a store, or None for a folder that has none.

    Raises:
        DataError: it is not what a store wrote, or it is gone.
    """
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        # One is what a writer leaves that was killed before it could write its first index.
        if len(checkpoint_files(folder)) > 1:
            raise damaged("is missing, although there are checkpoints") from None
        return None
    except (ValueError, RecursionError, OSError):
        raise damaged("cannot be read as an index") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise damaged(f"is not an index of format {FORMAT}")
    del found["format"]
    return _index(found)


def file_name(step: int, sha256: str) -> str:
    """The file name of a checkpoint."""
    return f"{step:09d}-{sha256[:16]}.safetensors"


def checkpoint_files(folder: Path) -> list[str]:
    """Every file in a folder that has a name as a store gives it, known to the index or not."""
    return [name for name in os.listdir(folder) if _CHECKPOINT.fullmatch(name)]


def damaged(rule: str) -> DataError:
    """The error about an index."""
    remedy = "restore it from a copy, or begin a store in another folder"
    return DataError.about("file", FILE, rule, remedy)


def _index(found: dict[str, Any]) -> Index:
    if found.keys() != {"plan", "shapes", "entries", "not_private_reason"}:
        raise damaged(f"has other fields than an index: {', '.join(sorted(found))}")
    for name in ("plan", "not_private_reason"):
        if not isinstance(found[name], str | None):
            raise damaged(f"must have text or null as its {name}")
    if not isinstance(found["entries"], list):
        raise damaged("must have a list of entries")
    entries = tuple(_entry(entry) for entry in found["entries"])
    if len({(entry.step, entry.kind) for entry in entries}) < len(entries):
        raise damaged("has a checkpoint twice")
    return Index(found["plan"], _shapes(found["shapes"]), entries, found["not_private_reason"])


def _entry(found: Any) -> StoreEntry:
    try:
        entry = StoreEntry(**found)
    except TypeError:
        raise damaged("has an entry with other fields than those of a checkpoint") from None
    well_formed = (
        _is_whole(entry.step, least=1)
        and _is_whole(entry.size, least=0)
        and (entry.epsilon is None or _is_amount(entry.epsilon))
        and isinstance(entry.kind, str)
        and isinstance(entry.sha256, str)
        and _SHA256.fullmatch(entry.sha256) is not None
    )
    if not well_formed:
        raise damaged(f"has an invalid entry, that of step {entry.step!r}")
    if entry.file != file_name(entry.step, entry.sha256):
        raise damaged(f"names the file {entry.file!r}, as no store does")
    return entry


def _shapes(found: Any) -> dict[str, Shapes]:
    kinds = list(found.values()) if isinstance(found, dict) else [None]
    for tensors in kinds:
        if not isinstance(tensors, dict) or not all(isinstance(s, list) for s in tensors.values()):
            raise damaged("must have the shapes of tensors by kind and by name")
    return dict(found)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_amount(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < math.inf
