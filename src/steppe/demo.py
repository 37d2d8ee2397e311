"""`steppe demo`: a private model of handwritten digits in about two minutes on two cores.

MNIST, scattering features, a private linear head at ε = 2, and every average of it. Where MNIST
cannot be had, made-up pictures take its place, and the output says so. The sampling, the clipping,
the noise, the account and the files are those of any private run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe._validate import fail
from steppe.averaging import OMV, OPA
from steppe.data import load
from steppe.errors import DataError
from steppe.models.scattering import ScatteringLinear
from steppe.training import FromStore, Outcome, Trainer
from steppe.training.recipes import Recipe, for_model

DELTA = 1e-5
_CLASSES = 10
_SEED = 0
_MADE_UP_SIDE = 16
# So many checkpoints are stored, and the newest of them answer together.
_CHECKPOINTS, _STORED = 40, 10

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """Pictures to train on and others to test on.

    Args:
        name: of the data.
        about: one sentence for the reader.
        train: the private pictures (records, 1, side, side) and labels.
        test: held-out ones.
        made_up: whether they are synthetic.
    """

    name: str
    about: str
    train: Data
    test: Data
    made_up: bool


@dataclass(frozen=True)
class Result:
    """What the demo found.

    Attributes:
        task: the data.
        recipe: the constants that were chosen, with their reasons.
        outcome: of the training.
        report: path of the HTML page.
        feature_seconds: time for the features, which are computed once.
    """

    task: Task
    recipe: Recipe
    outcome: Outcome
    report: Path
    feature_seconds: float

    def rows(self) -> list[dict[str, Any]]:
        """One row for each published model: short name, constants, accuracy."""
        return [
            {"name": _short(row["model"]), "model": row["model"], "accuracy": row["accuracy"]}
            for row in self.outcome.table
        ]


def run(
    epsilon: float = 2.0,
    folder: Path | None = None,
    *,
    task: Task | None = None,
    progress: bool = True,
) -> Result:
    """Train privately by the recipe for fixed features, score every average, write the report.

    Args:
        epsilon: the budget.
        folder: of the run, which must not be there yet; None makes a new one under `runs/`.
        task: the data; None for `digits()`.
        progress: whether to show bars.

    Returns:
        The scores, what they cost, and where everything is.
    """
    from steppe.report import write

    if folder is not None and folder.exists():
        raise fail("run", str(folder), "is there already", "name a folder that is not")
    task = task or digits()
    pictures, labels = task.train
    model = ScatteringLinear(side=pictures.shape[-1], classes=_CLASSES)
    recipe = for_model(model, population=len(labels), epsilon=epsilon, delta=DELTA)
    begun = time.perf_counter()
    train, test = (
        (model.features(pictures, progress=progress), labels)
        for pictures, labels in (task.train, task.test)
    )
    features = time.perf_counter() - begun
    trainer = Trainer(
        model.head,
        train,
        recipe.plan(),
        optimizer=recipe.optimizer(model.head),
        evaluate=test,
        averages=(
            *recipe.averages(model.head),
            FromStore(OPA, _STORED),
            FromStore(OMV, _STORED),
        ),
        store_every=max(1, recipe.steps // _CHECKPOINTS),
        run=folder,
        data_name=task.name,
        classes=_CLASSES,
        progress=progress,
    )
    outcome = trainer.fit()
    page = write([outcome.run], outcome.run / "report.html")
    return Result(task, recipe, outcome, page, features)


def digits() -> Task:
    """MNIST, or made-up pictures with the reason why it could not be had."""
    try:
        found = load("mnist")
    except DataError as error:
        return made_up(f"MNIST could not be had: {error}")
    train, test = found.train.tensors(), found.test.tensors()
    about = f"MNIST, {len(train[1]):,} handwritten digits to train on and {len(test[1]):,} to test."
    return Task(found.name, about, train, test, made_up=False)


def made_up(reason: str, records: int = 20_000, held_out: int = 4_000) -> Task:
    """Pictures that are made on the spot, the same every time.

    Every class is a smooth pattern; a picture is the pattern of its class, moved a little, under
    noise that is stronger than the pattern.

    Args:
        reason: why they are used, for the reader.
        records: pictures to train on.
        held_out: pictures to test on.

    Returns:
        The task.

    Examples:
        >>> task = made_up("An example.", records=5, held_out=1)
        >>> task.train[0].shape, task.made_up
        (torch.Size([5, 1, 16, 16]), True)
    """
    generator = torch.Generator().manual_seed(_SEED)
    coarse = torch.randn(_CLASSES, 1, 4, 4, generator=generator)
    patterns = F.interpolate(coarse, size=_MADE_UP_SIDE, mode="bicubic")[:, 0]
    count = records + held_out
    labels = torch.randint(_CLASSES, (count,), generator=generator)
    down, right = torch.randint(-2, 3, (2, count, 1, 1), generator=generator)
    line = torch.arange(_MADE_UP_SIDE)
    moved = patterns[
        labels.view(-1, 1, 1),
        (line.view(1, -1, 1) + down) % _MADE_UP_SIDE,
        (line.view(1, 1, -1) + right) % _MADE_UP_SIDE,
    ]
    noisy = (moved + 1.5 * torch.randn(moved.shape, generator=generator))[:, None]
    train, test = slice(0, records), slice(records, None)
    about = (
        f"{reason} SYNTHETIC DATA instead: {records:,} made-up {_MADE_UP_SIDE}×{_MADE_UP_SIDE} "
        "pictures; the accuracies below say nothing about real ones."
    )
    return Task(
        "synthetic",
        about,
        (noisy[train], labels[train]),
        (noisy[test], labels[test]),
        made_up=True,
    )


def _short(model: str) -> str:
    """The papers' name of an average."""
    kind = model.partition("(")[0]
    return {"Window": "UPA", "PolynomialDecay": "PDA"}.get(kind, kind)
