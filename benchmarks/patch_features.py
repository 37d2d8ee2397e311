"""Patch features of the benchmarks' data sets, computed once for all ε of a seed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from steppe import data
from steppe.data.catalogue import find
from steppe.models import Patches
from steppe.records import Records, WidenedRecords

Pairs = tuple[Tensor, Tensor]

# A part of CIFAR-100 with its 20 coarse classes: no constant of the recipe was chosen on it.
COARSE = "cifar100-coarse"
_COARSE_FILE = "cifar100_20k.npz"  # x_train, y_train, x_test, y_test: 200 and 20 of each fine class
# The coarse class of each of the 100 fine classes, from the data set's description.
_COARSE_OF = """
    4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7
    6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8 8 15 13 14 17 18 10
    16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16
    12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""
# Records to train on, colours, classes: what the rules need before anything is loaded.
FACTS = {
    "cifar10": (50_000, 3, 10),
    COARSE: (20_000, 3, 20),
    "fashion-mnist": (60_000, 1, 10),
    "mnist": (60_000, 1, 10),
}


def mirror(name: str) -> bool:
    """Whether mirror images are added, as the catalogue declares."""
    return bool(find("cifar100" if name == COARSE else name).mirror)


def pictures(name: str) -> tuple[Pairs, Pairs]:
    """Pictures in [0, 1] and labels of both parts."""
    if name != COARSE:
        found = data.load(name)
        return found.train.tensors(), found.test.tensors()
    path = data.cache_folder() / _COARSE_FILE
    if not path.exists():
        raise FileNotFoundError(f"{path}: {COARSE} needs this file; choose --settings without it.")
    arrays = np.load(path)
    coarse = np.array(_COARSE_OF.split(), dtype=np.int64)
    parts = [
        data.Split(arrays[f"x_{part}"], coarse[arrays[f"y_{part}"]]).tensors()
        for part in ("train", "test")
    ]
    return parts[0], parts[1]


@lru_cache(maxsize=2)
def front_end(side: int, colours: int, mirrored: bool, seed: int) -> Patches:
    """The front-end of a seed; data sets of one form share it."""
    return Patches(side, colours, mirror=mirrored, seed=seed).fit(progress=True)


@lru_cache(maxsize=1)
def features(name: str, seed: int) -> tuple[Records, Pairs]:
    """Features of the records to train on, in half precision, and of the test records.

    They are kept in the cache folder of the data sets.
    """
    (x, y), (x_test, y_test) = pictures(name)
    front = front_end(x.shape[-1], x.shape[1], mirror(name), seed)
    cache = data.cache_folder() / "features"
    train = front.transform(x, dtype=torch.float16, cache=cache, progress=True)
    return WidenedRecords(train, y), (front.transform(x_test, cache=cache, progress=True), y_test)
