"""The README's picture: every seed is a dot, every mean is right, bad files are named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_runs import HOSTILE

from steppe.errors import DataError
from steppe.report import picture
from steppe.report.picture import AccuracyDot, PublishedFigure, draw


def runs(recipes: tuple[str, ...] = ("baseline", "ours")) -> list[AccuracyDot]:
    return [
        AccuracyDot(data, recipe, epsilon, seed, 0.8 + 0.02 * epsilon + 0.03 * place + 0.001 * seed)
        for data in ("MNIST", "Fashion-MNIST")
        for place, recipe in enumerate(recipes)
        for epsilon in (1.0, 2.0, 3.0)
        for seed in range(5)
    ]


def stored(found: list[AccuracyDot]) -> str:
    """The runs as the benchmark stores them."""
    rows = [
        {
            "seed": run.seed,
            "constants": {"data": run.data, "recipe": run.recipe, "epsilon": run.epsilon},
            "measured": {"accuracy": run.accuracy, "last": 0.5},
        }
        for run in found
    ]
    return json.dumps({"experiment": "defaults", "runs": rows})


def test_every_seed_and_every_mean_is_drawn() -> None:
    svg = draw(runs(), baseline="baseline")
    assert svg.count("<circle") == 2 * 2 * (3 * 5 + 3)
    assert svg.replace("\u202f", " ").count("mean 82.20 %\nbaseline\nε 1") == 2
    assert svg.count('class="series t0') == svg.count('class="series t1') == 4


def test_published_figures_are_rings_in_their_panel() -> None:
    figures = [PublishedFigure("MNIST", 2.0, 0.5, "Somebody, on a GPU")]
    svg = draw(runs(), "baseline", figures)
    plain = draw(runs(), "baseline")
    assert svg.count("<circle") == plain.count("<circle") + 2  # and the legend
    words = "50.00 %\npublished, no public data\nε 2, Somebody"
    assert svg.replace("\u202f", " ").count(words) == 1
    ElementTree.fromstring(svg)  # noqa: S314 - our own picture


def test_a_third_panel_is_in_a_second_row() -> None:
    more = [AccuracyDot(name, "ours", 1.0, 0, 0.5) for name in ("a", "b", "c")]
    heights = [float(re.search(r'height="([\d.]+)"', draw(more[:k])).group(1)) for k in (2, 3)]  # type: ignore[union-attr]
    assert heights[1] > 1.5 * heights[0]


def test_it_is_one_well_formed_picture_without_addresses(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(stored(runs(("baseline", HOSTILE))))
    out = picture(tmp_path / "results.json", tmp_path / "picture.svg", baseline="baseline")
    root = ElementTree.fromstring(out.read_text())  # noqa: S314 - our own picture
    names = {element.tag.split("}")[1] for element in root.iter()}
    assert names <= {
        "svg",
        "title",
        "style",
        "rect",
        "g",
        "line",
        "text",
        "path",
        "circle",
        "clipPath",
    }
    assert out.read_text().count("<circle") == draw(runs(), "baseline").count("<circle")
    addresses = set(re.findall(r"https?://[^\"\s]+", out.read_text()))
    assert addresses == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", "cannot be read as JSON; run the benchmark"),
        ("[]", "must have a list of runs, not empty"),
        ('{"runs": []}', "must have a list of runs, not empty"),
        (
            '{"runs": [{"constants": {"epsilon": 1}, "seed": 0}]}',
            "must have epsilon, seed and accuracy",
        ),
        ('{"runs": [3]}', "run 3 must have epsilon, seed and accuracy"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(DataError, match=rf"results\.json': .*{rule}"):
        picture(tmp_path / "results.json", tmp_path / "picture.svg")
