"""A whole loop, with reading: what a user of a small model sees.

`python -m benchmarks.loop` trains on records in memory and times a step together with the batch it
takes, by turns: a plain loop over a shuffled `DataLoader`, as everyone writes it; a plain loop that
picks the rows of its batches itself; Opacus with Poisson batches and ghost clipping; and ours,
`for batch in private: private.step(batch)`, with everything that is checked on the way.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import steppe
from benchmarks import settings, timing
from benchmarks.cases import CASES, Case
from benchmarks.report import machine, today

RESULTS = Path(__file__).parent / "results" / "loop.json"
MODELS = ("e-logistic", "e-mlp")
RECORDS = 20_000
PLAIN = "plain"

Data = tuple[Tensor, Tensor]


def plain(case: Case, data: Data) -> timing.Step:
    """Training without privacy over a shuffled loader."""
    loader = DataLoader(TensorDataset(*data), batch_size=case.batch, shuffle=True)
    return _plain_step(case, _again_and_again(lambda: iter(loader)))


def plain_by_index(case: Case, data: Data) -> timing.Step:
    """The same with batches taken by the rows of one permutation, the fastest that is usual."""

    def epoch() -> Iterator[Data]:
        for rows in torch.randperm(RECORDS).split(case.batch):
            yield data[0][rows], data[1][rows]

    return _plain_step(case, _again_and_again(epoch))


def opacus_ghost(case: Case, data: Data) -> timing.Step:
    """Opacus as its manual has it, in the mode that is its fastest here."""
    from opacus import PrivacyEngine  # a machine without this peer can still measure the rest

    model, optimizer = _new(case)
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(*data), batch_size=case.batch),
        noise_multiplier=settings.NOISE_MULTIPLIER,
        max_grad_norm=settings.CLIP,
        grad_sample_mode="ghost",
    )
    batches = _again_and_again(lambda: iter(loader))

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def ours(case: Case, data: Data) -> timing.Step:
    """The loop of the README."""
    model, optimizer = _new(case)
    plan = steppe.Plan(
        noise_multiplier=settings.NOISE_MULTIPLIER,
        clip=steppe.Flat(settings.CLIP),
        delta=1e-6,
        population=RECORDS,
        batch_size=case.batch,
        steps=1_000_000,
    )
    private = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    batches = iter(private)

    def step() -> None:
        private.step(next(batches))

    return step


LOOPS: dict[str, Callable[[Case, Data], timing.Step]] = {
    PLAIN: plain,
    "plain, rows by index": plain_by_index,
    "opacus-ghost": opacus_ghost,
    "steppe": ours,
}


def measure(case: Case, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of a step with its batch, and its speed relative to plain, by loop."""
    data = case.new_batch(RECORDS)
    steps = {name: loop(case, data) for name, loop in LOOPS.items()}
    for step in steps.values():
        step()
    return {
        name: {"us": round(found.seconds * 1e6, 1), "ratio": round(found.ratio, 4)}
        for name, found in timing.interleave(steps, rounds).items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(settings.THREADS)
    command = f"python -m benchmarks.loop --rounds {arguments.rounds}"
    stored: dict[str, Any] = {"date": today(), "command": command, "machine": machine()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peer warns about its own hooks
        for case in (case for case in CASES if case.model in MODELS):
            stored[case.model] = measure(case, arguments.rounds)
            print(f"{case.model}, batches of {case.batch}, reading included")
            for name, step in stored[case.model].items():
                print(f"  {name:<22} {step['us']:8.1f} µs  {step['ratio']:.2f} of plain")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


def _new(case: Case) -> tuple[Any, Any]:
    model = case.new_model()
    return model, torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)


def _plain_step(case: Case, batches: Iterator[Data]) -> timing.Step:
    model, optimizer = _new(case)

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def _again_and_again(epoch: Callable[[], Iterator[Data]]) -> Iterator[Data]:
    while True:
        yield from epoch()


if __name__ == "__main__":
    sys.exit(main())
