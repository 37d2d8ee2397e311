"""What a watch knows of random numbers: which operations drew them, from which seed, for whom.

The owners of random numbers follow from a comparison of two passes (`random_owners`). Until then
they are free, and nothing is concluded from their values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from steppe.isolation.findings import RANDOM
from steppe.isolation.owners import FREE
from steppe.isolation.random_owners import Draw, RandomOwners, filled
from steppe.isolation.schemas import tensors_among
from steppe.isolation.watched_tensors import WatchedTensors


class WatchedDraws(WatchedTensors):
    """The random numbers of one pass.

    Args:
        records, layer: see `WatchedTensors`.
        fake: runs operations on records; None computes their values.
        seed: of random numbers.
        random_owners: the owners of random numbers, if they are known.

    Attributes:
        draws: the operations that drew random numbers, in order.
    """

    def __init__(
        self,
        records: int,
        layer: Callable[[], str | None],
        fake: FakeTensorMode | None,
        seed: int,
        random_owners: RandomOwners | None,
    ) -> None:
        super().__init__(records, layer)
        self.draws: list[Draw] = []
        self._fake, self._seed, self._random_owners = fake, seed, random_owners
        # States of torch's generator that this pass has seen, with the seed of the user's in each.
        self._states: dict[bytes, bytes | None] = {_digest(torch.default_generator): None}

    def is_settled(self, value: Tensor) -> bool:
        """Whether random numbers are known to belong to no record."""
        return not hasattr(value, RANDOM) or self._random_owners is not None

    def _seed_of_user(self, given: dict[str, Any]) -> bytes | None:
        """The state of a generator that user code has made or seeded; None for that of the pass."""
        if self._fake is None:
            return None
        if given.get("generator") is not None:
            return _digest(given["generator"])
        # Only a seed makes a state that is neither the first nor one that a draw has left.
        now = _digest(torch.default_generator)
        return self._states.setdefault(now, now)

    def _note_state(self, seed: bytes | None) -> None:
        self._states[_digest(torch.default_generator)] = seed

    def _drawn(
        self,
        func: Any,
        tensors: Sequence[Tensor],
        outputs: Any,
        owners: Any,
        seed: bytes | None,
    ) -> list[Tensor | None]:
        """Record a draw, and set the owners of its free numbers."""
        made, whose = list(tensors_among((outputs,))), list(owners_in(owners))
        free = any(of is None or bool((of == FREE).any()) for of in whose)
        number = len(self.draws)
        self.draws.append(
            Draw(
                func.overloadpacket,
                tuple(tuple(tensor.shape) for tensor in made),
                tuple(tuple(tensor.shape) for tensor in tensors),
                free,
                seed,
            )
        )
        if self._random_owners is None:
            return whose
        found: list[Tensor | None] = []
        for place, (tensor, of) in enumerate(zip(made, whose, strict=True)):
            drawn = self._random_owners.owners(number, place, tensor.ndim, self.records)
            found.append(drawn if of is None else filled(of, drawn))
        return found


def owners_in(owners: Any) -> Iterator[Tensor | None]:
    if owners is None or isinstance(owners, Tensor):
        yield owners
    else:
        for part in owners:
            yield from owners_in(part)


def _digest(generator: torch.Generator) -> bytes:
    return hashlib.sha256(generator.get_state().numpy().tobytes()).digest()
