"""The parts of a page that compares runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from steppe.report.axes import Axis
from steppe.report.chart import Chart, table
from steppe.report.curves import lines, score, share_axis
from steppe.report.layers import Dots, Layer, Line, Links, Mark
from steppe.report.markup import Child, Markup, tag
from steppe.report.numbers import bound, duration, short
from steppe.report.run import ReportedRun, number
from steppe.report.sections import Section, citation, configuration, missing, statement
from steppe.report.settings import flattened
from steppe.report.words import delta_too_large

# Fingerprints and names differ between any two runs, and say nothing.
_ALWAYS_DIFFER = frozenset({"plan.digest", "digest", "run"})


def comparison_sections(runs: Sequence[ReportedRun]) -> list[Section]:
    """Every part of the page of several runs."""
    return [
        Section("runs", "The runs", (_warnings(runs), _run_table(runs))),
        Section("accuracy-epsilon", "Accuracy against ε", _html_or_note(across_runs(runs))),
        Section("curves", "While training", _html_or_note(curves(runs))),
        Section("differences", "Settings that differ", _differences(runs)),
        Section("privacy", "What is promised", [_collapsible(run, statement(run)) for run in runs]),
        Section("cite", "Citation", [_collapsible(run, citation(run)) for run in runs]),
    ]


def across_runs(runs: Sequence[ReportedRun]) -> Chart | None:
    """Final accuracy of each run at its ε: last iterate, best average and published model."""
    ends: dict[str, list[tuple[str, Mark]]] = {
        "last iterate": [],
        "best average": [],
        "published": [],
    }
    pairs = []
    for run in runs:
        found = [_end(run, row) for row in (run.row("last"), run.best, _published(run))]
        for series, point in zip(ends.values(), found, strict=True):
            if point is not None:
                series.append((run.name, point))
        first, second, _ = found
        if first is not None and second is not None:
            pairs.append((first, second))
    points = [point for series in ends.values() for _, point in series]
    if not points:
        return None
    layers: list[Layer] = [Links(pairs)]
    for tone, (name, series) in enumerate(ends.items()):
        if series:
            names, places = zip(*series, strict=True)
            labels = names if name == "best average" else ()
            layers.append(Dots(name, tone, places, hollow=not tone, labels=labels))
    words = (
        "Each run at the ε it spent. Averages cost no privacy. The best average was chosen on the "
        "data for evaluation; the published model was fixed before training."
    )
    x = Axis.around("ε", [0.0, *(point.x for point in points)])
    x = Axis(x.title, 0.0, x.high)
    y = share_axis("accuracy", [point.y for point in points])
    return Chart("runs-by-epsilon", "Final accuracy by run", words, x, y, layers, "run")


def curves(runs: Sequence[ReportedRun]) -> Chart | None:
    """Accuracy of the last iterate by the ε spent, or by step where ε is not in every log."""
    by_epsilon = all(
        run.epsilon is not None and all(e.epsilon is not None for e in run.evaluations)
        for run in runs
    )
    layers: list[Line] = []
    for tone, run in enumerate(runs, 1):
        model = "last" if "last" in run.models else next(iter(run.models), None)
        if model is None:
            continue
        found = lines(
            run.evaluations,
            {model: tone},
            "accuracy",
            (lambda e: e.epsilon) if by_epsilon else (lambda e: float(e.step)),
        )
        layers += [Line(run.name, tone, line.points) for line in found]
    if not layers:
        return None
    across = [point.x for line in layers for point in line.points]
    x = Axis.around("ε spent" if by_epsilon else "step", [0.0, *across], tight=True)
    y = share_axis("accuracy", [point.y for line in layers for point in line.points])
    words = "The last iterate of each run, measured on its data for evaluation."
    return Chart("runs-curves", "Accuracy while training", words, x, y, layers, "step")


def _warnings(runs: Sequence[ReportedRun]) -> Child:
    """What makes the runs' ε not comparable, in sentences."""
    sentences = []
    for key, words in (
        ("delta", "The runs have different δ, so their ε cannot be compared directly."),
        ("adjacency", "The runs use different neighbouring relations: their ε cannot be compared."),
        ("unit", "The runs protect different units: their ε cannot be compared."),
    ):
        if len({str(run.statement.get(key)) for run in runs if run.statement}) > 1:
            sentences.append(words)
    large = [run.name for run in runs if run.epsilon is not None and delta_too_large(run)]
    if large:
        rule = "δ is not below 1 over the population, so whole records may be published"
        sentences.append(f"No meaningful guarantee, since {rule}: {', '.join(large)}.")
    probed = [run.name for run in runs if run.caution is not None]
    if probed:
        rule = "isolation is only probed, not proven"
        sentences.append(f"ε may be false, since {rule}: {', '.join(probed)}.")
    void = [run.name for run in runs if run.epsilon is None]
    if void:
        sentences.append(f"Without a guarantee, and left out of figures by ε: {', '.join(void)}.")
    return [tag("p", sentence, class_="warning") for sentence in sentences]


def _run_table(runs: Sequence[ReportedRun]) -> Markup:
    rows = []
    for run in runs:
        facts, result = run.statement or {}, run.result or {}
        best, last = run.best, run.row("last")
        seconds = number(result, "seconds")
        rows.append(
            [
                run.name,
                "none promised" if run.epsilon is None else bound(run.epsilon),
                _short(facts, "delta"),
                _short(facts, "noise_multiplier"),
                _short(result, "steps"),
                _score(run, _published(run)) or "–",
                run.published or "–",
                _score(run, last),
                _score(run, best),
                "" if best is None else best["model"],
                "" if seconds is None else duration(seconds),
            ]
        )
    head = ["run", "ε", "δ", "σ", "steps", "published", "which", "last iterate", "best average"]
    return table([*head, "which", "time"], rows)


def _published(run: ReportedRun) -> Mapping[str, Any] | None:
    """The row of the model that the run publishes, where its result says which."""
    return None if run.published is None else run.row(run.published)


def _differences(runs: Sequence[ReportedRun]) -> Child:
    columns = [dict(flattened({"plan": run.plan or {}, **configuration(run)})) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [
        [name, *(column.get(name, "") for column in columns)]
        for name in names
        if name not in _ALWAYS_DIFFER and len({column.get(name) for column in columns}) > 1
    ]
    if not rows:
        return missing("No setting differs between these runs.")
    return table(["setting", *(run.name for run in runs)], rows)


def _collapsible(run: ReportedRun, body: Child) -> Markup:
    return tag("details", tag("summary", run.name), body)


def _html_or_note(chart: Chart | None) -> Child:
    return chart.html() if chart else missing("No run has the data for this figure.")


def _end(run: ReportedRun, row: Mapping[str, Any] | None) -> Mark | None:
    accuracy, epsilon = number(row or {}, "accuracy"), run.epsilon
    if row is None or accuracy is None or epsilon is None or not math.isfinite(accuracy):
        return None
    value = score("accuracy", accuracy)
    if row["model"] != "last":
        value += f" ({row['model']})"
    return Mark(epsilon, accuracy, f"{run.name}, ε {bound(epsilon)}", value)


def _score(run: ReportedRun, row: Mapping[str, Any] | None) -> str:
    """The accuracy, or the loss by its name."""
    value = number(row or {}, run.measure)
    if value is None or run.measure == "accuracy":
        return score("accuracy", value)
    return f"{run.measure} {score(run.measure, value)}"


def _short(mapping: Mapping[str, Any], key: str) -> str:
    value = number(mapping, key)
    return "" if value is None else short(value)
