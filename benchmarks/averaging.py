"""What averages of weights cost: time of an update, time of a reading, and memory.

`python -m benchmarks.averaging` times ten running averages of five million parameters and windows
of k = 3 … 200, the largest of which takes 4 GB, and prints two tables in half a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.timing import Step, interleave, seconds_per_step
from steppe.averaging import EMA, SWA, Average, Averages, PolynomialDecay, Window

WINDOWS = (3, 10, 50, 100, 200)
UPDATES = 3


def model_of_five_million() -> nn.Module:
    """5.0 million parameters in large and small tensors, as in a convolutional network."""
    torch.manual_seed(0)
    wide = [nn.Conv2d(512, 512, 3), nn.Conv2d(256, 512, 3), nn.Conv2d(256, 256, 3)]
    narrow = [nn.Conv2d(128, 256, 3), *(nn.Conv2d(128, 128, 3) for _ in range(3))]
    return nn.Sequential(*wide, *narrow, *(nn.GroupNorm(8, 256) for _ in range(20)))


def ten_averages(model: nn.Module) -> Averages:
    """One of each running kind and several decays, as a run keeps them for later tuning."""
    decays = (0.85, 0.9, 0.95, 0.99, 0.999, 0.9999)
    return Averages(
        [
            SWA(model),
            SWA(model, warmup=1),
            PolynomialDecay(model, gamma=2),
            PolynomialDecay(model, gamma=17),
            *(EMA(model, decay) for decay in decays),
        ]
    )


def median_ms(step: Step, rounds: int) -> float:
    """Median milliseconds of a call, after one that warms up."""
    step()
    return statistics.median(seconds_per_step(step, 1) for _ in range(rounds)) * 1e3


def running(model: nn.Module, rounds: int) -> None:
    """Ten running averages, next to ten passes that read and write as much memory.

    By turns, one call at a time: after a training step no weight is in cache either.
    """
    averages = ten_averages(model)
    weights = [parameter.detach() for parameter in model.parameters()]
    flat = torch.cat([weight.flatten() for weight in weights])
    others = [torch.zeros_like(flat) for _ in averages]
    sums = [[part[0] for part in averages[0].layout.zeros(1)] for _ in averages]

    def in_one_block() -> None:
        for other in others:
            other.add_(flat)

    def tensor_by_tensor() -> None:
        for own in sums:
            torch._foreach_add_(own, weights)

    averages.update(model)  # the first update only copies
    steps: dict[str, Step] = {
        "plain": tensor_by_tensor,
        "the same, all weights in one block": in_one_block,
        "ten running averages": lambda: averages.update(model),
        "one running average": lambda: averages[4].update(model),
    }
    for step in steps.values():
        step()
    print(f"{flat.numel() / 1e6:.2f} million parameters, {torch.get_num_threads()} thread(s)\n")
    print("| what | ms | of ten memory passes |")
    print("|---|---|---|")
    for name, timing in interleave(steps, rounds, slow_rounds=rounds, slot=0).items():
        title = "ten passes a += b" if name == "plain" else name
        print(f"| {title} | {timing.seconds * 1e3:.1f} | {1 / timing.ratio:.2f} |")
    print()


def windows(model: nn.Module) -> None:
    """Windows in memory, in blocks, and on disk."""
    print("| window | ring, MB | update, ms | reading, ms |")
    print("|---|---|---|---|")
    for k in WINDOWS:
        with tempfile.TemporaryDirectory() as folder:
            ways: dict[str, Callable[[], Window]] = {
                "memory, float32": lambda k=k: Window(model, k),
                "disk, bfloat16": lambda k=k, f=folder: Window(
                    model, k, folder=f, dtype=torch.bfloat16
                ),
            }
            if (block := k // 10) > 1:
                ways[f"memory, blocks of {block}"] = lambda k=k, b=block: Window(model, k, block=b)
            for way, make in ways.items():
                measure_window(k, way, make, model)


def measure_window(k: int, way: str, make: Callable[[], Window], model: nn.Module) -> None:
    """One row of the table: fill the ring a little, time updates, time one reading."""
    window = make()
    ring = window.state_dict()["average.ring"]
    size = ring.numel() * ring.element_size() / 1e6
    update = median_ms(lambda: window.update(model), UPDATES * 3)
    while window.covers < k:
        window.update(model)
    reading = seconds_per_step(lambda: _read(window), 1) * 1e3
    print(f"| k = {k}, {way} | {size:,.0f} | {update:.1f} | {reading:,.0f} |")


def _read(average: Average) -> None:
    average.weights()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.averaging", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1, help="one is bound by memory already")
    parser.add_argument("--no-windows", action="store_true", help="running averages only")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    model = model_of_five_million()
    running(model, arguments.rounds)
    if not arguments.no_windows:
        windows(model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
