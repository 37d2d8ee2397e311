"""Figure 3.1: one weight, one record, no noise. Where does it come to rest?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steppe.flatness import new_figure
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.weight_decay.paper import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Descend from zero; nothing here is random."""
    del seed
    target, bound, rate = constants["target"], constants["clip"], constants["rate"]
    weight, path = 0.0, [0.0]
    for _ in range(constants["steps"]):
        # The listing leaves out the half of the squared loss, hence the slope.
        gradient = constants["slope"] * (weight - target) + constants["before clip"] * weight
        clipped = max(-bound, min(bound, gradient))
        weight -= rate * (clipped + constants["after clip"] * weight)
        path.append(weight)
    return {"final": weight, "predicted": constants["predicted"], "path": path}


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """The weight over the steps."""
    drawn, axes = new_figure("One weight, pulled to 3.88", "step", "θ")
    for run in runs:
        axes.plot(run.measured["path"], label=run.setting)
    axes.axhline(_TARGET, color="grey", linestyle=":", label="θ*")
    axes.legend(fontsize="small")
    return drawn


# 3 plus the first number of torch's generator at the listing's seed, 42.
_TARGET, _CLIP, _DECAY, _RATE = 3.8822692, 1.0, 0.5, 0.1


def _setting(
    *, predicted: float, slope: float = 1.0, before: float = 0.0, after: float = 0.0
) -> Constants:
    return {
        "target": _TARGET,
        "clip": _CLIP,
        "rate": _RATE,
        "steps": 100,
        "slope": slope,
        "before clip": before,
        "after clip": after,
        "predicted": round(predicted, 6),
    }


EXTREME = Experiment(
    name="weight-decay-extreme",
    paper=PAPER,
    item="Figure 3.1: decay after the clip rests at R/λ, whatever the data say",
    settings={
        "decay after the clip": _setting(predicted=_CLIP / _DECAY, after=_DECAY),
        "L2 before the clip": _setting(predicted=_TARGET / (1 + _DECAY), before=_DECAY),
        "no decay": _setting(predicted=_TARGET),
        # As printed: the squared loss without its half, and the learning rate in place of λ.
        "the listing's L2": _setting(predicted=_TARGET / (1 + _RATE / 2), slope=2.0, before=_RATE),
    },
    seeds=(0,),
    measure=measure,
    columns=(Column("final", "{:.3f}"), Column("predicted", "{:.3f}")),
    expected="R/λ = 2 after the clip; the ridge solution θ*/(1 + λ) = 2.59 before it",
    minutes=0.001,
    figure=figure,
)
