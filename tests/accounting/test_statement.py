"""The statement: printed bounds that are bounds, and a void one that says so."""

import json
from dataclasses import replace

from steppe.accounting import Segment, Statement
from steppe.utils.formatting import rounded_up


def test_json_round_trip(statement: Statement) -> None:
    data = json.loads(statement.to_json())
    assert data["private"] is True
    assert data["epsilon"] == statement.epsilon
    assert data["items"] == statement.items
    assert data["accounted"][1] == {"steps": 5, "noise_multiplier": 1.5, "rate": 0.1}
    assert [pair["delta"] for pair in data["curve"]] == [1e-6, 1e-7]


def test_a_void_statement_promises_no_number(statement: Statement) -> None:
    void = replace(statement, not_private_reason="the noise is seeded")
    assert str(void).startswith("NOT PRIVATE: the noise is seeded\n")
    assert void.items["guarantee"] == "None. NOT PRIVATE: the noise is seeded"
    data = json.loads(void.to_json())
    assert data["private"] is False
    assert "suffice to recompute" in statement.items["verification"]
    assert "recompute" not in void.items["verification"]
    assert "no ε follows from these numbers" in void.items["verification"]
    assert data["epsilon"] is None
    assert statement.rdp_epsilon is not None
    assert data["rdp_epsilon"] is None
    assert all(pair["epsilon"] is None for pair in data["curve"])


def test_printed_epsilon_is_rounded_up() -> None:
    assert rounded_up(1.00001, 4) == "1.0001"
    assert rounded_up(2.5, 4) == "2.5000"
    assert rounded_up(float("inf"), 4) == "∞"


def test_the_curve_stops_where_rounding_begins() -> None:
    facts = {
        "unit": "record",
        "population": 10**9,
        "population_source": "declared",
        "noise_multiplier": 1.0,
        "sensitivity": 1.0,
        "queries": 1,
        "rounded_noise": False,
        "digest": "ab12",
    }
    long = Statement.of(((Segment(0.01, 20.0, 40_000),),), 1e-9, "add-remove", **facts)
    assert [delta for delta, _ in long.curve] == [1e-10]
