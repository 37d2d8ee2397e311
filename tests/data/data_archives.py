"""Tiny data sets in the formats of the real ones, made by the tests."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def pictures(records: int, *shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (records, *shape), dtype=np.uint8)


def labels(records: int, classes: int = 10) -> Bytes:
    return (np.arange(records) % classes).astype(np.uint8)


def idx(array: Bytes) -> bytes:
    shape = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def tar(path: Path, members: dict[str, bytes], mode: str = "gz") -> Path:
    with tarfile.open(path, f"w:{mode}") as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def debian(path: Path, members: dict[str, bytes]) -> Path:
    data = tar(path.with_suffix(".tar.xz"), members, "xz").read_bytes()
    parts = {b"debian-binary": b"2.0\n", b"control.tar.xz": b"odd", b"data.tar.xz": data}
    content = b"!<arch>\n"
    for name, part in parts.items():
        content += name.ljust(16) + b"0".ljust(12) + b"0".ljust(6) + b"0".ljust(6)
        content += b"100644".ljust(8) + str(len(part)).encode().ljust(10) + b"`\n" + part
        content += b"\n" * (len(part) % 2)
    path.write_bytes(content)
    return path


def gzipped(folder: Path, parts: dict[str, Bytes]) -> tuple[Path, ...]:
    paths = []
    for name, array in parts.items():
        path = folder / f"{name}.gz"
        path.write_bytes(gzip.compress(idx(array)))
        paths.append(path)
    return tuple(paths)


def picture_rows(array: Bytes) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array.reshape(len(array), -1, 3)).save(file, "PNG")
    return file.getvalue()


def cifar_binary(x: Bytes, y: Bytes, coarse: bool) -> bytes:
    flat = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    before = [y[:, None] // 5] if coarse else []
    return np.concatenate([*before, y[:, None], flat], axis=1).astype(np.uint8).tobytes()


def matlab(x: Bytes, y: Bytes) -> bytes:
    from scipy.io import savemat

    file = io.BytesIO()
    tens = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
    savemat(file, {"X": x.transpose(1, 2, 3, 0), "y": tens}, do_compression=True)
    return file.getvalue()


def stl10(x: Bytes, y: Bytes) -> tuple[bytes, bytes]:
    return x.transpose(0, 3, 2, 1).tobytes(), (y + 1).astype(np.uint8).tobytes()


def label_list(y: Bytes) -> bytes:
    return json.dumps(y.tolist()).encode()
