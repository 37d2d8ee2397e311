"""The statement: nine items, printed bounds that are bounds, and a void one that says so."""

import json
from dataclasses import replace

import pytest

from steppe.accounting import Segment, Statement
from steppe.accounting.statement import _up


@pytest.fixture(scope="module")
def statement() -> Statement:
    return Statement.of(
        (Segment(0.1, 2.0, 10), Segment(0.1, 1.5, 5)),
        1e-5,
        "add-remove",
        unit="patient",
        population=1000,
        population_source="declared",
        noise_multiplier=2.0,
        sensitivity=0.5,
        queries=1,
        rounded_noise=False,
        digest="ab12",
    )


def test_nine_items(statement: Statement) -> None:
    assert list(statement.items) == [
        "setting",
        "data accesses",
        "release",
        "unit",
        "neighbours",
        "accountant",
        "assumptions",
        "guarantee",
        "verification",
    ]
    assert all(text.endswith((".", "!")) for text in statement.items.values())


@pytest.mark.parametrize(
    "words",
    [
        "all checkpoints",
        "Not covered: choosing hyper-parameters",
        "synthetic inputs",
        "dp-accounting 0.6",
        "by RDP: ε = ",
        "one patient is added to or removed",
        "population 1000 is a declared constant",
        "the plan itself makes the sampler",
        "Floating-point defence off",
        "δ is 0.01 of 1 over the population",
        "15 steps",
        "a schedule of 2 levels",
        "SHA-256 ab12",
    ],
)
def test_text_says(statement: Statement, words: str) -> None:
    assert words in str(statement)


def test_where_the_population_came_from(statement: Statement) -> None:
    read = replace(statement, population_source="data")
    assert "was read once, the data's length, and that one number is not protected" in str(read)
    public = replace(read, adjacency="zero-out")
    assert "was read once, the data's length, which this relation makes public" in str(public)


def test_defence_on_and_a_delta_that_is_too_large(statement: Statement) -> None:
    assert "Floating-point defence on" in str(replace(statement, rounded_noise=True))
    assert "too large" in str(replace(statement, population=10**6))


def test_json_round_trip(statement: Statement) -> None:
    data = json.loads(statement.to_json())
    assert data["private"] is True
    assert data["epsilon"] == statement.epsilon
    assert data["items"] == statement.items
    assert data["accounted"][1] == {"steps": 5, "noise_multiplier": 1.5}
    assert [pair["delta"] for pair in data["curve"]] == [1e-6, 1e-7]


def test_a_void_statement_promises_no_number(statement: Statement) -> None:
    void = replace(statement, not_private_reason="the noise is seeded")
    assert str(void).startswith("NOT PRIVATE: the noise is seeded\n")
    assert void.items["guarantee"] == "None. NOT PRIVATE: the noise is seeded"
    data = json.loads(void.to_json())
    assert data["private"] is False
    assert data["epsilon"] is None
    assert all(pair["epsilon"] is None for pair in data["curve"])


def test_printed_epsilon_is_rounded_up() -> None:
    assert _up(1.00001) == "1.0001"
    assert _up(2.5) == "2.5000"
    assert _up(float("inf")) == "∞"
