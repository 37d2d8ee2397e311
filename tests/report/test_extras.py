"""Measurements that are kept with a run: merged, finite, and of known kinds only."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from pathlib import Path

import pytest
import torch
from report_runs import measure, write_run

from steppe.averaging import Prediction
from steppe.errors import ConfigurationError
from steppe.flatness import HessianTrace, LossLine, gradient_norm_histogram
from steppe.report import add_flatness, add_gradient_norms, add_intervals, extras


def test_each_part_replaces_its_own_kind_and_keeps_the_others(tmp_path: Path) -> None:
    folder = measure(write_run(tmp_path / "run"))
    before = json.loads((folder / "figures.json").read_text())
    add_flatness(folder, {"last": [HessianTrace((1.0, 3.0))]}, data="test set", public=True)
    after = json.loads((folder / "figures.json").read_text())
    assert after.keys() == before.keys() == {"flatness", "intervals", "gradient_norms"}
    assert after["flatness"]["models"] == {"last": {"trace": {"samples": [1.0, 3.0]}}}
    assert after["intervals"] == before["intervals"]


def test_two_that_add_at_the_same_moment_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "log.jsonl").write_bytes(b"\xff")  # another file's damage is not in the way
    write, both_have_read = extras.write_json, threading.Barrier(2)

    def write_late(path: Path, value: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one has to wait
            both_have_read.wait(timeout=0.2)
        write(path, value)

    monkeypatch.setattr(extras, "write_json", write_late)
    norms = gradient_norm_histogram(torch.tensor([0.5, 2.0]), clip=1.0)
    trace = {"last": [HessianTrace((1.0, 3.0))]}
    adding = [
        threading.Thread(target=lambda: add_flatness(folder, trace, data="x", public=True)),
        threading.Thread(target=lambda: add_gradient_norms(folder, norms, data="x")),
    ]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert json.loads((folder / "figures.json").read_text()).keys() == {
        "flatness",
        "gradient_norms",
    }


def test_intervals_that_are_all_points_have_a_histogram(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    certain = torch.eye(2)[[0, 1, 1]]
    same = torch.ones(3)
    prediction = Prediction(
        certain.argmax(-1), certain, certain, certain, same, 0 * same, count=5, interval=0.95
    )
    targets = torch.tensor([0, 1, 0])
    add_intervals(folder, prediction, targets, model="OPA", data="x", public=True)
    kept = json.loads((folder / "figures.json").read_text())["intervals"]
    assert kept["median_width"] == 0.0
    assert (kept["edges"][0], kept["edges"][-1]) == (0.0, 1.0)
    assert kept["counts"] == [3] + 19 * [0]


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    line = LossLine((-1.0, 0.0, 1.0), (math.inf, 0.5, math.nan), (None, None, None))
    add_flatness(folder, {"last": [line]}, data="test set", public=True)
    kept = json.loads((folder / "figures.json").read_text())["flatness"]["models"]["last"]["line"]
    assert kept["losses"] == [None, 0.5, None]


def test_measures_that_are_no_numbers_are_refused_before_a_page_fails_over_them(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "run")
    with pytest.raises(
        ConfigurationError, match=r"results='HessianTrace': of 'last' must be finite num"
    ):
        add_flatness(
            folder, {"last": [HessianTrace((math.nan, 1.0))]}, data="test set", public=True
        )
    assert not (folder / "figures.json").exists()


def test_the_histogram_keeps_how_it_may_be_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    norms = gradient_norm_histogram(torch.tensor([0.5, 2.0, math.inf]), clip=1.0)
    add_gradient_norms(folder, norms, data="train set", accounted=True)
    kept = json.loads((folder / "figures.json").read_text())["gradient_norms"]
    assert (kept["public"], kept["accounted"], kept["not_finite"]) == (False, True, 1)
    assert kept["clipped_share"] == pytest.approx(2 / 3)


def test_what_the_page_cannot_draw_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with pytest.raises(
        ConfigurationError, match=r"must be one of Eigenvalues, LossLine, .*; leave it"
    ):
        add_flatness(folder, {"last": [torch.zeros(2)]}, data="x", public=True)  # type: ignore[list-item]
    assert not (folder / "figures.json").exists()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no run in it"):
        add_flatness(tmp_path, {}, data="x", public=True)
