"""A tiny run writes rows that can be read back, and a missed bar is an exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import engines, settings, timing
from benchmarks.bars import Row, evaluate
from benchmarks.cases import CASES
from benchmarks.clipping import main
from benchmarks.memory import Peak, PeakMemoryUnavailable, measure
from benchmarks.report import Physical, Remark, Report


@pytest.fixture(autouse=True)
def short_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short slots on one thread."""
    monkeypatch.setattr(settings, "THREADS", 1)
    monkeypatch.setattr(timing, "SLOT_SECONDS", 0.01)


@pytest.mark.slow
def test_one_round_writes_valid_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.json"
    arguments = ["--models", "e-logistic", "--engines", "opacus-ghost", "--rounds", "1"]
    assert main([*arguments, "--output", str(output)]) == 0
    report = json.loads(output.read_text())
    assert {"date", "command", "machine", "rows", "bars", "failures"} <= set(report)
    assert report["failures"] == []
    found = [(row["model"], row["batch"], row["engine"]) for row in report["rows"]]
    assert found == [("e-logistic", 512, name) for name in ("plain", "opacus-ghost")]
    for row in report["rows"]:
        assert set(row) == {"model", "batch", "engine", "ratio", "peak_mb"}
        assert row["ratio"] > 0
        assert row["peak_mb"] > 0
        assert row["engine"] != "plain" or row["ratio"] == 1.0
    assert "peak MB" in capsys.readouterr().out


def test_failures_of_our_engine_miss_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("cannot run this")

    monkeypatch.setattr("benchmarks.memory.measure", lambda *_: Peak(1.0, 2.0))
    monkeypatch.setitem(engines._STEPPE, "steppe", broken)
    output = tmp_path / "rows.json"
    arguments = ["--models", "e-logistic", "--engines", "steppe", "--rounds", "1"]
    assert main([*arguments, "--output", str(output)]) == 1
    report = json.loads(output.read_text())
    assert report["failures"][0]["text"] == "RuntimeError: cannot run this"


def test_a_later_run_replaces_what_it_measured_again(tmp_path: Path) -> None:
    def row(model: str, engine: str, ratio: float, peak_mb: float | None) -> Row:
        return Row(model=model, batch=256, engine=engine, ratio=ratio, peak_mb=peak_mb)

    output = tmp_path / "rows.json"
    first = Report("first")
    first.rows = [row("a", "plain", 1.0, 9.0), row("a", "vmap", 0.5, 8.0), row("b", "vmap", 0.6, 7)]
    first.notes = [Remark("a", 256, "vmap", "old"), Remark("b", 256, "vmap", "kept")]
    first.physical_batches = [Physical("a", 256, "vmap", 16)]
    first.write(output)
    second = Report("second")
    second.rows = [row("a", "vmap", 0.55, None)]
    second.physical_batches = [Physical("a", 256, "vmap", 32)]
    stored = Report.read(output, "second")
    stored.take_over(second)
    stored.write(output)
    content = json.loads(output.read_text())
    assert content["command"] == "second"
    assert [(r["model"], r["engine"], r["ratio"], r["peak_mb"]) for r in content["rows"]] == [
        ("a", "plain", 1.0, 9.0),
        ("a", "vmap", 0.55, 8.0),  # the peak that a quick run left out
        ("b", "vmap", 0.6, 7),
    ]
    assert [note["text"] for note in content["notes"]] == ["kept"]
    assert [p["records"] for p in content["physical_batches"]] == [32]


def test_rows_of_another_machine_are_not_mixed_in(tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    report = Report("first")
    report.rows = [Row(model="a", batch=256, engine="plain", ratio=1.0, peak_mb=None)]
    report.write(output)
    content = json.loads(output.read_text())
    content["machine"]["processor"] = "another one"
    output.write_text(json.dumps(content))
    assert Report.read(output, "second").rows == []


def test_bars_hold_on_the_right_side() -> None:
    [case] = [case for case in CASES if (case.model, case.batch) == ("b", 256)]

    def row(engine: str, ratio: float, peak_mb: float) -> Row:
        return Row(model="b", batch=256, engine=engine, ratio=ratio, peak_mb=peak_mb)

    good = [
        row("plain", 1.0, 100),
        row("steppe", 0.86, 120),
        row("steppe-micro", 0.8, 80),
        row("opacus-hooks", 0.5, 900),
        row("vmap", 0.84, 300),
    ]
    assert [bar.holds for bar in evaluate([case], good)] == [True] * 5
    bad = [
        row("plain", 1.0, 100),
        row("steppe", 0.84, 131),
        row("steppe-micro", 0.8, 86),
        row("opacus-hooks", 0.6, 900),
        row("vmap", 0.85, 300),
    ]
    assert [bar.holds for bar in evaluate([case], bad)] == [False] * 5


def test_ratio_forgets_drift_and_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own: the machine slows down all the time and one step is disturbed."""
    now, taken = 0.0, 0

    def step_of(seconds: float) -> timing.Step:
        def step() -> None:
            nonlocal now, taken
            taken += 1
            now += seconds * 1.05**taken * (20 if taken == 4 else 1)

        return step

    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: now)
    lengths = {"plain": 1.0, "longer": 1.5, "slow": 50.0, "aside": 1.0}
    steps = {name: step_of(seconds) for name, seconds in lengths.items()}
    timings = timing.interleave(steps, rounds=7, slow_rounds=2, beside=["aside"])
    assert timings["plain"].ratio == 1.0
    assert timings["longer"].ratio == pytest.approx(1 / 1.5, rel=0.1)
    assert [timings[name].rounds for name in steps] == [7, 7, 2, 2]


@pytest.mark.slow
def test_peak_memory_failure_says_why() -> None:
    [case] = [case for case in CASES if case.model == "e-mlp"]
    with pytest.raises(PeakMemoryUnavailable, match="KeyError"):
        measure(case, "no-such-engine", 32)
