"""A small private run on made-up pictures: `python -m steppe.demo`.

The data are synthetic and made on the spot, so the demo needs no download and its accuracies say
nothing about real pictures. What is real is the rest: the sampling, the clipping, the noise, the
account and the statement are those of any private run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from steppe.clipping import Flat
from steppe.plan import Plan
from steppe.private import Private, make_private

CLASSES = 10
SIDE = 16
_EPSILON, _DELTA = 2.0, 1e-5
_CLIP = 0.3
_SEED = 0

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Size:
    """How large the demo is.

    Args:
        records: pictures to train on.
        held_out: pictures to test on.
        batch: expected number of records in a step.
        epochs: passes over the records.
    """

    records: int = 20_000
    held_out: int = 4_000
    batch: int = 500
    epochs: int = 8


@dataclass(frozen=True)
class Run:
    """A trained model's accuracy on held-out pictures, and how long its training took."""

    accuracy: float
    seconds: float


def pictures(size: Size) -> tuple[Data, Data]:
    """Pictures to train on and others to test on.

    Every class is a smooth pattern; a picture is the pattern of its class, moved a little, under
    noise that is stronger than the pattern.

    Args:
        size: how many.

    Returns:
        Two pairs of pictures `(n, 1, 16, 16)` and labels `(n,)`.

    Examples:
        >>> (x, y), _ = pictures(Size(records=5, held_out=1))
        >>> x.shape, y.shape
        (torch.Size([5, 1, 16, 16]), torch.Size([5]))
    """
    generator = torch.Generator().manual_seed(_SEED)
    coarse = torch.randn(CLASSES, 1, 4, 4, generator=generator)
    patterns = F.interpolate(coarse, size=SIDE, mode="bicubic")[:, 0]
    count = size.records + size.held_out
    labels = torch.randint(CLASSES, (count,), generator=generator)
    down, right = torch.randint(-2, 3, (2, count, 1, 1), generator=generator)
    line = torch.arange(SIDE)
    moved = patterns[
        labels.view(-1, 1, 1),
        (line.view(1, -1, 1) + down) % SIDE,
        (line.view(1, 1, -1) + right) % SIDE,
    ]
    noisy = (moved + 1.5 * torch.randn(moved.shape, generator=generator))[:, None]
    train, test = slice(0, size.records), slice(size.records, None)
    return (noisy[train], labels[train]), (noisy[test], labels[test])


def network() -> nn.Module:
    """A small convolutional network, the same weights every time."""
    torch.manual_seed(_SEED)  # initial weights only; noise and sampling take no seed
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, CLASSES),
    )


def train_privately(data: Data, test: Data, plan: Plan) -> tuple[Run, Private]:
    """The private loop.

    Args:
        data: the private pictures.
        test: held-out pictures, made up separately and so free to look at.
        plan: the public constants.

    Returns:
        The run, and the private object that knows what it cost.
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    private = make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    begin = time.perf_counter()
    for batch in _progress(private, "private"):
        private.step(batch)
    return Run(_accuracy(model, test), time.perf_counter() - begin), private


def train_plainly(data: Data, test: Data, size: Size) -> Run:
    """The same model, loss and number of steps without privacy, for comparison.

    Args:
        data: the pictures.
        test: held-out pictures.
        size: batch size and epochs.
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.cat([torch.randperm(size.records) for _ in range(size.epochs)])
    begin = time.perf_counter()
    for rows in _progress(order.split(size.batch), "plain"):
        optimizer.zero_grad()
        F.cross_entropy(model(data[0][rows]), data[1][rows]).backward()
        optimizer.step()
    return Run(_accuracy(model, test), time.perf_counter() - begin)


def main(size: Size = Size()) -> None:  # noqa: B008 - frozen
    """Train twice, once privately, and print both results and the privacy statement.

    Args:
        size: how large the demo is.
    """
    print(
        f"Synthetic data: {size.records:,} made-up {SIDE}x{SIDE} pictures of {CLASSES} classes. "
        "The accuracies below say nothing about real data."
    )
    data, test = pictures(size)
    plan = Plan(
        epsilon=_EPSILON,
        delta=_DELTA,
        population=size.records,
        batch_size=size.batch,
        epochs=size.epochs,
        clip=Flat(_CLIP),
    )
    ours, private = train_privately(data, test, plan)
    plain = train_plainly(data, test, size)
    rows = [
        ("", "private", "not private"),
        ("accuracy on held-out synthetic data", _percent(ours), _percent(plain)),
        ("ε, rounded up", f"{math.ceil(private.epsilon() * 1e3) / 1e3:.3f}", "∞"),
        ("δ", f"{plan.delta:g}", ""),
        ("σ, noise on the sum over the clip", f"{plan.sigma:.3f}", "0"),
        ("steps", f"{private.steps_done}", f"{plan.total_steps}"),
        ("seconds", f"{ours.seconds:.1f}", f"{plain.seconds:.1f}"),
    ]
    width = max(len(name) for name, _, _ in rows)
    print()
    for name, left, right in rows:
        print(f"{name:<{width}}  {left:>9}  {right:>11}".rstrip())
    print(f"\n{private.statement()}")


def _progress(items: Iterable[Any], name: str) -> Iterable[Any]:
    return tqdm(items, desc=f"{name:<8}", unit="step")


@torch.no_grad()
def _accuracy(model: nn.Module, test: Data) -> float:
    model.eval()
    return float((model(test[0]).argmax(1) == test[1]).float().mean())


def _percent(run: Run) -> str:
    return f"{100 * run.accuracy:.1f} %"


if __name__ == "__main__":
    main()
