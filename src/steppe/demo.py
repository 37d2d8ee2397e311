"""`steppe demo`: a private model of handwritten digits in two to three minutes on two cores.

MNIST at ε = 2, everything else by rule, and every average of the run. Where MNIST cannot be had,
synthetic pictures are used, and the output says so. Nothing here is special to the demo: it is
`steppe train --data mnist --epsilon 2`, and what follows a run works on its folder too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.data import load
from steppe.errors import DataError
from steppe.training import Config, Outcome, Trainer
from steppe.utils.validation import fail

DELTA = 1e-5
# In the order in which the papers came.
ORDER = ("last", "SWA", "EMA", "UPA", "PDA", "OPA", "OMV")
_CLASSES, _SIDE = 10, 16
_RECORDS, _HELD_OUT = 20_000, 4_000
_SEED = 0


@dataclass(frozen=True)
class Task:
    """What the demo learns.

    Args:
        about: one sentence for the reader.
        data: the `[data]` table.
        synthetic: whether the data are synthetic.
    """

    about: str
    data: dict[str, Any]
    synthetic: bool


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        trainer: of the run, with the constants that were chosen and their reasons.
        outcome: of the training.
        report: path of the HTML page.
        preparation: seconds for loading, features and finding the noise.
    """

    trainer: Trainer
    outcome: Outcome
    report: Path
    preparation: float

    def rows(self) -> list[dict[str, Any]]:
        """One row for each published model: the papers' name, constants, accuracy, time."""
        rows = [
            {
                "name": _short(row["model"]),
                **{key: row[key] for key in ("model", "accuracy", "seconds")},
            }
            for row in self.outcome.table
        ]
        return sorted(rows, key=lambda row: ORDER.index(row["name"]))


def run(
    task: Task, epsilon: float = 2.0, folder: Path | None = None, *, progress: bool = True
) -> DemoResult:
    """Train privately by rule, score every average, write the report.

    Args:
        task: the data.
        epsilon: the budget.
        folder: of the run, which must not be there yet; None makes a new one under `runs/`.
        progress: whether to show bars.

    Returns:
        The scores, what they cost, and where everything is.
    """
    from steppe.report import write

    if folder is not None and folder.exists():
        raise fail("run", str(folder), "is there already", "name a new folder")
    begun = time.perf_counter()
    config = Config({"data": task.data, "plan": {"epsilon": epsilon, "delta": DELTA}})
    trainer = config.trainer(folder, progress=progress)
    preparation = time.perf_counter() - begun
    outcome = trainer.fit()
    page = write([outcome.run], outcome.run / "report.html")
    return DemoResult(trainer, outcome, page, preparation)


def digits() -> Task:
    """MNIST, or synthetic pictures with the reason why it could not be loaded."""
    try:
        found = load("mnist")
    except DataError as error:
        about = (
            f"MNIST is not available: {error} SYNTHETIC DATA instead: {_RECORDS:,} generated "
            f"{_SIDE}×{_SIDE} pictures; the accuracies below do not apply to real ones."
        )
        data = {"place": "steppe.demo:pictures", "classes": _CLASSES}
        return Task(about, data, synthetic=True)
    counts = f"{len(found.train):,} handwritten digits to train on and {len(found.test):,} to test"
    return Task(f"MNIST, {counts}.", {"name": "mnist"}, synthetic=False)


def pictures() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Synthetic pictures and labels, to train on and to test on, the same every time.

    Every class is a smooth pattern; a picture is the pattern of its class, moved a little, under
    noise that is about as strong as the pattern.

    Examples:
        >>> x, y, held_out, _ = pictures()
        >>> x.shape, y.shape, len(held_out)
        (torch.Size([20000, 1, 16, 16]), torch.Size([20000]), 4000)
    """
    generator = torch.Generator().manual_seed(_SEED)
    coarse = torch.randn(_CLASSES, 1, 4, 4, generator=generator)
    patterns = F.interpolate(coarse, size=_SIDE, mode="bicubic")[:, 0]
    count = _RECORDS + _HELD_OUT
    labels = torch.randint(_CLASSES, (count,), generator=generator)
    down, right = torch.randint(-2, 3, (2, count, 1, 1), generator=generator)
    line = torch.arange(_SIDE)
    moved = patterns[
        labels.view(-1, 1, 1),
        (line.view(1, -1, 1) + down) % _SIDE,
        (line.view(1, 1, -1) + right) % _SIDE,
    ]
    noise = 0.8 * torch.randn(moved.shape, generator=generator)
    noisy = (0.5 + 0.15 * (moved + noise)).clamp(0, 1)[:, None]
    return noisy[:_RECORDS], labels[:_RECORDS], noisy[_RECORDS:], labels[_RECORDS:]


def _short(model: str) -> str:
    """The papers' name of an average."""
    kind = model.partition("(")[0]
    return {"Window": "UPA", "PolynomialDecay": "PDA"}.get(kind, kind)
