"""Follow the operations of a user's own loop, from a drawn batch to its `backward()`.

No mode of torch is left on while the loop runs: whatever ends or leaves the loop, nothing stays
behind. The tensors of the batch tell of themselves instead (`route`), and each call with one of
them is made under a `LoopWatch`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from steppe.compat.loop_isolation.followed import Followed, as_plain
from steppe.compat.loop_isolation.kinds import BACK, COPIES, EXPORTS, HOOKS, TEXTS
from steppe.compat.loop_isolation.nests import leaves, numbers_in, objects_in
from steppe.compat.loop_isolation.past import Past
from steppe.compat.loop_isolation.refusals import (
    decides,
    foreign_weight,
    holds_inner,
    holds_read_number,
    meets,
    mixes_before,
)
from steppe.compat.loop_isolation.route import Route, has_saved_hooks
from steppe.compat.loop_isolation.totals import FOLLOW, LEAF, TOTAL, Path, Total
from steppe.compat.loop_isolation.watch import EXPORTED, LoopWatch
from steppe.errors import IsolationError
from steppe.gradients import Capture
from steppe.isolation import (
    FREE,
    OWNED,
    RANDOM,
    Finding,
    Owned,
    Watch,
    line_of_user,
    on_axis,
    refusals,
)
from steppe.utils.batches import tensors_in


class Follow(Route):
    """The route of one physical batch, with every operation on it.

    Args:
        records: how many it has.
        module: whose state must not be written in the loop.
        past: knows what is left of earlier batches.

    Attributes:
        approve: what is told of every loss that `backward()` is called on.
        watch: knows whose records every tensor is made from.
        losses: the totals that went back so far.
        constants: those that operations before the totals were given, with the operation.
    """

    def __init__(self, records: int, module: nn.Module, past: Past) -> None:
        super().__init__(records, past)
        state = [*module.parameters(), *module.buffers()]
        self._module = module
        self.watch = LoopWatch(records, None, lambda: None, state)
        self.losses: list[Total] = []
        self.constants: list[tuple[Any, ...]] = []
        self.approve: Callable[[Total], None] = lambda total: None
        self._stops: list[Any] = []

    def take(self, batch: Any, path: Path = ()) -> None:
        """Follow the tensors of a batch: records lie on the first axis."""
        for place, tensor in leaves(batch, path):
            if type(tensor) is not Tensor:
                raise IsolationError(
                    f"batch={type(tensor).__name__}: must hold plain tensors to be followed "
                    "through the loop; call as_subclass(torch.Tensor) in collate_fn, or ask for "
                    'isolation="probed".'
                )
            self.watch.adopt(tensor, on_axis(tensor.ndim, 0, self.records))
            setattr(tensor, LEAF, place)
            self._mark(tensor)

    def take_outputs(self, outputs: Any, whose: Sequence[Tensor]) -> None:
        """Follow what the module made, of which it is known whose it is."""
        for tensor, known in zip(objects_in(outputs), whose, strict=True):
            owned = getattr(known, OWNED, None)
            if owned is None or type(tensor) is not Tensor:
                continue
            if tensor.grad_fn is not None:
                self._stops.append(tensor.grad_fn)
            self.watch.adopt(tensor, owned.owners)
            self.watch.own(tensor, owned.owners, owned.origin)
            for key in (TOTAL, LEAF):
                if hasattr(known, key):
                    setattr(tensor, key, getattr(known, key))
            self._mark(tensor)

    def leave(self, outputs: Sequence[Tensor], shown: str) -> None:
        """As of any route."""
        super().leave(outputs, shown)
        if shown:
            self.watch.reads.append(Finding("reads", shown, None, None, EXPORTED))

    def require_rows(self, tensor: Tensor, axis: int) -> None:
        """Refuse an argument of the module in which row i is not made from record i alone."""
        self._require_known_ways(tensor, "argument")
        owned = self.watch.owned(tensor)
        rows = on_axis(tensor.ndim, axis, self.records)
        if owned is None:
            self.watch.require_same_for_all(None, tensor, rows)
            self._require_places()
            return
        if owned.origin is not None:
            raise mixes_before(owned.origin)
        if not bool(((owned.owners == rows) | (owned.owners == FREE)).all()):
            raise IsolationError(
                f"argument={tensor.ndim} axes: row i of what the module gets must be made from "
                "record i of the batch; keep the records in their order in the loop."
            )
        self._require_places()

    def require_no_numbers(self, arguments: Any) -> None:
        """Refuse numbers for the module, or in it, that were read off records."""
        read = {value for value in self.watch.values if self._is_telling(value)}
        if not read:
            return
        kept = [v for m in self._module.modules() for v in vars(m).values() if isinstance(v, float)]
        if any(_close(value, number) for value in read for number in numbers_in([arguments, kept])):
            raise holds_read_number("argument")

    def require_kept(self) -> None:
        """Refuse what was written to the module's state in the loop."""
        self._require_places()

    def release(self) -> None:
        """As of any route."""
        self._stops = []
        super().release()

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The call itself, under the watch."""
        if not any(hasattr(tensor, OWNED) for tensor in tensors_in((*args, *kwargs.values()))):
            return super().run(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if func is torch.autograd.grad:
            raise IsolationError(
                f"loop=torch.autograd.grad ({line_of_user()}): gradients that are taken in the "
                "loop, as for adversarial examples and penalties, can not be followed; take them "
                "inside the module, and call loss.backward() in the loop."
            )
        if has_saved_hooks():
            raise IsolationError(
                f"loop=saved_tensors_hooks ({line_of_user()}): hooks on what is kept for "
                "backward(), as of torch.utils.checkpoint and save_on_cpu, can not be followed in "
                "the loop; put them into the module."
            )
        if func in BACK:
            self._require_losses(args, kwargs)
            return func(*args, **kwargs)
        if func in (Tensor.__bool__, torch.is_nonzero):
            owned = getattr(args[0], OWNED, None)
            if owned is not None and owned.watch == self.watch.number:
                raise decides(Watch.note(self.watch, "reads", None, "Python reads a value"))
        if func in HOOKS or func == _NODE:  # what runs on the way back can be hooked there too
            name = "grad_fn" if func == _NODE else name
            raise IsolationError(
                f"loop={name} ({line_of_user()}): hooks on tensors of the loop, and backward hooks "
                "of the whole module, can not be followed; put the hook on a layer in the module, "
                "where it is."
            )
        if func in COPIES:
            if func in TEXTS:
                self.watch.reads.append(Finding("reads", name, None, line_of_user()))
            made = as_plain(func, args, kwargs)
            if func is Tensor.__deepcopy__:
                self._own_as(made, args[0])
                self._mark(made)
            return made
        if name in EXPORTS:
            place = Finding("reads", name, None, line_of_user(), EXPORTED)
            self.watch.reads.append(place)
            made = func(*args, **kwargs)
            if name == "tolist":
                self.watch.note_lengths(made)
            return made
        with self.watch:
            made = func(*args, **kwargs)
        if name == "__get__" and type(made) is Tensor and not hasattr(made, OWNED):
            self._own_as(made, args[0])  # `.data` is no operation
        for tensor in tensors_in(made):
            if type(tensor) is Tensor and (hasattr(tensor, OWNED) or hasattr(tensor, RANDOM)):
                self._mark(tensor, hasattr(tensor, OWNED))
        return made

    def _own_as(self, made: Tensor, of: Tensor) -> None:
        """What looks at the same numbers is of the same records."""
        owned = self.watch.owned(of)
        if owned is not None and made.shape == of.shape:
            self.watch.adopt(made, owned.owners)
            self.watch.own(made, owned.owners, owned.origin)

    def _mark(self, tensor: Tensor, followed: bool = True) -> None:
        if followed:
            setattr(tensor, FOLLOW, self)
            tensor.__class__ = Followed
        self._known.append(weakref.ref(tensor))

    def _require_places(self) -> None:
        for finding in self.watch.findings:
            if finding.kind == "place":
                raise refusals.place_decides(finding)
            if finding.kind == "writes":
                raise refusals.keeps(finding)

    def _require_losses(self, args: Any, kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        losses = list(tensors_in(given))
        gradients = [*args[1:2], kwargs.get("gradient"), kwargs.get("grad_tensors")]
        self._require_places()
        for loss in losses:
            owned = self.watch.owned(loss)
            total: Total | None = getattr(loss, TOTAL, None)
            if owned is None:
                continue
            if total is None:
                raise self._refusal(owned, loss)
            if any(True for _ in tensors_in(gradients)):
                raise IsolationError(
                    "backward(gradient): must be left out, the gradient of the loss is 1; multiply "
                    "each record's loss by a constant of its own and take the mean."
                )
            self._require_numbers()
            self._require_known_ways(loss)
            self.approve(total)
            self.losses.append(total)
            self.constants = list(self.watch.constants)

    def _refusal(self, owned: Owned, loss: Tensor) -> IsolationError:
        finding = owned.origin
        if finding is None and loss.numel() > 1:
            return IsolationError(
                f"loss={loss.ndim} axes: must be a mean or sum over the records; call mean()."
            )
        if finding is None:
            return IsolationError(
                "loss=of one record: must be made from all records of the batch, each with the "
                "same weight; take the mean over the records."
            )
        return meets(finding)

    def _require_numbers(self) -> None:
        """Refuse numbers that were read off records and went into the loss."""
        read = {value for value in self.watch.values if self._is_telling(value)}
        used = {abs(number) for call in self.watch.constants for number in call[1:]}
        for factor in map(abs, self.watch.factors):
            used |= {factor, 1 / factor if factor else 0.0}
        if any(_close(value, number) for value in map(abs, read) for number in used):
            raise holds_read_number("loss")

    def _is_telling(self, value: float) -> bool:
        """Whether a number in the loss that equals one which was read is no chance: an accuracy of
        one half may well be beside a weight of one half."""
        if not math.isfinite(value):
            return False
        if value == int(value):
            return abs(value) > 2 and value != self.records
        return abs(Fraction(value).limit_denominator(1000) - value) > 1e-7 * abs(value)

    def _require_known_ways(self, tensor: Tensor, what: str = "loss") -> None:
        """Refuse a backward pass with Python of the user's, or with weights, beside the module."""
        seen: set[Any] = set(self._stops)
        waiting: list[Any] = [tensor.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                if getattr(type(node), "_forward_cls", None) is Capture:
                    raise holds_inner(what)
                raise IsolationError(
                    f"{what}={type(node).__name__}: a torch.autograd.Function of your own in the "
                    "loop can not be followed; put it into the module."
                )
            weight = getattr(node, "variable", None)
            if isinstance(weight, Tensor) and self._is_foreign(weight):
                raise foreign_weight(what, tuple(weight.shape))
            waiting += [following for following, _ in node.next_functions]

    def _is_foreign(self, weight: Tensor) -> bool:
        """Whether a weight would get the plain gradient of all records."""
        own = any(weight is one for one in self._module.parameters())
        return not own and not isinstance(weight, Followed)


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other)) > 0


_NODE = vars(torch._C.TensorBase)["grad_fn"].__get__
