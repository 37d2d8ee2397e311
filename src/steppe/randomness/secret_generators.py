"""Secret random numbers for the user's own code: dropout, random views, data sets.

Such code draws from the global generators for a whole batch at once, so the numbers that a record
gets depend on its place among the others. While the numbers are secret this does no harm, since a
record could have got the same ones without the others. But scripts begin with
`torch.manual_seed(0)`: to somebody who knows the seed, one record more shows in the numbers of all
records after it, whatever the clip is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.errors import MisuseError
from steppe.randomness.global_generators import one_at_a_time
from steppe.randomness.source import SeededSource, Source

# The Mersenne twister's state, in torch's generator, in NumPy's and in Python's.
_WORDS = 624
_BEGIN = 24  # where it lies among the bytes of torch's, in words of 64 bits that hold 32


class SecretGenerators:
    """Puts the global generators into a secret state for the length of a block.

    Args:
        source: the run's; the numbers come from one beside it.
        purpose: what they are for. Those of one run for different purposes have different numbers.

    Guarantees:
        Each block has fresh numbers, from a state of which all bits are secret and not from a seed
        of 32. Torch's go on where those of the last block ended, or begin anew where it was
        interrupted or its code gave the generator a seed or a state of its own. Afterwards the
        generators are as they were, also after an error. Blocks of several threads take turns.

    Examples:
        >>> from steppe.randomness import SecureSource
        >>> generators = SecretGenerators(SecureSource(), "dropout")
        >>> _ = torch.manual_seed(0)
        >>> with generators.hidden():
        ...     secret = torch.rand(1)
        >>> known = torch.rand(1)
        >>> bool(known == torch.rand(1, generator=torch.Generator().manual_seed(0)))
        True
        >>> bool(known == secret)
        False
    """

    def __init__(self, source: Source, purpose: str) -> None:
        self._source = source.beside(purpose)
        self._next: Tensor | None = None  # where torch's numbers go on, if a block left that here

    @contextmanager
    def hidden(self, users_code: bool = True) -> Iterator[None]:
        """A block in which the global generators are unknown.

        Args:
            users_code: whether the block may run Python that is not torch's own. Without it nobody
                draws from Python's generator or NumPy's, and exchanging those two takes longer than
                a small step.
        """
        generator = torch.default_generator
        with one_at_a_time():
            before = generator.get_state()
            # Nothing is left here meanwhile: whatever ends or nests this block makes the next anew.
            state, self._next = self._next, None
            if state is None or self._source.forked:
                state = secret_state(self._source)
            try:
                generator.set_state(state)
                name = generator.initial_seed()
                with (
                    self._of_accelerators() if torch.cuda.is_available() else nullcontext(),
                    self._of_python_and_numpy() if users_code else nullcontext(),
                ):
                    yield
                if generator.initial_seed() == name:  # else the numbers are no longer ours
                    self._next = generator.get_state()
            finally:
                generator.set_state(before)

    @contextmanager
    def _of_accelerators(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.cuda.manual_seed_all(int(self._source.words(1)[0] >> np.uint64(1)))
            yield

    @contextmanager
    def _of_python_and_numpy(self) -> Iterator[None]:
        of_python, of_numpy = random.getstate(), _numpys_state()
        try:
            _hide_python_and_numpy(self._source)
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def secret_state(source: Source, name: int | None = None) -> Tensor:
    """A state for torch's generator with all bits from a source.

    Args:
        source: where they come from.
        name: what `torch.initial_seed()` is to say of it; a number that nobody else has, by
            default, by which the state can be told from one that others have set.
    """
    # It waits for its words, with no numbers left over from before.
    state = torch.Generator(device="cpu").manual_seed(0).get_state()
    place = state.numpy()
    place[:8].view(np.uint64)[:] = source.words(1) if name is None else np.uint64(name)
    place[_BEGIN : _BEGIN + 8 * _WORDS].view(np.uint64)[:] = _twister(source)
    return state


def give_numbers_of(seed: int) -> None:
    """Put all global generators in a state that follows from a secret seed, with all of its bits.

    Args:
        seed: from a block of `SecretGenerators`, where it is to be secret.
    """
    source = SeededSource(seed, "record")
    torch.default_generator.set_state(secret_state(source, seed))
    _hide_python_and_numpy(source)


class SecretWorker:
    """What a worker process of a `DataLoader` does first.

    Its seed has 64 bits and is secret, since the loader draws it in a block of `SecretGenerators`.
    Torch keeps 32 of them, which can all be tried; here its numbers come from all 64, and so do
    Python's and NumPy's.

    Args:
        own: the user's `worker_init_fn`. It runs before, since it may set seeds, as torch's page on
            reproducibility advises, and those are of 32 bits or known to whoever reads the script.
    """

    def __init__(self, own: Callable[[int], Any] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        """Called by torch in the new process."""
        seed = torch.initial_seed()
        if self._own is not None:
            self._own(worker)
        source = SeededSource(seed, "worker")
        torch.default_generator.set_state(secret_state(source, seed))
        _hide_python_and_numpy(source)


def _hide_python_and_numpy(source: Source) -> None:
    """Put Python's generator and NumPy's in a state from a source."""
    version = random.getstate()[0]
    random.setstate((version, (*_twister(source).tolist(), _WORDS), None))
    np.random.set_state(("MT19937", _twister(source), _WORDS, 0, 0.0))


def _twister(source: Source) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return (source.words(_WORDS) >> np.uint64(32)).astype(np.uint32)


def _numpys_state() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise MisuseError(
            f"np.random.get_bit_generator()={state['bit_generator']}: must be MT19937, which NumPy "
            "starts with, to be given a secret state; put that back with "
            "np.random.set_bit_generator(np.random.MT19937())."
        )
    return dict(state)
