"""Figures of what other commands measured: calibration, intervals, gradient norms."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from steppe.report.axes import Axis
from steppe.report.chart import Chart
from steppe.report.curves import share_axis
from steppe.report.layers import Bars, Layer, Line, Mark, Rule
from steppe.report.numbers import percent, short
from steppe.report.parts import malformed, mapping, needed, numbers, origin
from steppe.report.run import number


def norm_chart(part: Mapping[str, Any]) -> Chart:
    """The histogram of gradient norms, with the clip and the share that it shortens."""
    clip, share = needed(part, "clip"), needed(part, "clipped_share")
    edges, counts = numbers(part, "edges"), numbers(part, "counts")
    if len(edges) != len(counts) + 1 or not counts:
        raise malformed("gradient_norms", "needs one edge more than counts")
    bars = [
        (Mark((a + b) / 2, n, f"{short(a, 3)} to {short(b, 3)}", f"{short(n)} records"), b - a, a)
        for a, b, n in zip(edges, edges[1:], counts, strict=False)
    ]
    layers: list[Layer] = []
    for name, tone, longer in (("up to the clip", 1, False), ("longer than the clip", 8, True)):
        chosen = [(point, width) for point, width, left in bars if (left >= clip) == longer]
        if chosen:
            points, widths = zip(*chosen, strict=True)
            layers.append(Bars(name, tone, points, widths))
    top = max(counts) * 1.06 or 1.0
    if edges[0] <= clip <= edges[-1]:
        layers.append(Rule(f"clip C = {short(clip)}", (clip, 0.0), (clip, top)))
    words = f"Clipping shortens {percent(share)} of the records' gradients to C = {short(clip)}."
    for key, text in (("beyond", "lie beyond the last bar"), ("not_finite", "are not finite")):
        count = number(part, key)
        if count:
            words += f" {short(count)} {text}."
    x = Axis("gradient norm of a record", edges[0], edges[-1])
    y = Axis("records", 0.0, top)
    title = "Norms of the records' gradients"
    return Chart("norms", title, f"{words} {origin(part)}", x, y, layers, "norm")


def calibration_chart(part: Mapping[str, Any]) -> Chart:
    """Confidence against accuracy; a calibrated model lies on the diagonal."""
    facts = mapping(part, "calibration")
    bins = [b for b in facts.get("bins", ()) if isinstance(b, dict) and number(b, "records")]
    points = []
    for entry in bins:
        confidence, accuracy = needed(entry, "confidence"), needed(entry, "accuracy")
        where = f"confidence {percent(confidence)}, {short(needed(entry, 'records'))} records"
        points.append(Mark(confidence, accuracy, where, f"{percent(accuracy)} right"))
    if not points:
        raise malformed("intervals", "needs at least one bin with records")
    words = (
        f"The share of correct predictions by confidence. Expected calibration "
        f"error {percent(needed(facts, 'error'), 2)}. {origin(part)}"
    )
    layers: list[Layer] = [
        Rule("perfect calibration", (0.0, 0.0), (1.0, 1.0)),
        Line(str(part.get("model", "ensemble")), 1, points),
    ]
    x, y = (Axis(title, 0.0, 1.0, _whole_percent) for title in ("confidence", "share right"))
    return Chart("calibration", "Calibration", words, x, y, layers, "confidence")


def width_chart(part: Mapping[str, Any]) -> Chart:
    """How wide the intervals around predicted probabilities are."""
    edges, counts = numbers(part, "edges"), numbers(part, "counts")
    if len(edges) != len(counts) + 1 or not counts:
        raise malformed("intervals", "needs one edge more than counts")
    points = [
        Mark((a + b) / 2, n, f"{percent(a)} to {percent(b)}", f"{short(n)} records")
        for a, b, n in zip(edges, edges[1:], counts, strict=False)
    ]
    widths = [b - a for a, b in pairwise(edges)]
    words = (
        f"Intervals of {percent(needed(part, 'interval'), 0)} around the probability of the "
        f"predicted class, from {short(needed(part, 'count'))} checkpoints; half of them are "
        f"narrower than {percent(needed(part, 'median_width'))}. They are a lower estimate of how "
        f"much the noise of private training moves a prediction, since checkpoints of one run are "
        f"alike. {origin(part)}"
    )
    x = share_axis("width of the interval", edges, tight=True)
    y = Axis("records", 0.0, max(counts) * 1.06 or 1.0)
    return Chart(
        "widths", "Prediction intervals", words, x, y, [Bars("records", 1, points, widths)], "width"
    )


def _whole_percent(share: float) -> str:
    return percent(share, 0)
