"""The runner stores each run as it ends, resumes, never repeats and stops in time."""

from __future__ import annotations

import json
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steppe.cli import main
from steppe.errors import ConfigurationError, DataError
from steppe.papers import (
    Column,
    Constants,
    Experiment,
    ExperimentRun,
    catalogue,
    overview,
    runner,
    summary,
)
from steppe.papers.results import Results
from steppe.papers.summary import difference, interval, mean, table


class Counting:
    """A measurement that remembers how often it was asked, and may fail."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.asked: list[tuple[float, int]] = []
        self.fail_at = fail_at

    def __call__(self, constants: Constants, seed: int) -> Mapping[str, Any]:
        if len(self.asked) == self.fail_at:
            raise RuntimeError("power cut")
        self.asked.append((constants["level"], seed))
        return {"value": constants["level"] + seed, "curve": [1, 2]}


def make(measure: Counting, **changes: Any) -> Experiment:
    experiment = Experiment(
        name="made-up",
        paper="Nobody",
        item="Table 0",
        settings={"low": {"level": 1.0}, "high": {"level": 2.0}},
        seeds=(0, 1),
        measure=measure,
        columns=(Column("value", "{:.1f}"),),
        expected="high is higher",
        minutes=1.0,
        baseline="low",
    )
    return replace(experiment, **changes)


def run(results: Results, choice: runner.RunFilter = runner.RunFilter()) -> tuple[int, list[str]]:  # noqa: B008
    said: list[str] = []
    return runner.run(results, choice, "python -m steppe.papers run made-up", said.append), said


def test_everything_is_stored_seed_by_seed(tmp_path: Path) -> None:
    measure = Counting()
    results = Results(make(measure), tmp_path / "new" / "folder")
    left, said = run(results)
    assert left == 0
    assert measure.asked == [(1.0, 0), (2.0, 0), (1.0, 1), (2.0, 1)]
    stored = json.loads(results.path.read_text())
    assert stored["stamp"].startswith("NOT PRIVATE")
    row = stored["runs"][0]
    assert row["setting"] == "low"
    assert row["constants"] == {"level": 1.0}
    assert row["measured"]["value"] == 1.0
    assert row["command"] == "python -m steppe.papers run made-up"
    assert row["version"]
    assert row["date"].endswith("+00:00")
    assert row["seconds"] >= 0
    assert said[0] == "made-up: 4 runs left, about 4 min"


def test_a_run_that_was_cut_off_resumes_and_repeats_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="power cut"):
        run(Results(make(Counting(fail_at=3)), tmp_path))
    measure = Counting()
    run(Results(make(measure), tmp_path))
    assert measure.asked == [(2.0, 1)]
    again = Counting()
    run(Results(make(again), tmp_path))
    assert again.asked == []


def test_what_another_table_has_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, stranger = Counting(), Counting()
    settings = {"first": {"level": 2.0}, "second": {"level": 5.0}}
    other = make(measure, name="other", settings=settings, baseline=None)
    strange = make(stranger, name="strange", settings={"low": {"level": 1.0}}, seeds=(1,))
    monkeypatch.setattr(catalogue, "experiments", lambda: iter([other, strange]))
    run(Results(strange, tmp_path))
    run(Results(other, tmp_path), runner.RunFilter(seeds=[0]))
    assert measure.asked == [(2.0, 0), (5.0, 0)]
    _, said = run(Results(make(measure), tmp_path))
    # Neither another seed, nor another level, nor another function will do.
    assert measure.asked[2:] == [(1.0, 0), (1.0, 1), (2.0, 1)]
    assert said[0] == "  high, seed 0: taken over from other"
    taken = next(r for r in Results(make(measure), tmp_path).read() if r.constants["level"] == 2.0)
    assert (taken.setting, taken.seed, taken.measured["value"]) == ("high", 0, 2.0)


def test_the_choice_narrows_the_run(tmp_path: Path) -> None:
    measure = Counting()
    run(Results(make(measure), tmp_path), runner.RunFilter(seeds=[7], settings=["high"]))
    assert measure.asked == [(2.0, 7)]
    with pytest.raises(ConfigurationError, match="settings='hihg': must be one of 'low', 'high'"):
        run(Results(make(measure), tmp_path), runner.RunFilter(settings=["hihg"]))


def test_it_stops_before_a_run_that_would_end_too_late(tmp_path: Path) -> None:
    measure = Counting()
    left, said = run(Results(make(measure), tmp_path), runner.RunFilter(minutes=0.5))
    assert left == 4
    assert measure.asked == []
    assert "stopped: the next run needs 60.0 s" in said[-1]
    left, _ = run(Results(make(measure), tmp_path), runner.RunFilter(minutes=1.5))
    assert left == 0  # the first run was quick, and measured times replace the guess


def test_the_time_left_comes_from_measured_times(tmp_path: Path) -> None:
    experiment = make(Counting())
    stored = [_row("low", 0, seconds=10), _row("low", 1, seconds=30), _row("high", 0, seconds=99)]
    assert runner.expected_seconds(experiment, stored, "low") == 20
    assert runner.expected_seconds(experiment, stored[:2], "high") == 20
    assert runner.expected_seconds(experiment, [], "high") == 60


def test_changed_constants_are_not_mixed_with_old_results(tmp_path: Path) -> None:
    run(Results(make(Counting()), tmp_path))
    changed = make(Counting(), settings={"low": {"level": 1.0}, "high": {"level": 3.0}})
    with pytest.raises(DataError, match=r"setting='high': was run with other constants \(level\)"):
        run(Results(changed, tmp_path))


def test_a_setting_that_is_gone_keeps_its_rows_and_is_not_shown(tmp_path: Path) -> None:
    run(Results(make(Counting()), tmp_path))
    fewer = Results(make(Counting(), settings={"low": {"level": 1.0}}), tmp_path)
    assert [r.setting for r in fewer.current()] == ["low", "low"]
    assert len(fewer.read()) == 4


def test_a_damaged_file_is_refused_and_kept(tmp_path: Path) -> None:
    results = Results(make(Counting()), tmp_path)
    results.path.write_text('{"runs": [')
    with pytest.raises(DataError, match="must be a file that the runner wrote"):
        run(results)
    assert results.path.read_text() == '{"runs": ['


def test_the_first_of_two_equal_runs_stays(tmp_path: Path) -> None:
    results = Results(make(Counting()), tmp_path)
    for value in (1.0, 2.0):
        results.add(replace(_row("low", 0), measured={"value": value}))
    assert [run.measured["value"] for run in results.read()] == [1.0]


def test_a_run_that_diverged_is_a_result(tmp_path: Path) -> None:
    results = Results(make(Counting(), settings={"low": {"level": math.nan}}), tmp_path)
    diverged = replace(_row("low", 0), measured={"value": math.nan, "curve": [1.0, math.inf]})
    results.add(diverged)
    assert results.read()[0].measured == {"value": None, "curve": [1.0, None]}


def test_processes_that_write_together_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from test_papers_runner import Counting, make, run\n"
        "from steppe.papers import runner\n"
        "from steppe.papers.results import Results\n"
        "first = int(sys.argv[2])\n"
        "results = Results(make(Counting()), Path(sys.argv[1]))\n"
        "run(results, runner.RunFilter(seeds=range(first, first + 10)))\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(first)], cwd=Path(__file__).parent
        )
        for first in (0, 100)
    ]
    assert [process.wait() for process in started] == [0, 0]
    assert len(Results(make(Counting()), tmp_path).read()) == 40


def test_intervals_are_students(tmp_path: Path) -> None:
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert found.half == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2)
    assert interval([5.0]) == type(found)(5.0, None, (5.0,))
    assert interval([5.0, 7.0]) == type(found)(6.0, None, (5.0, 7.0))
    assert interval([]) is None


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    runs = [_row("low", seed, value=10.0 * seed) for seed in range(3)]
    runs += [_row("high", seed, value=10.0 * seed + 1) for seed in range(5)]
    found = difference(runs, "high", "low", "value")
    assert found is not None
    assert (found.mean, found.half, found.values) == (1.0, 0.0, (1.0, 1.0, 1.0))
    assert found.excludes_zero
    alone = mean(runs, "high", "value")
    assert alone is not None
    assert len(alone.values) == 5


def test_the_table_shows_means_intervals_and_differences() -> None:
    runs = [_row("low", seed, value=float(seed)) for seed in range(3)]
    runs += [_row("high", 0, value=math.nan), _row("high", 1, value=4.0)]
    lines = table(make(Counting(), judged=("value",)), runs).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == [
        "setting",
        "seeds",
        "value",
        "value − low",
    ]
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["low", "3", "1.0 ± 2.5", ""]
    assert [cell.strip() for cell in lines[3].split("|")[1:-1]] == ["high", "2", "4.0", "+3.0"]
    assert "−" not in table(make(Counting()), runs), "nothing is judged, nothing is subtracted"


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_have_no_interval_anywhere(seeds: int, tmp_path: Path) -> None:
    runs = [_row("low", seed, value=float(seed)) for seed in range(seeds)]
    runs += [_row("high", seed, value=3.5 - seed) for seed in range(seeds)]
    experiment = make(Counting(), judged=("value",))
    shown = table(experiment, runs)
    assert "±" not in shown
    assert "| 3.5 / 2.5 | +3.5 / +1.5" in shown if seeds == 2 else "| 3.5   | +3.5" in shown
    assert summary.verdicts(experiment, runs) == []
    pairs = make(Counting(), baseline=None, judged=("value",), rivals={"high": "low"})
    assert summary.verdicts(pairs, runs) == []


def test_no_stored_table_has_an_interval_from_fewer_than_three_seeds() -> None:
    folder = Path(__file__).parents[2] / "docs" / "results"
    for experiment in catalogue.experiments():
        for line in table(experiment, Results(experiment, folder).current()).splitlines()[2:]:
            assert "±" not in line or int(line.split("|")[2]) >= 3, (experiment.name, line)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Made Up"}, "name='Made Up': must be lower-case words"),
        ({"seeds": ()}, r"seeds=\(\): must not be empty"),
        ({"settings": {}}, "settings={}: must not be empty"),
        ({"baseline": "lwo"}, "baseline='lwo': must be one of low, high"),
        ({"minutes": 0}, "minutes=0: must be finite and above 0"),
    ],
)
def test_an_experiment_that_makes_no_sense_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(Counting(), **changes)


def test_a_real_experiment_is_run_shown_and_listed(tmp_path: Path) -> None:
    results = Results(catalogue.find("dp-sat-toy"), tmp_path)
    run(results, runner.RunFilter(seeds=[0], settings=["flat"]))
    assert "| flat" in overview.shown(results)
    assert (tmp_path / "dp-sat-toy.png").stat().st_size > 1000
    assert re.search(r"\| dp-sat-toy +\| 1 of 10 +\|", overview.listed(tmp_path))
    with pytest.raises(ConfigurationError, match="did you mean 'dp-sat-toy'"):
        catalogue.find("dp-sta-toy")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "dp-sat-toy"], 0),
        (["run", "dp-sat-toy", "--minutes", "0.000001"], 1),
        (["show", "dp-sta-toy"], 2),
    ],
)
def test_the_module_is_the_command(
    words: list[str],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*words, "--results", str(tmp_path)]
    assert main(["papers", *words]) == code
    expected = capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["steppe.papers", *words])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("steppe.papers", run_name="__main__")
    assert stop.value.code == code
    assert capsys.readouterr() == expected


def test_names_are_unique_and_every_figure_is_drawn_from_stored_runs() -> None:
    names = [experiment.name for experiment in catalogue.experiments()]
    assert len(names) == len(set(names))


def _row(setting: str, seed: int, seconds: float = 1.0, value: float = 0.0) -> ExperimentRun:
    return ExperimentRun(setting, seed, {}, {"value": value}, seconds, 1, "", "", "")
