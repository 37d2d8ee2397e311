"""Small runs of every kind that is used afterwards: a table, pictures, a regression, a CNN."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from steppe.models import FixedFrontEnd, FrontEnd
from steppe.training import Config

TRAIN = {"progress": False, "store_every": 2}
PLAN = {"epsilon": 20.0, "delta": 1e-3, "batch_size": 40, "steps": 8}
AGES, SEXES = (20.0, 80.0), ("f", "m")
TABLE: dict[str, Any] = {
    "target": "ill",
    "classes": ["no", "yes"],
    "bounds": {"age": AGES, "visits": (0.0, 10.0)},
    "categories": {"sex": list(SEXES)},
    "missing": "middle",
}


def patients(count: int = 200, seed: int = 0) -> dict[str, list[Any]]:
    generator = np.random.default_rng(seed)
    age, visits = generator.uniform(*AGES, count), generator.integers(0, 11, count)
    return {
        "age": [round(float(value), 1) for value in age],
        "visits": [int(value) for value in visits],
        "sex": [SEXES[value] for value in generator.integers(0, 2, count)],
        "ill": ["yes" if value > 50 else "no" for value in age],
    }


def write_csv(path: Path, columns: dict[str, list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def pictures(side: int, count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (count, side, side)).astype(np.uint8)
    return x, generator.integers(0, 3, count)


def table(folder: Path) -> dict[str, Any]:
    place = write_csv(folder / "patients.csv", patients())
    return {"data": {"place": str(place), **TABLE}}


def scattering(folder: Path, side: int = 8) -> dict[str, Any]:
    x, y = pictures(side)
    np.savez(
        folder / "pictures.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:]
    )
    return {"data": {"place": str(folder / "pictures.npz"), "classes": 3}}


def cnn(folder: Path) -> dict[str, Any]:
    return {**scattering(folder, 28), "model": {"name": "cnn-tanh-26k"}}


def regression(folder: Path) -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(200, 5))
    np.savez(folder / "numbers.npz", x=x, y=x[:, 0])
    data = {"place": str(folder / "numbers.npz"), "bounds": [-3.0, 3.0]}
    return {"data": data, "train": {**TRAIN, "loss": "mse_loss"}}


KINDS = {"table": table, "scattering": scattering, "cnn": cnn, "regression": regression}


def train(kind: str, folder: Path, **options: Any) -> Path:
    """The folder of a run, moved to another place; the data are gone."""
    home = folder / "home"
    home.mkdir(parents=True)
    tables = {"plan": PLAN, "train": TRAIN, **KINDS[kind](home)}
    Config(tables).trainer(home / "run", **options).fit()
    shutil.move(home / "run", folder / "moved")
    shutil.rmtree(home)
    return folder / "moved"


class Turned(FrontEnd):
    """A front-end with constants that its constructor draws anew each time."""

    shape = (6,)
    features = 4

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", torch.randn(6, 4))

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return (records @ self.filters).tanh()


def turned() -> nn.Module:
    return FixedFrontEnd(Turned(), nn.Linear(4, 2))
