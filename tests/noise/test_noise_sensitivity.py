"""The sensitivity of correlated noise is that of the worst record, found by trying all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from steppe.accounting import Participation
from steppe.noise import (
    BISR,
    BLT,
    BandedToeplitz,
    BandInvMF,
    Correlated,
    Dense,
    SqrtToeplitz,
    Tree,
)
from steppe.noise.dense_optimum import factor_of
from steppe.noise.factor import ToeplitzFactor, inverse_series
from steppe.noise.sensitivity import best_turns, squared_sensitivity
from steppe.noise.streams import RingStream

STEPS = 9
TURNS = [
    Participation(),
    Participation(3, 3),
    Participation(2, 5),
    Participation(9, 1),
    Participation(3, 3, exact=False),
    Participation(2, 2, exact=False),
    Participation(4, 2, exact=False),
]
NOISES: list[Correlated] = [
    Tree(honaker=False),
    Tree(),
    SqrtToeplitz(),
    SqrtToeplitz(momentum=0.9),
    BandedToeplitz(3),
    BLT(2),
    BISR(3),
    BandInvMF(3),
    Dense(),
]
every_turn = pytest.mark.parametrize("turns", TURNS, ids=str)


def patterns(steps: int, turns: Participation) -> Iterator[tuple[int, ...]]:
    """Every set of steps that a record can take part in."""
    for count in range(1, turns.times + 1):
        for steps_of in itertools.combinations(range(steps), count):
            gaps = np.diff(steps_of)
            fits = gaps == turns.separation if turns.exact else gaps >= turns.separation
            if fits.all():
                yield steps_of


def brute_force(matrix: np.ndarray, turns: Participation) -> tuple[float, float]:
    """The largest squared move by ±1 gradients, and the bound that entries of X give."""
    moves, bound = 0.0, 0.0
    gram = matrix.T @ matrix
    for steps_of in patterns(matrix.shape[1], turns):
        part = gram[np.ix_(steps_of, steps_of)]
        bound = max(bound, float(np.abs(part).sum()))
        for signs in itertools.product((-1.0, 1.0), repeat=len(steps_of)):
            moves = max(moves, float(np.array(signs) @ part @ np.array(signs)))
    return moves, bound


@every_turn
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_no_record_moves_more_and_one_moves_as_much(
    noise: Correlated, turns: Participation
) -> None:
    factor = noise.factor(STEPS, turns)
    found = factor.squared_sensitivity(turns)
    moves, bound = brute_force(factor.encoder(), turns)
    assert found >= moves * (1 - 1e-12)
    exact = turns.times == 1 or turns.exact or isinstance(factor, ToeplitzFactor)
    if exact:
        assert found == pytest.approx(bound, rel=1e-12)
    if exact and (factor.encoder() >= 0).all():
        assert found == pytest.approx(moves, rel=1e-12)
    assert noise.sensitivity(STEPS, turns) == pytest.approx(math.sqrt(found))


@every_turn
def test_matrices_with_any_signs_are_bounded(turns: Participation) -> None:
    random = np.random.default_rng(5)
    for _ in range(5):
        matrix = np.tril(random.normal(size=(STEPS, STEPS)))
        moves, bound = brute_force(matrix, turns)
        found = squared_sensitivity(matrix.T @ matrix, turns)
        assert found >= bound * (1 - 1e-12) >= moves * (1 - 1e-9)
        column = random.normal(size=STEPS)
        column[0] = 2.0
        factor = ToeplitzFactor(
            column, inverse_series(column), lambda _: RingStream(0, np.ones, True), 0
        )
        moves, bound = brute_force(factor.encoder(), turns)
        assert factor.squared_sensitivity(turns) >= moves * (1 - 1e-12)


def test_dense_noise_for_turns_in_any_steps_is_independent() -> None:
    noise, anywhere = Dense(), Participation(times=3, separation=1, exact=False)
    encoder = noise.factor(6, anywhere).encoder()
    assert encoder == pytest.approx(np.eye(6) / math.sqrt(3))
    assert noise.sensitivity(6, anywhere) == pytest.approx(1.0)


def test_turns_further_apart_than_the_bands_do_not_add_up() -> None:
    random = np.random.default_rng(6)
    matrix = np.tril(np.triu(random.uniform(size=(STEPS, STEPS)), -2).T.T)
    matrix = np.tril(matrix) - np.tril(matrix, -3)  # three bands
    turns = Participation(3, 3, exact=False)
    _, bound = brute_force(matrix, turns)
    assert squared_sensitivity(matrix.T @ matrix, turns) == pytest.approx(bound, rel=1e-12)


def test_best_turns_is_the_best_choice() -> None:
    values = np.random.default_rng(7).uniform(size=(20, STEPS))
    for turns in TURNS[4:]:
        tried = [max(row[list(p)].sum() for p in patterns(STEPS, turns)) for row in values]
        np.testing.assert_allclose(best_turns(values, turns), tried, rtol=1e-14)


@pytest.mark.parametrize(("steps", "bands"), [(32, 8), (64, 16), (128, 32)])
def test_the_transposed_factor_is_of_larger_sensitivity(steps: int, bands: int) -> None:
    """A known fault: C = cholesky(X) gives C Cᵀ = X, where Cᵀ C = X was optimised.

    The columns of that C are up to three times as long as they should be, and a test that measures
    its rows does not see it.
    """
    turns = Participation(steps // bands, bands, exact=False)
    gram = _banded_optimum(steps, turns)
    right, transposed = factor_of(gram), np.linalg.cholesky(gram)
    np.testing.assert_allclose(right.T @ right, gram, atol=1e-12)
    assert not np.triu(right, 1).any()
    planned = turns.times * float(np.diag(gram).max())
    assert squared_sensitivity(right.T @ right, turns) == pytest.approx(planned, rel=1e-9)
    assert np.square(transposed).sum(1).max() == pytest.approx(float(np.diag(gram).max()))
    assert squared_sensitivity(transposed.T @ transposed, turns) > 1.4 * planned


def _banded_optimum(steps: int, turns: Participation) -> np.ndarray:
    lower = Dense().factor(steps, turns).encoder()
    return np.asarray(lower.T @ lower)


def test_the_streamed_dense_noise_is_that_of_the_right_factor() -> None:
    turns = Participation(4, 8, exact=False)
    factor = Dense().factor(32, turns)
    gram = factor.encoder().T @ factor.encoder()
    np.testing.assert_allclose(np.diag(gram), gram[0, 0], rtol=1e-9)
    np.testing.assert_allclose(factor.decoder() @ factor.encoder(), np.eye(32), atol=1e-12)


@pytest.mark.parametrize("name", ["times", "separation"])
def test_participation_is_checked(name: str) -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=rf"Participation\.{name}=.*: must be a whole number"):
            Participation(**{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Participation\.exact=1: must be True or False"):
        Participation(exact=1)  # type: ignore[arg-type]
