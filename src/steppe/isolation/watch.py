"""Follows every operation of torch and derives the owners of its results.

A `Watch` sees every operation that torch dispatches, in the forward pass, in the loss, in hooks and
in the backward pass. It stores the owners of every tensor (`owners`), derives those of each result
by a rule (`rules`), and reports findings: a value that Python reads, state that outlives the pass,
an operation without a rule.

Operations on records run on fake tensors without arithmetic, so nothing depends on their values.
Everything else (weights, constants, random numbers) is computed.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from steppe.gradients import ANY_PASS, is_marked, made_in_another
from steppe.isolation.call import Call, Rule
from steppe.isolation.constants import constants_of
from steppe.isolation.fakes import Fakes
from steppe.isolation.findings import BACKWARD, OWNED, RANDOM, Finding, NotIsolated, Owned
from steppe.isolation.operation_notes import (
    Constant,
    OperationNote,
    numbers_in,
    shape_of,
)
from steppe.isolation.operators import EMPTY, LAID_ANEW, LIKE, MOVING, QUESTIONS
from steppe.isolation.owners import FREE, MIXED, TYPE, everywhere, filled_rows, squeezed
from steppe.isolation.places import even, same_for_all
from steppe.isolation.random_owners import Draw, RandomOwners, filled
from steppe.isolation.schemas import by_name, storage_of, tensors_among, written_by
from steppe.isolation.where import layer_on_the_way_back, line_of_user

_LARGE = 2**16
_FEW = 8  # up to so many records it is compared where each has its elements


class Watch(TorchDispatchMode):
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

    passes = 0
    together = True  # in one tensor, so a result of some of them depends on positions

    def __init__(
        self,
        records: int,
        rules: Callable[[Any], Rule | None],
        fake: FakeTensorMode | None,
        layer: Callable[[], str | None],
        seed: int = 0,
        random_owners: RandomOwners | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        Watch.passes += 1
        self.number = Watch.passes
        self.records = records
        self.findings: list[Finding] = []
        self.operations: list[OperationNote] = []
        self.reads: list[Finding] = []
        self.asked: int | None = None
        self.answer: str | None = None
        self._before: list[tuple[Tensor, Tensor]] = []
        self.reads_random = False
        self.marks = ANY_PASS
        self._rules, self._fake, self._layer = rules, fake, layer
        self._seed, self._random_owners = seed, random_owners
        self.draws: list[Draw] = []
        # States of torch's generator that this pass has seen, with the seed of the user's in each.
        self._states: dict[bytes, bytes | None] = {_digest(torch.default_generator): None}
        self._exposed: dict[int, Any] = {}  # memories that other libraries look at
        self._memories: list[Constant] = []  # that the operation has written records into
        # Storages that were made in this pass, with all tensors that use each.
        self._born: dict[int, tuple[Any, list[weakref.ref[Tensor]]]] = {}
        self._fakes = None if fake is None else Fakes(fake, self._seen_through)

    # What is known of tensors

    def own(self, tensor: Tensor, owners: Tensor, origin: Finding | None = None) -> None:
        """Set the owners of a tensor."""
        if origin is not None and not bool((owners == MIXED).any()):
            origin = None
        setattr(tensor, OWNED, Owned(owners, self.number, origin, _memory(tensor)))

    def adopt(self, tensor: Tensor, owners: Tensor) -> None:
        """Register a tensor of the batch. It may be written to, because it ends with the pass."""
        self._register(tensor)
        self.own(tensor, owners)

    def owned(self, tensor: Tensor) -> Owned | None:
        """What is known about a tensor made from records; None for one that is free."""
        found: Owned | None = getattr(tensor, OWNED, None)
        if found is None:
            return None
        if found.watch != self.number:
            finding = self.note("carries", None, "a tensor of an earlier pass")
        elif found.memory != _memory(tensor):
            finding = self.note("no rule", None, "a tensor whose numbers were exchanged by `.data`")
        else:
            return found
        self.own(tensor, everywhere(tensor.ndim, MIXED), finding)
        return self.owned(tensor)

    def owners(self, tensor: Tensor) -> Tensor:
        """The owners of a tensor; `FREE` if there are none."""
        found = self.owned(tensor)
        return everywhere(tensor.ndim, FREE) if found is None else found.owners

    def note(self, kind: str, func: Any, detail: str = "") -> Finding:
        """Report a finding at the current location."""
        finding = self.found(kind, func, detail)
        if kind != "mixes":
            self.findings.append(finding)
        return finding

    def found(self, kind: str, func: Any, detail: str = "") -> Finding:
        """A finding at the current location, which matters only if the result is used."""
        name = "tensor" if func is None else str(func).removesuffix(".default")
        layer = self._layer()
        if layer is None and torch._C._current_autograd_node() is not None:
            back = layer_on_the_way_back()
            layer = BACKWARD if back is None else f"{BACKWARD} on the way back to {back}"
        return Finding(kind, _SAID.get(name, name), layer, line_of_user(), detail)

    def require_same_for_all(self, func: Any, value: Tensor, owners: Tensor) -> None:
        """Report a constant whose values depend on a record's position in the batch."""
        # Random numbers may differ until their owners are known.
        if value.numel() <= 1 or not self.is_settled(value) or hasattr(value, OWNED):
            return
        if not same_for_all(value, owners, self.records):
            self.note("place", func, "numbers that differ from record to record")

    def require_same_places(self, func: Any, places: Tensor, owners: Tensor) -> None:
        """Report indices or positions that differ from record to record."""
        if not same_for_all(places, owners, self.records):
            self.note("place", func, "places that differ from record to record")

    def is_settled(self, value: Tensor) -> bool:
        """Whether random numbers are known to belong to no record."""
        return not hasattr(value, RANDOM) or self._random_owners is not None

    def is_new(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor was made in this pass."""
        return storage_of(tensor)._cdata in self._born

    # Running

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for tensor, before in reversed(self._before):
            tensor.copy_(before)  # tensors from before the pass are unchanged

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
        place = _place(given["self"]) if func.overloadpacket in LAID_ANEW else None
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
        made, whose = list(tensors_among((outputs,))), list(_owners_in(owners))
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

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on records."""
        if self._fakes is None:
            return func(*args, **kwargs)
        return self._fakes.run(func, args, kwargs)

    def _seen_through(self, memory: Any, twin: Any) -> None:
        """Tensors that share the memory of a fake tensor change with it."""
        if (entry := self._born.get(memory._cdata)) is not None:
            self._born[twin._cdata] = (twin, entry[1])

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

    def unmarked(self) -> list[weakref.ref[Tensor]]:
        """Tensors made from records without a mark, which a later pass would not recognise."""
        seen = (ref for _, made in self._born.values() for ref in made)
        return [
            ref
            for ref in seen
            if (one := ref()) is not None and hasattr(one, OWNED) and not is_marked(one)
        ]

    # Results

    def _assign(self, call: Call, owners: Any, finding: Finding | None) -> None:
        origin = finding
        for tensor in call.tensors():
            known = self.owned(tensor)
            if origin is None and known is not None:
                origin = known.origin
        # Batch norm writes to its statistics, which its schema does not declare.
        written = (*written_by(call.func), *call.written)
        sources = list(call.tensors())
        flat = list(tensors_among((call.outputs,)))
        found = list(_owners_in(owners))
        changed = {id(call.given[name]) for name in written if name in call.given}
        for tensor, of in zip(flat, found, strict=True):
            if id(tensor) in changed:
                continue
            if of is None:
                of = everywhere(tensor.ndim, MIXED)
            self._register(tensor, sources)
            if self._has_place(call, of):
                of = everywhere(tensor.ndim, MIXED)
                origin = origin or self.by_place(call.func)
            of = filled_rows(of, self.records)
            self.own(tensor, of, self._origin(call, of, origin))
        for place, name in enumerate(written):
            target = call.given.get(name)
            if not isinstance(target, Tensor) or name in call.untouched:
                continue
            whose = call.written.get(name)
            if whose is None:
                whose = found[place] if place < len(found) else None
            if whose is None:
                whose = everywhere(target.ndim, MIXED)
            if torch.Tag.inplace_view in call.func.tags:  # other axes, the same values
                self.own(target, whose, self._origin(call, whose, origin))
                continue
            self._require_own(call.func, target, "records")
            self._require_unseen(call.func, target)
            if self._has_place(call, whose):
                whose = everywhere(target.ndim, MIXED)
                origin = origin or self.by_place(call.func)
            self._write(target, whose, self._origin(call, whose, origin), call.func)

    def _has_place(self, call: Call, owners: Tensor) -> bool:
        """Whether a result depends on positions in the batch.

        It does if it is computed from some records only, or has their elements in other patterns.
        """
        if not self.together or not 1 < self.records <= _FEW:
            return False
        if owners.numel() < self.records:
            whose = owners.flatten().tolist()
            some = any(FREE < owner < MIXED for owner in whose)
            return some and call.func.overloadpacket not in MOVING
        return not even(owners, self.records)

    def by_place(self, func: Any) -> Finding:
        """The finding for a result that depends on positions in the batch."""
        return self.found("place", func, "some records and not others")

    def place(self) -> str | None:
        """The layer and line that are running, as text; None if neither is the user's."""
        found = self.found("place", None)
        return ", ".join(part for part in (found.layer, found.line) if part) or None

    def _origin(self, call: Call, owners: Tensor, origin: Finding | None) -> Finding | None:
        if not bool((owners == MIXED).any()):
            return None
        return origin or self.note("mixes", call.func)

    def _require_own(self, func: Any, tensor: Tensor, detail: str) -> None:
        """Report a write to a tensor from before the pass, which outlives it."""
        if tensor.numel() and not self.is_new(tensor):
            self.note("writes", func, detail)
            if not isinstance(tensor, FakeTensor):
                self._before.append((tensor.detach(), tensor.detach().clone()))

    def expose(self, tensor: Tensor) -> None:
        """Remember a memory that code has come to see by other ways than torch."""
        if tensor.layout == torch.strided:
            storage = storage_of(tensor)
            self._exposed[storage._cdata] = storage

    def _require_unseen(self, func: Any, tensor: Tensor) -> None:
        """Note records that are written where NumPy, or another tensor of NumPy's, would see them.

        Guarantees:
            Only what torch has allocated itself has a size that it may change.
        """
        if isinstance(tensor, FakeTensor) or not tensor.numel():
            return
        storage = storage_of(tensor)
        if storage._cdata in self._exposed or not storage.resizable():
            self.note("reads", func, "numbers leave torch")

    def _write(
        self, tensor: Tensor, owners: Tensor, origin: Finding | None, func: Any = None
    ) -> None:
        """Update the owners of a tensor that was changed in place, and of those in its memory."""
        others = [
            other for other in self._looking_at(tensor) if other is not tensor and other.numel()
        ]
        if not others or not tensor.numel():
            self.own(tensor, owners, origin)
            return
        memory = self.memory(tensor)
        for other in others:
            origin = origin or getattr(getattr(other, OWNED, None), "origin", None)
        before = [self.owners(other) for other in others]
        memory.as_strided(*_place(tensor)).copy_(owners.expand(tensor.shape))
        self.own(tensor, owners, origin)
        places = None
        if func is not None and self.together and 1 < self.records <= _FEW:
            places = torch.zeros(memory.shape, dtype=torch.bool, device="cpu")
            places.as_strided(*_place(tensor)).fill_(True)
        for other, was in zip(others, before, strict=True):
            now = squeezed(memory.as_strided(*_place(other))).contiguous()
            if not hasattr(other, OWNED):
                if bool((now == FREE).all()):
                    continue  # still a constant with known values
                if not isinstance(other, FakeTensor):
                    self._beside(func, other, now)
            self.own(other, filled_rows(now, self.records), origin)
            if places is not None:
                written = squeezed(places.as_strided(*_place(other)))
                self._require_even_write(func, written, torch.where(was == FREE, now, was), now)

    def _beside(self, func: Any, constant: Tensor, now: Tensor) -> None:
        """Compare the values of a constant tensor that records are now written into."""
        value = torch.where(now == FREE, constant.detach(), constant.new_zeros(()))
        known = value if self.is_settled(constant) else None
        number, random = len(self._memories), hasattr(constant, RANDOM)
        form = tuple(constant.shape)
        self._memories.append(Constant("memory", number, form, known, random, False))
        if func is None or known is None:
            return
        if not same_for_all(value, filled_rows(now, self.records), self.records):
            self.note("place", func, "numbers that differ from record to record")

    def _require_even_write(self, func: Any, written: Tensor, whose: Tensor, now: Tensor) -> None:
        """Report a write to different positions for different records."""
        if not same_for_all(written, whose, self.records) or not even(now, self.records):
            self.note("place", func, "other places of one record than of another")

    def memory(self, tensor: Tensor) -> Tensor:
        """The owners of the whole memory of a tensor, as far as other tensors use it."""
        size = storage_of(tensor).nbytes() // tensor.element_size()
        # Memory that no remaining tensor uses may have any owner.
        memory = torch.full((size,), MIXED, dtype=TYPE, device="cpu")
        for other in (*self._looking_at(tensor), tensor):
            if other.numel():
                memory.as_strided(*_place(other)).copy_(self.owners(other).expand(other.shape))
        return memory

    def _was_exchanged(self, tensor: Tensor) -> bool:
        """Whether a constant looks at memory of this pass that it was not made to look at."""
        if hasattr(tensor, OWNED) or tensor.layout != torch.strided:
            return False
        born = storage_of(tensor)._cdata in self._born
        return born and not any(other is tensor for other in self._looking_at(tensor))

    def _looking_at(self, tensor: Tensor) -> list[Tensor]:
        entry = self._born.get(storage_of(tensor)._cdata)
        alive = [] if entry is None else [ref() for ref in entry[1]]
        return [other for other in alive if other is not None]

    def _register(self, tensor: Tensor, sources: Sequence[Tensor] = ()) -> None:
        """Remember which memory a result uses."""
        if tensor.layout != torch.strided:
            return
        storage = storage_of(tensor)
        key = storage._cdata
        entry = self._born.get(key)
        if entry is not None:
            entry[1].append(weakref.ref(tensor))
        elif not any(storage_of(source)._cdata == key for source in sources):
            self._born[key] = (storage, [weakref.ref(tensor)])

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


def _place(tensor: Tensor) -> tuple[Any, Any, int]:
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def _digest(generator: torch.Generator) -> bytes:
    return hashlib.sha256(generator.get_state().numpy().tobytes()).digest()


def _memory(tensor: Tensor) -> int | None:
    return storage_of(tensor)._cdata if tensor.layout == torch.strided else None


def _like(outputs: Any, value: Any) -> list[Any]:
    return [value for _ in tensors_among((outputs,))]


def _owners_in(owners: Any) -> Iterator[Tensor | None]:
    if owners is None or isinstance(owners, Tensor):
        yield owners
    else:
        for part in owners:
            yield from _owners_in(part)


# The name that users know.
_SAID = {"aten._local_scalar_dense": "item(), bool() or float()", "tensor": "a tensor"}
