"""A factorisation at work: the matrices of a correlated noise for a number of steps, in float64.

Instead of independent noise, step t adds row t of M Z, where Z has independent standard rows. M
comes from a matrix C with M C = I, so what is released equals M (C G + Z), where G has one clipped
sum per row: a function of one Gaussian answer C G + Z. Its sensitivity is that of C, and the noise
on an output A·(released) is A M Z.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from steppe.accounting import Participation
from steppe.noise import sensitivity
from steppe.noise.streams import Stream
from steppe.noise.workload import Matrix, Vector, toeplitz

# How many beginnings of a run have a sensitivity of their own; between them the next one counts.
_MARKS = 128

StreamMaker: TypeAlias = Callable[["ToeplitzFactor"], Stream]


class Factor(ABC):
    """C and M for a number of steps.

    Attributes:
        steps: how many.
        memory: how many vectors of the size of the model a run keeps between steps.
    """

    steps: int
    memory: int

    @abstractmethod
    def encoder(self) -> Matrix:
        """C: one column for each step. Rows that no released noise uses are left out."""

    @abstractmethod
    def decoder(self) -> Matrix:
        """M, with M C = I: row t is the noise of step t in terms of the independent rows."""

    @abstractmethod
    def first(self, steps: int) -> Factor:
        """The same noise, of the first steps alone."""

    @abstractmethod
    def stream(self) -> Stream:
        """M applied to fresh noise, one row after the other, in bounded memory."""

    def digest(self) -> str:
        """SHA-256 of what M is made from; a run must go on with the same M to the last bit."""
        return hashlib.sha256(self._numbers().tobytes()).hexdigest()

    def _numbers(self) -> Vector | Matrix:
        return self.decoder()

    def squared_sensitivity(self, participation: Participation) -> float:
        """The squared sensitivity of C for unit clips; see `steppe.noise.sensitivity`."""
        encoder = self.encoder()
        return sensitivity.squared_sensitivity(encoder.T @ encoder, participation)

    def growth(self, participation: Participation) -> Vector:
        """The squared sensitivity of the first 1, 2, … steps.

        Returns:
            A bound for each number of steps, which never falls; the last is
            `squared_sensitivity`.
        """
        whole = self.squared_sensitivity(participation)
        marks = sorted({-(-self.steps * number // _MARKS) for number in range(1, _MARKS)})
        found = np.full(self.steps, whole)
        for mark in reversed(marks):
            found[:mark] = min(whole, self.first(mark).squared_sensitivity(participation))
        return np.maximum.accumulate(found)

    def sizes(self) -> Vector:
        """The standard deviation of every step's noise, for fresh noise of unit size."""
        return np.asarray(np.sqrt(np.square(self.decoder()).sum(1)))

    def variances(self, workload: Vector | Matrix) -> Vector:
        """The variance of every output of a workload, for noise of unit size.

        Args:
            workload: a lower-triangular matrix, or the first column of a Toeplitz one.
        """
        from scipy.signal import fftconvolve

        decoder = self.decoder()
        if workload.ndim == 2:
            return np.asarray(np.square(workload @ decoder).sum(1))
        outputs = fftconvolve(decoder, workload[:, None], axes=0)[: self.steps]
        return np.asarray(np.square(outputs).sum(1))

    def rmse(self, workload: Vector | Matrix, participation: Participation) -> float:
        """The root mean squared error of a workload at noise multiplier 1."""
        mean = float(self.variances(workload).mean())
        return float(np.sqrt(self.squared_sensitivity(participation) * mean))


class ToeplitzFactor(Factor):
    """C and M = C⁻¹ are lower-triangular Toeplitz matrices, given by their first columns.

    Args:
        encoder: the first column of C.
        decoder: the first column of M.
        stream: makes the stream of M.
        memory: vectors that it keeps.
    """

    def __init__(self, encoder: Vector, decoder: Vector, stream: StreamMaker, memory: int) -> None:
        self.column, self.inverse = encoder, decoder
        self.steps, self.memory = len(encoder), memory
        self._stream = stream

    def encoder(self) -> Matrix:
        """C."""
        return toeplitz(self.column)

    def decoder(self) -> Matrix:
        """M."""
        return toeplitz(self.inverse)

    def _numbers(self) -> Vector:
        return self.inverse

    def first(self, steps: int) -> ToeplitzFactor:
        """The same columns, cut."""
        return ToeplitzFactor(self.column[:steps], self.inverse[:steps], self._stream, self.memory)

    def stream(self) -> Stream:
        """M applied to fresh noise."""
        return self._stream(self)

    def squared_sensitivity(self, participation: Participation) -> float:
        """The squared norm of the turns of a record that begins with the first step.

        Exact if the column is non-negative and, for turns at least b apart, does not increase:
        then no other turns move more. Otherwise that of a column that bounds it from above.
        """
        return float(self.growth(participation)[-1])

    def growth(self, participation: Participation) -> Vector:
        """See `Factor.growth`; exact where `squared_sensitivity` is."""
        turns = participation.within(self.steps)
        column = np.abs(self.column)
        if not turns.exact and turns.times > 1:
            column = np.maximum.accumulate(column[::-1])[::-1]
        return np.asarray(np.cumsum(np.square(repeated(column, turns))))

    def sizes(self) -> Vector:
        """The standard deviation of every step's noise, for fresh noise of unit size."""
        return np.asarray(np.sqrt(np.cumsum(np.square(self.inverse))))

    def variances(self, workload: Vector | Matrix) -> Vector:
        """The variance of every output of a workload, for noise of unit size."""
        if workload.ndim == 2:
            return super().variances(workload)
        return np.asarray(np.cumsum(np.square(convolved(workload, self.inverse))))


def repeated(column: Vector, turns: Participation) -> Vector:
    """The sum of a column and its shifts by b, 2b, … steps, k of them."""
    total = column.copy()
    for turn in range(1, turns.times):
        shift = turn * turns.separation
        if shift >= len(column):
            break
        total[shift:] += column[: len(column) - shift]
    return total


def convolved(one: Vector, other: Vector) -> Vector:
    """The first terms of the product of two series."""
    return np.asarray(np.convolve(one, other)[: len(one)])


def inverse_series(column: Vector) -> Vector:
    """The series whose product with this one is 1."""
    from scipy.signal import lfilter

    impulse = np.zeros(len(column))
    impulse[0] = 1.0
    last = int(np.flatnonzero(column)[-1]) + 1
    return np.asarray(lfilter([1.0], column[:last], impulse))


def root_series(column: Vector) -> Vector:
    """The series with a positive start whose square is this one.

    Examples:
        >>> root_series(np.ones(4))
        array([1.    , 0.5   , 0.375 , 0.3125])
    """
    root = np.zeros(len(column))
    root[0] = np.sqrt(column[0])
    for k in range(1, len(column)):
        inner = float(root[1:k] @ root[k - 1 : 0 : -1]) if k > 1 else 0.0
        root[k] = (column[k] - inner) / (2 * root[0])
    return root
