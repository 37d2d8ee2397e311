"""The state of a ledger: its runs and their cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from steppe import accounting
from steppe.accounting import Segment, Segments, checked, merged, smallest_delta
from steppe.ledger.chain import Record

_KINDS = ("open", "run", "resume", "charge", "pause", "repair")
# The most accounts to compute; each takes a fraction of a second.
_COMBINATIONS = 32

# One multiset of mechanisms for each group of records that has rates of its own.
Cost = tuple[Segments, ...]


@dataclass
class LedgerRun:
    """One run in a ledger.

    Args:
        id: its name in the ledger.
        plan: digest of its plan.
        steps: the number of steps of the plan.
        delta: the plan's δ.
        data: what was declared about the data.
        not_private_reason: why it is not private, or None.
        charged: the number of steps charged, taken or not.
        cost: of these steps, for each group of records.
        announced: the run's next charge, if the run is open.
    """

    id: str
    plan: str
    steps: int
    delta: float
    data: dict[str, Any]
    not_private_reason: str | None
    charged: int = 0
    cost: Cost = ()
    announced: Record | None = None


@dataclass
class LedgerState:
    """The state of a ledger after its records have been applied in order."""

    header: Record | None = None
    runs: dict[str, LedgerRun] = field(default_factory=dict)
    _open: str | None = None

    def apply(self, record: Record) -> None:
        """Apply one record."""
        kind = record["kind"]
        if kind not in _KINDS:
            raise ValueError(kind)
        if kind == "open":
            self._open_with(record)
            return
        if kind == "repair" and record["run"] is None:
            return
        if kind == "run":
            self.runs[record["run"]] = LedgerRun(
                id=record["run"],
                plan=record["plan"],
                steps=record["steps"],
                delta=record["delta"],
                data=record["data"],
                not_private_reason=record["not_private_reason"],
            )
        run = self.runs[record["run"]]
        if kind == "resume":  # a run with known noise stays not private
            run.not_private_reason = run.not_private_reason or record["not_private_reason"]
        if kind in ("charge", "repair"):
            last, cost = record["last"], from_json(record["cost"])
            if type(last) is not int or not run.charged < last <= run.steps or not cost:
                raise ValueError(last)
            run.charged, run.cost = last, plus(run.cost, cost)
        if kind == "pause":
            last = record["last"]
            if type(last) is not int or not 0 <= last <= run.charged:
                raise ValueError(last)
            run.charged, run.cost = last, minus(run.cost, from_json(record["returned"]))
        run.announced = record.get("next")
        self._open = run.id

    def _open_with(self, record: Record) -> None:
        """The first record; the first run completes one that was created before any run."""
        if self.header is not None and (
            self.runs or self.is_settled or record["budget"] != self.header["budget"]
        ):
            raise ValueError(record["budget"])
        self.header = record

    @property
    def is_settled(self) -> bool:
        """Whether a run has written what all runs must share: data, adjacency and unit."""
        return self.header is not None and self.header["adjacency"] is not None

    def check(self, record: Record) -> None:
        """Check that `apply` accepts a record, before it is written."""
        runs = {name: replace(run) for name, run in self.runs.items()}
        LedgerState(self.header, runs, self._open).apply(record)

    def repair(self) -> Record:
        """The record that replaces an incomplete last line.

        The line was either the opening of a run, of which no step has begun, or the charge that the
        record before announced. The charge may have been complete once, and its steps taken, so it
        counts.
        """
        run = self.runs.get(self._open or "")
        if run is None or run.announced is None:
            return {"kind": "repair", "run": None}
        return {"kind": "repair", "run": run.id, **run.announced}

    @property
    def adjacency(self) -> str:
        """The adjacency relation of the ledger; that of most runs where none has begun."""
        known = self.header["adjacency"] if self.header is not None else None
        return known or "add-remove"

    def epsilon(self, delta: float, further: Cost = ()) -> float:
        """ε of all charged steps, and of a further run, at this δ."""
        if any(run.not_private_reason is not None and run.charged for run in self.runs.values()):
            return math.inf  # whoever knows the seed can subtract the noise
        runs = self.worst_runs(further)
        return max(accounting.epsilon(run, delta, self.adjacency) for run in runs)

    def epsilon_of(self, run: LedgerRun, delta: float) -> float:
        """ε of the charged steps of one run, at this δ."""
        return LedgerState(self.header, {run.id: run}).epsilon(delta)

    def smallest_delta(self, further: Cost) -> float:
        """The smallest δ at which ε of all charged steps and a further run can be computed."""
        runs = self.worst_runs(further)
        return max(smallest_delta(checked(run, self.adjacency)) for run in runs)

    def worst_runs(self, further: Cost = ()) -> set[Segments]:
        """All charged steps, for each combination of groups that a record may belong to.

        If there are too many combinations, a run counts as if a record were in all of its groups,
        which overstates the cost.
        """
        together: set[Segments] = {()}
        for cost in [*(run.cost for run in self.runs.values()), further]:
            groups = {merged(group) for group in cost} or {()}
            if len(together) * len(groups) > _COMBINATIONS:
                groups = {merged(_flattened(groups))}
            together = {merged((*before, *group)) for before in together for group in groups}
        return together


def plus(one: Cost, other: Cost) -> Cost:
    """The sum of two costs, group by group."""
    if not one or not other:
        return one or other
    return tuple(merged((*a, *b)) for a, b in zip(one, other, strict=True))


def minus(whole: Cost, part: Cost) -> Cost:
    """The difference of two costs, group by group.

    Examples:
        >>> minus(((Segment(0.5, 1.0, 5),),), ((Segment(0.5, 1.0, 2),),))[0][0].steps
        3
    """
    if not any(part):  # also if nothing was charged yet and the groups are not known
        return whole
    return tuple(_minus(a, b) for a, b in zip(whole, part, strict=True))


def _minus(whole: Segments, part: Segments) -> Segments:
    counts: Counter[Segment] = Counter()
    for sign, segments in ((1, whole), (-1, part)):
        for segment in merged(segments):
            counts[replace(segment, steps=1)] += sign * segment.steps
    return tuple(replace(segment, steps=count) for segment, count in counts.items() if count)


def to_json(cost: Cost) -> list[list[dict[str, Any]]]:
    """A cost as JSON, without fields that are None."""
    return [
        [{k: v for k, v in asdict(segment).items() if v is not None} for segment in group]
        for group in cost
    ]


def from_json(cost: Sequence[Sequence[dict[str, Any]]]) -> Cost:
    """A cost from JSON."""
    return tuple(tuple(Segment(**segment) for segment in group) for group in cost)


def _flattened(groups: Iterable[Segments]) -> list[Segment]:
    return [segment for group in groups for segment in group]
