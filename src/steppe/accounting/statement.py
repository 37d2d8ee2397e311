"""The privacy statement: what is promised, to whom, and what it rests on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from steppe.accounting import statement_text
from steppe.accounting.participation import Participation
from steppe.accounting.pld import epsilon_curve, smallest_delta
from steppe.accounting.rdp import rdp_epsilon
from steppe.accounting.segment import Segment, Segments


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Everything a reader needs in order to judge a claimed ε. Made by `Plan.statement()`.

    Args:
        epsilon: the PLD value of the whole run at δ.
        delta: δ.
        curve: further (δ, ε) pairs that hold for the same run.
        rdp_epsilon: the second opinion; None where the RDP accountant does not apply.
        accountant: the accountant and its version.
        adjacency: which data sets are neighbours.
        unit: what one neighbour differs by, such as "record".
        population: number of units that sets the sampling rate.
        population_source: "declared" or "data".
        run: the mechanisms covered, at least one; those of the group with the largest ε.
        groups: the mechanisms of every group of units, where groups have rates of their own.
        noise_multiplier: σ of one query, at its base level if it follows a schedule.
        sensitivity: the bound on one unit's part in the sum.
        queries: the number of queries of the same batch per step.
        rounded_noise: whether sum and noise are rounded to a common grid before they are added.
        digest: the plan's fingerprint.
        not_private_reason: why nothing above holds, if so.
        also_read: what else was read from the data before the run, outside the account.
        public_records: how many public records the clip uses.
        starts: for each start that the weights begin with, the public records that it saw.
        public_steps: whether the weights also take steps on batches of public records.
        fixed_shapes: whether every batch is padded to the largest one.
        isolation: how it is known that a record's gradient depends on that record alone: "proven",
            "isolated" or "probed"; None for a plan without a model.
        total_steps: the number of steps covered, where that is not the number of mechanisms.
        turns: in which steps one unit can take part; None where it is any of them, by chance.
        correlated: the noise, if it is correlated over the steps.
        held_out: the share of the records that was kept out of training, where a hash of each
            record decided; None if none was.
        checked: what the owner's checks read before the first step: "records", "length" for their
            number alone, or None.
        compared: whether a model was trained on the records without privacy, to compare.
        collated: how it is known that each row of a batch is made from one record: "proven", or
            "compared" in every batch.
    """

    epsilon: float
    delta: float
    curve: tuple[tuple[float, float], ...]
    rdp_epsilon: float | None
    accountant: str
    adjacency: str
    unit: str
    population: int
    population_source: str
    run: Segments
    noise_multiplier: float
    sensitivity: float
    queries: int
    rounded_noise: bool
    digest: str
    not_private_reason: str | None = None
    groups: tuple[Segments, ...] = ()
    also_read: tuple[str, ...] = ()
    public_records: int = 0
    starts: tuple[str, ...] = ()
    public_steps: bool = False
    fixed_shapes: bool = False
    isolation: str | None = None
    total_steps: int | None = None
    turns: Participation | None = None
    correlated: str | None = None
    collated: str = "proven"
    held_out: float | None = None
    checked: str | None = None
    compared: bool = False

    @classmethod
    def of(cls, runs: Sequence[Segments], delta: float, adjacency: str, **facts: Any) -> Statement:
        """The statement of a run, computed from its segments.

        Args:
            runs: for each group of units the mechanisms covered, at least one.
            delta: δ.
            adjacency: which data sets are neighbours.
            facts: the fields that segments do not know.

        Returns:
            The statement. Every ε in it is that of the group with the largest ε.
        """
        # Through text, so that a tenth of 1e-5 reads 1e-6.
        tenths = (float(f"{delta / divisor:.6g}") for divisor in (10, 100))
        others = tuple(small for small in tenths if small >= max(map(smallest_delta, runs)))
        curves = [epsilon_curve(run, (delta, *others), adjacency) for run in runs]
        worst, run = max(zip(curves, runs, strict=True), key=lambda pair: pair[0][0])
        further = [max(values) for values in list(zip(*curves, strict=True))[1:]]
        comparable = adjacency != "replace-one" and run[0].cap is None
        return cls(
            epsilon=worst[0],
            delta=delta,
            curve=tuple(zip(others, further, strict=True)),
            rdp_epsilon=max(rdp_epsilon(one, delta, adjacency) for one in runs)
            if comparable
            else None,
            accountant=f"dp-accounting {version('dp-accounting')}",
            adjacency=adjacency,
            run=run,
            groups=tuple(runs) if len(runs) > 1 else (),
            **facts,
        )

    @property
    def rate(self) -> float:
        """The largest probability that a unit takes part in a step."""
        return max(part.rate for run in (self.run, *self.groups) for part in run)

    @property
    def cap(self) -> int | None:
        """The largest batch, or None."""
        return self.run[0].cap

    @property
    def steps(self) -> int:
        """The number of steps covered."""
        if self.total_steps is not None:
            return self.total_steps
        return sum(segment.steps for segment in self.run)

    @property
    def items(self) -> dict[str, str]:
        """The nine items, by title, as sentences."""
        return statement_text.items(self)

    @property
    def caution(self) -> str | None:
        """A warning about the guarantee, or None."""
        return statement_text.caution(self.isolation, self.unit)

    def to_dict(self) -> dict[str, Any]:
        """Numbers and sentences, ready for JSON; `epsilon` is null if the run is not private."""
        return {
            "private": self.not_private_reason is None,
            "not_private_reason": self.not_private_reason,
            "epsilon": self._promised(self.epsilon),
            "delta": self.delta,
            "curve": [
                {"delta": delta, "epsilon": self._promised(epsilon)}
                for delta, epsilon in self.curve
            ],
            "rdp_epsilon": self._promised(self.rdp_epsilon),
            "accountant": self.accountant,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "population": self.population,
            "population_source": self.population_source,
            "public_records": self.public_records,
            "starts": list(self.starts),
            "public_steps": self.public_steps,
            "rate": self.rate,
            "cap": self.cap,
            "fixed_shapes": self.fixed_shapes,
            "isolation": self.isolation,
            "collated": self.collated,
            "held_out": self.held_out,
            "checked": self.checked,
            "compared": self.compared,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "queries": self.queries,
            "accounted": [_numbers(segment) for segment in self.run],
            "groups": [[_numbers(segment) for segment in run] for run in self.groups],
            "rounded_noise": self.rounded_noise,
            "turns": None if self.turns is None else asdict(self.turns),
            "correlated_noise": self.correlated,
            "digest": self.digest,
            "items": self.items,
        }

    def to_json(self) -> str:
        """`to_dict` as indented JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        lines = ["Privacy statement", ""]
        if self.not_private_reason is not None:
            lines = [f"NOT PRIVATE: {self.not_private_reason}", "", *lines]
        elif self.caution is not None:
            lines = [f"WARNING: {self.caution}", "", *lines]
        for number, (title, text) in enumerate(self.items.items(), 1):
            # On one line, because a second line could look like another item.
            lines.append(f"{number}. {title}: {' '.join(text.split())}")
        return "\n".join(lines)

    def _promised(self, epsilon: float | None) -> float | None:
        holds = self.not_private_reason is None and epsilon is not None and math.isfinite(epsilon)
        return epsilon if holds else None


def _numbers(segment: Segment) -> dict[str, float]:
    return {
        "steps": segment.steps,
        "noise_multiplier": segment.noise_multiplier,
        "rate": segment.rate,
    }
