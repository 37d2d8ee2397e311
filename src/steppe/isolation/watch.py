"""Follows every operation of torch and derives the owners of its results.

A `Watch` sees every operation that torch dispatches, in the forward pass, in the loss, in hooks and
in the backward pass. It stores the owners of every tensor (`owners`), derives those of each result
by a rule (`rules`), and reports findings: a value that Python reads, state that outlives the pass,
an operation without a rule.

Operations on records run on fake tensors without arithmetic, so nothing depends on their values.
Everything else (weights, constants, random numbers) is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from steppe.gradients import ANY_PASS, made_in_another
from steppe.isolation.call import Call, Rule
from steppe.isolation.constants import constants_of
from steppe.isolation.fakes import Fakes
from steppe.isolation.findings import OWNED, RANDOM, Finding, NotIsolated
from steppe.isolation.operation_notes import (
    Constant,
    OperationNote,
    numbers_in,
    shape_of,
)
from steppe.isolation.operators import EMPTY, LAID_ANEW, LIKE, QUESTIONS
from steppe.isolation.owners import FREE, MIXED, everywhere
from steppe.isolation.random_owners import RandomOwners
from steppe.isolation.schemas import by_name, tensors_among, written_by
from steppe.isolation.watched_results import WatchedResults
from steppe.isolation.watched_tensors import place_in_memory

_LARGE = 2**16


class Watch(WatchedResults):
    """Follows one pass.

    Args:
        records: the batch size.
        rules: from operators without overload to rules.
        fake: runs operations on records; None computes their values.
        layer: gives the module that is running.
        seed: of random numbers.
        random_owners: the owners of random numbers, if they are known.

    Attributes:
        findings: the reasons why the pass is not proven; mixed tensors that are not used do not
            count.
        operations: those on records and those on random numbers, in order, with their numeric
            arguments, which must not depend on the batch size.
        reads_random: whether Python read a random number.
        marks: the number of the tracer that marks tensors made from records.
        draws: the operations that drew random numbers, in order.
        asked: which of `operations` to locate; None for none, because that is slow.
        answer: its location as text.
    """

    def __init__(
        self,
        records: int,
        rules: Callable[[Any], Rule | None],
        fake: FakeTensorMode | None,
        layer: Callable[[], str | None],
        seed: int = 0,
        random_owners: RandomOwners | None = None,
    ) -> None:
        super().__init__(records, layer, fake, seed, random_owners)
        self.operations: list[OperationNote] = []
        self.reads: list[Finding] = []
        self.asked: int | None = None
        self.answer: str | None = None
        self.reads_random = False
        self.marks = ANY_PASS
        self._rules = rules
        self._fakes = None if fake is None else Fakes(fake, self._seen_through)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():  # our own operations do not belong to the model
            return self._followed(func, args, kwargs or {})

    def _followed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func in QUESTIONS:
            return func(*args, **kwargs)
        given = by_name(func, args, kwargs)
        tensors = list(tensors_among(given.values()))
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and not hasattr(tensor, OWNED):
                # Made where this watch was not on, as in another thread.
                finding = self.note(
                    "no rule", func, "a tensor made out of sight, as in another thread"
                )
                self.own(tensor, everywhere(tensor.ndim, MIXED), finding)
            elif self._was_exchanged(tensor):
                finding = self.note(
                    "no rule", func, "a tensor whose numbers were exchanged by `.data`"
                )
                self.own(tensor, everywhere(tensor.ndim, MIXED), finding)
            elif made_in_another(tensor, self.marks) and not hasattr(tensor, OWNED):
                self.note("carries", func, "a tensor of an earlier pass")
        if func.overloadpacket in LIKE:
            return self._run_like(func, given, tensors, args, kwargs)
        if not any(hasattr(tensor, OWNED) for tensor in tensors):
            return self._run_free(func, given, tensors, args, kwargs)
        if torch.Tag.data_dependent_output in func.tags:
            self._read(func)
        rule = self._rules(func)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        seed = self._seed_of_user(given) if draws else None
        anew = func.overloadpacket in LAID_ANEW
        place = place_in_memory(given["self"]) if anew else None
        try:
            outputs = self._run(func, args, kwargs)
        except NotIsolated:
            raise
        except RuntimeError as error:
            kind = type(error).__name__
            if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):
                raise NotIsolated(self.note("reads", func, "a shape that values decide")) from error
            raise
        call = Call(self, func, given, outputs, place)
        constants = constants_of(self, func, given)
        if rule is None:
            self._assign(call, _like(outputs, None), self.note("no rule", func))
        else:
            owners = rule(call)
            if draws:
                owners = self._drawn(func, tensors, outputs, owners, seed)
            self._assign(call, owners, None)
        constants, self._memories = (*constants, *self._memories), []
        self.operations.append(self._note_of(func, given, outputs, constants))
        return outputs

    def _run_like(
        self, func: Any, given: dict[str, Any], tensors: Sequence[Tensor], args: Any, kwargs: Any
    ) -> Any:
        """Run an operation that depends on shapes alone; draws get the owners of its argument."""
        without = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
        made = self._run_free(func, without, (), *self._without_records(args, kwargs))
        if hasattr(made, OWNED) and hasattr(tensors[0], OWNED):
            whose = self.owners(tensors[0])
            known = not bool(((whose == MIXED) | (whose == FREE)).any())
            if known and tuple(tensors[0].shape) == tuple(made.shape):
                self.own(made, whose)
        return made

    def _run_free(
        self, func: Any, given: dict[str, Any], tensors: Sequence[Tensor], args: Any, kwargs: Any
    ) -> Any:
        """Run an operation without records, which is computed."""
        draws = torch.Tag.nondeterministic_seeded in func.tags
        shaken = any(hasattr(tensor, RANDOM) for tensor in tensors)
        seed = self._seed_of_user(given) if draws else None
        if draws and self._fake is not None:
            # By the index of the draw, so that the batch size does not change random numbers.
            torch.manual_seed(1_000_003 * self._seed + len(self.draws) + 1)
        random = draws or shaken
        if random and torch.Tag.data_dependent_output in func.tags:
            self.reads_random = True
        written = written_by(func)
        large = random and written and tensors[0].numel() > _LARGE
        # Large masks need no values: random numbers are only compared one by one.
        large = large and self._random_owners is None
        for name in written:
            if isinstance(given.get(name), Tensor):
                self._require_own(func, given[name], "")
        constants = constants_of(self, func, given) if random else ()
        outputs = tensors[0] if large else func(*args, **kwargs)
        if draws:
            self._note_state(seed)
        if func.overloadpacket in EMPTY and self._fake is not None:
            outputs.zero_()  # uninitialised values are not compared
        made = list(tensors_among((outputs,)))
        for tensor in made:
            self._register(tensor, tensors)
            if random:
                for other in self._looking_at(tensor) if written else ():
                    setattr(other, RANDOM, True)
                setattr(tensor, RANDOM, True)
        none = [None] * len(made)
        whose = self._drawn(func, tensors, outputs, none, seed) if draws else ()
        for tensor, owners in zip(made, whose, strict=False):
            if owners is not None:
                origin = self.note("mixes", func) if bool((owners == MIXED).any()) else None
                self._write(tensor, owners, origin) if written else self.own(tensor, owners, origin)
        if random:
            self.operations.append(self._note_of(func, given, outputs, constants))
        return outputs

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on records."""
        if self._fakes is None:
            return func(*args, **kwargs)
        return self._fakes.run(func, args, kwargs)

    def _without_records(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments that matter only by their shape, as tensors without records."""

        def plain(value: Any) -> Any:
            if not isinstance(value, Tensor) or not hasattr(value, OWNED):
                return value
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=value.device
            )

        return tuple(map(plain, args)), kwargs

    def _read(self, func: Any) -> None:
        if self._fakes is not None:
            raise NotIsolated(self.note("reads", func, "Python reads a value"))
        self.reads.append(self.found("reads", func, "Python reads a value"))

    def _note_of(
        self, func: Any, given: dict[str, Any], outputs: Any, constants: tuple[Constant, ...]
    ) -> OperationNote:
        """The numeric arguments of an operation, and the shapes of its results."""
        if self.asked == len(self.operations):
            self.answer = self.place()
        shapes = tuple(
            shape_of(tensor, getattr(getattr(tensor, OWNED, None), "owners", None))
            for tensor in tensors_among((outputs,))
        )
        return OperationNote(func.overloadpacket, tuple(numbers_in(given)), constants, shapes)


def _like(outputs: Any, value: Any) -> list[Any]:
    return [value for _ in tensors_among((outputs,))]
