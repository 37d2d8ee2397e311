"""Features on disk, named by a hash of their inputs, and checked when they are read."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steppe.utils.files import replaced_whole, writing

_MAGIC = b"steppe-features-1\n"
_CHUNK = 2**24  # bytes


def features_key(pictures: Tensor, constants: str, in_bfloat16: bool) -> str:
    """A hash of all inputs of features: pictures, constants and precision.

    Args:
        pictures: all of them.
        constants: digest of the front-end.
        in_bfloat16: whether products are computed in bfloat16.
    """
    found = hashlib.sha256(f"{constants} {in_bfloat16} {tuple(pictures.shape)}".encode())
    for chunk in pictures.split(1024):
        found.update(chunk.float().contiguous().numpy().data)
    return found.hexdigest()


def stored_features(
    folder: Path, key: str, shape: tuple[int, int], compute: Callable[[], Tensor]
) -> Tensor:
    """Features from the folder, or computed and stored there.

    Args:
        folder: created if it does not exist.
        key: names the file.
        shape: of the features.
        compute: makes them, in half precision.

    Returns:
        (records, features), float16. A file that is damaged or has another content is replaced,
        with a warning.
    """
    path = folder / f"{key}.features"
    if path.exists():
        found = _read(path, key, shape)
        if found is not None:
            return found
        print(
            f"{path}: damaged, or of other constants; the features are computed again.",
            file=sys.stderr,
        )
    with writing("cache", folder):
        folder.mkdir(parents=True, exist_ok=True)
    found = compute()
    with writing("cache", path), replaced_whole(path) as file:
        data = _bytes(found)
        seen = hashlib.sha256(key.encode())
        seen.update(data)
        file.write(_MAGIC + seen.digest())
        file.write(data)
    return found


def _read(path: Path, key: str, shape: tuple[int, int]) -> Tensor | None:
    """The features of a file, or None if the file was changed."""
    records, features = shape
    head = len(_MAGIC) + hashlib.sha256().digest_size
    if path.stat().st_size != head + 2 * records * features:
        return None
    found = torch.empty(records, features, dtype=torch.float16)
    data = _bytes(found)
    seen = hashlib.sha256(key.encode())
    with path.open("rb") as file:
        about = file.read(head)
        for start in range(0, len(data), _CHUNK):
            part = data[start : start + _CHUNK]
            if file.readinto(part) != len(part):
                return None
            seen.update(part)
    if about != _MAGIC + seen.digest():
        return None
    return found


def _bytes(found: Tensor) -> memoryview[int]:
    array: Any = found.numpy()
    return memoryview(array).cast("B")
