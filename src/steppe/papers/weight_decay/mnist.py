"""Figures 5.9 to 5.12 and A.1: MNIST, decay after the clip against λθ before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.figures import accuracy_curves, against
from steppe.papers.pictures import fit, load
from steppe.papers.plans import plan_of
from steppe.papers.weight_decay.paper import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The lot and the rate are not printed; these are Opacus' own for its MNIST example at this σ.
_RECIPE: Constants = {
    "data": "mnist",
    "model": "cnn-relu-26k",
    "population": 60_000,
    "batch": 240,
    "rate": 0.25,
    "sigma": 1.3,
    "delta": 1e-5,
}
_AFTER, _BEFORE = "decay after the clip", "L2 before the clip"
# The most telling first, since runs are stored in this order.
_DECAYS = (1e-1, 1e-3, 10.0, 1e-2, 1.0, 1e-5, 1e-7, 5.0)
_CLIPS = (3.0, 0.03, 0.5, 0.15, 1.5)
_SIGMAS = (1.3, 13.0, 2.6, 65.0, 6.5)
_COLUMNS = (
    Column("accuracy", "{:.2%}"),
    Column("length", "{:.3g}", "‖θ‖"),
    Column("epsilon", "{:.3f}", "ε spent"),
)


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train and test once; a run that diverges has the accuracy it has."""
    before = constants["where"] == _BEFORE
    plan = plan_of(constants, l2=constants["decay"] if before else 0.0)
    fitted = fit(
        load(constants["data"]),
        constants["model"],
        plan,
        seed,
        rate=constants["rate"],
        decay=0.0 if before else constants["decay"],
        evaluations=5,
    )
    weights = torch.nn.utils.parameters_to_vector(fitted.model.parameters())
    return {**fitted.measured(), "length": torch.linalg.vector_norm(weights).item()}


def _setting(where: str, clip: float = 3.0, decay: float = 1e-4, epochs: int = 8) -> Constants:
    return {**_RECIPE, "where": where, "clip": clip, "decay": decay, "epochs": epochs}


def _noise_figure(runs: Sequence[ExperimentRun]) -> Figure:
    return against(runs, "sigma", "accuracy", "where", y="accuracy", title="MNIST, R = 3")


def _clip_figure(runs: Sequence[ExperimentRun]) -> Figure:
    return against(runs, "clip", "accuracy", "where", y="accuracy", title="MNIST, λ = 0.0001")


def _decay_figure(runs: Sequence[ExperimentRun]) -> Figure:
    return against(runs, "decay", "accuracy", "where", y="accuracy", title="MNIST, R = 3")


DECAY = Experiment(
    name="weight-decay-mnist-decay",
    paper=PAPER,
    item="Figures 5.11 and 5.12: λ from 1e-7 to 10 at R = 3, 8 of the 50 epochs",
    settings={
        f"λ = {decay:g}, {where}": _setting(where, decay=decay)
        for decay in _DECAYS
        for where in (_AFTER, _BEFORE)
    },
    seeds=(0, 1),
    measure=measure,
    columns=_COLUMNS,
    judged=("accuracy",),
    rivals={f"λ = {decay:g}, {_BEFORE}": f"λ = {decay:g}, {_AFTER}" for decay in sorted(_DECAYS)},
    expected="the paper: after the clip accuracy falls from λ = 0.01 on; before it, none is lost "
    "up to λ = 10, best at λ = 5",
    minutes=2.0,
    figure=_decay_figure,
)
CLIP = Experiment(
    name="weight-decay-mnist-clip",
    paper=PAPER,
    item="Figure 5.10: R from 0.03 to 3 at λ = 1e-4, 8 of the 50 epochs",
    settings={
        f"R = {clip:g}, {where}": _setting(where, clip=clip)
        for clip in _CLIPS
        for where in (_AFTER, _BEFORE)
    },
    seeds=(0, 1),
    measure=measure,
    columns=_COLUMNS,
    judged=("accuracy",),
    rivals={f"R = {clip:g}, {_BEFORE}": f"R = {clip:g}, {_AFTER}" for clip in sorted(_CLIPS)},
    expected="both lose as R falls, decay before the clip less",
    minutes=2.0,
    figure=_clip_figure,
)
BASELINE = Experiment(
    name="weight-decay-mnist-baseline",
    paper=PAPER,
    item="Figure 5.9: R = 3, λ = 1e-4, σ = 1.3, all 50 epochs",
    settings={where: _setting(where, epochs=50) for where in (_AFTER, _BEFORE)},
    seeds=(0,),
    measure=measure,
    columns=_COLUMNS,
    baseline=_AFTER,
    judged=("accuracy",),
    expected="97.01 % after the clip, 96.89 % before it",
    minutes=11.0,
    figure=accuracy_curves,
)
NOISE = Experiment(
    name="weight-decay-mnist-noise",
    paper=PAPER,
    item="Figure A.1: σ from 1.3 to 65 at R = 3 and λ = 1e-4, 8 of the 50 epochs",
    settings={
        f"σ = {sigma:g}, {where}": {**_setting(where), "sigma": sigma}
        for sigma in _SIGMAS
        for where in (_AFTER, _BEFORE)
    },
    seeds=(0, 1, 2),
    measure=measure,
    columns=_COLUMNS,
    judged=("accuracy",),
    rivals={f"σ = {s:g}, {_BEFORE}": f"σ = {s:g}, {_AFTER}" for s in sorted(_SIGMAS)},
    expected="both lose as σ grows, and do not differ",
    minutes=2.0,
    figure=_noise_figure,
)
