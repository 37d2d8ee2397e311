"""Before the first step: does every record stand alone, and are its gradients right?

A per-record bound means nothing if one record's gradient depends on another. That it does not is
proven from the operations of a pass (`steppe.isolation`), whatever the values are. A second
opinion tries values: the engine's gradients are compared with autograd's own, record by record, and
a record that holds infinities, NaN or the largest numbers must leave the others as they are. Where
there is no proof, "probed" replaces one made-up record at a time and looks at what moves. No
private value is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from steppe.errors import SteppeError, UnsupportedModelError
from steppe.gradients import ContactLayout, EachRecord, Path, require_steady
from steppe.probing.gradient_check import (
    require_deaf_to_extremes,
    require_right_gradients,
)
from steppe.probing.observed_pass import (
    ObservedPass,
    ProbedModel,
    kept_attributes,
    observe,
)
from steppe.probing.placeholder_loss import require_inputs, squared_outputs
from steppe.probing.replacement import located
from steppe.probing.report import ISOLATION as ISOLATION
from steppe.probing.report import LayerRow as LayerRow
from steppe.probing.report import Report as Report
from steppe.probing.report import row
from steppe.probing.synthetic import (
    STYLES,
    Style,
    synthetic,
    with_any_integers,
    with_both_integers,
)
from steppe.probing.unsupported_modules import require_uncompiled as require_uncompiled
from steppe.randomness import global_generators_kept
from steppe.utils.batches import tensors_in
from steppe.utils.formatting import first_line

_RECORDS = 2  # as few as can differ: a large model takes seconds for each
_MANY = 64  # records that one is followed among, if no more go through the model at once
_ROOM = 320 * 2**20  # bytes of activations; no physical batch that is chosen here holds more
_SEED = 20_170


def probe(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    example: Any,
    *,
    company: int = _MANY,
    room: int | None = None,
    isolation: str = "proven",
    each: EachRecord | None = None,
) -> Report:
    """Check a model and its objective on made-up records.

    Args:
        model: where names, buffers and modes are read; the objective runs it.
        parameters: the weights to train, by name.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.
        company: about how many records go through the model at once.
        room: as for `steppe.isolation.prove`.
        isolation: "proven", from the operations of a pass; "each", where records are taken one at
            a time; or "probed", on values alone.
        each: what takes them one at a time.

    Raises:
        IsolationError: a record's result depends on another one, or a weight or buffer is written,
            or it can not be proven that nothing of this happens.
        UnsupportedModelError: a weight is used where the engine cannot see it, or the engine's
            gradients differ from autograd's.

    Guarantees:
        Reads no value of `example` and leaves weights, buffers and random state as they were.
    """
    subject = ProbedModel(model, parameters, objective)
    generator = torch.Generator().manual_seed(_SEED)
    with global_generators_kept():
        style, first = _first_finite(subject, example, generator)
        attributes = _attributes_note(model)
        batch = synthetic(example, _RECORDS, generator, style)
        paths = None
        if each is not None:
            each.choose(objective, batch)
            return _one_at_a_time(each, parameters, batch, attributes)
        if isolation == "proven":
            from steppe.isolation import prove

            proof = prove(model, objective, example, company, room=room)
            layouts, paths = proof.layouts, proof.paths
        else:
            layouts = located(subject, example, generator, style, _SEED)
            require_steady(model, objective, batch, _SEED)
        reaching = require_right_gradients(subject, batch, layouts, paths, _SEED)
        require_deaf_to_extremes(subject, batch, layouts, paths, _SEED)
    return _report(first, parameters, layouts, reaching, attributes, isolation, paths)


def _report(
    sight: ObservedPass,
    parameters: Mapping[str, Tensor],
    layouts: list[ContactLayout],
    reaching: frozenset[str],
    note: str | None,
    isolation: str,
    paths: frozenset[Path] | None,
) -> Report:
    names = {id(p): name for name, p in parameters.items()}
    rows = [row(c, path, names) for c, path in zip(sight.contacts, sight.paths, strict=True)]
    used = {name for line in rows for name in line.weights}
    return Report(
        layouts,
        rows,
        tuple(name for name in parameters if name not in used),
        _bytes_per_record(sight),
        () if note is None else (note,),
        tuple(name for name in parameters if name in used - reaching),
        isolation,
        paths,
    )


def _one_at_a_time(
    each: EachRecord, parameters: Mapping[str, Tensor], batch: Any, note: str | None
) -> Report:
    """The layer table where every record has a pass of its own: all weights take that way."""
    why = "A pass for every record"
    rows = [LayerRow("model", each.way, why, (name,), p.numel()) for name, p in parameters.items()]
    held = sum(p.numel() * p.element_size() for p in parameters.values())
    held += sum(t[0].numel() * t.element_size() for t in tensors_in(batch))
    notes = [each.why and f"vmap does not take this model: {each.why[:100]}", note]
    if each.why:
        notes.append("what the code keeps of a record is gone when the next one comes")
    return Report([], rows, (), held, tuple(n for n in notes if n), (), "isolated")


def _bytes_per_record(sight: ObservedPass) -> int:
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
        isolation: proven from the operations
    """
    require_inputs(inputs)
    require_uncompiled(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        return Report([], [], (), 1)
    return probe(model, parameters, squared_outputs(lambda batch: model(*batch)), inputs)


def _first_finite(
    subject: ProbedModel, example: Any, generator: torch.Generator
) -> tuple[Style, ObservedPass]:
    """How to make records up so that the losses are finite: NaN hides what depends on what.

    If possible also for records whose integers are all alike, which may be lengths of nothing.
    """
    failure: Exception | None = None
    for form, style in itertools.product((with_both_integers, with_any_integers), STYLES):
        batch = form(synthetic(example, _RECORDS, generator, style), style)
        try:
            sight = observe(subject, batch, _SEED)
        except SteppeError:
            raise
        except Exception as error:  # whatever the model or the loss says
            failure = failure or error
            continue
        if bool(torch.isfinite(sight.losses).all()):
            return style, sight
    if failure is not None:
        raise UnsupportedModelError(
            f"model and loss={type(failure).__name__}: must run on {_RECORDS} made-up records, "
            f"inputs from N(0, 1) or [0, 1) with labels 0 and 1, and said: {first_line(failure)}; "
            "let them take any number of records, each of the data's form, or give the data the "
            "form that they take."
        ) from failure
    raise UnsupportedModelError(
        "loss=not finite: must be a finite number on inputs from N(0, 1) or [0, 1) with labels 0 "
        "and 1; check the scale of the initial weights and the loss."
    )
