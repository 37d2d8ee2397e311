from __future__ import annotations

import math

import pytest

from steppe import Plan
from steppe.compat import get_noise_multiplier
from steppe.compat.noise_multiplier import steps_per_pass
from steppe.errors import ConfigurationError

ASKED = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.01}


def test_equals_the_plan() -> None:
    plan = Plan(epsilon=2.0, delta=1e-5, population=10_000, batch_size=100, steps=300)
    assert get_noise_multiplier(**{**ASKED, "sample_rate": plan.rate}, epochs=3) == plan.sigma


def test_rdp_needs_more_noise() -> None:
    tight, loose = (
        get_noise_multiplier(**ASKED, steps=100, accountant=name) for name in ("prv", "rdp")
    )
    assert tight < loose < 1.3 * tight


def test_steps_of_a_pass() -> None:
    for n in range(1, 5001):
        assert steps_per_pass(1 / n) == n
    for n in range(1, 200):
        for batch in range(1, n + 1):
            assert steps_per_pass(batch / n) == math.ceil(n / batch) == -(-n // batch)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("alphas", "the orders of the RDP account are fixed"),
        ("eps_error", "ε is an upper bound"),
        ("delta_error", "ε is an upper bound"),
        ("target_epsilom", "did you mean 'target_epsilon'"),
        ("zzz", "known are target_epsilon, target_delta, sample_rate, epochs, steps, accountant"),
    ],
)
def test_unknown_keywords_are_refused(name: str, answer: str) -> None:
    wanted = rf"get_noise_multiplier\(\) has no keyword '{name}': .*{answer}"
    with pytest.raises(TypeError, match=wanted):
        get_noise_multiplier(**ASKED, steps=5, **{name: 1.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "`steps` or `epochs` is required"),
        ({"steps": 5, "epochs": 1}, "steps=5: cannot be given together with epochs=1"),
        ({"steps": 0}, "steps=0: must be a whole number of at least 1"),
        ({"epochs": -1}, "epochs=-1: must be a whole number of at least 1"),
        ({"steps": 5, "sample_rate": 1.5}, "sample_rate=1.5: must be at most 1"),
        ({"steps": 5, "sample_rate": 0.0}, "sample_rate=0.0: must be finite and above 0"),
        ({"steps": 5, "target_epsilon": float("nan")}, "^target_epsilon=nan: must not be"),
        ({"steps": 5, "target_epsilon": 0.0}, "^target_epsilon=0.0: must be finite and above 0"),
        ({"steps": 5, "target_delta": 1.0}, "^target_delta=1.0"),
        ({"steps": 5, "accountant": "gdp"}, "accountant='gdp'"),
    ],
)
def test_bad_values(change: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        get_noise_multiplier(**{**ASKED, **change})


def test_a_tolerance_of_epsilon_is_accepted_and_loosens_nothing() -> None:
    exact = get_noise_multiplier(**ASKED, steps=5)
    assert get_noise_multiplier(**ASKED, steps=5, epsilon_tolerance=0.5) == exact
    with pytest.raises(ConfigurationError, match=r"epsilon_tolerance=-1.0: must be finite and abo"):
        get_noise_multiplier(**ASKED, steps=5, epsilon_tolerance=-1.0)
