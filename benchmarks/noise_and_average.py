"""What noise and one running average cost, as a share of a plain step of model c.

Beside it, what the same noise costs where Steppe was installed without a C compiler.

`python -m benchmarks.noise_and_average` exits with status 1 when the share is 5 % or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import settings
from benchmarks.cases import CASES
from benchmarks.engines import plain
from benchmarks.report import machine, today
from benchmarks.timing import seconds_per_step
from steppe.noise import SecureSource
from steppe.randomness import box_muller

RESULTS = Path(__file__).parent / "results" / "noise_and_average.json"
MAXIMUM = 0.05
REPEATS = 10


def without_kernel() -> SecureSource:
    """A source that makes noise by passes of torch."""
    source = SecureSource()
    compiled, box_muller.COMPILED = box_muller.COMPILED, False
    try:
        source.fill_normal_(torch.empty(1), 1.0)  # it chooses its way when it is first asked
    finally:
        box_muller.COMPILED = compiled
    return source


def measure(rounds: int) -> dict[str, float]:
    """Median milliseconds of the step, of noise and of an average, and their share of the step."""
    [case] = [case for case in CASES if case.model == "c"]
    step = plain(case, case.new_batch())
    weights = torch.cat([p.detach().flatten() for p in case.new_model().parameters()])
    buffer, average = torch.empty_like(weights), weights.clone()
    source, by_torch = SecureSource(), without_kernel()

    def noise() -> None:
        source.fill_normal_(buffer, 1.0)

    def noise_by_torch() -> None:
        by_torch.fill_normal_(buffer, 1.0)

    def running_average() -> None:
        average.lerp_(weights, 0.01)

    for warm_up in (step, noise, noise_by_torch, running_average):
        warm_up()
    steps, noises, noises_by_torch, averages, shares = [], [], [], [], []
    for _ in range(rounds):
        steps.append(seconds_per_step(step, 1))
        noises.append(seconds_per_step(noise, REPEATS))
        noises_by_torch.append(seconds_per_step(noise_by_torch, REPEATS))
        averages.append(seconds_per_step(running_average, REPEATS))
        shares.append((noises[-1] + averages[-1]) / steps[-1])
    return {
        "step_ms": round(statistics.median(steps) * 1e3, 2),
        "noise_ms": round(statistics.median(noises) * 1e3, 2),
        "noise_by_torch_ms": round(statistics.median(noises_by_torch) * 1e3, 2),
        "average_ms": round(statistics.median(averages) * 1e3, 2),
        "share": round(statistics.median(shares), 4),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write.

    Returns:
        1 when the share is too large, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.noise_and_average", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(settings.THREADS)
    found = measure(arguments.rounds)
    holds = found["share"] < MAXIMUM
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    command = f"python -m benchmarks.noise_and_average --rounds {arguments.rounds}"
    stored = {"date": today(), "command": command, "machine": machine(), **found}
    arguments.output.write_text(json.dumps(stored, indent=1) + "\n")
    print(
        f"step of model c {found['step_ms']} ms, noise {found['noise_ms']} ms "
        f"(without the kernel {found['noise_by_torch_ms']}), "
        f"average {found['average_ms']} ms: {found['share']:.1%} of the step, "
        f"target < {MAXIMUM:.0%}  {'ok' if holds else 'MISSED'}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
