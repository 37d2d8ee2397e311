"""A folder of checkpoints that other processes can read during training."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from steppe.averaging.layout import named_tensors, write_checkpoint
from steppe.averaging.retention import Keep
from steppe.averaging.store_index import (
    FILE,
    Index,
    Shapes,
    StoreEntry,
    checkpoint_files,
    file_name,
    read_index,
)
from steppe.errors import DataError
from steppe.utils.files import single_writer, sync_folder, write_atomically, writing
from steppe.utils.validation import fail, missing, non_negative, one_of, positive_integer
from steppe.utils.weight_files import as_safetensors

MODEL = "model"


class CheckpointStore:
    """Checkpoints of one run: safetensors files and an index of step, ε and hash.

    Files are written once and never changed; the index is replaced whole, and a file leaves the
    folder one append later than the index. A reader in another process needs no lock: what it was
    told (`entries()`, `last(k)`) it can load until the writer appends for the second time after
    that, and without a `keep` rule for as long as the store is not rewound. Later, a checkpoint
    that is gone is an error that names it. No pickle is read or written, and all files are
    readable by their owner only.

    Args:
        folder: made when it does not exist.
        plan: digest of the run's plan (`plan.digest()`); a store of another plan is refused. None
            reads any store, and writes only to one that has no plan either.
        keep: which checkpoints stay; those dropped last are on the disk until the next append.
        not_private_reason: why checkpoints to be appended are not private, or None. Index
            and files say so, the index from then on.

    Guarantees:
        Holds what the private steps released and nothing else. Every file is checked against its
        hash before a number of it is used. An index that names a file as no store does, in another
        folder, is refused before a file is read or removed.

    Examples:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> store = CheckpointStore(tempfile.mkdtemp(), keep=Keep(last=2))
        >>> for step in (1, 2, 3):
        ...     _ = store.append(model, step=step, epsilon=0.1 * step)
        >>> [entry.step for entry in store.entries()]
        [2, 3]
    """

    def __init__(
        self,
        folder: str | Path,
        plan: str | None = None,
        keep: Keep | None = None,
        not_private_reason: str | None = None,
    ) -> None:
        self.folder = Path(folder)
        with writing("folder", self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.plan = plan
        self.keep = keep or Keep()
        self._reason = not_private_reason
        self._read_index()

    @property
    def not_private_reason(self) -> str | None:
        """Why checkpoints in this store are not private, or None."""
        return self._reason or self._read_index().not_private_reason

    def append(
        self,
        weights: nn.Module | Mapping[str, Tensor],
        step: int,
        epsilon: float | None = None,
        kind: str = MODEL,
    ) -> StoreEntry:
        """Add a checkpoint; on return it is on the disk, and in the index if it is to be kept.

        Files that the index does not know are removed first: of checkpoints that the append before
        dropped, and of a writer that was killed.

        Args:
            weights: a model, or tensors by name.
            step: how many private steps have been taken; must exceed the newest of this kind.
            epsilon: ε spent so far; None if the run is not private.
            kind: "model", or a name for something derived from it.

        Returns:
            The new entry.
        """
        step = positive_integer("step", step)
        epsilon = None if epsilon is None else non_negative("epsilon", epsilon)
        tensors = named_tensors(weights) if isinstance(weights, nn.Module) else dict(weights)
        with single_writer(self.folder):
            index = self._read_index()
            if self.plan != index.plan and index.entries:
                rule = f"is required, since the store belongs to the plan {index.plan}"
                raise missing("plan", "open it with that plan", rule)
            shapes = _shapes(tensors)
            _same_model(kind, shapes, index.shapes.get(kind))
            newest = max((e.step for e in index.entries if e.kind == kind), default=0)
            if step <= newest:
                rule = f"must come after step {newest}, which is stored already"
                raise fail("step", step, rule, "call rewind(step) first when a run is resumed")
            self._remove_unknown(index)
            reason = self._reason or index.not_private_reason
            about = {"step": str(step), "kind": kind, "plan": self.plan or ""}
            data = as_safetensors(tensors, about, reason)
            digest = hashlib.sha256(data).hexdigest()
            entry = StoreEntry(step, epsilon, kind, file_name(step, digest), digest, len(data))
            write_atomically(self.folder / entry.file, data)
            told = Index(self.plan, {**index.shapes, kind: shapes}, index.entries, reason)
            self._write_index(told, [*index.entries, entry])
        return entry

    def rewind(self, step: int, kind: str = MODEL) -> None:
        """Forget everything of a kind after a step, so that a run resumed there can write again."""
        with single_writer(self.folder):
            index = self._read_index()
            kept = [e for e in index.entries if e.kind != kind or e.step <= step]
            self._write_index(index, kept)

    def entries(self, kind: str = MODEL) -> list[StoreEntry]:
        """What is stored at this moment, oldest first."""
        found = [entry for entry in self._read_index().entries if entry.kind == kind]
        return sorted(found, key=lambda entry: entry.step)

    def kinds(self) -> list[str]:
        """The kinds of checkpoints that are stored."""
        return sorted({entry.kind for entry in self._read_index().entries})

    def load(self, entry: StoreEntry) -> dict[str, Tensor]:
        """The tensors of a checkpoint, on the CPU, after its hash was checked."""
        from safetensors.torch import load

        path = self.folder / entry.file
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise _damage(path, "is gone, perhaps by the keep rule of its writer") from None
        if len(data) != entry.size:
            raise _damage(path, f"is truncated or longer: {len(data)} bytes, not {entry.size}")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _damage(path, "does not have the hash of the index: its content was changed")
        return load(data)

    def restore(self, model: nn.Module, step: int | None = None) -> StoreEntry:
        """Copy a stored checkpoint (the newest by default) into the model it came from."""
        stored = {entry.step: entry for entry in self.entries()}
        if not stored or (step is not None and step not in stored):
            rule = f"is not among the {len(stored)} stored checkpoints"
            raise fail("step", step, rule, "see entries() for what is there")
        entry = stored[max(stored) if step is None else step]
        write_checkpoint(model, self.load(entry))
        return entry

    def last(
        self,
        k: int,
        burn_in: int = 0,
        spacing: int = 1,
        damaged: str = "refuse",
    ) -> StoredCheckpoints:
        """The newest k checkpoints, oldest first, read from the disk one at a time.

        Args:
            k: how many.
            burn_in: leave out steps up to this one.
            spacing: at least so many steps from one checkpoint to the next.
            damaged: "refuse" raises when a file is damaged, "skip" warns and goes on.
        """
        k = positive_integer("k", k)
        chosen: list[StoreEntry] = []
        for entry in reversed(self.entries()):
            if entry.step <= burn_in or len(chosen) == k:
                break
            if not chosen or chosen[-1].step - entry.step >= spacing:
                chosen.append(entry)
        if len(chosen) < k:
            rule = f"is more than the {len(chosen)} checkpoints stored with {burn_in=}, {spacing=}"
            raise fail("k", k, rule, "use a smaller k, or keep more checkpoints")
        return StoredCheckpoints(self, chosen[::-1], damaged)

    def _read_index(self) -> Index:
        index = read_index(self.folder) or Index(self.plan)
        if self.plan is not None and index.entries and index.plan != self.plan:
            rule = f"the store belongs to the plan {index.plan}"
            raise fail("plan", self.plan, rule, "use a folder of its own for each plan")
        return index

    def _write_index(self, index: Index, entries: Sequence[StoreEntry]) -> None:
        """Replace the entries of the index by those that are kept."""
        kept: list[StoreEntry] = []
        for kind in {entry.kind for entry in entries}:
            own = sorted((e for e in entries if e.kind == kind), key=lambda e: e.step)
            steps = set(self.keep.kept([entry.step for entry in own]))
            kept += [entry for entry in own if entry.step in steps]
        kept.sort(key=lambda entry: (entry.step, entry.kind))
        told = replace(index, entries=tuple(kept))
        write_atomically(self.folder / FILE, told.to_json())

    def _remove_unknown(self, index: Index) -> None:
        """Remove the files of dropped checkpoints, and of writers killed between file and index.

        Before an append, and not after it: readers of the index before may be about to open them.
        """
        known = {entry.file for entry in index.entries}
        removed = [name for name in checkpoint_files(self.folder) if name not in known]
        for name in removed:
            (self.folder / name).unlink(missing_ok=True)
        if removed:
            sync_folder(self.folder)


class StoredCheckpoints:
    """Stored checkpoints, which can be iterated over repeatedly, with one in memory at a time.

    Args:
        store: where they are.
        entries: which ones, in the order in which they are read.
        damaged: "refuse" or "skip".
    """

    def __init__(self, store: CheckpointStore, entries: Sequence[StoreEntry], damaged: str) -> None:
        self.entries = list(entries)
        self._store = store
        self._skip = one_of("damaged", damaged, ("refuse", "skip")) == "skip"

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for entry in self.entries:
            try:
                tensors = self._store.load(entry)
            except DataError as error:
                if not self._skip:
                    raise
                warnings.warn(f"skipped: {error}", RuntimeWarning, stacklevel=2)
                continue
            yield tensors


def _shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in sorted(tensors.items())}


def _same_model(kind: str, own: Shapes, stored: Shapes | None) -> None:
    if stored is None or own == stored:
        return
    name = next(n for n in sorted(own.keys() | stored.keys()) if own.get(n) != stored.get(n))
    here, there = (shapes.get(name, "absent") for shapes in (own, stored))
    rule = f"is {here} here and {there} in the store of {kind!r}"
    raise fail("weights", name, rule, "use a folder of its own for each model")


def _damage(path: Path, rule: str) -> DataError:
    remedy = "the other checkpoints stay readable (damaged='skip' leaves this one out)"
    return DataError.about("file", path.name, rule, remedy)
