"""Before the first step: does every record stand alone, and are its gradients right?

A per-record bound means nothing if one record's output depends on another. The probe replaces one
made-up record at a time, and leaves one out, and looks at what moves: in the losses and gradients
(isolation), in every operation that uses a weight (where the records lie), in weights and buffers
(nothing made from records may be written there). It compares the engine's gradients with autograd's
own. It does so at the weights that training starts from and beside them, where nothing is hidden
behind zeros. No private value is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steppe._global_seeds import global_seeds_kept
from steppe._text import first_line
from steppe.clipping.contact import Layouts
from steppe.clipping.probing.agreement import (
    require_alone,
    require_deaf_gradients,
    require_right_gradients,
)
from steppe.clipping.probing.chance import require_no_mixing_by_chance
from steppe.clipping.probing.company import require_no_company, require_no_crowd
from steppe.clipping.probing.compiled import require_uncompiled as require_uncompiled
from steppe.clipping.probing.isolation import Locator
from steppe.clipping.probing.report import Report as Report
from steppe.clipping.probing.report import Row as Row
from steppe.clipping.probing.report import row
from steppe.clipping.probing.rounds import one_round
from steppe.clipping.probing.shift import SHIFTS, START, Shift, shifted
from steppe.clipping.probing.sight import (
    Sight,
    Subject,
    kept_attributes,
    look,
    require_steady,
)
from steppe.clipping.probing.stand_in import require_inputs, squared_outputs
from steppe.clipping.probing.synthetic import (
    STYLES,
    Style,
    synthetic,
    with_any_integers,
    with_both_integers,
    with_other_record,
)
from steppe.clipping.probing.values import require_deaf_to_values
from steppe.errors import SteppeError, UnsupportedModelError

_RECORDS = 3
_MORE = 5  # what does not move shows its record axis by growing
_COMPANY = 11  # records that one is compared in and without: some code begins to mix at a few
_ROOM = 320 * 2**20  # bytes of activations; no physical batch that is chosen here holds more
_SEED = 20_170
# From the seed on. No round has drawn these, and the first number of each generator comes within
# 0.012 of both ends of [0, 1): most coins are tossed first, and show both sides.
_OTHER_NUMBERS = 471


def probe(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    example: Any,
    *,
    company: int = _COMPANY,
) -> Report:
    """Check a model and its objective on made-up records.

    Args:
        model: where names, buffers and modes are read; the objective runs it.
        parameters: the weights to train, by name.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.
        company: among how many records one must be as it is without them: as many as go through the
            model at once, since some code begins to mix at its own number. At least 11 are taken,
            and more as far as 320 MB of activations go.

    Raises:
        IsolationError: a record's result depends on another one, or a weight or buffer is written.
        UnsupportedModelError: a weight is used where the engine cannot see it, or the engine's
            gradients differ from autograd's.

    Guarantees:
        Reads no value of `example` and leaves weights, buffers and random state as they were.
    """
    subject = Subject(model, parameters, objective)
    generator = torch.Generator().manual_seed(_SEED)
    with global_seeds_kept():
        style, first = _first_finite(subject, example, generator)
        attributes = _attributes_note(model)
        locator = Locator(first)
        place = START
        # Each round has random numbers of its own: some models mix records only now and then.
        for number, shift in enumerate((START, *SHIFTS)):
            batch = synthetic(example, _RECORDS, generator, style)
            others = [
                with_other_record(batch, i, generator, style, uniform=number % 2 == 1)
                for i in range(_RECORDS)
            ]
            place = one_round(subject, batch, others, _SEED + number, locator, shift)
        if locator.ambiguous:
            more = synthetic(example, _MORE, generator, style)
            with _any_number(_MORE):
                locator.recount(look(subject, more, _SEED))
        layouts = locator.layouts()
        among = synthetic(example, _COMPANY, generator, style)
        note, reaching = _require_agreement(subject, batch, others, among, layouts, place)
        with shifted(subject, place):
            require_no_mixing_by_chance(subject, batch, others, _SEED + _OTHER_NUMBERS)
            untried = require_deaf_to_values(subject, batch, generator, _SEED, locator)
            require_deaf_gradients(subject, batch, layouts, _SEED)
            crowd = min(company, _ROOM // _bytes_per_record(first))
            if crowd > _COMPANY:
                with _any_number(crowd):
                    many = synthetic(example, crowd, generator, style)
                    require_no_crowd(subject, many, layouts, _SEED)
    notes = [note, untried, attributes, _zeros_note(place)]
    return _report(first, parameters, locator.layouts(), reaching, notes)


def _zeros_note(place: Shift | None) -> str | None:
    if place is not None and not place.keep_zeros:
        return None
    return (
        "the model does not run beside the weights that it starts from: what lies behind those "
        "that are zero was not checked"
    )


def _require_agreement(
    subject: Subject,
    batch: Any,
    others: list[Any],
    among: Any,
    layouts: list[Layouts],
    place: Shift | None,
) -> tuple[str | None, frozenset[str]]:
    """The checks of gradients, where autograd's own are finite.

    Returns:
        Why a check could be made in part only, or None; and the weights that reach the loss.
    """
    for here in dict.fromkeys((place, START)):
        with shifted(subject, here):
            require_steady(subject, batch, _SEED)
            reaching = require_right_gradients(subject, batch, layouts, _SEED)
            if reaching is None:
                continue
            require_alone(subject, batch, others, layouts, _SEED)
            with _any_number(_COMPANY):
                parts = slice(1, None), slice(None, -1), slice(None, 3)
                note = require_no_company(subject, among, layouts, _SEED, parts)
            with _any_number(1):
                require_no_company(subject, among, layouts, _SEED, (slice(None, 1),))
            return note, reaching
    raise UnsupportedModelError(
        "gradients=not finite: must be numbers on inputs from N(0, 1) or [0, 1) with labels 0 and "
        "1; check the scale of the initial weights, and roots and logarithms near zero."
    )


@contextmanager
def _any_number(records: int) -> Iterator[None]:
    """Refuse a model that fails for want of the number of records it was written for."""
    try:
        yield
    except SteppeError:
        raise
    except Exception as error:  # whatever the model or the loss says
        raise UnsupportedModelError(
            f"records={records}: model and loss must take any number of them, because batches are "
            f"drawn at random, and said: {first_line(error).rstrip('.')}; take the size of the "
            "batch from its tensors, and name the axes to squeeze."
        ) from error


def _report(
    sight: Sight,
    parameters: Mapping[str, Tensor],
    layouts: list[Layouts],
    reaching: frozenset[str],
    notes: list[str | None],
) -> Report:
    names = {id(p): name for name, p in parameters.items()}
    rows = [row(c, path, names) for c, path in zip(sight.contacts, sight.paths, strict=True)]
    used = {name for line in rows for name in line.weights}
    return Report(
        layouts,
        rows,
        tuple(name for name in parameters if name not in used),
        _bytes_per_record(sight),
        tuple(note for note in notes if note is not None),
        tuple(name for name in parameters if name in used - reaching),
    )


def _bytes_per_record(sight: Sight) -> int:
    held = sum(t.numel() * t.element_size() for ts in sight.inputs + sight.outputs for t in ts)
    return max(1, held // _RECORDS)


def _attributes_note(model: nn.Module) -> str | None:
    kept = kept_attributes(model)
    if not kept:
        return None
    return (
        f"attributes {', '.join(kept[:3])} hold tensors made from records: they are not in "
        "state_dict(), so publish that and not the module object"
    )


def inspect(model: nn.Module, *inputs: Tensor) -> Report:
    """Which path every layer takes, and why; print the result to read it as a table.

    Args:
        model: any module.
        inputs: a batch of any number of records as the model takes it; only shapes and types are
            used.

    Returns:
        The layer table; an empty one where no weight is trained.

    Examples:
        >>> print(inspect(nn.Linear(3, 2), torch.zeros(1, 3)))  # doctest: +ELLIPSIS
        weights       operation  path    size  why
        weight, bias  linear     linear  8     ...
        memory: 0.00 MB a record
    """
    require_inputs(inputs)
    require_uncompiled(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        return Report([], [], (), 1)
    return probe(model, parameters, squared_outputs(lambda batch: model(*batch)), inputs)


def _first_finite(
    subject: Subject, example: Any, generator: torch.Generator
) -> tuple[Style, Sight]:
    """How to make records up so that the losses are finite: NaN hides what depends on what.

    If possible also for records whose integers are all alike, which may be lengths of nothing.
    """
    failure: Exception | None = None
    for form, style in itertools.product((with_both_integers, with_any_integers), STYLES):
        batch = form(synthetic(example, _RECORDS, generator, style), style)
        try:
            sight = look(subject, batch, _SEED)
        except SteppeError:
            raise
        except Exception as error:  # whatever the model or the loss says
            failure = failure or error
            continue
        if bool(torch.isfinite(sight.losses).all()):
            return style, sight
    if failure is not None:
        raise UnsupportedModelError(
            f"model and loss={type(failure).__name__}: must run on made-up records, inputs from "
            f"N(0, 1) or [0, 1) with labels 0 and 1, and said: {first_line(failure)}; let them "
            "take any record of the data's form, or give the data the form that they take."
        ) from failure
    raise UnsupportedModelError(
        "loss=not finite: must be a finite number on inputs from N(0, 1) or [0, 1) with labels 0 "
        "and 1; check the scale of the initial weights and the loss."
    )
