"""Start files: weights in safetensors, with their card and their hash in the metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from steppe.errors import DataError
from steppe.starts.card import Card
from steppe.utils import validation
from steppe.utils.files import write_atomically, writing
from steppe.utils.weight_files import as_safetensors

_CARD, _DIGEST = "steppe.start", "steppe.sha256"
_REMEDY = "give a file that `steppe pretrain` or `steppe.starts.write_start` has written"


@dataclass(frozen=True, eq=False)
class Start:
    """Weights and their card.

    Args:
        weights: tensors by name, as a state dict has them.
        card: what they were trained on.
        sha256: hash of weights and card.
    """

    weights: Mapping[str, Tensor]
    card: Card
    sha256: str


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """The hash of weights, with their names, types and shapes."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().to("cpu").contiguous()
        sha.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # Little-endian on every machine that torch supports.
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def write_start(path: str | Path, weights: Mapping[str, Tensor], card: Card) -> Path:
    """Write a start. Use it also for weights that others have published, with a card of your own.

    Args:
        path: of the file, which ends in `.safetensors`.
        weights: a state dict.
        card: which public records the weights saw. The privacy statement of every run that begins
            with this start repeats it.

    Examples:
        >>> import tempfile
        >>> from steppe.starts import PublicRecords
        >>> layer = torch.nn.Linear(2, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_start(
        ...         f"{folder}/a.safetensors", layer.state_dict(), Card(PublicRecords("mnist"))
        ...     )
        ...     read_start(path).card.sentence
        'mnist, by Standard training'
    """
    found = validation.path("start", path, 'write "start.safetensors"')
    if found.suffix != ".safetensors":
        rule = "must end in .safetensors"
        raise validation.fail("start", str(path), rule, 'write "start.safetensors"')
    text = card.to_json()
    about = {_CARD: text, _DIGEST: _digest(text, weights)}
    with writing("start", found):
        found.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(found, as_safetensors(weights, about, None))
    return found


def read_start(path: str | Path) -> Start:
    """Read a start and check its hash.

    Args:
        path: a file of `write_start`. Nothing is unpickled.
    """
    from safetensors import SafetensorError, safe_open

    found = validation.path("start", path, 'write "start.safetensors"').expanduser()
    if not found.is_file():
        raise DataError.about("start", str(path), "is not a file", _REMEDY)
    try:
        with safe_open(found, framework="pt") as file:
            about = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        rule = f"cannot be read as safetensors ({error})"
        raise DataError.about("start", str(path), rule, _REMEDY) from None
    if _CARD not in about:
        rule = "has no card, so the privacy statement could not say which records it saw"
        remedy = (
            "if its weights are public, write it with steppe.starts.write_start and a Card of the "
            "records that it was trained on"
        )
        raise DataError.about("start", str(path), rule, remedy)
    card = Card.from_json(about[_CARD], str(path))
    digest = _digest(about[_CARD], weights)
    if about.get(_DIGEST) != digest:
        rule = "does not have its hash: weights or card were changed"
        raise DataError.about("start", str(path), rule, "use an undamaged copy")
    return Start(weights, card, digest)


def _digest(card: str, weights: Mapping[str, Tensor]) -> str:
    """The hash of the card, as the file has it, and of the weights."""
    return hashlib.sha256(f"{card}\n{weights_digest(weights)}".encode()).hexdigest()
