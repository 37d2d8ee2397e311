"""The text of a privacy statement: nine items with titles.

They are those that "How to DP-fy ML" (Ponomareva et al., arXiv 2303.00654, section 5.3) asks every
claim of differential privacy to report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steppe.accounting.full_batch import is_full_batch
from steppe.accounting.participation import Participation
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
            "few records at set-up if a custom function collates them; the labels if "
            f"classes were declared; {_first_batch(statement)}. "
            f"{_also_read(statement)}{_owner(statement)}{_population(statement)}"
            f"{_held_out(statement)}{_public(statement)}{_starts(statement)}{_groups(statement)}"
        ),
        "release": (
            "The weights after every step, so all checkpoints, the optimizer's state, and "
            "whatever is computed from them alone, averages included. Not covered: losses, "
            f"accuracies or batch sizes measured on the private data{_noise_state(statement)}."
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


def _noise_state(statement: Statement) -> str:
    if statement.correlated is None:
        return ""
    return (
        "; the state of the noise between steps, which checkpoints to resume from contain and "
        "which must stay secret"
    )


def _first_batch(statement: Statement) -> str:
    if statement.fixed_shapes:
        return "the time that kernels take on the first batch"
    return "the size of the first batch and the time that kernels take on it"


def _also_read(statement: Statement) -> str:
    if not statement.also_read:
        return ""
    return f"Before the run, {'; '.join(statement.also_read)}, which ε does not protect. "


def _owner(statement: Statement) -> str:
    """What was read for the eyes of the data's owner alone."""
    said = ""
    if statement.checked == "length":
        said += (
            "Before the first step, a check for the data's owner compared the number of records "
            "with the population; what it found is in no file of the run. "
        )
    if statement.checked == "records":
        said += (
            "Before the first step, checks for the data's owner read every record: the scale of "
            "the targets, the share of inputs that are not finite, the number of records against "
            "the population, columns that are constant or look like identifiers. What they found "
            "is in no file of the run; that the run began shows that none of them stopped it. "
        )
    if statement.compared:
        said += (
            "Afterwards a model was trained on the same records without privacy, to compare; its "
            "scores are in no file of the run, and it was not kept. "
        )
    return said


def _held_out(statement: Statement) -> str:
    if statement.held_out is None:
        return ""
    return (
        f" A share of about {statement.held_out:g} of the {statement.unit}s was kept out of "
        f"training, to evaluate on; a hash of each {statement.unit} decides about it alone. "
        "Scores on them are not covered by ε."
    )


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
        f" The clip also read {count} given as public, which ε does not protect: the guarantee is "
        f"for {statement.unit}s that are not among them."
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
        f" The {len(statement.groups)} groups with sampling rates of their own have declared "
        f"sizes. The group of a {statement.unit} was given with the data; it is a part of the "
        f"{statement.unit} and is protected like the rest. A {statement.unit} must stay in its "
        "group for the whole run, also after a resume. This cannot be checked, because the groups "
        "are not stored."
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
        f"Poisson sampling: each {statement.unit} is sampled independently in each step, with "
        f"probability {statement.rate!r}"
    )
    if statement.turns is not None:
        coin = _order(statement, statement.turns)
    if statement.groups:
        coin += (
            f" at most, which changes with the step and differs between groups of {statement.unit}s"
        )
    capped = "" if statement.cap is None else f", limited to {statement.cap} of them at random"
    if statement.fixed_shapes:
        capped += f", padded to {statement.cap} rows so that shapes do not reveal the batch size"
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
            f" It is not proven that each row of a batch is made from one {statement.unit} alone: "
            f"in every batch one row is compared with that of its {statement.unit} collated alone."
        )
    noise = _correlated(statement)
    return f"{coin}{capped}. {held}{noise} {isolated} Floating-point defence {defence}."


def _order(statement: Statement, turns: Participation) -> str:
    """Who takes part when, where that is not left to chance alone."""
    unit = statement.unit
    if turns.exact:
        apart = f", consecutive ones {turns.separation} steps apart" if turns.times > 1 else ""
        return (
            f"Fixed order: each {unit} takes part at most {turns.times} times{apart}; the order is "
            "public, and no privacy is claimed from it"
        )
    return (
        f"Cyclic Poisson sampling: {unit}s are divided into {turns.separation} parts in a public "
        f"way, parts take turns, and each {unit} is sampled independently in each step of its "
        f"part, with probability {statement.rate!r}"
    )


def _correlated(statement: Statement) -> str:
    if statement.correlated is None:
        return ""
    return (
        f" The noise is correlated over the steps ({statement.correlated}): fresh noise is larger "
        "by the sensitivity of its matrix to these turns, and its state between steps is secret."
    )


_ISOLATION = {
    None: "That a {unit}'s gradient depends on that {unit} alone is checked when a model is given.",
    "proven": "That a {unit}'s gradient depends on that {unit} alone is proven from the operations "
    "of model, loss and hooks.",
    "isolated": "A {unit}'s gradient depends on that {unit} alone, because the "
    "model processes one {unit} at a time.",
    "probed": "That a {unit}'s gradient depends on that {unit} alone was only tested on "
    "synthetic values (probed), not proven: if it does not, ε is false.",
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
    whose = " in the group with the largest ε, less in the others" if statement.groups else ""
    return f"(ε, δ) = {bounds}{whose}; the first {against}."


def _mechanism(statement: Statement) -> str:
    """The accountant's input, every number in full."""
    varied = bool(statement.groups)
    several = (
        f", which is {statement.queries} queries a step at √{statement.queries} times as much each"
        if statement.queries > 1
        else ""
    )
    if statement.correlated is not None and is_full_batch(statement.run):
        (part,) = statement.run
        return f"One Gaussian answer about the whole run at σ = {part.noise_multiplier!r}{several}"
    parts = [
        f"{part.noise_multiplier!r} for {part.steps} steps"
        + (f" at rate {part.rate!r}" if varied else "")
        for part in statement.run
    ]
    if len(parts) > _LISTED:
        parts[_LISTED:] = [f"… and {len(parts) - _LISTED} more levels, see the JSON"]
    rate = "in the group with the largest ε" if varied else f"rate {statement.rate!r}"
    if statement.cap is not None:
        rate += f", at most {statement.cap} of {statement.population}"
    return f"σ = {', '.join(parts)}{several}, {rate}"


def _recomputed(statement: Statement) -> str:
    if statement.not_private_reason is None:
        return "with δ these numbers suffice to recompute ε"
    return "no ε follows from these numbers, see above"
