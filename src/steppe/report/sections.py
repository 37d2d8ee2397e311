"""The parts of a run's page, in order. A part that a run does not have says so in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steppe.errors import DataError, SteppeError
from steppe.report.chart import table
from steppe.report.curves import curve_charts, score, title, tones
from steppe.report.flatness_charts import flatness_charts, flatness_rows
from steppe.report.markup import Child, Markup, tag
from steppe.report.measured import calibration_chart, norm_chart, width_chart
from steppe.report.numbers import bound, duration, short
from steppe.report.parts import may_be_shown, origin
from steppe.report.run import ReportedRun, number
from steppe.report.settings import settings_table, without_folders
from steppe.report.words import WARNING, delta_too_large, plain_words

# The layer table's headings, and the fields of a row.
_LAYER_COLUMNS = {
    "weights": "weights",
    "operation": "operation",
    "path": "path",
    "size": "numel",
    "why": "why",
}
_NAMES = {
    "intervals": "prediction intervals",
    "flatness": "flatness",
    "gradient_norms": "gradient norms",
}


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        key: its identifier, for links.
        title: its heading.
        body: what it holds.
    """

    key: str
    title: str
    body: Child

    def html(self) -> Markup:
        """The section with its heading."""
        heading = tag("h2", self.title, id=f"{self.key}-title")
        return tag("section", heading, self.body, id=self.key, aria_labelledby=f"{self.key}-title")


def run_sections(run: ReportedRun) -> list[Section]:
    """Every part of one run's page; parts that the run does not have share one at the end."""
    parts = {
        ("confidence", "Calibration and intervals"): _measured(run, "intervals", _confidence),
        ("flatness", "Flatness"): _measured(run, "flatness", _flatness),
        ("gradients", "Clipping"): _measured(run, "gradient_norms", _norms),
        ("layers", "Layers"): layers(run),
        ("settings", "Settings"): settings(run),
        ("cite", "Citation"): citation(run),
    }
    absent = [body for body in parts.values() if isinstance(body, Missing)]
    return [
        Section("privacy", "What is promised", statement(run)),
        Section("results", "What came out", (results(run), _charts(run))),
        *(
            Section(key, heading, body)
            for (key, heading), body in parts.items()
            if not isinstance(body, Missing)
        ),
        *([Section("absent", "Not in this report", absent)] if absent else ()),
    ]


class Missing(Markup):
    """The sentence that stands for a part that is not there."""

    __slots__ = ()


def missing(what: str) -> Missing:
    """A sentence instead of a part."""
    return Missing(tag("p", what, class_="missing"))


def tiles(run: ReportedRun) -> Markup:
    """The few numbers that a reader looks for first."""
    facts = run.statement or {}
    result = run.result or {}
    shown: list[tuple[str, str, str]] = []
    delta = number(facts, "delta")
    if run.epsilon is not None and delta is not None:
        detail = f"at δ = {short(delta)}" + (", too large" if delta_too_large(run) else "")
        detail += ", isolation only probed" if run.caution is not None else ""
        shown.append(("privacy", f"ε ≤ {bound(run.epsilon)}", detail))
    best = "best average" if run.measure == "accuracy" else f"best average, {run.measure}"
    for heading, row in (
        (run.measure, run.row(run.published or "last")),
        (best, run.best),
    ):
        value = number(row or {}, run.measure)
        if row is not None and value is not None:
            shown.append((heading, score(run.measure, value), title(row["model"])))
    steps, sigma = number(result, "steps"), number(facts, "noise_multiplier")
    seconds = number(result, "seconds")
    if steps is not None:
        shown.append(("steps", short(steps), f"noise σ = {short(sigma)}" if sigma else ""))
    if seconds is not None:
        shown.append(("time", duration(seconds), "of training"))
    return tag(
        "dl",
        [
            tag("div", tag("dt", heading), tag("dd", tag("strong", value), tag("span", detail)))
            for heading, value, detail in shown
        ],
        class_="tiles",
    )


def statement(run: ReportedRun) -> Child:
    """The privacy statement: plain words, then the nine items."""
    void = run.epsilon is None or delta_too_large(run) or run.caution is not None
    words = [
        tag("p", text, class_="warning" if text.startswith(WARNING) else None)
        for text in plain_words(run)
    ]
    unfinished = (
        missing(
            "This run has not finished. The statement is about the whole plan; what was spent so "
            "far is in the run's ledger."
        )
        if run.result is None
        else None
    )
    if run.statement is None:
        return tag("div", words, class_="void"), unfinished
    items = [
        tag("div", tag("dt", f"{place}. {item}"), tag("dd", text))
        for place, (item, text) in enumerate(run.statement["items"].items(), 1)
    ]
    return (
        tag("div", words, class_="void" if void else "promise"),
        unfinished,
        tag("h3", "The statement in nine items"),
        tag("dl", items, class_="items"),
    )


def results(run: ReportedRun) -> Child:
    """The final table, and what the log has to say."""
    remarks = [without_folders(note) for note in run.notes]
    lost = number(run.result or {}, "lost")
    if lost:
        remarks.append(f"{short(lost)} steps were charged and lost to interruptions.")
    if run.torn:
        remarks.append(f"Lines of the log left out because they are not whole: {run.torn}.")
    notes = (
        tag("ul", [tag("li", remark) for remark in remarks], class_="notes") if remarks else None
    )
    if not run.rows:
        return missing(_why_no_table(run)), notes
    names = dict.fromkeys(name for row in run.rows for name in row if number(row, name) is not None)
    if not names:
        return missing("Nothing was measured: no data were given for evaluation."), notes
    words = "Measured on the data given for evaluation, which the guarantee does not cover."
    if run.published is not None and len(run.rows) > 1:
        words += " Which model is published was fixed before training."
    if run.best is not None:
        words += " The best average was picked on that data, so its score is slightly optimistic."
    rows = [
        [
            (title(row["model"]), " ", _badges(run, row)),
            *(_result(name, number(row, name)) for name in names),
        ]
        for row in run.rows
    ]
    heads = ["model", *("time" if name == "seconds" else name for name in names)]
    return tag("p", words), table(heads, rows), notes


def _result(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return duration(value) if name == "seconds" else score(name, value)


def _why_no_table(run: ReportedRun) -> str:
    if run.result is None:
        return "There is no final table: the run has not finished."
    if run.scoring_failed:
        return "There is no final table: scoring the models failed."
    return "There is no final table: the run had no data for evaluation, so nothing was measured."


def layers(run: ReportedRun) -> Child:
    """The layer table: the path every weight takes through the clip."""
    found = (run.result or {}).get("layers")
    if not isinstance(found, list) or not found:
        return missing("This run kept no layer table.")
    rows = [
        [_cell(row, key) for key in _LAYER_COLUMNS.values()]
        for row in found
        if isinstance(row, dict)
    ]
    return table(list(_LAYER_COLUMNS), rows)


def settings(run: ReportedRun) -> Child:
    """Plan and configuration."""
    parts = [
        (kind, settings_table(kind, values))
        for kind, values in (("configuration", configuration(run)), ("plan", run.plan))
        if values
    ]
    if not parts:
        return missing("This run kept no configuration.")
    return [tag("details", tag("summary", f"The {kind}"), body, open=True) for kind, body in parts]


def configuration(run: ReportedRun) -> dict[str, Any]:
    """The configuration without its format, without the plan, which has a table of its own, and
    without the scale of the inputs, which may have been read off the records."""
    config = {key: value for key, value in (run.config or {}).items() if key != "format"}
    chosen = config.pop("settings", None)
    if isinstance(chosen, dict):
        left_out = ("plan", "inputs")
        config = {**{key: value for key, value in chosen.items() if key not in left_out}, **config}
    return config


def citation(run: ReportedRun) -> Child:
    """What to cite for the methods of the run."""
    text = (run.result or {}).get("citation")
    if not isinstance(text, str) or not text.strip():
        return missing("This run kept no citation.")
    return tag("pre", tag("code", text), class_="scroll", tabindex="0")


def _charts(run: ReportedRun) -> Child:
    charts = curve_charts(run)
    if not charts:
        return missing("The log has no evaluations, so there are no curves.")
    return [chart.html() for chart in charts]


def _measured(
    run: ReportedRun, part: str, draw: Callable[[ReportedRun, Mapping[str, Any]], Child]
) -> Child:
    found, name = run.extras.get(part), _NAMES[part]
    if not isinstance(found, dict):
        return missing(f"No measurement of {name} was added to this run.")
    if not may_be_shown(found):
        return missing(
            f"A measurement of {name} is in the folder, but it is neither of public data nor part "
            "of the account. Publishing it is not covered by ε, so it is left out."
        )
    try:
        return draw(run, found)
    except SteppeError:
        raise
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"The part {part!r} of figures.json of {run.name!r} was changed ({error}); "
            "measure again."
        ) from None


def _confidence(run: ReportedRun, part: Mapping[str, Any]) -> Child:
    return calibration_chart(part).html(), width_chart(part).html()


def _norms(run: ReportedRun, part: Mapping[str, Any]) -> Child:
    return norm_chart(part).html()


def _flatness(run: ReportedRun, part: Mapping[str, Any]) -> Child:
    rows: Sequence[Sequence[str]] = flatness_rows(part)
    return (
        tag("p", origin(part)),
        [chart.html() for chart in flatness_charts(part, tones(run))],
        table(["measure", "model", "value"], rows) if rows else None,
    )


def _badges(run: ReportedRun, row: Mapping[str, Any]) -> Child:
    published = row["model"] == run.published and len(run.rows) > 1
    badges = {"published": published, "best average": row is run.best}
    return [(_badge(text), " ") for text, earned in badges.items() if earned]


def _badge(text: str) -> Markup:
    return tag("span", text, class_="badge")


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key, "")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    found = number(row, key)
    return str(value) if found is None else short(found)
