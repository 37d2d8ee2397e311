"""The source of randomness: its law, its independence, and what it refuses."""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from steppe.errors import ConfigurationError, MisuseError
from steppe.noise import SecureSource, SeededSource, Source, as_source
from steppe.noise._blocks import BLOCK, SPARE

DTYPES = (torch.float32, torch.float64)


def normals(source: Source, count: int, dtype: torch.dtype, std: float = 1.0) -> torch.Tensor:
    return source.fill_normal_(torch.empty(count, dtype=dtype), std)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("std", [0.01, 3.7])
def test_variance_is_the_one_asked_for(dtype: torch.dtype, std: float) -> None:
    count = 2_000_000
    draws = normals(SeededSource(11), count, dtype, std).double()
    assert abs(draws.std().item() / std - 1) < 0.003
    # Chi-square with `count` degrees of freedom, about the known mean 0.
    score = (draws.square().sum().item() / std**2 - count) / math.sqrt(2 * count)
    assert abs(score) < 4
    assert abs(draws.mean().item()) < 4 * std / math.sqrt(count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_law_is_normal(dtype: torch.dtype) -> None:
    draws = normals(SeededSource(12), 400_000, dtype).double().numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    # Both outputs of a pair, each on its own: the cosine half and the sine half of a block.
    assert stats.kstest(draws[: BLOCK // 2], "norm").pvalue > 1e-3
    assert stats.kstest(draws[BLOCK // 2 : BLOCK], "norm").pvalue > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_tails_have_their_mass(dtype: torch.dtype) -> None:
    count = 4_000_000
    size = normals(SeededSource(13), count, dtype).abs()
    for at in (2.0, 3.0, 4.0, 4.5):
        expected = count * 2 * stats.norm.sf(at)
        assert abs((size > at).sum().item() - expected) < 5 * math.sqrt(expected), at
    assert size.max() > 4.8


class Fixed(Source):
    """Every word is the same, to reach the corners that chance does not."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(bytes(32), bytes(16))
        self._pair = (first, second)

    def _keystream(self, out: np.ndarray) -> None:
        words = out.view(np.int32 if len(out) in (4 * BLOCK, 4 * SPARE) else np.int64)
        words[: len(words) // 2], words[len(words) // 2 :] = self._pair


@pytest.mark.parametrize(
    ("dtype", "bits", "reach"), [(torch.float32, 32, 6.7), (torch.float64, 64, 9.4)]
)
def test_extreme_words(dtype: torch.dtype, bits: int, reach: float) -> None:
    longest = normals(Fixed(0, 0), BLOCK, dtype)
    assert longest.max() > reach
    for word in (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1):
        shortest = normals(Fixed(word, 0), BLOCK, dtype)
        assert torch.isfinite(shortest).all()
        assert shortest.max() > 0, "u = 1 would give noise of exactly zero"


@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_and_blocks_are_independent(dtype: torch.dtype) -> None:
    source = SeededSource(14)
    calls = torch.stack([normals(source, BLOCK + 77, dtype) for _ in range(6)]).double()
    correlation = torch.corrcoef(calls) - torch.eye(6)
    assert correlation.abs().max() < 5 / math.sqrt(BLOCK)
    # The two values of a pair share a radius: their squares would show a mistake in the angle.
    first, second = calls[0, : BLOCK // 2], calls[0, BLOCK // 2 : BLOCK]
    squares = torch.corrcoef(torch.stack((first.square(), second.square())))[0, 1]
    assert squares.abs() < 5 / math.sqrt(BLOCK // 2)


def test_no_value_is_handed_out_twice() -> None:
    source = SeededSource(15)
    sizes = (1, 7_850, BLOCK - 1, 3, BLOCK, 2 * BLOCK + 5, 7_850, 100_000)
    draws = torch.cat([normals(source, size, torch.float64) for size in sizes])
    assert len(draws.unique()) == len(draws)


def test_words_continue_where_they_stopped() -> None:
    parts = SeededSource(16)
    pieces = np.concatenate([parts.words(count) for count in (1, 0, 3, 500_000, 2)])
    assert (pieces == SeededSource(16).words(len(pieces))).all()
    assert len(np.unique(pieces)) == len(pieces)


def test_words_are_uniform_bits() -> None:
    words = SeededSource(17).words(200_000)
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(axis=0, dtype=np.int64)
    assert np.abs(ones - 100_000).max() < 5 * math.sqrt(200_000) / 2


def test_uniform_is_open_and_uniform() -> None:
    draws = SeededSource(18).uniform(300_000)
    assert stats.kstest(draws, "uniform").pvalue > 1e-3

    class Ends(SeededSource):
        def words(self, count: int) -> np.ndarray:
            return np.array([0, 2**64 - 1], dtype=np.uint64)

    low, high = Ends(0).uniform(2)
    assert 0 < low < high < 1


def test_any_layout_is_filled() -> None:
    source = SeededSource(19)
    for tensor in (torch.zeros(40, 30).T, torch.zeros(50)[::2], torch.zeros(()), torch.zeros(0)):
        assert source.fill_normal_(tensor, 1.0) is tensor
        assert (tensor != 0).all()


def test_buffers_survive_inference_mode() -> None:
    source = SecureSource()
    with torch.inference_mode():
        normals(source, 10, torch.float32)
    assert torch.isfinite(normals(source, 3 * BLOCK, torch.float32)).all()


def test_every_secure_source_is_its_own() -> None:
    a, b = SecureSource(), SecureSource()
    assert not (a.words(1000) == b.words(1000)).any()
    assert a.not_private_reason is None


def in_child(work: Callable[[], bytes]) -> bytes:
    """The result of `work` in a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, work())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        result = stream.read()
    os.waitpid(child, 0)
    return result


def test_forked_process_takes_a_new_key() -> None:
    source = SecureSource()
    normals(source, 10, torch.float64)  # leaves prepared values that a child must not use

    def work() -> bytes:
        return source.words(4).tobytes() + normals(source, 4, torch.float64).numpy().tobytes()

    # One thread: a fork of a process with running OpenMP threads must not wait for them.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = [in_child(work), in_child(work), work()]
    finally:
        torch.set_num_threads(threads)
    pieces = {result[start : start + 8] for result in results for start in range(0, 64, 8)}
    assert [len(result) for result in results] == [64, 64, 64]
    assert len(pieces) == 24, "parent and children share words or noise"


def test_fork_while_another_thread_draws() -> None:
    source = SecureSource()
    with source._lock:  # as if a thread of the parent was in the middle of a draw
        assert len(in_child(lambda: source.words(2).tobytes())) == 16


def test_threads_never_share_values() -> None:
    source = SecureSource()
    found: list[torch.Tensor] = []
    draw = lambda: found.extend(normals(source, 999, torch.float64) for _ in range(50))  # noqa: E731
    workers = [threading.Thread(target=draw) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(torch.cat(found).unique()) == 4 * 50 * 999


def test_seeded_source_repeats_and_says_so() -> None:
    one, two = (normals(SeededSource(5), 200_000, torch.float32) for _ in range(2))
    assert torch.equal(one, two)
    assert SeededSource(5).not_private_reason == (
        "NOT PRIVATE: the randomness comes from a seed, so the noise can be recomputed and removed."
    )
    other = (SeededSource(5 + 2**32), SeededSource(-5), SeededSource(5, stream="sampling"))
    assert len({source.words(1)[0] for source in (SeededSource(5), *other)}) == 4


@pytest.mark.parametrize("make", [SecureSource, lambda: SeededSource(1)])
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_sources_cannot_be_copied(
    make: Callable[[], Source], duplicate: Callable[[Source], object]
) -> None:
    with pytest.raises(MisuseError, match="must not be copied or stored, a second copy would"):
        duplicate(make())


def test_nothing_of_the_key_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    urandom = os.urandom

    def record(count: int) -> bytes:
        asked.append(urandom(count))
        return asked[-1]

    monkeypatch.setattr(os, "urandom", record)
    source = SecureSource()
    assert [len(part) for part in asked] == [32, 16]
    held = [value for value in vars(source).values() if isinstance(value, (bytes, str, bytearray))]
    assert held == []
    assert asked[0].hex() not in repr(source)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_half_precision_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SecureSource().fill_normal_(torch.empty(3, dtype=dtype), 1.0)
    assert str(caught.value) == (
        f"dtype={dtype}: noise must be drawn and added in float32 or float64, half precision has "
        "only a few thousand distinct values; keep the accumulator in float32 and convert the "
        "released vector."
    )


@pytest.mark.parametrize("std", [0, -1.0, math.nan, math.inf, "1", True])
def test_bad_std_is_refused(std: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^std="):
        SecureSource().fill_normal_(torch.empty(3), std)  # type: ignore[arg-type]


@pytest.mark.parametrize("std", [1e-40, 1e38])
def test_std_outside_the_precision_is_refused(std: float) -> None:
    with pytest.raises(ConfigurationError, match=r"range of torch.float32; use float64"):
        SecureSource().fill_normal_(torch.empty(3), std)
    assert torch.isfinite(normals(SecureSource(), 100, torch.float64, std)).all()


def test_small_and_large_std_lose_no_noise() -> None:
    for std in (1e-30, 1e30):
        draws = normals(SeededSource(20), 500_000, torch.float32, std).double() / std
        assert abs(draws.std().item() - 1) < 0.005


def test_other_generators_are_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigurationError, match=r"must not be a torch.Generator: it keeps 32 bits"
    ):
        as_source(torch.Generator())
    with pytest.raises(ConfigurationError, match="source=42: must not be a seed: whoever guesses"):
        as_source(42)
    with pytest.raises(ConfigurationError, match="must be a steppe source of randomness"):
        as_source(np.random.default_rng())
    with pytest.raises(ConfigurationError, match="seed='a': must be a whole number"):
        SeededSource("a")  # type: ignore[arg-type]
    seeded = SeededSource(1)
    assert as_source(seeded) is seeded
    assert isinstance(as_source(), SecureSource)
