"""Where randomness comes from: an AES-256 keystream keyed by the operating system."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from steppe.errors import MisuseError
from steppe.randomness.normal_buffer import NormalBlocks
from steppe.randomness.precision import require_noise_dtype
from steppe.utils.validation import fail

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

_ZEROS = memoryview(bytes(1 << 20))
_A_KEYS_BYTES = 1 << 30  # that a secure source takes from one key; GCM gives 2³⁶


class Source:
    """A stream of pseudorandom words and normal variates; nothing is ever handed out twice.

    Not made directly: use `SecureSource`, or `SeededSource` in a test. Calls from several threads
    are safe. `not_private_reason` is None, or the sentence that every artefact made from this
    source must carry.
    """

    not_private_reason: str | None = None

    def __init__(self, stream: CipherContext) -> None:
        self._lock = threading.Lock()
        self._in_new_process = False
        self._stream = stream
        self._normals: dict[torch.dtype, NormalBlocks] = {}
        _LIVING.add(self)

    def _before_draw(self) -> None:
        """Called first by every draw, under the lock; a source may renew itself here."""

    def _after_fork(self) -> None:
        # Nothing more than this: most children never draw, and it is not safe to call into
        # OpenSSL here, because a thread that did not survive the fork may hold its locks. Such a
        # thread may also have held ours.
        self._lock = threading.Lock()
        self._in_new_process = True

    @property
    def forked(self) -> bool:
        """Whether this is a new process, in which nothing was drawn yet."""
        return self._in_new_process

    def _keystream(self, out: NDArray[np.uint8]) -> None:
        for start in range(0, len(out), len(_ZEROS)):
            part = out[start : start + len(_ZEROS)]
            self._stream_for(len(part)).update_into(_ZEROS[: len(part)], part.data)

    def _stream_for(self, count: int) -> CipherContext:
        """What the next `count` bytes come from; a source may take a new key here."""
        del count
        return self._stream

    def beside(self, stream: str) -> Source:
        """A source of the same kind with numbers of its own, so that this one's stay as they are.

        Args:
            stream: its name; of two seeded sources the same one under another name.
        """
        del stream
        return SecureSource()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Independent uniform 64-bit words.

        Args:
            count: How many, 0 or more.

        Returns:
            A new array that nothing else refers to.

        Examples:
            >>> SecureSource().words(3).shape
            (3,)
        """
        out = np.empty(count, dtype=np.uint64)
        with self._lock:
            self._before_draw()
            self._keystream(out.view(np.uint8))
        return out

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Independent uniform numbers strictly between 0 and 1, on a grid of 2⁻⁵².

        Args:
            count: How many, 0 or more.

        Returns:
            A new array.

        Examples:
            >>> u = SecureSource().uniform(1000)
            >>> bool(u.min() > 0 and u.max() < 1)
            True
        """
        high = (self.words(count) >> np.uint64(12)).astype(np.float64)
        return (high + 0.5) * 2.0**-52

    def fill_normal_(self, tensor: torch.Tensor, std: float) -> torch.Tensor:
        """Overwrite a tensor with independent N(0, std²) values.

        Args:
            tensor: float32 or float64, any shape. On an accelerator the values are made on the
                host and copied.
            std: Standard deviation, above 0.

        Returns:
            The same tensor.

        Guarantees:
            The law is normal up to floating-point rounding, of which that of std is upwards, and
            up to its far tail: values reach 9.49 std in both precisions, and 2.3e-21 of the normal
            law lies beyond. An exception in the middle can lose values, never repeat them.
            Floating-point values carry traces of how they were made; `Gaussian(grid=True)` removes
            them.

        Examples:
            >>> noise = SecureSource().fill_normal_(torch.empty(2, 3), std=0.5)
            >>> noise.shape
            torch.Size([2, 3])
        """
        target = tensor.detach()  # the same memory, which autograd does not watch
        in_place = tensor.device.type == "cpu" and tensor.is_contiguous()
        # The device is named because a default device may be set.
        host = target if in_place else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        with self._lock:
            self._before_draw()
            normals = self._normals.get(tensor.dtype)
            if normals is None:
                require_noise_dtype(tensor.dtype)
                normals = self._normals[tensor.dtype] = NormalBlocks(tensor.dtype, self._keystream)
            normals.fill_(host if host.ndim == 1 else host.view(-1), std)
        if not in_place:
            target.copy_(host)
        return tensor

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise MisuseError(
            f"source={type(self).__name__}: must not be copied or stored, a second copy would "
            "repeat the noise; make a new source in every process."
        )


# Weakly held, so that a source lives no longer than its run.
_LIVING: weakref.WeakSet[Source] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for source in _LIVING:
        source._after_fork()


# Told by the fork itself: a process number can come back in a grandchild.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class SecureSource(Source):
    """The source for private runs: a fresh key from the operating system for every object.

    Guarantees:
        AES-256 in counter mode under a 32-byte key and a nonce from `os.urandom`, new ones for each
        GiB. A key is never stored, printed or serialised, and cannot be chosen. A forked process
        takes a new one before its first draw, and drops what its parent had prepared, so no two
        processes share noise.

    Examples:
        >>> a, b = SecureSource(), SecureSource()
        >>> bool((a.words(2) == b.words(2)).any())
        False
    """

    def __init__(self) -> None:
        super().__init__(_fresh_stream())
        self._left = _A_KEYS_BYTES

    def _before_draw(self) -> None:
        if self._in_new_process:
            self._stream, self._left, self._normals = _fresh_stream(), _A_KEYS_BYTES, {}
            self._in_new_process = False

    def _stream_for(self, count: int) -> CipherContext:
        if self._left < count:
            self._stream, self._left = _fresh_stream(), _A_KEYS_BYTES
        self._left -= count
        return self._stream


def _fresh_stream() -> CipherContext:
    """AES-256 of the counters that follow a nonce, both from the operating system."""
    return _MODES[_fastest_mode()](os.urandom(32), os.urandom(12))


def _bare(key: bytes, nonce: bytes) -> CipherContext:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    first = nonce + (2).to_bytes(4, "big")  # where GCM begins
    return Cipher(algorithms.AES256(key), modes.CTR(first)).encryptor()


def _within_gcm(key: bytes, nonce: bytes) -> CipherContext:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES256(key), modes.GCM(nonce)).encryptor()


# The same bytes by two implementations, up to where GCM's counter of 32 bits ends: the counter mode
# by itself, and the one within GCM, whose tag is not used. On some processors the first is twice as
# fast as the second, on others it is the other way round.
_MODES: tuple[Callable[[bytes, bytes], CipherContext], ...] = (_bare, _within_gcm)


@functools.cache
def _fastest_mode() -> int:
    """Which of `_MODES` is fastest here, by a trial of a millisecond."""
    out = bytearray(1 << 16)

    def seconds(begin: Callable[[bytes, bytes], CipherContext]) -> float:
        stream = begin(bytes(32), bytes(12))
        found = []
        for _ in range(8):
            start = time.perf_counter()
            stream.update_into(_ZEROS[: len(out)], out)
            found.append(time.perf_counter() - start)
        return min(found)

    taken = [seconds(begin) for begin in _MODES]
    return taken.index(min(taken))


class SeededSource(Source):
    """The source for tests: the same seed gives the same stream. Not private.

    Args:
        seed: Any whole number; every digit counts.
        stream: Name of an independent stream under the same seed.

    Guarantees:
        None: whoever knows or guesses the seed can subtract the noise.

    Examples:
        >>> bool((SeededSource(1).words(9) == SeededSource(1).words(9)).all())
        True
        >>> print(SeededSource(1).not_private_reason)
        the randomness comes from a seed, so the noise can be recomputed and removed.
    """

    not_private_reason = (
        "the randomness comes from a seed, so the noise can be recomputed and removed."
    )

    def __init__(self, seed: int, stream: str = "noise") -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        if isinstance(seed, bool) or not isinstance(seed, int):
            raise fail("seed", seed, "must be a whole number", "give an int")
        self._seed, self._name = seed, stream
        # A digest of the whole number: torch keeps 32 bits of a seed, so that 5 and 5 + 2³² agree.
        digest = hashlib.sha256(f"steppe seeded source/{stream}/{seed}".encode()).digest()
        super().__init__(Cipher(algorithms.AES256(digest), modes.CTR(bytes(16))).encryptor())

    def beside(self, stream: str) -> SeededSource:
        """Another stream under the same seed."""
        return SeededSource(self._seed, f"{self._name}/{stream}")


def as_source(source: object = None) -> Source:
    """The source to use, or the reason why this one cannot be used.

    Args:
        source: None for a new `SecureSource`, or a `Source`, which is returned as it is.

    Returns:
        A source of randomness.

    Guarantees:
        Never a generator whose state a seed or a few hundred outputs would reveal.

    Examples:
        >>> as_source().not_private_reason is None
        True
    """
    if source is None:
        return SecureSource()
    if isinstance(source, Source):
        return source
    if isinstance(source, torch.Generator):
        rule = (
            "must not be a torch.Generator: it keeps 32 bits of its seed, two new ones have the "
            "same seed, and its state can be computed from its output"
        )
    elif isinstance(source, int):
        rule = "must not be a seed: whoever guesses it can subtract the noise"
    else:
        rule = "must be a steppe source of randomness"
    remedy = "leave it out for a private run, or use SeededSource(seed) for a test"
    raise fail("source", source, rule, remedy)
