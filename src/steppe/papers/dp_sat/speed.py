"""Table 4: the time of a step, relative to DP-SGD, all points in turn on the same batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from steppe import models
from steppe.clipping import Flat
from steppe.flatness import new_figure
from steppe.papers.dp_sat.recipe import PAPER
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.plan import Plan
from steppe.points import SAM, SAT, Here, Point, SATMomentum
from steppe.private import Private, make_private
from steppe.randomness import SeededSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS: Mapping[str, Point] = {
    "DP-SGD": Here(),
    "DP-SAT": SAT(0.03),
    "DP-SAT-Momentum": SATMomentum(0.1),
    "DP-SAM": SAM(0.03),
}


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Median over rounds of each point's processor time in units of DP-SGD's in that round."""
    generator = torch.Generator().manual_seed(seed)
    population = 10 * constants["batch"]
    x = torch.randn(population, 1, 28, 28, generator=generator)
    y = torch.randint(10, (population,), generator=generator)
    rounds = constants["rounds"]
    runs = {
        name: _private(constants, point, (x, y), seed, rounds + 2)
        for name, point in _POINTS.items()
    }
    batches: dict[str, Iterator[Any]] = {name: iter(run) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        order = list(runs)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            batch = next(batches[name])
            begin = time.process_time()
            runs[name].step(batch)
            # Draws agree for all points but DP-SAM, which uses up more noise: count records.
            seconds[name].append((time.process_time() - begin) / max(1, len(batch[1])))
    measured = {name: times[2:] for name, times in seconds.items()}  # kernels are chosen at first
    base = measured["DP-SGD"]
    return {
        **{
            name: statistics.median(t / b for t, b in zip(times, base, strict=True))
            for name, times in measured.items()
        },
        "records a second": 1 / statistics.median(base),
    }


def _private(constants: Constants, point: Point, data: Any, seed: int, steps: int) -> Private:
    torch.manual_seed(seed)
    model = models.create(constants["model"])
    plan = Plan(
        noise_multiplier=2.0,
        delta=1e-6,
        population=len(data[1]),
        batch_size=constants["batch"],
        steps=steps,
        clip=Flat(0.1),
        point=point,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    return make_private(
        model,
        optimizer,
        data,
        plan,
        loss=F.cross_entropy,
        physical_batch=constants["physical batch"],
        source=SeededSource(seed),
    )


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Bars, the paper's range for DP-SAM in grey."""
    drawn, axes = new_figure("Time of a step", "", "DP-SGD = 1")
    for i, run in enumerate(runs):
        places = [j + 0.25 * i for j in range(len(_POINTS))]
        axes.bar(places, [run.measured[name] for name in _POINTS], 0.25, label=run.setting)
    axes.axhspan(1.65, 1.82, color="grey", alpha=0.3, label="DP-SAM in the paper")
    axes.set_xticks([j + 0.125 for j in range(len(_POINTS))], list(_POINTS), fontsize="small")
    axes.legend(fontsize="small")
    return drawn


SPEED = Experiment(
    name="dp-sat-speed",
    paper=PAPER,
    item="Table 4: step time relative to DP-SGD, interleaved",
    settings={
        "26k tanh CNN, batch 2000": {
            "model": "cnn-tanh-26k",
            "batch": 2000,
            "physical batch": 250,
            "rounds": 12,
        },
        "DPNASNet-MNIST, batch 64": {
            "model": "dpnas-mnist",
            "batch": 64,
            "physical batch": 64,
            "rounds": 8,
        },
    },
    seeds=(0,),
    measure=measure,
    columns=(*(Column(name, "{:.3f}") for name in _POINTS), Column("records a second", "{:.0f}")),
    expected="DP-SAT 1.00, within 3 %; DP-SAM 1.65 to 1.82",
    minutes=1.0,
    figure=figure,
)
