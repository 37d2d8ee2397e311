"""Pages of results show what is stored, and nothing else on them is touched."""

from __future__ import annotations

import contextlib
import re
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from steppe.errors import ConfigurationError
from steppe.papers import (
    Column,
    Experiment,
    ExperimentRun,
    catalogue,
    combinations,
    dp_adapter,
    dp_sat,
    dp_swa,
    pages,
    recycling,
    weight_decay,
)
from steppe.papers.pages import block, refresh
from steppe.papers.results import Results

FOLDER = Path(__file__).parent.parent.parent / "docs" / "results"
PAGES = (
    "dp-swa.md",
    "recycling.md",
    "dp-sat.md",
    "weight-decay.md",
    "dpadapter.md",
    "combinations.md",
)


def make() -> Experiment:
    return Experiment(
        name="made-up",
        paper="Nobody",
        item="Table 0",
        settings={"low": {}, "high": {}},
        seeds=(0,),
        measure=lambda constants, seed: {},
        columns=(Column("value", "{:.1f}"),),
        expected="high is higher",
        minutes=2.0,
    )


def test_the_place_between_the_marks_is_rewritten_and_the_rest_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    mark = "<!-- results of made-up -->\nold\n<!-- end of made-up -->"
    other = "<!-- results of made-up-too -->\nkept\n<!-- end of made-up-too -->"
    page.write_text(f"before\n{mark}\nbetween\n{other}\nafter\n")
    results = Results(make(), tmp_path)
    assert refresh(results) == [page]
    assert (
        "0 runs, 0.0 s; 2 are left, about 4 min.\n\nExpected: high is higher." in page.read_text()
    )
    results.add(ExperimentRun("low", 0, {}, {"value": 7.0}, 30.0, 1, "", "", ""))
    results.picture.write_bytes(b"picture")
    assert refresh(results) == [page]
    text = page.read_text()
    assert "1 runs (seed 0), 30.0 s in all on 1 thread; 1 are left, about 30.0 s." in text
    assert re.search(r"\| low +\| 1 +\| 7.0 +\|", text)
    assert "![Table 0](made-up.png)" in text
    assert text.startswith("before\n<!--")
    assert f"between\n{other}\nafter\n" in text
    assert "old" not in text
    assert refresh(results) == []


def test_experiments_that_end_together_both_reach_the_page_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, names = tmp_path / "page.md", ("made-up", "made-up-too")
    page.write_text("".join(f"<!-- results of {n} -->\n<!-- end of {n} -->\n" for n in names))
    page.chmod(0o644)
    both_have_read = threading.Barrier(2)

    def late(results: Results) -> str:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one has to wait
            both_have_read.wait(timeout=0.2)
        return f"shown: {results.experiment.name}\n"

    monkeypatch.setattr(pages, "block", late)
    ending = [
        threading.Thread(target=refresh, args=[Results(replace(make(), name=name), tmp_path)])
        for name in names
    ]
    for thread in ending:
        thread.start()
    for thread in ending:
        thread.join()
    assert re.findall(r"shown: (\S+)", page.read_text()) == list(names)
    assert stat.S_IMODE(page.stat().st_mode) == 0o644  # as it was: people read it too


def seeds(setting: str, *values: float) -> list[ExperimentRun]:
    return [
        ExperimentRun(setting, seed, {}, {"value": value}, 1.0, 1, "", "", "")
        for seed, value in enumerate(values)
    ]


def test_the_page_says_what_intervals_decide(tmp_path: Path) -> None:
    results = Results(replace(make(), seeds=(0, 1, 2), judged=("value",)), tmp_path)
    for run in [*seeds("low", -1.0, -1.1, -0.9), *seeds("high", 2.0)]:
        results.add(run)
    text = block(results)
    assert "4 runs (seeds 0 to 2), 4.0 s in all on 1 thread; 2 are left" in text
    assert "95 % intervals of the numbers lie:\n\n- low: value below zero.\n" in text
    assert "- high" not in text  # one seed decides nothing
    for run in seeds("high", 2.0, 9.0, -3.0)[1:]:
        results.add(run)
    assert "- low: value below zero.\n- high: value undecided.\n" in block(results)


def test_with_a_baseline_the_differences_are_judged(tmp_path: Path) -> None:
    """Seeds move both settings alike: the difference is decided where the numbers are not."""
    results = Results(replace(make(), baseline="low", judged=("value",)), tmp_path)
    for run in [*seeds("low", 10.0, 20.0, 30.0), *seeds("high", 11.0, 21.1, 30.9)]:
        results.add(run)
    text = block(results)
    assert "intervals of the differences to low lie:\n\n- high: value above zero.\n" in text
    assert "- low" not in text


def test_pairs_are_judged_with_their_numbers(tmp_path: Path) -> None:
    pairs = replace(make(), judged=("value",), rivals={"high": "low"})
    results = Results(pairs, tmp_path)
    for run in [*seeds("low", 10.0, 20.0, 30.0), *seeds("high", 9.0, 19.0, 29.0)]:
        results.add(run)
    text = block(results)
    assert "of the differences lie:\n\n- high − low: value (-1.0 ± 0.0) below zero.\n\n" in text


def test_only_columns_and_settings_are_judged() -> None:
    with pytest.raises(ConfigurationError, match="judged='other'"):
        replace(make(), judged=("other",))
    with pytest.raises(ConfigurationError, match="rivals='middle'"):
        replace(make(), rivals={"low": "middle"})


@pytest.mark.parametrize("page", PAGES)
def test_every_mark_names_an_experiment(page: str) -> None:
    known = {experiment.name for experiment in catalogue.experiments()}
    text = (FOLDER / page).read_text()
    marks = re.findall(r"<!-- results of (\S+) -->", text)
    assert marks == re.findall(r"<!-- end of (\S+) -->", text)
    assert set(marks) <= known


def test_every_experiment_of_these_papers_has_a_place() -> None:
    text = "".join((FOLDER / page).read_text() for page in PAGES)
    for paper in (dp_swa, recycling, dp_sat, weight_decay, dp_adapter, combinations):
        for experiment in paper.EXPERIMENTS:
            assert f"<!-- results of {experiment.name} -->" in text
