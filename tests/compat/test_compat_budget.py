"""A budget holds over everything that the accountant knows of, whoever spent it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch import nn, optim
from torch.utils.data import DataLoader

from compat_loop import Loop, start, vectors
from steppe.compat import PrivacyEngine
from steppe.errors import BudgetExhausted, ConfigurationError, MisuseError

DELTA, PASS = 1e-3, 7


def budgeted(epochs: int = 2, accountant: str = "prv") -> Loop:
    engine, model = PrivacyEngine(accountant=accountant), nn.Linear(5, 2)
    made = engine.make_private_with_epsilon(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(vectors(50), batch_size=8),
        target_epsilon=2.0,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    return Loop(engine, *made)


def as_it_is(history: Any) -> Any:
    return history


def through_a_file(history: Any) -> Any:
    return json.loads(json.dumps(history))


@pytest.mark.parametrize("stored", [as_it_is, through_a_file])
def test_a_resumed_run_ends_where_the_whole_one_would(stored: Any) -> None:
    first = budgeted()
    first.run(PASS)
    resumed = budgeted()
    resumed.model.load_state_dict(first.model.state_dict())
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.engine.accountant.history = stored(first.engine.accountant.history)
    resumed.run(PASS)
    with pytest.raises(BudgetExhausted, match=r"steps=15: the budget pays for 14 steps; publish"):
        resumed.run()
    assert len(resumed.engine.accountant) == 2 * PASS
    assert 1.9 < resumed.engine.get_epsilon(DELTA) <= 2.0


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_steps_of_another_mechanism_count_by_what_they_cost(accountant: str) -> None:
    loop = budgeted(accountant=accountant)
    sigma, rate = loop.optimizer.noise_multiplier, loop.loader.sample_rate
    loop.engine.accountant.history = [(1.5 * sigma, rate, 5), (3 * sigma, rate / 2, 2)]
    with pytest.raises(BudgetExhausted, match=r"steps of this run beside the others that the acc"):
        loop.run(2 * PASS)
    own = loop.engine.accountant.history[-1][2]
    assert PASS < own < 2 * PASS
    assert loop.engine.get_epsilon(DELTA) <= 2.0
    loop.engine.accountant.step(noise_multiplier=sigma, sample_rate=rate)
    assert loop.engine.get_epsilon(DELTA) > 2.0  # one more would have been too much


def test_a_history_that_took_everything_leaves_nothing() -> None:
    loop = budgeted()
    loop.engine.accountant.history = [(0.5, 1.0, 10)]
    with pytest.raises(BudgetExhausted, match="steps=1: the budget pays for 0 steps of this run"):
        loop.batch()


def test_another_run_of_the_engine_counts() -> None:
    loop, model = budgeted(), nn.Linear(5, 2)
    made = loop.engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(vectors(50), batch_size=8),
        noise_multiplier=loop.optimizer.noise_multiplier,
        max_grad_norm=1.0,
    )
    Loop(loop.engine, *made).run(5)
    with pytest.raises(BudgetExhausted, match="steps=15: the budget pays for 14"):
        loop.run(2 * PASS)
    assert loop.engine.get_epsilon(DELTA) <= 2.0


def test_steps_cannot_be_taken_out_of_the_history() -> None:
    """Without them the next ε was that of fewer steps, after a return to an old checkpoint say."""
    loop = budgeted()
    early = loop.engine.accountant.state_dict()
    loop.run(PASS)
    accountant = loop.engine.accountant
    spent, text = loop.engine.get_epsilon(DELTA), "^history=0 steps: must contain the 7 steps that"
    with pytest.raises(MisuseError, match=text):
        accountant.history = []
    with pytest.raises(MisuseError, match=text):
        accountant.load_state_dict(early)
    assert loop.engine.get_epsilon(DELTA) == spent
    accountant.history.append((5.0, 0.1, 3))
    assert loop.engine.get_epsilon(DELTA) > spent
    accountant.history.clear()
    for question in (lambda: loop.engine.get_epsilon(DELTA), accountant.state_dict, loop.run):
        with pytest.raises(MisuseError, match=text):
            question()


def test_the_accountant_of_an_engine_stays() -> None:
    """Runs count with the one they began with, so another would say that nothing was spent."""
    with pytest.raises(AttributeError, match="accountant"):
        start().engine.accountant = PrivacyEngine().accountant  # type: ignore[misc]


def test_history_is_a_copy_of_what_was_given() -> None:
    first = start(sigma=1.0)
    first.run()
    second = PrivacyEngine()
    second.accountant.history = first.engine.accountant.history
    first.run()
    assert (len(first.engine.accountant), len(second.accountant)) == (2, 1)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([1.0], r"history=1.0: must be \(noise multiplier, sample rate, number of steps\); pass"),
        ([(1.0, 0.1)], "history=.* must be"),
        ({"history": []}, "history='history': must be"),
        ([(1.0, 0.1, -3)], "steps=-3: must be a whole number"),
        ([(1.0, 2.0, 3)], "rate=2.0: must be at most 1"),
    ],
)
def test_bad_history_is_refused(history: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PrivacyEngine().accountant.history = history


def test_history_comes_after_the_budget() -> None:
    engine, model = PrivacyEngine(), nn.Linear(5, 2)
    engine.accountant.history = [(1.0, 0.1, 3)]
    with pytest.raises(ConfigurationError, match=r"to resume a run, set accountant.history after"):
        engine.make_private_with_epsilon(
            module=model,
            optimizer=optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(vectors(50), batch_size=8),
            target_epsilon=2.0,
            target_delta=DELTA,
            epochs=1,
            max_grad_norm=1.0,
        )
