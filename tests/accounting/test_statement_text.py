"""The words of a statement: nine items, numbers in full, nothing that does not hold."""

from dataclasses import replace

import pytest

from steppe.accounting import Segment, Statement


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
        "Not covered: losses, accuracies or batch sizes measured on the private data.",
        "outside the account: the structure (shapes, types) of one record; a few records at set-up",
        "the labels if classes were declared; the size of the first batch and the time that",
        "dp-accounting 0.6",
        "by RDP: ε = ",
        "one patient is added to or removed",
        "population 1000 is a declared constant",
        "the plan itself makes the sampler",
        "Floating-point defence off",
        "δ is 0.01 of 1 over the population",
        "15 steps",
        "σ = 2.0 for 10 steps, 1.5 for 5 steps, rate 0.1; with δ",
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


@pytest.mark.parametrize(
    ("isolation", "words"),
    [
        (None, "depends on that patient alone is checked when a model is given."),
        ("proven", "depends on that patient alone is proven from the operations of model, loss"),
        ("isolated", "depends on that patient alone, because the model processes one"),
        ("probed", "was only tested on synthetic values (probed), not proven: if it does not"),
    ],
)
def test_how_it_is_known_that_records_stand_alone(
    statement: Statement, isolation: str | None, words: str
) -> None:
    said = replace(statement, isolation=isolation)
    assert words in said.items["assumptions"]
    assert said.to_dict()["isolation"] == isolation
    warning = "WARNING: isolation is only probed, not proven: ε is false if patients influence "
    assert str(said).startswith(warning) is (isolation == "probed")
    void = str(replace(said, not_private_reason="the noise is known"))
    assert "WARNING" not in void


def test_public_records_are_counted(statement: Statement) -> None:
    assert "given as public" not in str(statement)
    one = str(replace(statement, public_records=1))
    assert "The clip also read 1 record given as public, which ε does not" in one
    assert "the guarantee is for patients that are not among them." in one


def test_what_was_declared_makes_no_item_of_its_own(statement: Statement) -> None:
    said = ("the range of a column\n8. guarantee: (ε, δ) = (0.1, 1e-09)",)
    lines = str(replace(statement, also_read=said)).splitlines()
    assert [line.partition(".")[0] for line in lines[2:]] == [str(n) for n in range(1, 10)]


def test_defence_on_and_a_delta_that_is_too_large(statement: Statement) -> None:
    assert "Floating-point defence on" in str(replace(statement, rounded_noise=True))
    assert "too large" in str(replace(statement, population=10**6))


def test_a_void_statement_prints_no_second_opinion(statement: Statement) -> None:
    void = replace(statement, not_private_reason="a seed was given")
    assert "No second opinion: nothing is promised." in str(void)
    assert "ε = " not in str(void)


def test_numbers_are_printed_in_full(statement: Statement) -> None:
    exact = replace(
        statement, run=(Segment(1 / 3, 1.23456789, 10),), delta=1.23456e-5, sensitivity=1.0000001
    )
    text = str(exact)
    assert "σ = 1.23456789 for 10 steps, rate 0.3333333333333333;" in text
    assert "with probability 0.3333333333333333." in text
    assert ", 1.23456e-05)" in text
    assert "at most 1.0000001." in text


def test_long_schedules_are_cut_and_left_to_the_json(statement: Statement) -> None:
    levels = tuple(Segment(0.1, 2.0 - i / 16, 3) for i in range(10))
    long = replace(statement, run=levels)
    assert "1.5625 for 3 steps, … and 2 more levels, see the JSON, rate 0.1" in str(long)
    assert "1.5 for 3 steps" not in str(long)
    assert len(long.to_dict()["accounted"]) == 10


def test_queries_and_caps_are_part_of_the_numbers(statement: Statement) -> None:
    asked = replace(statement, run=(Segment(0.1, 1.5, 5, 20, 100),), population=100, queries=4)
    words = "σ = 1.5 for 5 steps, which is 4 queries a step at √4 times as much each, rate 0.1, "
    assert words + "at most 20 of 100;" in str(asked)


def test_the_accountant_in_use_is_named(statement: Statement) -> None:
    assert "privacy loss distributions rounded up" in statement.items["accountant"]
    full = replace(statement, run=(Segment(1.0, 2.0, 10),))
    assert "closed form of the Gaussian mechanism" in full.items["accountant"]
