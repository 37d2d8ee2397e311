"""Correlated noise, one step after the other, is the noise of the matrices it is accounted as."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from steppe.accounting import Participation
from steppe.errors import MisuseError
from steppe.noise import (
    BISR,
    BLT,
    BandedToeplitz,
    BandInvMF,
    Correlated,
    CorrelatedRun,
    Dense,
    Factor,
    SecureSource,
    SeededSource,
    SqrtToeplitz,
    Tree,
)
from steppe.noise.dense import DenseFactor
from steppe.noise.factor import ToeplitzFactor
from steppe.noise.tree import TreeFactor
from steppe.noise.workload import toeplitz

STEPS, WIDTH, STD = 37, 5, 1.7
ONCE = Participation()
EPOCHS = Participation(times=4, separation=10)
FIXED_WORKLOAD = np.tril(np.random.default_rng(3).uniform(0.5, 1.5, (STEPS, STEPS)))
NOISES: list[Correlated] = [
    Tree(honaker=False),
    Tree(),
    SqrtToeplitz(),
    SqrtToeplitz(momentum=0.9),
    BandedToeplitz(1),
    BandedToeplitz(6),
    BandedToeplitz(80, momentum=0.5),
    BLT(1),
    BLT(3),
    BLT(2, momentum=0.9),
    BISR(1),
    BISR(5),
    BandInvMF(4),
    BandInvMF(7, momentum=0.9),
    Dense(),
    Dense(momentum=0.9),
    Dense(workload=FIXED_WORKLOAD),
]
every_noise = pytest.mark.parametrize("noise", NOISES, ids=lambda noise: str(noise)[:50])
every_turn = pytest.mark.parametrize("turns", [ONCE, EPOCHS], ids=["once", "epochs"])


class Known(SeededSource):
    """Keeps what it draws, in units of the noise."""

    def __init__(self) -> None:
        super().__init__(4)
        self.drawn: list[Tensor] = []

    def fill_normal_(self, tensor: Tensor, std: float) -> Tensor:
        super().fill_normal_(tensor, std)
        self.drawn.append(tensor / std)
        return tensor


def rows(
    run: Any, source: SeededSource, steps: range, dtype: torch.dtype = torch.float64
) -> Tensor:
    """What the run adds in some steps, in units of the noise."""
    found = []
    for step in steps:
        run.at(step, 0)
        buffer = run.start_(torch.empty(WIDTH, dtype=dtype), STD, source)
        found.append(run.finish_(buffer, STD, 1.0, source).double() / STD)
    return torch.stack(found)


@every_turn
@every_noise
def test_the_stream_is_the_dense_product(noise: Correlated, turns: Participation) -> None:
    source = Known()
    streamed = rows(noise.begin(STEPS, turns), source, range(STEPS)).numpy()
    decoder = noise.factor(STEPS, turns).decoder()
    dense = decoder @ torch.stack(source.drawn).numpy()
    np.testing.assert_allclose(streamed, dense, rtol=0, atol=1e-12)


@every_turn
@every_noise
def test_what_is_released_is_one_answer_about_c(noise: Correlated, turns: Participation) -> None:
    """M C = I, so sums plus noise are M times (C sums + independent noise)."""
    factor = noise.factor(STEPS, turns)
    encoder, decoder = factor.encoder(), factor.decoder()
    np.testing.assert_allclose(decoder @ encoder, np.eye(STEPS), rtol=0, atol=1e-12)
    outputs = noise.workload_of(STEPS)
    matrix = outputs if outputs.ndim == 2 else toeplitz(outputs)
    np.testing.assert_allclose(
        factor.variances(outputs), np.square(matrix @ decoder).sum(1), rtol=1e-11
    )


@every_noise
def test_no_row_depends_on_later_noise(noise: Correlated) -> None:
    """Nothing that a later step draws is in an earlier row, whatever a gradient depends on."""
    source = Known()
    run, drawn = noise.begin(STEPS, ONCE), []
    for step in range(STEPS):
        rows(run, source, range(step, step + 1))
        drawn.append(len(source.drawn))
    decoder = noise.factor(STEPS, ONCE).decoder()
    for step, known in enumerate(drawn):
        assert not decoder[step, known:].any()
    assert drawn[-1] == decoder.shape[1]


@every_noise
def test_the_first_steps_are_the_noise_of_a_shorter_run(noise: Correlated) -> None:
    factor = noise.factor(STEPS, EPOCHS)
    first = factor.first(20)
    encoder, decoder = first.encoder(), first.decoder()
    np.testing.assert_array_equal(encoder, factor.encoder()[: len(encoder), :20])
    np.testing.assert_array_equal(decoder, factor.decoder()[:20, : decoder.shape[1]])
    assert not factor.decoder()[:20, decoder.shape[1] :].any()
    gram = encoder.T @ encoder
    steps = np.arange(0, 20, 10)
    assert first.squared_sensitivity(EPOCHS) >= np.abs(gram[np.ix_(steps, steps)]).sum() - 1e-9
    growth = noise.growth(STEPS, EPOCHS)
    assert growth[-1] == pytest.approx(factor.squared_sensitivity(EPOCHS), rel=1e-12)
    assert list(growth) == sorted(growth)
    assert growth[19] >= first.squared_sensitivity(EPOCHS) * (1 - 1e-12)
    assert growth[0] < 0.5 * growth[-1]
    sizes = np.sqrt(np.square(factor.decoder()).sum(1))
    np.testing.assert_allclose(noise.sizes(STEPS, EPOCHS), sizes, rtol=1e-12)


@every_noise
def test_the_memory_is_what_is_said(noise: Correlated) -> None:
    run = noise.begin(STEPS, ONCE)
    rows(run, SeededSource(1), range(STEPS - 1))
    kept = run.state()["streams"][0]["kept"].values()
    assert sum(len(tensor) for tensor in kept) == noise.factor(STEPS, ONCE).memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_has_the_covariance_of_the_matrices(dtype: torch.dtype) -> None:
    """2,000 coordinates; the covariance of two steps is off by 1/√2000 times at most 5.6."""
    steps, width = 12, 2_000
    for noise in (BLT(2), Tree(), BandedToeplitz(4), BandInvMF(3)):
        run, source = noise.begin(steps, ONCE), SecureSource()
        released = []
        for step in range(steps):
            run.at(step, 0)
            released.append(run.start_(torch.empty(width, dtype=dtype), STD, source).double() / STD)
        values = torch.stack(released).numpy()
        decoder = noise.factor(steps, ONCE).decoder()
        expected = decoder @ decoder.T
        sizes = np.sqrt(np.diag(expected))
        error = (values @ values.T / width - expected) / sizes / sizes[:, None]
        assert np.abs(error).max() < 7 * math.sqrt(2 / width)


@every_noise
def test_a_run_goes_on_where_it_stopped(noise: Correlated) -> None:
    source = SeededSource(9)
    whole = rows(noise.begin(STEPS, ONCE), source, range(STEPS))
    source = SeededSource(9)
    first = noise.begin(STEPS, ONCE)
    found = [rows(first, source, range(17))]
    state = first.state()
    second = noise.begin(STEPS, ONCE)
    second.load(state, 17, torch.empty(WIDTH, dtype=torch.float64))
    found.append(rows(second, source, range(17, STEPS)))
    assert torch.equal(torch.cat(found), whole)
    # The state was copied: the first run does not change it.
    rows(first, SeededSource(1), range(17, 20))
    again = noise.begin(STEPS, ONCE)
    again.load(state, 17, torch.empty(WIDTH, dtype=torch.float64))
    source = SeededSource(9)
    rows(noise.begin(STEPS, ONCE), source, range(17))
    assert torch.equal(rows(again, source, range(17, STEPS)), whole[17:])


@every_noise
def test_a_step_that_failed_has_had_its_noise(noise: Correlated) -> None:
    """Step 5 is never asked for. The steps after it get the rows that they would have had."""
    source = Known()
    run = noise.begin(STEPS, ONCE)
    before, after = rows(run, source, range(5)), rows(run, source, range(6, STEPS))
    dense = noise.factor(STEPS, ONCE).decoder() @ torch.stack(source.drawn).numpy()
    np.testing.assert_allclose(before.numpy(), dense[:5], rtol=0, atol=1e-12)
    np.testing.assert_allclose(after.numpy(), dense[6:], rtol=0, atol=1e-12)


def test_noise_is_never_given_out_twice() -> None:
    run, source = BLT().begin(8, ONCE), SeededSource(1)
    rows(run, source, range(3))
    for step in (0, 2, 8):
        run.at(step, 0)
        with pytest.raises(MisuseError, match=rf"step={step}: must be from 3, .* to 7, .*never"):
            run.start_(torch.empty(WIDTH), STD, source)


def test_each_query_of_a_step_has_a_stream_of_its_own() -> None:
    source = Known()
    run = BandedToeplitz(3).begin(6, ONCE, queries=2)
    found: list[list[Tensor]] = [[], []]
    for step in range(6):
        for query in (0, 1):
            run.at(step, query)
            buffer = torch.empty(WIDTH, dtype=torch.float64)
            found[query].append(run.start_(buffer, STD, source) / STD)
    decoder = BandedToeplitz(3).factor(6, ONCE).decoder()
    for query in (0, 1):
        fresh = torch.stack(source.drawn[query::2]).numpy()
        released = torch.stack(found[query]).numpy()
        np.testing.assert_allclose(released, decoder @ fresh, rtol=0, atol=1e-12)
    run.at(6, 2)
    with pytest.raises(ValueError, match="query=2: must be below 2"):
        run.start_(torch.empty(WIDTH), STD, source)


def test_the_size_of_fresh_noise_stays() -> None:
    run, source = BLT().begin(8, ONCE), SeededSource(1)
    rows(run, source, range(2))
    run.at(2, 0)
    with pytest.raises(ValueError, match=r"std=1\.6: must stay 1\.7 during a run"):
        run.start_(torch.empty(WIDTH, dtype=torch.float64), 1.6, source)


def test_other_noise_than_that_of_the_steps_charged_is_refused() -> None:
    run, source, like = BLT().begin(8, ONCE), SeededSource(1), torch.empty(WIDTH)
    rows(run, source, range(3), torch.float32)
    state = run.state()
    for charged in (2, 4):
        with pytest.raises(ValueError, match=rf"after step 3': must be that after step {charged}"):
            BLT().begin(8, ONCE).load(state, charged, like)
    with pytest.raises(ValueError, match="must hold the noise of 2 streams"):
        BLT().begin(8, ONCE, queries=2).load(state, 3, like)
    for other in (BandedToeplitz(3), BLT(2)):
        with pytest.raises(ValueError, match="the digest of this run's matrices"):
            other.begin(8, ONCE).load(state, 3, like)
    without = {**state, "streams": [{"step": 3, "kept": {}}]}
    with pytest.raises(ValueError, match=r"must hold \['buffers'\]"):
        BLT().begin(8, ONCE).load(without, 3, like)
    with pytest.raises(ValueError, match=r"must have the shape \(3, 6\)"):
        BLT().begin(8, ONCE).load(state, 3, torch.empty(6))
    state["streams"][0]["kept"]["buffers"][0, 0] = math.nan
    with pytest.raises(ValueError, match="must be finite"):
        BLT().begin(8, ONCE).load(state, 3, like)


@pytest.mark.parametrize("turns", [ONCE, Participation(2, 4)], ids=["once", "twice"])
def test_a_run_goes_on_with_the_same_matrices_only(turns: Participation) -> None:
    """A search on another machine may end in other numbers, here in the last bit of one."""
    like = torch.empty(WIDTH)
    dense, blt = Dense().make(8, turns), BLT(2).make(8, turns)
    decoder, inverse = dense.decoder().copy(), blt.inverse.copy()
    decoder[7, 0], inverse[7] = np.nextafter(decoder[7, 0], 2), np.nextafter(inverse[7], 2)
    pairs: list[tuple[Factor, Factor]] = [
        (dense, DenseFactor(dense.encoder(), decoder)),
        (blt, ToeplitzFactor(blt.column, inverse, lambda _: blt.stream(), blt.memory)),
        (TreeFactor(8, True), TreeFactor(8, False)),
    ]
    for factor, other in pairs:
        run = CorrelatedRun(factor, 8, queries=1)
        rows(run, SeededSource(1), range(3), torch.float32)
        CorrelatedRun(factor, 8, queries=1).load(run.state(), 3, like)
        fresh = CorrelatedRun(other, 8, queries=1)
        with pytest.raises(ValueError, match=r"\['matrices'\]=.*, the digest of this run"):
            fresh.load(run.state(), 3, like)
        fresh.load(CorrelatedRun(other, 8, queries=1).state(), 0, like)  # nothing was loaded


def test_nothing_secret_is_left_when_the_run_is_over() -> None:
    run = BLT().begin(4, ONCE)
    rows(run, SeededSource(1), range(4))
    state = run.state()
    assert state["streams"] == [{"step": 4, "kept": {}}]
    again = BLT().begin(4, ONCE)
    again.load(state, 4, torch.empty(WIDTH))
    assert again.state()["streams"] == state["streams"]
    again.at(3, 0)
    with pytest.raises(MisuseError, match="step=3"):
        again.start_(torch.empty(WIDTH), STD, SeededSource(1))


def test_an_interrupted_noise_ends_the_run() -> None:
    class Interrupting(SeededSource):
        def fill_normal_(self, tensor: Tensor, std: float) -> Tensor:
            raise KeyboardInterrupt

    run = BandedToeplitz(4).begin(8, ONCE)
    rows(run, SeededSource(1), range(3))
    run.at(3, 0)
    with pytest.raises(KeyboardInterrupt):
        run.start_(torch.empty(WIDTH, dtype=torch.float64), STD, Interrupting(2))
    for step in (3, 4):
        run.at(step, 0)
        with pytest.raises(MisuseError):
            run.start_(torch.empty(WIDTH, dtype=torch.float64), STD, SeededSource(1))
    with pytest.raises(MisuseError, match="interrupted in step 4"):
        run.state()
