"""What the page says about ε agrees with the mathematics and with attacks."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from report_runs import write_run

from steppe.report.page import render
from steppe.report.run import read_run
from steppe.report.sections import run_sections, tiles
from steppe.report.words import best_guess, bounds, most_found, plain_words


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 8.0])
def test_the_bounds_are_those_of_randomised_response(epsilon: float) -> None:
    """Telling the truth with chance e^ε/(1 + e^ε) is (ε, 0)-private and reaches the bound."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert best_guess([(epsilon, 0.0)]) == pytest.approx(truth)
    # Accusing on "yes" alone has 1 − truth false alarms and finds truth of the members.
    assert most_found([(epsilon, 0.0)], 1 - truth) == pytest.approx(truth)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 3.0])
def test_no_threshold_attack_on_a_gaussian_beats_the_words(sigma: float) -> None:
    from scipy.stats import norm

    mu = 1 / sigma
    pairs = []
    for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0):
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        pairs.append((epsilon, float(delta)))
    assert norm.cdf(mu / 2) <= best_guess(pairs) + 1e-12
    for alarms in (0.001, 0.01, 0.1):
        assert norm.cdf(norm.ppf(alarms) + mu) <= most_found(pairs, alarms) + 1e-12


def test_a_huge_epsilon_promises_nothing_and_does_not_overflow() -> None:
    assert best_guess([(1e6, 0.0)]) == 1.0
    assert most_found([(1e6, 1e-5)], 0.01) == pytest.approx(1.0)


def test_the_page_says_the_numbers_of_the_statement(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    words = " ".join(plain_words(run)).replace("\u202f", " ")
    assert len(bounds(run)) == 3
    assert "at most 88.1 % of the time" in words
    assert "a probability of at most 7.4 %" in words
    assert "ε = 1.9996 at δ = 1e-5" in words


def test_what_was_spent_beyond_the_promise_counts_alone(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    more = dataclasses.replace(run, result={**(run.result or {}), "epsilon": 8.0})
    assert bounds(more) == [(8.0, 1e-5)]
    assert "at most 100.0 % of the time" in " ".join(plain_words(more)).replace("\u202f", " ")
    broken = dataclasses.replace(run, statement={**(run.statement or {}), "curve": None})
    assert len(bounds(broken)) == 1


@pytest.mark.parametrize(
    ("isolation", "words"),
    [
        ("proven", "is proven from the operations of the model and its loss."),
        ("isolated", "holds by construction: records went through the model one at a time."),
        ("probed", "WARNING: isolation is only probed, not proven: ε is false if records "),
    ],
)
def test_the_page_says_how_it_is_known_that_records_stand_alone(
    tmp_path: Path, isolation: str, words: str
) -> None:
    run = read_run(write_run(tmp_path / "run", isolation=isolation))
    assert words in " ".join(plain_words(run))
    html = "".join(str(section.html()) for section in run_sections(run)) + str(tiles(run))
    probed = isolation == "probed"
    assert ("isolation only probed" in html) is probed
    assert ('<div class="void">' in html) is probed
    assert ("WARNING" in html) is probed
    other = read_run(write_run(tmp_path / "other", isolation="proven"))
    page = render([run, other])
    assert ("since isolation is only probed, not proven: run." in page) is probed


@pytest.mark.parametrize("isolation", [None, 5, ["probed"], "<b>"])
def test_runs_that_do_not_say_how_are_read(tmp_path: Path, isolation: object) -> None:
    folder = write_run(tmp_path / "run", isolation=isolation)
    if isolation is None:  # as of a run from before there was anything to say
        facts = json.loads((folder / "statement.json").read_text())
        del facts["isolation"]
        (folder / "statement.json").write_text(json.dumps(facts))
    words = " ".join(plain_words(read_run(folder)))
    assert "depends on that record alone" not in words
    assert "WARNING" not in words


def test_a_void_run_promises_nothing(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", not_private_reason="a seed was given"))
    assert bounds(run) == []
    assert plain_words(run) == [
        "NOT PRIVATE: a seed was given",
        "Nothing is promised about this run.",
    ]
