"""The last two checkpoints, from which a run can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from steppe.errors import DataError
from steppe.ledger import Anchor
from steppe.utils.files import single_writer, write_atomically
from steppe.utils.state_format import pack, unpack
from steppe.utils.weight_files import as_safetensors

_FORMAT = 1
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step.

    Args:
        step: steps of the plan so far, taken or lost.
        run: the run's id in the ledger.
        settings: digest of the configuration.
        anchor: of the ledger when the checkpoint was written.
        seconds: time spent training so far.
        lost: steps that were charged and are not in these weights.
        state: what the next step depends on, except randomness, which is always fresh.
        not_private_reason: why these weights are not private, or None.
    """

    step: int
    run: str
    settings: str
    anchor: Anchor
    seconds: float
    lost: int
    state: Mapping[str, Any]
    not_private_reason: str | None = None

    def require_of(self, run: str, settings: str) -> None:
        """Require a checkpoint of this run and this configuration."""
        if self.run != run or self.settings != settings:
            raise DataError(
                f"checkpoint={self.step}: belongs to another run than config.json; keep the files "
                "of one run in one folder."
            )


class ResumeCheckpoints:
    """A folder of checkpoints. Each is a safetensors file and a JSON file with its hash.

    Args:
        folder: created if it does not exist.

    Guarantees:
        A checkpoint contains only what the private steps released: no batch, no seed, no state of a
        random generator. A file is complete or does not exist; a damaged one is detected by its
        hash and never loaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint. On return it is on the disk; the one before it is kept."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        state = pack("state", dict(checkpoint.state), tensors)
        data = as_safetensors(tensors, {}, checkpoint.not_private_reason)
        digest = hashlib.sha256(data).hexdigest()
        file = f"{checkpoint.step:09d}-{digest[:16]}.safetensors"
        facts = {
            "format": _FORMAT,
            "step": checkpoint.step,
            "run": checkpoint.run,
            "settings": checkpoint.settings,
            "anchor": {"length": checkpoint.anchor.length, "head": checkpoint.anchor.head},
            "seconds": checkpoint.seconds,
            "lost": checkpoint.lost,
            "not_private_reason": checkpoint.not_private_reason,
            "tensors": {"file": file, "sha256": digest, "size": len(data)},
            "state": state,
        }
        text = json.dumps({**facts, "sha256": _digest(facts)}, allow_nan=False)
        with single_writer(self.folder):
            # The tensors first: if the JSON file exists, its tensors do.
            write_atomically(self.folder / file, data)
            write_atomically(self.folder / f"{checkpoint.step:09d}.json", text.encode())
            self._forget_old_ones()

    def newest(self) -> tuple[Checkpoint | None, tuple[str, ...]]:
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

    def _load(self, path: Path) -> Checkpoint:
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
        return Checkpoint(
            step=facts["step"],
            run=facts["run"],
            settings=facts["settings"],
            anchor=Anchor(**facts["anchor"]),
            seconds=facts["seconds"],
            lost=facts["lost"],
            state=unpack(facts["state"], held),
            not_private_reason=facts.get("not_private_reason"),
        )

    def _forget_old_ones(self) -> None:
        """Keep the newest two that seem complete, and all newer manifests."""
        whole, named = 0, set()
        for path in self._manifests():
            if whole == _KEPT:
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
