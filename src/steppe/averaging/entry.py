"""What a store knows about a checkpoint, what its file holds, and which checkpoints stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from steppe.utils.validation import positive_integer


@dataclass(frozen=True)
class StoreEntry:
    """One checkpoint: what the index says about it.

    Args:
        step: how many private steps had been taken.
        epsilon: ε spent until then, at most, or None where it was not given or nothing is promised.
        kind: "model", or the name of something derived from it.
        file: its name in the folder.
        sha256: of the whole file.
        size: of the whole file, in bytes.
    """

    step: int
    epsilon: float | None
    kind: str
    file: str
    sha256: str
    size: int


def as_safetensors(
    weights: Mapping[str, Tensor], about: Mapping[str, str], not_private_reason: str | None
) -> bytes:
    """A file of weights, with what is to be known about them.

    Args:
        weights: tensors by name; two names may look at one piece of memory.
        about: becomes the file's metadata.
        not_private_reason: why the noise protects nothing, for the metadata too; or None.
    """
    from safetensors.torch import save

    tensors, seen = {}, set()
    for name, weight in weights.items():
        tensor = weight.detach().to("cpu").contiguous()
        memory = tensor.untyped_storage().data_ptr()
        # The file is one copy already; safetensors refuses memory that two names share.
        tensors[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    stamp = {} if not_private_reason is None else {"not_private_reason": not_private_reason}
    return save(tensors, metadata={**about, **stamp})


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay. With neither rule all of them do; with both, what either keeps.

    Args:
        last: the newest so many, of each kind.
        every: steps that are multiples of this.

    Examples:
        >>> Keep(last=2, every=10).kept([5, 10, 15, 20, 25, 30, 35])
        [10, 20, 30, 35]
    """

    last: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        for name in ("last", "every"):
            if getattr(self, name) is not None:
                positive_integer(name, getattr(self, name), "leave it out or give 1 or more")

    def kept(self, steps: Sequence[int]) -> list[int]:
        """The steps that stay, in order."""
        if self.last is None and self.every is None:
            return list(steps)
        newest = set(steps[-self.last :]) if self.last else set()
        return [s for s in steps if s in newest or (self.every and s % self.every == 0)]
