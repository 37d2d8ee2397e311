"""Figure 4: intervals from the last checkpoints of one run, beside those from independent runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from steppe.averaging import prediction
from steppe.papers.dp_swa.logistic import first_weights, pictures
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import by_setting, mean_curve, panels
from steppe.papers.one_layer import descend
from steppe.papers.plans import plan_of
from steppe.papers.recycling.accuracy import PAPER
from steppe.randomness import SeededSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KS = (5, 10, 15, 20)
_INPUTS = 2000


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train as often as the largest k; one of the runs lends its last checkpoints."""
    problem, inputs, _ = pictures()
    plan = plan_of(constants)
    start, spacing = first_weights(np.random.default_rng(0)), constants["spacing"]
    ends, path = [], np.zeros((0, *start.shape), dtype=np.float32)
    for run in range(max(KS)):
        # The same first weights: what is measured is the spread by sampling and noise.
        source = SeededSource(1000 * seed + run)
        parts = [p.copy() for _, p in descend(problem, start, plan, source, constants["rate"], 50)]
        path = np.concatenate(parts)
        ends.append(path[-1])
    sources = {
        "independent runs": np.array(ends),
        "last checkpoints": path,
        f"every {spacing}th checkpoint": path[::-1][::spacing][::-1],
    }
    widths = {
        name: {str(k): _widths(weights[-k:], inputs[:_INPUTS]) for k in KS}
        for name, weights in sources.items()
    }
    most = {name: found[str(max(KS))] for name, found in widths.items()}
    independent, last, spaced = most.values()
    return {
        "independent": independent["probability"],
        "last": last["probability"],
        "spaced": spaced["probability"],
        "last over independent": last["probability"] / independent["probability"],
        "spaced over independent": spaced["probability"] / independent["probability"],
        "widths": widths,
        "epsilon": plan.epsilon_spent(),
    }


def _widths(weights: NDArray[np.float32], inputs: NDArray[np.float32]) -> dict[str, float]:
    """Mean widths over inputs: of the predicted label's probability, and of the label's index."""
    answers = torch.from_numpy(np.einsum("nf,kcf->knc", inputs, weights)).double().softmax(-1)
    mean, count = answers.mean(0), len(answers)
    votes = torch.nn.functional.one_hot(answers.argmax(-1), answers.shape[-1]).sum(0)
    labels = mean.argmax(-1)
    scatter = (answers - mean).square().sum(0)
    found = prediction(labels, count, mean, scatter, votes, 0.95)
    wide = (found.high - found.low).gather(1, labels.unsqueeze(1)).mean()
    return {"probability": float(wide), "label": float(found.label_width.mean())}


def _figure(runs: Sequence[ExperimentRun]) -> Figure:
    titles = {"probability": "probability of the label", "label": "index of the label (paper)"}
    figure, places = panels(len(titles))
    for axes, kind in zip(places, titles, strict=True):
        for i, (setting, own) in enumerate(by_setting(runs).items()):
            widths = [run.measured["widths"] for run in own]
            for name, line in zip(widths[0], ("-", ":", "--"), strict=True):
                means = mean_curve([found[name][str(k)][kind] for k in KS] for found in widths)
                axes.plot(KS, means, line, marker=".", color=f"C{i}", label=f"{name}, {setting}")
        axes.set(xlabel="k", ylabel="mean width of 95 % intervals", title=titles[kind])
        axes.legend(fontsize="x-small")
    return figure


def _setting(epsilon: float) -> Constants:
    return {
        "epsilon": epsilon,
        "delta": 1e-5,
        "population": 60_000,
        "batch": 256,
        "steps": 1000,
        "clip": 1.0,
        "rate": 1.0,
        "spacing": 25,
    }


INTERVALS = Experiment(
    name="recycling-intervals",
    paper=PAPER,
    item="Figure 4: widths of intervals, logistic regression on Fashion-MNIST, 20 runs a row",
    settings={"ε = 1": _setting(1.0), "ε = 8": _setting(8.0)},
    seeds=(0, 1, 2, 3, 4),
    measure=measure,
    columns=(
        Column("independent", "{:.4f}", "independent runs"),
        Column("last", "{:.4f}", "last checkpoints"),
        Column("spaced", "{:.4f}", "every 25th checkpoint"),
        Column("last over independent", "{:.2f}", "last / independent"),
        Column("spaced over independent", "{:.2f}", "spaced / independent"),
    ),
    expected="checkpoints give a lower bound on the width from independent runs",
    minutes=0.7,
    figure=_figure,
)
