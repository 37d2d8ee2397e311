"""The text of a privacy statement: nine items with titles.

They are those that "How to DP-fy ML" (Ponomareva et al., arXiv 2303.00654, section 5.3) asks every
claim of differential privacy to report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steppe.accounting.full_batch import is_full_batch
from steppe.utils.formatting import rounded_up

if TYPE_CHECKING:
    from steppe.accounting.statement import Statement

_RELATIONS = {
    "add-remove": "one {unit} is added to or removed from the data set",
    "zero-out": "one {unit} is replaced by an empty one; the number of them is public",
    "replace-one": "one {unit} is replaced by any other",
}
# Levels of a noise schedule that are printed; to_json() has them all.
_LISTED = 8


def items(statement: Statement) -> dict[str, str]:
    """The nine items, by title, each as one or more sentences."""
    return {
        "setting": (
            "Central: whoever runs the training sees the data and is trusted; whoever "
            "receives what is released is not."
        ),
        "data accesses": (
            f"The {statement.steps} steps of this run. Not covered: choosing hyper-parameters, "
            "architecture or checkpoint with the help of the same data, and other runs on it. "
            "Also read, outside the account: the structure (shapes, types) of one record; a "
            "few records at set-up where a custom function collates them; the labels where "
            f"classes were declared; {_first_batch(statement)}. "
            f"{_also_read(statement)}{_population(statement)}{_public(statement)}"
            f"{_starts(statement)}{_groups(statement)}"
        ),
        "release": (
            "The weights after every step, so all checkpoints, the optimizer's state, and "
            "whatever is computed from them alone, averages included. Not covered: losses, "
            "accuracies or batch sizes measured on the private data."
        ),
        "unit": (
            f"One {statement.unit}; its part in a step's sum is at most {statement.sensitivity!r}."
        ),
        "neighbours": f"{statement.adjacency}: {_neighbours(statement)}.",
        "accountant": f"{statement.accountant}, {_method(statement)}. {_rdp(statement)}",
        "assumptions": _assumptions(statement),
        "guarantee": _guarantee(statement),
        "verification": (
            f"Plan SHA-256 {statement.digest}. {_mechanism(statement)}; {_recomputed(statement)}, "
            "and the code that adds the noise is open."
        ),
    }


def _first_batch(statement: Statement) -> str:
    if statement.fixed_shapes:
        return "the time that kernels take on the first batch"
    return "the size of the first batch and the time that kernels take on it"


def _also_read(statement: Statement) -> str:
    if not statement.also_read:
        return ""
    return f"Before the run, {'; '.join(statement.also_read)}, which ε does not protect. "


def _population(statement: Statement) -> str:
    if statement.population_source == "declared":
        return f"The population {statement.population} is a declared constant, not read."
    shielded = (
        "which this relation makes public"
        if statement.adjacency != "add-remove"
        else "and that one number is not protected by ε"
    )
    return f"The population {statement.population} was read once, the data's length, {shielded}."


def _public(statement: Statement) -> str:
    if not statement.public_records:
        return ""
    count = "1 record" if statement.public_records == 1 else f"{statement.public_records} records"
    return (
        f" The clip also looked at {count} handed over as public, which "
        f"ε does not protect: the guarantee is for {statement.unit}s that are not among them."
    )


def _starts(statement: Statement) -> str:
    """Where the weights begin, and which other steps they take: public records, unprotected."""
    unprotected = (
        f"which ε does not protect: the guarantee is for {statement.unit}s that are not among them"
    )
    text = ""
    if statement.starts:
        saw = "; and on ".join(statement.starts)
        text += f" The weights begin with a start trained on {saw}; these records count as public, "
        text += f"{unprotected}."
    if statement.public_steps:
        text += (
            " Between the private steps the weights also take steps on batches handed over as "
            f"public, {unprotected}."
        )
    return text


def _groups(statement: Statement) -> str:
    if not statement.groups:
        return ""
    return (
        f" The {len(statement.groups)} groups that have rates of their own are of declared size; "
        f"which of them a {statement.unit} belongs to was handed over with the data, counts as a "
        f"part of it and is protected like the rest. A {statement.unit} stays in its group for the "
        "whole run, also where it was resumed: nothing that is kept could show a change."
    )


def _neighbours(statement: Statement) -> str:
    return _RELATIONS[statement.adjacency].format(unit=statement.unit)


def _method(statement: Statement) -> str:
    if is_full_batch(statement.run):
        return "closed form of the Gaussian mechanism"
    return "privacy loss distributions rounded up"


def _rdp(statement: Statement) -> str:
    if statement.rdp_epsilon is None:
        return "No second opinion: the RDP accountant does not apply here."
    if statement.not_private_reason is not None:
        return "No second opinion: nothing is promised."
    return f"Second opinion, by RDP: ε = {rounded_up(statement.rdp_epsilon, 4)}."


def caution(isolation: object, unit: str) -> str | None:
    """A warning about the guarantee, or None.

    Args:
        isolation: as a statement has it, possibly read from a file.
        unit: whom the guarantee protects.

    Examples:
        >>> caution("proven", "record"), caution(None, "record")
        (None, None)
        >>> caution("probed", "record")
        'isolation is only probed, not proven: ε is false if records influence each other.'
    """
    if isolation != "probed":
        return None
    return f"isolation is only probed, not proven: ε is false if {unit}s influence each other."


def _assumptions(statement: Statement) -> str:
    coin = (
        f"each {statement.unit} is sampled independently in each step, with probability "
        f"{statement.rate!r}"
    )
    if statement.groups:
        coin += (
            f" at most, which changes with the step and differs between groups of {statement.unit}s"
        )
    capped = "" if statement.cap is None else f", at random at most {statement.cap} of them"
    if statement.fixed_shapes:
        capped += f", filled up to {statement.cap} rows so that shapes do not tell the batch's size"
    held = (
        "It holds because the plan itself makes the sampler."
        if statement.not_private_reason is None
        else "Void in this run, see above."
    )
    defence = (
        "on: sum and noise are rounded to one grid before they are added"
        if statement.rounded_noise
        else "off: the noise is treated as a real number"
    )
    isolated = _ISOLATION[statement.isolation].format(unit=statement.unit)
    if statement.collated == "compared":
        isolated += (
            f" That a batch has each {statement.unit} in a row of its own is not proven: in every "
            "batch one row is compared with what its record gives alone."
        )
    return f"Poisson sampling: {coin}{capped}. {held} {isolated} Floating-point defence {defence}."


_ISOLATION = {
    None: "That a {unit}'s gradient depends on that {unit} alone is checked when a model is given.",
    "proven": "That a {unit}'s gradient depends on that {unit} alone is proven from the operations "
    "of model, loss and hooks.",
    "isolated": "A {unit}'s gradient depends on that {unit} alone, since each goes through the "
    "model by itself.",
    "probed": "That a {unit}'s gradient depends on that {unit} alone was only tried on made-up "
    "values (probed), not proven: if it does not, ε is false.",
}


def _guarantee(statement: Statement) -> str:
    if statement.not_private_reason is not None:
        return f"None. NOT PRIVATE: {statement.not_private_reason}"
    if not math.isfinite(statement.epsilon):
        return "None: ε is infinite."
    ratio = statement.delta * statement.population
    against = f"δ is {ratio:.3g} of 1 over the population"
    if ratio >= 1:
        against += f", too large: whole {statement.unit}s may be published"
    pairs = ((statement.delta, statement.epsilon), *statement.curve)
    bounds = ", ".join(f"({rounded_up(epsilon, 4)}, {delta!r})" for delta, epsilon in pairs)
    whose = " in the group that pays most, less in the others" if statement.groups else ""
    return f"(ε, δ) = {bounds}{whose}; the first {against}."


def _mechanism(statement: Statement) -> str:
    """The accountant's input, every number in full."""
    varied = bool(statement.groups)
    parts = [
        f"{part.noise_multiplier!r} for {part.steps} steps"
        + (f" at rate {part.rate!r}" if varied else "")
        for part in statement.run
    ]
    if len(parts) > _LISTED:
        parts[_LISTED:] = [f"… and {len(parts) - _LISTED} more levels, see the JSON"]
    rate = "in the group that pays most" if varied else f"rate {statement.rate!r}"
    if statement.cap is not None:
        rate += f", at most {statement.cap} of {statement.population}"
    several = (
        f", which is {statement.queries} queries a step at √{statement.queries} times as much each"
        if statement.queries > 1
        else ""
    )
    return f"σ = {', '.join(parts)}{several}, {rate}"


def _recomputed(statement: Statement) -> str:
    if statement.not_private_reason is None:
        return "with δ these numbers suffice to recompute ε"
    return "no ε follows from these numbers, see above"
