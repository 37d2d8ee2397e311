"""The page of all tables and figures: it is up to date, and its numbers are those stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steppe.papers import Column, Experiment, ExperimentRun, catalogue, coverage
from steppe.papers.coverage import item
from steppe.papers.results import Results

FOLDER = Path(__file__).parents[2] / "docs" / "results"
ITEMS = [one for items in coverage.PAPERS.values() for one in items]


def test_the_page_is_up_to_date() -> None:
    """After new runs or new items: `steppe papers overview`."""
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == coverage.text(FOLDER)


@pytest.mark.parametrize("one", ITEMS, ids=lambda one: one.name)
def test_each_item_names_settings_and_columns_that_exist(one: coverage.Item) -> None:
    if one.experiment is None:
        assert one.why_not
        return
    experiment = catalogue.find(one.experiment)
    assert item.places(one)
    for setting, name in item.places(one):
        assert setting in experiment.settings
        runs = [run for run in Results(experiment, FOLDER).current() if run.setting == setting]
        for run in runs[:1]:
            assert item._within(run.measured, name) is not None, name


def test_every_experiment_of_a_paper_is_on_the_page() -> None:
    named = {one.experiment for one in ITEMS}
    papers = {e.name for e in catalogue.experiments() if e.paper != "No paper"}
    assert papers == named - {None}


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("DP-SWA", {"Table": 4, "Figure": 4}),
        ("recycling", {"Table": 9, "Figure": 5}),
        ("DPAdapter", {"Table": 3, "Figure": 6}),
        ("DP-SAT", {"Table": 12, "Figure": 16}),
    ],
)
def test_no_table_or_figure_is_left_out(title: str, kinds: dict[str, int]) -> None:
    (items,) = (items for name, items in coverage.PAPERS.items() if title in name)
    for kind, last in kinds.items():
        found: set[int] = set()
        for one in items:
            for part in re.findall(rf"{kind}s? ((?:\d+(?:, | and )?)+)", one.name):
                found |= {int(number) for number in re.findall(r"\d+", part)}
        assert found == set(range(1, last + 1))


def test_every_figure_of_the_report_is_there() -> None:
    (items,) = (items for name, items in coverage.PAPERS.items() if name.startswith("Guo"))
    names = " ".join(one.name for one in items)
    for figure in ("3.1", *(f"5.{i}" for i in range(1, 18)), "A.1", "A.2"):
        assert re.search(rf"\b{re.escape(figure)}\b", names), figure


def made_up(*values: tuple[str, int, float]) -> tuple[Experiment, list[ExperimentRun]]:
    experiment = Experiment(
        name="coin",
        paper="Nobody",
        item="Table 0",
        settings={"fair": {}, "bent": {}},
        seeds=(0, 1, 2),
        measure=lambda constants, seed: {},
        columns=(Column("heads", "{:.1%}"),),
        expected="half",
        minutes=1.0,
    )
    runs = [
        ExperimentRun(setting, seed, {}, {"heads": value, "curve": [0.0, seed]}, 1.0, 1, "", "", "")
        for setting, seed, value in values
    ]
    return experiment, runs


def test_numbers_come_from_stored_runs_with_their_seeds() -> None:
    one = coverage.Item(
        name="Table 0",
        says="half",
        experiment="coin",
        came="{fair|heads}; {bent|heads}; {bent − fair|heads}; end {fair|curve > 1}",
    )
    experiment, runs = made_up(("fair", 0, 0.4), ("fair", 1, 0.5), ("fair", 2, 0.6))
    text = item.filled(one, experiment, runs)
    assert text == "50.0% ± 24.8%; –; –; end 1 ± 2.48 (3 seeds)"
    _, more = made_up(("bent", 0, 0.9), ("bent", 2, 0.7))
    text = item.filled(one, experiment, [*runs, *more])
    assert text is not None
    assert "; 90.0% / 70.0%; +50.0% / +10.0%; " in text
    assert text.endswith("(2 to 3 seeds)")
    assert item.filled(one, experiment, []) is None


@pytest.mark.parametrize(
    ("bent", "verdict"),
    [
        ((0.9, 0.8, 0.9), "yes"),
        ((0.1, 0.2, 0.1), "no"),
        ((0.5, 0.5, 0.6), "undecided"),
        ((0.9, 0.8), "undecided"),  # two seeds decide nothing, however far they lie
        ((), "undecided"),
    ],
)
def test_agreement_is_read_off_the_intervals(bent: tuple[float, ...], verdict: str) -> None:
    claims = (("bent − fair", "heads"),)
    one = coverage.Item(name="Table 0", says="bent is higher", experiment="coin", claims=claims)
    fair = [("fair", seed, value) for seed, value in enumerate((0.5, 0.4, 0.55))]
    _, runs = made_up(*fair, *(("bent", seed, value) for seed, value in enumerate(bent)))
    assert item.agrees(one, runs) == verdict
    assert item.agrees(coverage.Item(name="Table 0", says="", experiment="coin"), runs) == ""
    within = coverage.Item(
        name="", says="", experiment="coin", claims=(("fair", "heads − curve > 0"),)
    )
    assert item.agrees(within, runs) == "yes"


def test_the_page_is_rewritten_where_it_is(tmp_path: Path) -> None:
    assert coverage.rewritten(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    page = coverage.write(tmp_path)
    assert coverage.counts(tmp_path)["done"] == 0
    assert "| not run yet; " in page.read_text(encoding="utf-8")
    assert coverage.rewritten(tmp_path) is None
    page.write_text("old")
    assert coverage.rewritten(tmp_path) == page
