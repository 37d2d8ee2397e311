"""The accountant by itself, and its state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steppe.compat import create_accountant
from steppe.errors import ConfigurationError


def test_a_state_comes_back_from_a_file() -> None:
    first, second = create_accountant("rdp"), create_accountant("rdp")
    for sigma in (1.0, 1.0, 2.0):
        first.step(noise_multiplier=sigma, sample_rate=0.1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.history == first.history == [(1.0, 0.1, 2), (2.0, 0.1, 1)]
    assert second.get_epsilon(1e-5) == first.get_epsilon(1e-5) > 0


def test_a_state_is_a_copy() -> None:
    accountant = create_accountant("prv")
    accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    accountant.state_dict()["history"][0][2] = 0
    assert len(accountant) == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], "state='list': must contain exactly 'mechanism' and 'history'; pass what"),
        ({"history": []}, "state='dict': must contain exactly 'mechanism' and 'history'"),
        (
            {"mechanism": "rdp", "history": []},
            "mechanism='rdp': must be 'prv', the method of this accountant; create the engine with",
        ),
        ({"mechanism": "prv", "history": [(1.0, 0.1)]}, r"history=\(1.0, 0.1\): must be"),
    ],
)
def test_states_of_something_else_are_refused(state: Any, message: str) -> None:
    accountant = create_accountant("prv")
    with pytest.raises(ConfigurationError, match=message):
        accountant.load_state_dict(state)


def test_an_accountant_that_reports_too_little_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"accountant='gdp': .* reports less ε than is"):
        create_accountant("gdp")
