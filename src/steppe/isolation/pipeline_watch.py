"""Watches records in collate functions and loops, which are not models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from steppe.isolation.findings import Finding, NotIsolated
from steppe.isolation.operators import LEAVING
from steppe.isolation.owners import MIXED, join, joined
from steppe.isolation.rules import rule_of
from steppe.isolation.watch import Watch


class RecordsWatch(Watch):
    """A watch that also records whose values Python read, and which operations ran on records."""

    together = False  # every record has tensors of its own

    def __init__(self, records: int, fake: FakeTensorMode | None) -> None:
        super().__init__(records, rule_of, fake, lambda: None)
        self.way: set[tuple[Any, ...]] = set()
        self.met: Finding | None = None  # Python read a value computed from several records
        self.stopped = False
        self.inside = False  # this watch itself is running

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before, self.inside = self.inside, True
        whose = self.whose((args, kwargs))
        if whose:
            self.way.add((func.overloadpacket,))
        try:
            if whose and torch.Tag.data_dependent_output in func.tags:
                self._see_who_is_read(func, whose)
            return super().__torch_dispatch__(func, types, args, kwargs)
        except NotIsolated:
            self.stopped = True  # user code may catch it
            self._see_who_is_read(func, whose)
            raise
        finally:
            self.inside = before

    def whose(self, given: Any) -> list[Tensor]:
        """The owners of the tensors in a nested batch that were computed from records."""
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        return [one.owners for tensor in tensors if (one := self.owned(tensor)) is not None]

    def _see_who_is_read(self, func: Any, whose: list[Tensor]) -> None:
        if self.met is None and int(join([joined(owners) for owners in whose])) == MIXED:
            self.met = self.note("reads", func)


class Leaving(TorchFunctionMode):
    """Ends the pass if values leave torch without an operation, where they cannot be followed."""

    def __init__(self, watch: RecordsWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        watch = self._watch
        if not watch.inside and getattr(func, "__name__", "") in LEAVING and watch.whose(args):
            watch.stopped = True
            raise NotIsolated(watch.note("reads", f"{func.__name__}()", "numbers leave torch"))
        return func(*args, **(kwargs or {}))
