"""Tensors that torch asks before each call with one of them, so that they can be followed."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._C import DisableTorchFunctionSubclass

from steppe.compat.loop_isolation.totals import ALL, FOLLOW
from steppe.utils.batches import tensors_in


class Followed(Tensor):
    """A tensor made from the records of a batch: of one that waits for its step, which a `Route`
    follows, or of an earlier one, which `Past` knows."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        with DisableTorchFunctionSubclass():
            follows: Any = None
            if args and type(args[0]) is Followed:  # as nearly always
                follows = args[0].__dict__.get(FOLLOW)
            if follows is None or follows.is_over:
                for tensor in tensors_in((*args, *kwargs.values())):
                    if type(tensor) is Followed and (found := tensor.__dict__.get(FOLLOW)):
                        follows = found
                        if not found.is_over:
                            break
            return func(*args, **kwargs) if follows is None else follows.call(func, args, kwargs)


def as_plain(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copies, texts and saved files know nothing of what is followed."""
    tensor = args[0]
    if type(tensor) is not Followed:
        return func(*args, **kwargs)
    kept = {key: vars(tensor).pop(key) for key in ALL if key in vars(tensor)}
    tensor.__class__ = Tensor  # type: ignore[assignment]
    try:
        return func(*args, **kwargs)
    finally:
        tensor.__class__ = Followed
        vars(tensor).update(kept)


def make_plain(tensor: Tensor) -> None:
    """Forget all that is known of a tensor."""
    if type(tensor) is Followed:
        tensor.__class__ = Tensor  # type: ignore[assignment]
    for name in ALL:
        tensor.__dict__.pop(name, None)
