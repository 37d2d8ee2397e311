"""The pages' tables are what is stored, no more and no less."""

from __future__ import annotations

import pytest

from benchmarks import pages
from benchmarks.pages import Runs
from steppe.papers.experiment import ExperimentRun


@pytest.fixture(scope="module")
def runs() -> dict[str, Runs]:
    return pages.stored_runs()


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_says_what_is_stored(name: str, runs: dict[str, Runs]) -> None:
    page = (pages.ROOT / name).read_text(encoding="utf-8")
    assert "<!-- table of " in page
    assert pages.filled(page, runs) == page  # else: python -m benchmarks.pages


def one(seed: int, accuracy: float) -> ExperimentRun:
    constants = {"data": "cifar10", "epsilon": 3.0, "recipe": "patches"}
    measured = {"accuracy": accuracy, "EMA": 0.5}
    return ExperimentRun("a", seed, constants, measured, 1.0, 1, "", "", "")


def test_a_mean_has_its_spread_and_its_seeds() -> None:
    three = [one(seed, 0.7 + 0.01 * seed) for seed in range(3)]
    assert pages.mean(three, "cifar10", 3.0, "patches") == "71.00 ± 1.00, 3 seeds"
    assert pages.mean(three[:1], "cifar10", 3.0, "patches") == "70.00, 1 seed"
    assert pages.mean(three, "cifar10", 1.0, "patches") == "–"
    five = [one(seed, 0.7) for seed in range(5)]
    assert pages.mean(five, "cifar10", 3.0, "patches") == "70.00 ± 0.00"
    assert pages.mean(five, "cifar10", 3.0, "patches", "EMA") == "50.00 ± 0.00"


def test_a_published_figure_stands_beside_its_budget() -> None:
    table = pages.beside_published([one(0, 0.77)])
    (line,) = [line for line in table.splitlines() if line.startswith("| CIFAR-10 | 3 ")]
    assert "77.00, 1 seed" in line
    assert "69.3 (3), ScatterNet" in line
    assert "73.5" not in line  # at ε = 4
