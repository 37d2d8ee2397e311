"""Secret random numbers for the user's own code: dropout, random views, data sets.

Such code draws from the global generators, for a whole batch at once, so that the numbers a record
gets depend on its place among the others. As long as nobody knows the numbers that is no harm: the
same ones could have come to the same record without the others. But scripts begin with
`torch.manual_seed(0)`, and to whoever knows the seed one record more shows in the numbers of all
that come after it, far beyond the clip.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from steppe.noise import Source

# The Mersenne twister's state, in torch's generator, in NumPy's and in Python's.
_WORDS = 624
# Blocks in which Python's and NumPy's generators are watched: ever rarer, as they are seldom used.
_LOOK = frozenset(4**power for power in range(16))
_AS_THEY_ARE = nullcontext()
_BEGIN = 24  # where it lies among the bytes of torch's, in words of 64 bits that hold 32


class Dice:
    """Puts the global generators in a state that nobody knows, for the length of a block.

    Args:
        source: the run's; the numbers come from one beside it.
        purpose: what they are for. Dice of one run for different purposes have different numbers.

    Guarantees:
        Each block has fresh numbers, from a state of which all bits are secret and not from a seed
        of 32. Afterwards the generators are as they were, also after an error. Torch's generator is
        exchanged in every block, and a block goes on where the last one ended; Python's and
        NumPy's, which takes longer than a small step, in the blocks 1, 4, 16, 64 and so on, and in
        all once one of these has used them.

    Examples:
        >>> from steppe.noise import SecureSource
        >>> dice = Dice(SecureSource(), "dropout")
        >>> _ = torch.manual_seed(0)
        >>> with dice.rolled():
        ...     secret = torch.rand(1)
        >>> known = torch.rand(1)
        >>> bool(known == torch.rand(1, generator=torch.Generator().manual_seed(0)))
        True
        >>> bool(known == secret)
        False
    """

    def __init__(self, source: Source, purpose: str) -> None:
        self._source = source.beside(purpose)
        self._rolls = 0
        self._others_used = False
        # Torch's secret state: it waits for its words, with no numbers left over from before.
        self._state = torch.Generator(device="cpu").manual_seed(0).get_state()
        self._state.numpy()[_BEGIN : _BEGIN + 8 * _WORDS].view(np.uint64)[:] = self._key()

    @contextmanager
    def rolled(self) -> Iterator[None]:
        """A block in which the global generators are unknown."""
        self._rolls += 1
        others = self._others_used or self._rolls in _LOOK
        generator = torch.default_generator
        before = generator.get_state()
        generator.set_state(self._state)
        try:
            with (
                self._of_accelerators() if torch.cuda.is_available() else _AS_THEY_ARE,
                self._of_python_and_numpy() if others else _AS_THEY_ARE,
            ):
                yield
        finally:
            self._state = generator.get_state()
            generator.set_state(before)

    def _key(self) -> NDArray[np.uint64]:
        return self._source.words(_WORDS) >> np.uint64(32)

    @contextmanager
    def _of_accelerators(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.cuda.manual_seed_all(int(self._source.words(1)[0] >> np.uint64(1)))
            yield

    @contextmanager
    def _of_python_and_numpy(self) -> Iterator[None]:
        of_python, of_numpy = random.getstate(), np.random.get_state()
        random.setstate((of_python[0], (*self._key().tolist(), _WORDS), None))
        np.random.set_state(("MT19937", self._key().astype(np.uint32), _WORDS, 0, 0.0))
        try:
            yield
        finally:
            # A generator that gave nothing still stands where all its words are made anew.
            places = random.getstate()[1][-1], np.random.get_state(legacy=False)["state"]["pos"]
            self._others_used |= places != (_WORDS, _WORDS)
            random.setstate(of_python)
            np.random.set_state(of_numpy)
