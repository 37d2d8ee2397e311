"""A folder with the last two checkpoints of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from steppe.errors import DataError
from steppe.runs.state_format import pack, unpack
from steppe.utils.files import single_writer, write_atomically
from steppe.utils.weight_files import as_safetensors

_FORMAT = 1
_KEPT = 2


@dataclass(frozen=True)
class StoredState:
    """What a checkpoint contains.

    Args:
        step: after which it was written.
        facts: plain values, as JSON holds them.
        state: nested values and tensors.
    """

    step: int
    facts: Mapping[str, Any]
    state: Mapping[str, Any]


class CheckpointFolder:
    """A folder of checkpoints. Each is a safetensors file and a JSON file with its hash.

    Args:
        folder: created if it does not exist.

    Guarantees:
        A file is complete or does not exist; a damaged one is detected by its hash and never
        loaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self, stored: StoredState, not_private_reason: str | None = None, alone: bool = False
    ) -> None:
        """Write a checkpoint. On return it is on the disk.

        Args:
            stored: the checkpoint.
            not_private_reason: why its weights are not private, for the file; or None.
            alone: remove all before it; otherwise the last of them is kept.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        state = pack("state", dict(stored.state), tensors)
        data = as_safetensors(tensors, {}, not_private_reason)
        digest = hashlib.sha256(data).hexdigest()
        file = f"{stored.step:09d}-{digest[:16]}.safetensors"
        facts = {
            "format": _FORMAT,
            "step": stored.step,
            **stored.facts,
            "tensors": {"file": file, "sha256": digest, "size": len(data)},
            "state": state,
        }
        text = json.dumps({**facts, "sha256": _digest(facts)}, allow_nan=False)
        with single_writer(self.folder):
            # The tensors first: if the JSON file exists, its tensors do.
            write_atomically(self.folder / file, data)
            write_atomically(self.folder / f"{stored.step:09d}.json", text.encode())
            self._forget_old_ones(1 if alone else _KEPT)

    def newest(self) -> tuple[StoredState | None, tuple[str, ...]]:
        """The newest undamaged checkpoint, and the errors of newer ones.

        Returns:
            None for a folder without checkpoints.
        """
        complaints: list[str] = []
        for path in self._manifests():
            try:
                return self._load(path), tuple(complaints)
            except DataError as error:
                complaints.append(str(error))
        if complaints:
            raise DataError.about(
                "checkpoints", str(self.folder), f"all are damaged: {' '.join(complaints)}"
            )
        return None, ()

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.json"), reverse=True)

    def _load(self, path: Path) -> StoredState:
        from safetensors import SafetensorError
        from safetensors.torch import load

        facts = _facts(path)
        tensors = self.folder / facts["tensors"]["file"]
        try:
            data = tensors.read_bytes()
        except OSError:
            raise _damaged(tensors, "cannot be read") from None
        if len(data) != facts["tensors"]["size"]:
            raise _damaged(tensors, f"has {len(data)} bytes, not {facts['tensors']['size']}")
        if hashlib.sha256(data).hexdigest() != facts["tensors"]["sha256"]:
            raise _damaged(tensors, "does not have its hash: it was changed")
        try:
            held = load(data)
        except SafetensorError:  # the hash in a manifest may be that of any file
            raise _damaged(tensors, "is no safetensors file") from None
        state = unpack(facts.pop("state"), held)
        own = {key: value for key, value in facts.items() if key not in ("format", "tensors")}
        return StoredState(own.pop("step"), own, state)

    def _forget_old_ones(self, kept: int) -> None:
        """Keep the newest ones that seem complete, and all newer manifests."""
        whole, named = 0, set()
        for path in self._manifests():
            if whole == kept:
                path.unlink()
                continue
            try:
                tensors = _facts(path)["tensors"]
            except DataError:
                continue
            named.add(tensors["file"])
            whole += self._size(tensors["file"]) == tensors["size"]  # hashes are checked on reading
        for path in self.folder.glob("[0-9]*.safetensors"):
            if path.name not in named:
                path.unlink()

    def _size(self, file: str) -> int | None:
        try:
            return (self.folder / file).stat().st_size
        except OSError:
            return None


def _facts(manifest: Path) -> dict[str, Any]:
    """The content of a manifest, checked against its hash."""
    try:
        facts: dict[str, Any] = json.loads(manifest.read_bytes())
        stated = facts.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise _damaged(manifest, "cannot be read") from None
    if stated != _digest(facts):
        raise _damaged(manifest, "does not have its hash: it was changed")
    if facts["format"] != _FORMAT:
        raise _damaged(manifest, f"is not of format {_FORMAT}")
    return facts


def _digest(facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _damaged(path: Path, rule: str) -> DataError:
    return DataError.about("file", path.name, rule, "use an undamaged copy")
