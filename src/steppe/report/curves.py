"""Accuracy and loss while one run trained: the last iterate and its averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from steppe.report.axes import Axis, percent_decimals
from steppe.report.chart import Chart
from steppe.report.layers import Line, Mark
from steppe.report.numbers import bound, percent, short
from steppe.report.run import LoggedScores, ReportedRun

# A start that lies this many times further away than all the rest is left outside the frame.
_FAR = 3.0


def tones(run: ReportedRun) -> dict[str, int]:
    """The colour of every model, the same in all figures; the last iterate is the neutral one."""
    averages = [name for name in run.models if name != "last"]
    return {"last": 0, **{name: tone for tone, name in enumerate(averages, 1)}}


def title(model: str) -> str:
    """A model's name as the page shows it."""
    return "last iterate" if model == "last" else model


def curve_charts(run: ReportedRun) -> list[Chart]:
    """Every score by step, and accuracy by ε spent, as far as they were measured."""
    measures = dict.fromkeys(name for e in run.evaluations for name in e.scores)
    by_step = [_by_step(run, name, f"curve-{i}") for i, name in enumerate(measures)]
    return [chart for chart in (*by_step, _by_epsilon(run)) if chart is not None]


def score(measure: str, value: float | None) -> str:
    """A score in words; nothing where it was not measured."""
    if value is None:
        return ""
    # A user's own accuracy may be in other units.
    return percent(value, 2) if measure == "accuracy" and 0 <= value <= 1 else short(value)


def lines(
    evaluations: Sequence[LoggedScores],
    colours: Mapping[str, int],
    measure: str,
    across: Callable[[LoggedScores], float | None],
) -> list[Line]:
    """A line for each model, of all its evaluations that are finite.

    Args:
        evaluations: of one run.
        colours: by model, in the order of the legend.
        measure: what is drawn upwards.
        across: what is drawn to the right.
    """
    drawn = []
    for model, tone in colours.items():
        points = []
        for evaluation in evaluations:
            x, y = across(evaluation), evaluation.scores.get(measure)
            if evaluation.model != model or x is None or y is None:
                continue
            if math.isfinite(x) and math.isfinite(y):
                points.append(Mark(x, y, _where(evaluation), score(measure, y)))
        if points:
            drawn.append(Line(title(model), tone, sorted(points, key=lambda point: point.x)))
    return drawn


def share_axis(title: str, values: Sequence[float], *, tight: bool = False) -> Axis:
    """An axis for shares of one, in percent, with as many decimals as the ticks need."""
    if not all(0 <= value <= 1 for value in values):
        return Axis.around(title, values, tight=tight)
    axis = Axis.around(title, values, within=(0.0, 1.0), tight=tight)
    digits = percent_decimals(axis.low, axis.high)
    return Axis(title, axis.low, axis.high, lambda share: percent(share, digits))


def _by_step(run: ReportedRun, measure: str, key: str) -> Chart | None:
    drawn = lines(run.evaluations, tones(run), measure, lambda e: float(e.step))
    if not drawn:
        return None
    shown, cut = _without_far_start(drawn)
    y = share_axis("accuracy", shown) if measure == "accuracy" else Axis.around(measure, shown)
    words = "Measured on the data given for evaluation, which the guarantee does not cover."
    if len(drawn) > 1:
        words += " Averages are computed from the released weights alone and cost no privacy."
    if cut:
        words += " The first steps are outside the plot; the table lists them."
    steps = [point.x for line in drawn for point in line.points]
    x = Axis.around("step", [0.0, *steps], tight=True)
    return Chart(key, f"{measure.capitalize()} while training", words, x, y, drawn, "step")


def _by_epsilon(run: ReportedRun) -> Chart | None:
    drawn = lines(run.evaluations, tones(run), "accuracy", lambda e: e.epsilon)
    if not drawn or run.epsilon is None:
        return None
    shown, cut = _without_far_start(drawn)
    words = "Accuracy by the ε spent so far."
    if cut:
        words += " The first steps are outside the plot; the table lists them."
    spent = [point.x for line in drawn for point in line.points]
    x = Axis.around("ε spent", [0.0, *spent], tight=True)
    y = share_axis("accuracy", shown)
    return Chart("by-epsilon", "Accuracy against ε", words, x, y, drawn, "step")


def _without_far_start(drawn: Sequence[Line]) -> tuple[list[float], bool]:
    """The values that set the vertical axis, and whether the start of training is left out.

    Training starts far from where it ends; were the start to set the axis, the differences that
    matter could not be seen.
    """
    points = [point for line in drawn for point in line.points]
    everything = [point.y for point in points]
    places = sorted({point.x for point in points})
    later = [point.y for point in points if point.x >= places[len(places) // 4]]
    spread = max(later) - min(later)
    if spread == 0:
        return everything, False
    beyond = max(min(later) - min(everything), max(everything) - max(later))
    return (later, True) if beyond > _FAR * spread else (everything, False)


def _where(evaluation: LoggedScores) -> str:
    if evaluation.epsilon is None:
        return f"step {evaluation.step:,}"
    return f"step {evaluation.step:,}, ε {bound(evaluation.epsilon)}"
