"""What the records of a ledger add up to."""

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
# Accounts to compute at most; each takes a fraction of a second.
_COMBINATIONS = 32

# One multiset of mechanisms for each group of records that has rates of its own.
Cost = tuple[Segments, ...]


@dataclass
class LedgerRun:
    """One run, as far as the ledger knows it.

    Args:
        id: its name in the ledger.
        plan: digest of its plan.
        steps: how many steps the plan pays for.
        delta: the plan's δ.
        data: what was declared about the data.
        not_private_reason: why its noise protects nothing, or None.
        charged: steps that are paid for, whether they were taken or not.
        cost: what they cost, one account for each group of records.
        announced: the charge that the run's next record may be, if it is open.
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
    """The state that a ledger's records lead to, one after the other."""

    header: Record | None = None
    runs: dict[str, LedgerRun] = field(default_factory=dict)
    _open: str | None = None

    def apply(self, record: Record) -> None:
        """Go on by one record."""
        kind = record["kind"]
        if kind not in _KINDS:
            raise ValueError(kind)
        if kind == "open":
            self.header = record
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
        if kind == "resume":  # noise that was known once does not become unknown later
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

    def check(self, record: Record) -> None:
        """Refuse a record that `take` would stumble over, before it is in the file for ever."""
        runs = {name: replace(run) for name, run in self.runs.items()}
        LedgerState(self.header, runs, self._open).apply(record)

    def repair(self) -> Record:
        """The record that stands for a torn last line.

        It was going to be one of two things: the opening of a run, under which nothing has been
        started yet, or the charge that the record before it announced. Such a charge may have been
        whole once and its steps taken, so it counts.
        """
        run = self.runs.get(self._open or "")
        if run is None or run.announced is None:
            return {"kind": "repair", "run": None}
        return {"kind": "repair", "run": run.id, **run.announced}

    @property
    def adjacency(self) -> str:
        """Which data sets are neighbours."""
        return self.header["adjacency"] if self.header is not None else "add-remove"

    def epsilon(self, delta: float, further: Cost = ()) -> float:
        """ε of everything charged, and of a further run, at this δ."""
        if any(run.not_private_reason is not None and run.charged for run in self.runs.values()):
            return math.inf  # who knows the seed can take the noise away
        runs = self.worst_runs(further)
        return max(accounting.epsilon(run, delta, self.adjacency) for run in runs)

    def smallest_delta(self, further: Cost) -> float:
        """The smallest δ at which there is an ε of everything charged and of a further run."""
        runs = self.worst_runs(further)
        return max(smallest_delta(checked(run, self.adjacency)) for run in runs)

    def worst_runs(self, further: Cost = ()) -> set[Segments]:
        """Everything charged, in each combination of groups that a record may belong to.

        Where there are too many combinations to look at, a run counts as if a record were in all of
        its groups: too much, never too little.
        """
        together: set[Segments] = {()}
        for cost in [*(run.cost for run in self.runs.values()), further]:
            groups = {merged(group) for group in cost} or {()}
            if len(together) * len(groups) > _COMBINATIONS:
                groups = {merged(_flattened(groups))}
            together = {merged((*before, *group)) for before in together for group in groups}
        return together


def plus(one: Cost, other: Cost) -> Cost:
    """Two costs together, group by group."""
    if not one or not other:
        return one or other
    return tuple(merged((*a, *b)) for a, b in zip(one, other, strict=True))


def minus(whole: Cost, part: Cost) -> Cost:
    """What is left of a cost after a part of it, group by group.

    Examples:
        >>> minus(((Segment(0.5, 1.0, 5),),), ((Segment(0.5, 1.0, 2),),))[0][0].steps
        3
    """
    if not any(part):  # also where nothing was charged yet and the groups are not known
        return whole
    return tuple(_minus(a, b) for a, b in zip(whole, part, strict=True))


def _minus(whole: Segments, part: Segments) -> Segments:
    counts: Counter[Segment] = Counter()
    for sign, segments in ((1, whole), (-1, part)):
        for segment in merged(segments):
            counts[replace(segment, steps=1)] += sign * segment.steps
    return tuple(replace(segment, steps=count) for segment, count in counts.items() if count)


def to_json(cost: Cost) -> list[list[dict[str, Any]]]:
    """A cost in terms of JSON, without fields that say nothing."""
    return [
        [{k: v for k, v in asdict(segment).items() if v is not None} for segment in group]
        for group in cost
    ]


def from_json(cost: Sequence[Sequence[dict[str, Any]]]) -> Cost:
    """A cost from its terms of JSON."""
    return tuple(tuple(Segment(**segment) for segment in group) for group in cost)


def _flattened(groups: Iterable[Segments]) -> list[Segment]:
    return [segment for group in groups for segment in group]
