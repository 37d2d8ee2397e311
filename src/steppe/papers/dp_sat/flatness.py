"""Figures 3, 8, 9 and 12: gradient norms, spectra, the line between two solutions, cosines.

The paper draws these for CIFAR-10 and MNIST with larger networks; here both solutions are the 26k
network on Fashion-MNIST. Fashion-MNIST is public, so that its records may be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F

from steppe.flatness import Path, Surface, interpolate, spectral_density, top_eigenvalues
from steppe.papers.dp_sat.flatness_figure import figure
from steppe.papers.dp_sat.gradient_recorder import GradientRecorder, RememberingSource
from steppe.papers.dp_sat.recipe import PAPER, method, train
from steppe.papers.experiment import Column, Constants, Experiment
from steppe.papers.pictures import Batch, Fitted, load

_POSITIONS = tuple(i / 10 - 0.5 for i in range(21))


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train DP-SGD and DP-SAT from the same start, and measure both."""
    pictures = load(constants["data"])
    some = constants["records"]
    train_part, test_part = ((x[:some], y[:some]) for x, y in (pictures.train, pictures.test))
    solutions: dict[str, Fitted] = {}
    measured: dict[str, Any] = {}
    for name, changes in (("DP-SGD", {}), ("DP-SAT", {"point": "SAT", "radius": 0.03})):
        source = RememberingSource(seed)
        steps = constants["population"] // constants["batch"]
        last = constants["epochs"]
        moments = {steps * epoch: f"epoch {epoch}" for epoch in (1, last // 4, last)}
        recorder = GradientRecorder(source, test_part, moments)
        fitted = train({**constants, **changes}, seed, after_step=recorder, source=source)
        surface = Surface(fitted.model, F.cross_entropy, _batches(train_part))
        top = top_eigenvalues(surface, torch.Generator().manual_seed(seed), count=5)
        density = spectral_density(surface, torch.Generator().manual_seed(seed), steps=60)
        measured |= {
            f"{name}, accuracy": fitted.accuracies[-1],
            f"{name}, sharpness": top.sharpness,
            f"{name}, clipped share": recorder.norms[f"epoch {last}"]["clipped share"],
            f"{name}, cosine": recorder.cosines()["clean"]["mean"],
            f"{name}, noisy cosine": recorder.cosines()["noisy"]["mean"],
            f"{name}, cosines": recorder.cosines(),
            f"{name}, eigenvalues": top.values,
            f"{name}, spectrum": {
                "nodes": density.nodes,
                "masses": density.masses,
                "dimension": density.dimension,
            },
            f"{name}, norms": recorder.norms,
        }
        solutions[name] = fitted
    path = interpolate(
        solutions["DP-SGD"].model,
        solutions["DP-SAT"].model,
        F.cross_entropy,
        {"train": _batches(train_part), "test": _batches(test_part)},
        positions=_POSITIONS,
    )
    return {**measured, "path": _stored(path)}


def _batches(part: Batch) -> list[Batch]:
    return list(zip(part[0].split(500), part[1].split(500), strict=True))


def _stored(path: Path) -> Mapping[str, Any]:
    losses = {name: [m.loss for m in row] for name, row in path.measured.items()}
    accuracies = {name: [m.accuracy for m in row] for name, row in path.measured.items()}
    return {"positions": path.positions, "losses": losses, "accuracies": accuracies}


FLATNESS = Experiment(
    name="dp-sat-flatness",
    paper=PAPER,
    item="Figures 3, 8, 9 and 12: norms, spectra, interpolation and cosines, Fashion-MNIST, ε = 3",
    settings={"DP-SGD and DP-SAT": method("fashion-mnist", 3.0, records=2000)},
    seeds=(0,),
    measure=measure,
    columns=tuple(
        Column(f"{name}, {what}", form)
        for what, form in (
            ("sharpness", "{:.3g}"),
            ("clipped share", "{:.1%}"),
            ("cosine", "{:.3f}"),
            ("noisy cosine", "{:.3f}"),
        )
        for name in ("DP-SGD", "DP-SAT")
    ),
    expected="DP-SAT flatter: smaller eigenvalues; cosines above zero before the noise (0.26)",
    minutes=22.0,
    figure=figure,
)
