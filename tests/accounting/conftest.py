"""A statement that tests change."""

import pytest

from steppe.accounting import Segment, Statement


@pytest.fixture(scope="module")
def statement() -> Statement:
    return Statement.of(
        ((Segment(0.1, 2.0, 10), Segment(0.1, 1.5, 5)),),
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
