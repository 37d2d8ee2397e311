"""Table 8: how alike consecutive gradients are, by clip and batch.

The learning rate goes with 1/C, so that a step is as long as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steppe.flatness import new_figure
from steppe.papers.dp_sat.gradient_recorder import GradientRecorder, RememberingSource
from steppe.papers.dp_sat.recipe import PAPER, method, train
from steppe.papers.experiment import Column, Constants, Experiment, ExperimentRun
from steppe.papers.pictures import load

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Train for a while and average the cosines."""
    source = RememberingSource(seed)
    recorder = GradientRecorder(source, load(constants["data"]).test, moments={})
    fitted = train(constants, seed, after_step=recorder, source=source, evaluations=1)
    found = recorder.cosines()
    return {
        "clean": found["clean"]["mean"],
        "noisy": found["noisy"]["mean"],
        "accuracy": fitted.accuracies[-1],
        "over the run": found["clean"]["over the run"],
    }


def figure(runs: Sequence[ExperimentRun]) -> Figure:
    """Cosines before the noise over the run."""
    drawn, axes = new_figure("Consecutive gradients before the noise", "progress (%)", "cosine")
    for run in runs:
        values = run.measured["over the run"]
        progress = [100 * (i + 1) / len(values) for i in range(len(values))]
        axes.plot(progress, values, label=run.setting)
    axes.legend(fontsize="small")
    return drawn


def _setting(batch: int, clip: float) -> Constants:
    return {
        **method("fashion-mnist", 3.0),
        "epochs": 3,
        "batch": batch,
        "clip": clip,
        "rate": 0.2 / clip,
    }


COSINES = Experiment(
    name="dp-sat-cosines",
    paper=PAPER,
    item="Figure 12 and Table 8: cosines by clip and batch, Fashion-MNIST, ε = 3, 3 epochs",
    settings={
        f"C = {clip:g}, batch {batch}": _setting(batch, clip)
        for batch in (2000, 500)
        for clip in (0.1, 10.0)
    },
    seeds=(0,),
    measure=measure,
    columns=(
        Column("clean", "{:.3f}", "cosine before the noise"),
        Column("noisy", "{:.3f}", "cosine after it"),
        Column("accuracy", "{:.1%}"),
    ),
    expected="higher with a small clip and a large batch; 0.26 at C = 0.1 and 2048",
    minutes=0.8,
    figure=figure,
)
