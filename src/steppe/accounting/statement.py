"""The privacy statement: what is promised, to whom, and what it rests on.

The nine items are those that "How to DP-fy ML" (Ponomareva et al., arXiv 2303.00654, section 5.3)
asks every claim of differential privacy to report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from steppe._text import rounded_up
from steppe.accounting.full_batch import is_full_batch
from steppe.accounting.pld import epsilon_curve, smallest_delta
from steppe.accounting.rdp import rdp_epsilon
from steppe.accounting.segment import Segment, Segments

_RELATION_TEXT = {
    "add-remove": "one {unit} is added to or removed from the data set",
    "zero-out": "one {unit} is replaced by an empty one; the number of them is public",
    "replace-one": "one {unit} is replaced by any other",
}
# Levels of a noise schedule that are printed; to_json() has them all.
_LISTED = 8


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
        run: the mechanisms covered, at least one; those of the group of units that pays most.
        groups: the mechanisms of every group of units, where groups have rates of their own.
        noise_multiplier: σ of one query, at its base level if it follows a schedule.
        sensitivity: the bound on one unit's part in the sum.
        queries: how often a step asks the same batch.
        rounded_noise: whether sum and noise are rounded to a common grid before they are added.
        digest: the plan's fingerprint.
        not_private_reason: why nothing above holds, if so.
        also_read: what else was read from the data before the run, outside the account.
        public_records: how many records were handed over as public, for the clip to look at.
        fixed_shapes: whether every batch is filled up to the largest one.
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
    fixed_shapes: bool = False

    @classmethod
    def of(cls, runs: Sequence[Segments], delta: float, adjacency: str, **facts: Any) -> Statement:
        """The statement of a run, with everything computed that the segments determine.

        Args:
            runs: for each group of units the mechanisms covered, at least one.
            delta: δ.
            adjacency: which data sets are neighbours.
            facts: the fields that segments do not know.

        Returns:
            The statement. Every ε in it is that of the group which pays most.
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
        return sum(segment.steps for segment in self.run)

    @property
    def items(self) -> dict[str, str]:
        """The nine items, by title, as sentences."""
        return {
            "setting": (
                "Central: whoever runs the training sees the data and is trusted; whoever "
                "receives what is released is not."
            ),
            "data accesses": (
                f"The {self.steps} steps of this run. Not covered: choosing hyper-parameters, "
                "architecture or checkpoint with the help of the same data, and other runs on it. "
                "Also read, outside the account: the structure (shapes, types) of one record; a "
                "few records at set-up where a custom function collates them; the labels where "
                f"classes were declared; {self._first_batch_text}. "
                f"{self._also_read_text}{self._population_text}{self._public_text}{self._groups_text}"
            ),
            "release": (
                "The weights after every step, so all checkpoints, the optimizer's state, and "
                "whatever is computed from them alone, averages included. Not covered: losses, "
                "accuracies or batch sizes measured on the private data."
            ),
            "unit": f"One {self.unit}; its part in a step's sum is at most {self.sensitivity!r}.",
            "neighbours": f"{self.adjacency}: {self._neighbours_text}.",
            "accountant": f"{self.accountant}, {self._method}. {self._rdp}",
            "assumptions": self._assumptions,
            "guarantee": self._guarantee,
            "verification": (
                f"Plan SHA-256 {self.digest}. {self._mechanism}; {self._recomputed}, and the code "
                "that adds the noise is open."
            ),
        }

    def to_dict(self) -> dict[str, Any]:
        """Numbers and sentences, ready for JSON; `epsilon` is null where nothing is promised."""
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
            "rate": self.rate,
            "cap": self.cap,
            "fixed_shapes": self.fixed_shapes,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "queries": self.queries,
            "accounted": [_numbers(segment) for segment in self.run],
            "groups": [[_numbers(segment) for segment in run] for run in self.groups],
            "rounded_noise": self.rounded_noise,
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
        for number, (title, text) in enumerate(self.items.items(), 1):
            # On one line, whatever was declared: the next could pass for another item.
            lines.append(f"{number}. {title}: {' '.join(text.split())}")
        return "\n".join(lines)

    def _promised(self, epsilon: float | None) -> float | None:
        holds = self.not_private_reason is None and epsilon is not None and math.isfinite(epsilon)
        return epsilon if holds else None

    @property
    def _also_read_text(self) -> str:
        if not self.also_read:
            return ""
        return f"Before the run, {'; '.join(self.also_read)}, which ε does not protect. "

    @property
    def _first_batch_text(self) -> str:
        if self.fixed_shapes:
            return "the time that kernels take on the first batch"
        return "the size of the first batch and the time that kernels take on it"

    @property
    def _population_text(self) -> str:
        if self.population_source == "declared":
            return f"The population {self.population} is a declared constant, not read."
        shielded = (
            "which this relation makes public"
            if self.adjacency != "add-remove"
            else "and that one number is not protected by ε"
        )
        return f"The population {self.population} was read once, the data's length, {shielded}."

    @property
    def _public_text(self) -> str:
        if not self.public_records:
            return ""
        count = "1 record" if self.public_records == 1 else f"{self.public_records} records"
        return (
            f" The clip also looked at {count} handed over as public, which "
            f"ε does not protect: the guarantee is for {self.unit}s that are not among them."
        )

    @property
    def _groups_text(self) -> str:
        if not self.groups:
            return ""
        return (
            f" The {len(self.groups)} groups that have rates of their own are of declared size; "
            f"which of them a {self.unit} belongs to was handed over with the data, counts as a "
            f"part of it and is protected like the rest. A {self.unit} stays in its group for the "
            "whole run, also where it was resumed: nothing that is kept could show a change."
        )

    @property
    def _neighbours_text(self) -> str:
        return _RELATION_TEXT[self.adjacency].format(unit=self.unit)

    @property
    def _recomputed(self) -> str:
        if self.not_private_reason is None:
            return "with δ these numbers suffice to recompute ε"
        return "no ε follows from these numbers, see above"

    @property
    def _method(self) -> str:
        if is_full_batch(self.run):
            return "closed form of the Gaussian mechanism"
        return "privacy loss distributions rounded up"

    @property
    def _rdp(self) -> str:
        if self.rdp_epsilon is None:
            return "No second opinion: the RDP accountant does not apply here."
        if self.not_private_reason is not None:
            return "No second opinion: nothing is promised."
        return f"Second opinion, by RDP: ε = {rounded_up(self.rdp_epsilon, 4)}."

    @property
    def _mechanism(self) -> str:
        """The accountant's input, every number in full."""
        varied = bool(self.groups)
        parts = [
            f"{part.noise_multiplier!r} for {part.steps} steps"
            + (f" at rate {part.rate!r}" if varied else "")
            for part in self.run
        ]
        if len(parts) > _LISTED:
            parts[_LISTED:] = [f"… and {len(parts) - _LISTED} more levels, see the JSON"]
        rate = "in the group that pays most" if varied else f"rate {self.rate!r}"
        if self.cap is not None:
            rate += f", at most {self.cap} of {self.population}"
        several = (
            f", which is {self.queries} queries a step at √{self.queries} times as much each"
            if self.queries > 1
            else ""
        )
        return f"σ = {', '.join(parts)}{several}, {rate}"

    @property
    def _assumptions(self) -> str:
        coin = f"each {self.unit} joins each step by its own coin of rate {self.rate!r}"
        if self.groups:
            coin += (
                f" at most, which changes with the step and differs between groups of {self.unit}s"
            )
        capped = "" if self.cap is None else f", at random at most {self.cap} of them"
        if self.fixed_shapes:
            capped += f", filled up to {self.cap} rows so that shapes do not tell the batch's size"
        held = (
            "It holds because the plan itself makes the sampler."
            if self.not_private_reason is None
            else "Void in this run, see above."
        )
        defence = (
            "on: sum and noise are rounded to one grid before they are added"
            if self.rounded_noise
            else "off: the noise is taken as if it were a real number"
        )
        return f"Poisson sampling: {coin}{capped}. {held} Floating-point defence {defence}."

    @property
    def _guarantee(self) -> str:
        if self.not_private_reason is not None:
            return f"None. NOT PRIVATE: {self.not_private_reason}"
        if not math.isfinite(self.epsilon):
            return "None: ε is infinite."
        ratio = self.delta * self.population
        against = f"δ is {ratio:.3g} of 1 over the population"
        if ratio >= 1:
            against += f", which allows to publish some whole {self.unit}s: too large"
        pairs = ((self.delta, self.epsilon), *self.curve)
        bounds = ", ".join(f"({rounded_up(epsilon, 4)}, {delta!r})" for delta, epsilon in pairs)
        whose = " in the group that pays most, less in the others" if self.groups else ""
        return f"(ε, δ) = {bounds}{whose}; the first {against}."


def _numbers(segment: Segment) -> dict[str, float]:
    return {
        "steps": segment.steps,
        "noise_multiplier": segment.noise_multiplier,
        "rate": segment.rate,
    }
