"""The source of randomness: its law, its independence, and what it refuses."""

from __future__ import annotations

import copy
import gc
import math
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from steppe.errors import ConfigurationError, MisuseError
from steppe.noise import SecureSource, SeededSource, Source, as_source
from steppe.randomness import box_muller
from steppe.randomness import source as noise_source
from steppe.randomness.box_muller import GROUP
from steppe.randomness.precision import require_noise_std

SIZE = 8 * GROUP
LARGE = 50 * GROUP  # more than torch makes at once


@pytest.fixture(params=["float32", "float32 without kernel", "float64"])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Each precision, and the two ways in which float32 is made."""
    if request.param == "float32" and not box_muller.COMPILED:
        pytest.skip("no compiled kernel: Steppe was installed without a C compiler")
    if request.param == "float32 without kernel":
        monkeypatch.setattr(box_muller, "COMPILED", False)
    return torch.float64 if request.param == "float64" else torch.float32


def halves(draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole groups as pairs: the cosines, and the sines beside them."""
    cosines, sines = draws.view(-1, 2, GROUP // 2).unbind(1)
    return cosines.flatten(), sines.flatten()


def normals(source: Source, count: int, dtype: torch.dtype, std: float = 1.0) -> torch.Tensor:
    return source.fill_normal_(torch.empty(count, dtype=dtype), std)


@pytest.mark.parametrize("std", [0.01, 3.7])
def test_variance_is_the_one_asked_for(dtype: torch.dtype, std: float) -> None:
    count = 2_000_000
    draws = normals(SeededSource(11), count, dtype, std).double()
    assert abs(draws.std().item() / std - 1) < 0.003
    # Chi-square with `count` degrees of freedom, about the known mean 0.
    score = (draws.square().sum().item() / std**2 - count) / math.sqrt(2 * count)
    assert abs(score) < 4
    assert abs(draws.mean().item()) < 4 * std / math.sqrt(count)


def test_law_is_normal(dtype: torch.dtype) -> None:
    draws = normals(SeededSource(12), 3 * SIZE, dtype).double()
    assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-3
    for half in halves(draws):  # both outputs of a pair, each on its own
        assert stats.kstest(half.numpy(), "norm").pvalue > 1e-3


def test_tails_have_their_mass(dtype: torch.dtype) -> None:
    count = 4_000_000
    size = normals(SeededSource(13), count, dtype).abs()
    for at in (2.0, 3.0, 4.0, 4.5):
        expected = count * 2 * stats.norm.sf(at)
        assert abs((size > at).sum().item() - expected) < 5 * math.sqrt(expected), at
    assert size.max() > 4.8


def test_far_tails_have_their_mass(dtype: torch.dtype) -> None:
    source, counts, rounds = SeededSource(21), {5.0: 0, 5.25: 0, 5.5: 0}, 12
    buffer = torch.empty(5_000_000, dtype=dtype)
    for _ in range(rounds):
        size = source.fill_normal_(buffer, 1.0).abs_()
        far = size[size > 5.0]
        counts = {at: count + int((far > at).sum()) for at, count in counts.items()}
    for at, count in counts.items():
        law = stats.poisson(rounds * len(buffer) * 2 * stats.norm.sf(at))
        assert law.ppf(1e-4) <= count <= law.isf(1e-4), at


class Radii(SeededSource):
    """Keeps `bits` of every radius word: u is uniform below 2^(bits − 63), the far tail alone."""

    def __init__(self, bits: int) -> None:
        super().__init__(22)
        self._shift, self._radii_next = 63 - bits, True

    def _keystream(self, out: np.ndarray) -> None:
        super()._keystream(out)
        if self._radii_next:
            words = out.view(np.int64)
            words >>= self._shift
        self._radii_next = not self._radii_next


@pytest.mark.parametrize("bits", [45, 30, 17])
def test_law_of_the_far_tail(dtype: torch.dtype, bits: int) -> None:
    """Given u < 2^−k, r²/2 − k ln 2 is exponential; k = 18, 33, 46 start at 5.0, 6.8 and 8.0 σ."""
    draws = normals(Radii(bits), SIZE, dtype).double()
    cosines, sines = halves(draws)
    squared = cosines.square() + sines.square()
    excess = squared / 2 - (63 - bits) * math.log(2)
    assert stats.kstest(excess.numpy(), "expon").pvalue > 1e-3


class Fixed(SeededSource):
    """Every radius word is the same and every angle 0, to reach what chance does not."""

    def __init__(self, radius: int) -> None:
        super().__init__(0)
        self._radius, self._radii_next = radius, True

    def _keystream(self, out: np.ndarray) -> None:
        out.view(np.int64)[:] = self._radius if self._radii_next else 0
        self._radii_next = not self._radii_next


def test_extreme_words(dtype: torch.dtype) -> None:
    longest = normals(Fixed(0), SIZE, dtype)
    assert longest.max().item() == pytest.approx(math.sqrt(130 * math.log(2)), rel=1e-6)
    for word in (-(2**63), 2**63 - 1):
        shortest = normals(Fixed(word), SIZE, dtype)
        assert torch.isfinite(shortest).all()
        assert shortest.max() > 0, "u = 1 would give noise of exactly zero"


def test_reach_covers_ordinary_plans(dtype: torch.dtype) -> None:
    """A value beyond the reach is impossible without the record: its mass must be far below δ."""
    reach = normals(Fixed(0), SIZE, dtype).max().item()
    for sigma, rate, steps, delta in [
        (1.0, 0.001, 40_000, 1e-7),
        (0.5, 0.034, 146, 1e-6),
        (0.45, 0.01, 1000, 1e-5),
        (0.7, 0.01, 1000, 1e-9),
    ]:
        assert steps * rate * stats.norm.sf(reach - 1 / sigma) < delta / 1000


def test_calls_and_blocks_are_independent(dtype: torch.dtype) -> None:
    source = SeededSource(14)
    calls = torch.stack([normals(source, SIZE + 77, dtype) for _ in range(6)]).double()
    correlation = torch.corrcoef(calls) - torch.eye(6)
    assert correlation.abs().max() < 5 / math.sqrt(SIZE)
    # The two values of a pair share a radius: their squares would show a mistake in the angle.
    first, second = halves(calls[0, :SIZE])
    squares = torch.corrcoef(torch.stack((first.square(), second.square())))[0, 1]
    assert squares.abs() < 5 / math.sqrt(SIZE // 2)


def test_no_value_is_handed_out_twice() -> None:
    source = SeededSource(15)
    sizes = (1, 7_850, LARGE - 1, 3, LARGE, 2 * LARGE + 5, 7_850, 100_000)
    draws = torch.cat([normals(source, size, torch.float64) for size in sizes])
    assert len(draws.unique()) == len(draws)


def interrupted(source: Source, work: Callable[[], Any], at: int) -> bool:
    """Whether `work` reached the `at`-th line of the noise room, where it is interrupted."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if "/steppe/randomness/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        # A trace can interrupt just before `with` gives a lock back; a signal cannot.
        source._lock = threading.Lock()
    return False


@pytest.mark.parametrize("count", [5, GROUP + 5])
def test_an_interrupt_never_repeats_a_value(count: int, dtype: torch.dtype) -> None:
    for at in range(1, 1000):
        source = SeededSource(23)
        normals(source, 3, dtype)
        first = torch.zeros(count, dtype=dtype)
        if not interrupted(source, lambda: source.fill_normal_(first, 1.0), at):  # noqa: B023
            break
        later = torch.cat([normals(source, 7, dtype) for _ in range(2)])
        # In float32 two values may be the same by chance; those of a pair repeated are many.
        same = 0 if dtype == torch.float64 else 3
        assert torch.isin(later, first).sum() <= same, f"interrupted at line {at}"
    assert at > 10, "nothing was interrupted"


@pytest.mark.parametrize("count", [5, LARGE])
def test_a_failing_operation_never_repeats_a_value(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SeededSource(24)
    normals(source, 3, torch.float64)
    first = torch.zeros(count, dtype=torch.float64)
    for name in ("mul", "sin"):
        real = getattr(torch, name)

        def fail(*given: Any, real: Any = real, **named: Any) -> None:
            real(*given, **named)
            raise MemoryError

        monkeypatch.setattr(torch, name, fail)
    with pytest.raises(MemoryError):
        source.fill_normal_(first, 1.0)
    monkeypatch.undo()
    assert first.any()
    assert not torch.isin(normals(source, 2 * count, torch.float64), first).any()


def test_an_interrupt_never_repeats_a_word() -> None:
    given: list[np.ndarray] = []

    class Watched(SeededSource):
        def _keystream(self, out: np.ndarray) -> None:
            super()._keystream(out)
            given.append(out.copy())

    for at in range(1, 100):
        source = Watched(25)
        given.clear()
        if not interrupted(source, lambda: source.words(4), at):  # noqa: B023
            break
        source.words(4)
        pieces = np.concatenate(given).view(np.uint64)
        assert len(np.unique(pieces)) == len(pieces)
    assert at > 4, "nothing was interrupted"


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
    assert torch.isfinite(normals(source, 3 * LARGE, torch.float32)).all()


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


@pytest.mark.parametrize("make", [SecureSource, lambda: SeededSource(1)])
def test_fork_while_another_thread_draws(make: Callable[[], Source]) -> None:
    source = make()
    with source._lock:  # as if a thread of the parent was in the middle of a draw
        assert len(in_child(lambda: source.words(2).tobytes())) == 16


def test_fork_is_noticed_whatever_the_process_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grandchild may have the number of its grandparent."""
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    source = SecureSource()

    def work() -> bytes:
        return source.words(1).tobytes()

    def twice() -> bytes:  # the child itself draws nothing before it forks
        return in_child(work) + work()

    words = in_child(twice) + in_child(work) + work()
    assert len({words[start : start + 8] for start in range(0, 32, 8)}) == 4


def test_forked_process_takes_one_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its first draws come from several threads at once."""
    source, urandom = SecureSource(), os.urandom
    asked: list[int] = []

    def record(count: int) -> bytes:
        asked.append(count)
        return urandom(count)

    def work() -> bytes:
        monkeypatch.setattr(os, "urandom", record)
        start, found = threading.Barrier(4), []

        def draw() -> None:
            start.wait()
            found.append(source.words(50).tobytes())

        workers = [threading.Thread(target=draw) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return bytes(asked) + b"".join(found)

    result = in_child(work)
    assert list(result[:2]) == [32, 12]
    assert len(result) == 2 + 4 * 50 * 8, "more than one new key"
    assert asked == []
    assert len(np.unique(np.frombuffer(result, dtype=np.uint64, offset=2))) == 200


def test_sources_are_not_kept_alive() -> None:
    source = SecureSource()
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None


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
        "the randomness comes from a seed, so the noise can be recomputed and removed."
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


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the operating system gave, in order."""
    given: list[bytes] = []
    urandom = os.urandom

    def record(count: int) -> bytes:
        given.append(urandom(count))
        return given[-1]

    monkeypatch.setattr(os, "urandom", record)
    return given


def test_nothing_of_the_key_is_reachable(asked_for: list[bytes]) -> None:
    source = SecureSource()
    assert [len(part) for part in asked_for] == [32, 12]
    held = [value for value in vars(source).values() if isinstance(value, (bytes, str, bytearray))]
    assert held == []
    assert asked_for[0].hex() not in repr(source)


def keystream(key: bytes, nonce: bytes, count: int) -> bytes:
    """AES-256 of the counters from nonce ‖ 2 on, block by block."""
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # noqa: S305
    counters = (nonce + number.to_bytes(4, "big") for number in range(2, 2 + -(-count // 16)))
    return b"".join(block.update(counter) for counter in counters)[:count]


@pytest.mark.parametrize("mode", range(len(noise_source._MODES)))
def test_a_secure_source_is_aes_in_counter_mode(
    mode: int, asked_for: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever implementation is the faster one here."""
    monkeypatch.setattr(noise_source, "_fastest_mode", lambda: mode)
    source = SecureSource()
    words = source.words(1000).tobytes() + source.words(7).tobytes()
    key, nonce = asked_for
    assert words == keystream(key, nonce, len(words))


def test_a_secure_source_takes_new_keys(
    asked_for: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before GCM's counter ends, and also in the middle of one draw."""
    assert noise_source._A_KEYS_BYTES + len(noise_source._ZEROS) < 2**36 - 32
    monkeypatch.setattr(noise_source, "_A_KEYS_BYTES", 800)
    monkeypatch.setattr(noise_source, "_ZEROS", noise_source._ZEROS[:320])
    source = SecureSource()
    words = source.words(130).tobytes()  # 320, 320; 320, 80
    assert len(asked_for) == 4
    assert words == keystream(*asked_for[:2], 640) + keystream(*asked_for[2:], 400)
    values = source.fill_normal_(torch.empty(GROUP * 3), 1.0)
    assert len(asked_for) > 200
    assert len(values.unique()) > 0.99 * len(values)


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


@pytest.mark.parametrize("std", [1e-40, 1.2e-38, 1e-32, 1e38])
def test_std_outside_the_precision_is_refused(std: float) -> None:
    with pytest.raises(ConfigurationError, match=r"range of torch.float32; use float64"):
        SecureSource().fill_normal_(torch.empty(3), std)
    assert torch.isfinite(normals(SecureSource(), 100, torch.float64, std)).all()


@pytest.mark.parametrize("std", [1e-310, 1e-300, 1e308])
def test_std_outside_double_precision_is_refused(std: float) -> None:
    with pytest.raises(ConfigurationError, match=r"range of torch.float64; choose a clip nearer"):
        normals(SecureSource(), 3, torch.float64, std)


@pytest.fixture
def flushed() -> Iterator[None]:
    """Numbers below the smallest normal one count as 0."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always keeps them")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed")
@pytest.mark.parametrize("count", [100, LARGE])
def test_the_smallest_std_is_noise_where_small_numbers_are_flushed(
    dtype: torch.dtype, count: int
) -> None:
    limits = torch.finfo(dtype)
    source, std = SeededSource(32), limits.tiny / limits.eps
    draws = torch.cat([normals(source, count, dtype, std) for _ in range(LARGE // count)]) / std
    assert (draws == 0).sum() <= 5
    assert stats.kstest(draws.double().numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("std", [0.1, 0.3, 1.3, 2e-30, 1 + 1e-9, 1e37])
@pytest.mark.parametrize("count", [3, GROUP])
def test_std_is_rounded_up(dtype: torch.dtype, std: float, count: int) -> None:
    """The same draws at a power of two, which is exact, give the factor that was used."""
    found = normals(SeededSource(33), count, dtype, std).double()
    factor = (found / normals(SeededSource(33), count, dtype, 1.0).double()).median().item()
    eps = torch.finfo(dtype).eps
    held = require_noise_std(std, dtype)
    assert std <= held <= std * (1 + eps)
    assert held == torch.tensor(held, dtype=dtype).item()
    assert factor == pytest.approx(held, rel=eps)


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


def test_law_at_an_odd_address() -> None:
    """Words of 64 bits need an even place in a float32 buffer; the law holds without one."""
    source, buffer = SeededSource(31), torch.zeros(2 * LARGE + 2)
    draws = source.fill_normal_(buffer[1:-1], 1.0)
    assert buffer[0] == buffer[-1] == 0
    assert stats.kstest(draws.double().numpy(), "norm").pvalue > 1e-3
