"""The user's loop, watched from the batch that it is given to the step that it takes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from steppe.compat.arguments import Arguments
from steppe.compat.loop_isolation.followed import Followed, make_plain
from steppe.compat.loop_isolation.nests import leaves, objects_in
from steppe.compat.loop_isolation.past import Past
from steppe.compat.loop_isolation.reads import READ
from steppe.compat.loop_isolation.refusals import (
    changes_always,
    goes_by_values,
    holds_read_number,
)
from steppe.compat.loop_isolation.route import Number, Route
from steppe.compat.loop_isolation.shown import shown_by
from steppe.compat.uncopied_hook import nothing
from steppe.errors import IsolationError
from steppe.probing import LOOK_AGAIN
from steppe.utils.batches import each, tensors_in

if TYPE_CHECKING:
    from steppe.compat.loop_isolation.follow import Follow
    from steppe.compat.loop_isolation.totals import Guard, Path, Total

_FIRST = 2  # what the first pass has kept may be used in the second
_EVERY = 256
_REHEARSED = 4  # records at least, so that half of them are two
_MOST = 32  # batches that may come again with no known one between them


@dataclass
class LoopReport:
    """What is known of a run in the shape of a plain loop.

    Attributes:
        isolation: "proven" or "probed".
        watched: batches, or parts of one, on whose way through the loop every operation was
            followed.
        steps: how many there were in all.
        reads: lines of the loop that read values made from records, for logs. What the loop
            decides by them is seen in the batch itself, and not in later ones.

    Examples:
        >>> print(LoopReport("proven", watched=2, steps=10, reads=["train.py:7"]))
        isolation: proven; the loop was followed on 2 of 10 batches; values are read at train.py:7,
        and that the loop decides nothing by them in later batches is not proven
    """

    isolation: str
    watched: int = 0
    steps: int = 0
    reads: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.isolation == "probed":
            return "isolation: probed; what the loop does around the module is not checked"
        text = f"isolation: proven; the loop was followed on {self.watched} of {self.steps} batches"
        if not self.reads:
            return text
        lines = ", ".join(self.reads[:3])
        return (
            f"{text}; values are read at {lines},\nand that the loop decides nothing by them in "
            "later batches is not proven"
        )


class Watched:
    """Decides when to follow a loop, and holds what it says about the loss.

    Args:
        module: the user's.
        averaged: whether the loss is said to be a mean over the batch.
        isolation: "proven"; with "probed" nothing is followed.

    Attributes:
        rehearses: how many halves of the batch must come, of which no step is taken, before all of
            it comes again. Set if the loop computes with constants after it read values of the
            first batch: a record that decides them is in one of the halves alone.

    Guarantees:
        The first two batches of two records or more are followed, then those of `LOOK_AGAIN`,
        every 256th, and the one after the module has changed. Of every other the route of its loss
        is known, and no step is taken if none that was followed came the same way. No mode of torch
        is left on.
    """

    def __init__(self, module: nn.Module, averaged: bool, isolation: str) -> None:
        self.report = LoopReport(isolation)
        self._module, self._averaged = module, averaged
        self.rehearses = 0
        self._route: Route | None = None
        self._follow: Follow | None = None  # the same, if it is followed
        self._due = False
        # By route: the number of records and the numbers of the batch that came it last.
        self._routes: dict[int, tuple[int, tuple[Number, ...]]] = {}
        self._came_again = 0
        self._warned = False
        self._guards: frozenset[Guard] = frozenset()
        self._past = Past(module)
        self._read_before = ""  # where values were read before the module ran
        self._scales: dict[int, tuple[float, ...]] = {}  # by number of records
        self._numbers: tuple[int, list[tuple[Any, ...]]] | None = None

    def look_again(self) -> None:
        """The module has changed, and so may have the loop."""
        self._due = self.report.steps > 0

    def begin(self, batch: Any, records: int) -> Any:
        """A physical batch is about to be handed to the user."""
        self.end()
        if self.report.isolation != "proven" or records < 2:
            return batch
        tensors = self._leaves_of(batch)  # the loop may take some out
        for tensor in tensors.values():
            make_plain(tensor)  # data sets may hand out one tensor again
        self._require_guards(tensors)
        number = self.report.steps
        self.report.steps += 1
        if self._due or number < _FIRST or number in LOOK_AGAIN or number % _EVERY == 0:
            from steppe.compat.loop_isolation.follow import (
                Follow,  # late: what it needs of torch takes a while
            )

            self._due = False
            self._route = self._follow = follow = Follow(records, self._module, self._past)
            follow.approve = lambda total: self._approve(total, tensors)
            follow.take(batch)
        else:
            self._route = Route(records, self._past)
        self._route.start(tensors)
        return batch

    def end(self) -> None:
        """The batch was stepped or forgotten."""
        route, self._route, self._follow = self._route, None, None
        if route is not None:
            route.release()

    def share_of(self, rows: Tensor) -> Tensor:
        """Which rows of a batch come now: all, or one of its halves."""
        middle = len(rows) // 2
        return {2: rows[:middle], 1: rows[middle:]}.get(self.rehearses, rows)

    @staticmethod
    def require_unread(groups: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a learning rate, or another number of the optimizer, read from records."""
        for group in groups:
            for name, value in group.items():
                if type(value) in READ or type(value) is Followed:
                    raise holds_read_number(f"optimizer.{name}")

    def detach(self) -> None:
        """The run has ended."""
        self.end()
        self._past.end()

    def accepts(self, records: int) -> bool:
        """Called before the step: whether the loss came a way that was followed, if not in this
        batch then before. Otherwise the batch must come again, and is followed then."""
        route, follow = self._route, self._follow
        half_alone = self.rehearses > 0
        self.rehearses -= half_alone
        if route is None:
            return not half_alone
        key = route.key
        known = self._routes.get(key)
        if not self._routes and route.computes_after_read and records >= _REHEARSED:
            self.rehearses = 2
        if self._routes and known is None and route.read_before:
            raise goes_by_values(route.read_before)
        if follow is not None:
            self._learn(follow, records)
        elif known is None:
            self._call_again()
            return False
        else:
            self._came_again = 0
        if known is not None and route.read_before:
            self._require_undecided(route, records, *known)
        self._routes[key] = records, route.numbers
        return not (half_alone or self.rehearses)

    def _call_again(self) -> None:
        self._came_again += 1
        if self._came_again > _MOST:
            raise changes_always()
        self._due = True
        if not self._warned:
            self._warned = True
            warnings.warn(
                "The loop computes its loss in another way than before; this batch comes again to "
                "be followed, and no step is taken or charged until then. Further ones come again "
                "without a warning.",
                stacklevel=7,  # where step() was called
            )

    @staticmethod
    def _require_undecided(
        route: Route, records: int, before: int, numbers: tuple[Number, ...]
    ) -> None:
        """Refuse a number on the way to the loss that is another one after values were read."""
        for (old, _), (new, after_read) in zip(numbers, route.numbers, strict=False):
            if old is None or new is None:
                continue
            if after_read and old != new and not _follows(old, new, before, records):
                raise goes_by_values(route.read_before)

    def _learn(self, follow: Follow, records: int) -> None:
        """What a followed batch says of the loss."""
        if not follow.losses:
            raise IsolationError(
                "loss=not followed: must be made by operations of torch from the batch and the "
                "module's output, and go back by loss.backward(); leave NumPy, compiled functions "
                "and torch.func out between the batch and the loss, or ask for "
                'isolation="probed".'
            )
        follow.require_kept()
        scales = tuple(scale for total in follow.losses for scale in total.scales)
        self._require_same_scale(scales, records)
        self._require_same_numbers(follow.constants, records)
        self.report.watched += 1
        for finding in follow.watch.reads:
            if finding.line and finding.line not in self.report.reads:
                self.report.reads.append(finding.line)

    def arguments(
        self, arguments: Arguments, axis_of: Callable[[Tensor], int]
    ) -> tuple[list[Tensor], Arguments]:
        """The tensors that the loop gives to the module, and the same ones as plain tensors.

        Raises:
            IsolationError: a row was made from other records than its own.
        """
        route, follow = self._route, self._follow
        if route is None:
            return [], arguments
        self._past.require_none_in_module()
        known = list(tensors_in(arguments))
        if follow is not None:
            for tensor in known:
                follow.require_rows(tensor, axis_of(tensor))
            follow.require_no_numbers(arguments)
        route.enter(arguments)
        if route.read:
            self._read_before = route.read
        if follow is not None:
            return known, each(_plain, arguments)
        route.let_in(known)
        return known, arguments

    def require_known_shapes(self) -> None:
        """Refuse arguments in a new form, where it may have been read from records."""
        if self._read_before:
            from steppe.compat.loop_isolation.refusals import shape_by_records

            raise shape_by_records(self._read_before)

    def outputs_of(
        self, arguments: Arguments, known: list[Tensor], axis_of: Callable[[Tensor], int]
    ) -> Callable[[Any], None]:
        """What to call with that which the module makes of these arguments."""
        route, follow = self._route, self._follow
        if route is None:
            return nothing
        whose: list[Tensor] = []
        if follow is not None:
            from steppe.compat.loop_isolation.module_outputs import outputs_of_module

            whose = outputs_of_module(
                self._module, arguments, known, axis_of, follow.records, self._past
            )

        def made(output: Any) -> None:
            with torch._C.DisableTorchFunctionSubclass():
                if follow is not None:
                    follow.take_outputs(output, whose)
                route.leave(list(objects_in(output)), shown_by(self._module))

        return made

    @staticmethod
    def _leaves_of(batch: Any) -> dict[Path, Tensor]:
        return dict(leaves(batch))

    def _approve(self, total: Total, tensors: dict[Path, Tensor]) -> None:
        """A loss that goes back: a sum over the records, each with the same weight."""
        self._guards |= total.guards
        with torch._C.DisableTorchFunctionSubclass():
            self._require_guards(tensors)

    def _require_guards(self, tensors: dict[Path, Tensor]) -> None:
        """Labels that would change the divisor of a mean must not be there."""
        for path, label in self._guards:
            if bool((tensors[path] == label).any()):
                from steppe.compat.loop_isolation.refusals import token_mean

                raise token_mean(f"mean with ignore_index={label}")

    def _require_same_scale(self, scales: tuple[float, ...], records: int) -> None:
        """Compare with a batch of another size: only a mean divides by it."""
        for seen, before in self._scales.items():
            if seen == records or len(before) != len(scales):
                continue
            for one, two in zip(before, scales, strict=True):
                if self._averaged and math.isclose(one, two, rel_tol=1e-6):
                    raise IsolationError(
                        "loss=not divided by the number of records: must be a mean over the "
                        "batch; take mean(), or say loss_reduction='sum' to make_private."
                    )
                if not self._averaged and math.isclose(one * seen, two * records, rel_tol=1e-6):
                    raise IsolationError(
                        "loss=divided by the number of records: must be a sum over the batch; "
                        "take sum(), or say loss_reduction='mean' to make_private."
                    )
        self._scales[records] = scales

    def _require_same_numbers(self, numbers: list[tuple[Any, ...]], records: int) -> None:
        """Refuse a number before the last reduction that grows or falls with that of records."""
        if self._numbers is not None and self._numbers[0] != records:
            seen, before = self._numbers
            for one, two in zip(before, numbers, strict=False):
                for old, new in zip(one[1:], two[1:], strict=False):
                    if one[0] is two[0] and _follows(old, new, seen, records):
                        from steppe.isolation import refusals

                        raise refusals.number_decides(f"a number in {one[0].__name__}")
        self._numbers = records, numbers


def _follows(old: float, new: float, seen: int, records: int) -> bool:
    grows = math.isclose(old * records, new * seen, rel_tol=1e-6)
    falls = math.isclose(old * seen, new * records, rel_tol=1e-6)
    return old != new and (grows or falls)


def _plain(tensor: Tensor) -> Tensor:
    """The same tensor as another object, that nothing is known of."""
    return tensor.clone() if tensor.requires_grad else tensor.view_as(tensor)
