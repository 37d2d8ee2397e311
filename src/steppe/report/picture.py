"""The README's picture: accuracy against ε for several recipes, every seed a dot."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.errors import DataError
from steppe.report.axes import Axis
from steppe.report.chart import Chart
from steppe.report.curves import share_axis
from steppe.report.layers import Dots, Layer, Line, Mark, tone_class
from steppe.report.markup import Markup, tag
from steppe.report.numbers import percent, short
from steppe.report.page import text_of
from steppe.report.run import number
from steppe.utils.files import write_atomically

_WIDTH, _HEIGHT, _HEAD, _GAP, _TITLE = 430, 310, 74, 24, 30
_COLUMNS = 2
_PUBLISHED = "published, no public data"
_STYLE = """
.card { fill: var(--card); }
.title { font-size: 15px; font-weight: 600; fill: var(--ink); }
.mark circle { opacity: .7; }
"""


@dataclass(frozen=True)
class AccuracyDot:
    """The accuracy of one training run.

    Args:
        data: the data set.
        recipe: how it was trained.
        epsilon: what it may spend.
        seed: which repetition.
        accuracy: on the test set.
    """

    data: str
    recipe: str
    epsilon: float
    seed: int
    accuracy: float


@dataclass(frozen=True)
class PublishedFigure:
    """An accuracy that others have published.

    Args:
        data: the data set.
        epsilon: what was spent.
        accuracy: on the test set.
        source: who, and how, in a few words.
    """

    data: str
    epsilon: float
    accuracy: float
    source: str


def picture(results: Path, out: Path, baseline: str | None = None) -> Path:
    """Draw accuracy against ε, one panel for each data set, as an SVG for light and dark pages.

    Args:
        results: stored runs of an experiment whose constants have `data`, `recipe` and `epsilon`
            and whose measurements have `accuracy`, such as `benchmarks/results/defaults.json`.
        out: the SVG to write.
        baseline: the recipe that is drawn in grey.

    Returns:
        The picture's path.

    Raises:
        DataError: the file is not such JSON, or has no runs.
    """
    try:
        found = json.loads(Path(results).read_bytes())
    except (OSError, ValueError):
        raise _damaged(results, "cannot be read as JSON") from None
    runs = found.get("runs") if isinstance(found, dict) else None
    if not isinstance(runs, list) or not runs:
        raise _damaged(results, "must have a list of runs, not empty")
    write_atomically(Path(out), draw([_measured(results, run) for run in runs], baseline).encode())
    return Path(out)


def draw(
    runs: Sequence[AccuracyDot],
    baseline: str | None = None,
    published: Sequence[PublishedFigure] = (),
) -> str:
    """The picture as text, with two panels in a row.

    Args:
        runs: at least one.
        baseline: the recipe that is drawn in grey.
        published: drawn as rings in the panel of their data set.
    """
    recipes = list(dict.fromkeys(run.recipe for run in runs))
    ours = [recipe for recipe in recipes if recipe != baseline]
    tones = {recipe: ours.index(recipe) + 1 if recipe in ours else 0 for recipe in recipes}
    data = list(dict.fromkeys(run.data for run in runs))
    columns = min(len(data), _COLUMNS)
    rows = math.ceil(len(data) / columns)
    width = columns * (_WIDTH + _GAP) + _GAP
    height = rows * (_HEIGHT + _GAP + _TITLE) + _HEAD - _TITLE
    panels = []
    for place, name in enumerate(data):
        others = [figure for figure in published if figure.data == name]
        chart = _panel(f"panel-{place}", [run for run in runs if run.data == name], tones, others)
        heading = tag("text", name, class_="title", x=2.0, y=-6.0)
        row, column = divmod(place, columns)
        left, top = _GAP + column * (_WIDTH + _GAP), _HEAD + row * (_HEIGHT + _GAP + _TITLE)
        drawn = (heading, chart.svg(_WIDTH, _HEIGHT, 4))
        panels.append(tag("g", drawn, transform=f"translate({left} {top})"))
    title = "Test accuracy against ε; every dot is a seed, lines join the means"
    return tag(
        "svg",
        tag("title", title),
        tag("style", Markup(text_of("figure.css") + _STYLE)),
        tag("rect", class_="card", width=width, height=height, rx=12.0),
        _legend(tones, bool(published)),
        panels,
        xmlns="http://www.w3.org/2000/svg",
        view_box=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
    )


def _panel(
    key: str,
    runs: Sequence[AccuracyDot],
    tones: dict[str, int],
    published: Sequence[PublishedFigure],
) -> Chart:
    layers: list[Layer] = []
    for recipe, tone in tones.items():
        own = [run for run in runs if run.recipe == recipe]
        dots = [
            Mark(r.epsilon, r.accuracy, f"ε {short(r.epsilon)}, seed {r.seed}", _words(r.accuracy))
            for r in own
        ]
        means = []
        for epsilon in sorted({run.epsilon for run in own}):
            mean = statistics.fmean(run.accuracy for run in own if run.epsilon == epsilon)
            means.append(Mark(epsilon, mean, f"ε {short(epsilon)}", f"mean {_words(mean)}"))
        if own:
            layers += [Line(recipe, tone, means), Dots(recipe, tone, dots)]
    if published:
        rings = [
            Mark(f.epsilon, f.accuracy, f"ε {short(f.epsilon)}, {f.source}", _words(f.accuracy))
            for f in published
        ]
        layers.append(Dots(_PUBLISHED, 0, rings, hollow=True))
    drawn: list[AccuracyDot | PublishedFigure] = [*runs, *published]
    x = Axis.around("ε", [one.epsilon for one in drawn])
    y = share_axis("test accuracy", [one.accuracy for one in drawn])
    return Chart(key, "Accuracy against ε", "", x, y, layers, "ε")


def _legend(tones: dict[str, int], with_published: bool) -> Markup:
    entries, left = [], float(_GAP)
    for recipe, tone in tones.items():
        swatch = tag("line", class_="line", x1=left, x2=left + 20, y1=26.0, y2=26.0)
        entries.append(tag("g", swatch, class_=tone_class(tone)))
        entries.append(tag("text", recipe, class_="note", x=left + 28, y=30.0))
        left += 52 + 7.0 * len(recipe)
    if with_published:
        ring = tag("circle", cx=left + 10, cy=26.0, r=5.0)
        entries.append(tag("g", ring, class_=f"series {tone_class(0)} hollow"))
        entries.append(tag("text", _PUBLISHED, class_="note", x=left + 28, y=30.0))
    return tag("g", entries)


def _measured(path: Path, run: Any) -> AccuracyDot:
    facts = run if isinstance(run, dict) else {}
    constants, measured = (
        part if isinstance(part := facts.get(key), dict) else {}
        for key in ("constants", "measured")
    )
    epsilon, accuracy = number(constants, "epsilon"), number(measured, "accuracy")
    seed = number(facts, "seed")
    if epsilon is None or seed is None or accuracy is None:
        raise _damaged(path, f"run {run!r} must have epsilon, seed and accuracy")
    data, recipe = (str(constants.get(key, "")) for key in ("data", "recipe"))
    return AccuracyDot(data, recipe, epsilon, int(seed), accuracy)


def _words(accuracy: float) -> str:
    return percent(accuracy, 2)


def _damaged(path: Path, rule: str) -> DataError:
    return DataError.about("file", path, rule, "run the benchmark that writes it")
