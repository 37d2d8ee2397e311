"""The check before the first step: isolation, and correct per-example gradients.

A bound per record is meaningless if one record's gradient depends on another record. Isolation is
proven from the operations of a pass (`steppe.isolation`), for all values. Values are tried as a
second opinion: the engine's gradients are compared with autograd's, record by record, and a record
of infinities, NaN or the largest numbers must not change the others. With "probed" there is no
proof: one synthetic record at a time is replaced, and the losses of the others are compared. No
private value is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from steppe.errors import MisuseError, SteppeError, UnsupportedModelError
from steppe.gradients import ContactLayout, EachRecord, Path, require_steady
from steppe.probing.gradient_check import (
    require_extremes_apart,
    require_right_gradients,
)
from steppe.probing.observed_pass import (
    ObservedPass,
    ProbedModel,
    kept_attributes,
    observe,
)
from steppe.probing.replacement import located
from steppe.probing.report import LayerRow, Report, leaves_of, row
from steppe.probing.synthetic import (
    STYLES,
    Style,
    synthetic,
    with_both_integers,
)
from steppe.randomness import global_generators_kept
from steppe.utils.batches import tensors_in
from steppe.utils.formatting import as_said

_RECORDS = 2  # few, because a large model takes seconds for each
_MANY = 64  # the batch size of the proof if no more pass through the model at once
_SEED = 20_170


def probe(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    objective: Callable[[Any], Tensor],
    example: Any,
    *,
    at_once: int = _MANY,
    activation_bytes: int | None = None,
    isolation: str = "proven",
    one_at_a_time: EachRecord | None = None,
) -> Report:
    """Check a model and its objective on synthetic records.

    Args:
        model: gives names, buffers and modes; the objective runs it.
        parameters: the weights to train, by name.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.
        at_once: about how many records pass through the model at once.
        activation_bytes: as for `steppe.isolation.prove`.
        isolation: "proven", from the operations of a pass; "each", one record at a time; or
            "probed", on values alone.
        one_at_a_time: processes one record at a time, for "each".

    Raises:
        IsolationError: a record's result depends on another record, or a weight or buffer is
            written, or the absence of both cannot be proven.
        UnsupportedModelError: a weight is used where the engine cannot see it, or the engine's
            gradients differ from autograd's.

    Guarantees:
        Reads no value of `example`, and restores weights, buffers and random state.
    """
    probed = ProbedModel(model, parameters, objective)
    generator = torch.Generator().manual_seed(_SEED)
    with global_generators_kept():
        style, first = _first_finite(probed, example, generator)
        attributes = _attributes_note(model)
        batch = synthetic(example, _RECORDS, generator, style)
        paths = None
        if one_at_a_time is not None:
            one_at_a_time.choose(objective, batch)
            return _report_one_at_a_time(one_at_a_time, parameters, batch, attributes)
        if isolation == "proven":
            from steppe.isolation import prove

            proof = prove(model, objective, example, at_once, activation_bytes=activation_bytes)
            layouts, paths = proof.layouts, proof.paths
        else:
            layouts = located(probed, example, generator, style, _SEED)
            require_steady(model, objective, batch, _SEED)
        _require_known_leaves(first, parameters)
        reaching = require_right_gradients(probed, batch, layouts, paths, _SEED)
        require_extremes_apart(probed, batch, layouts, paths, _SEED)
    return _report(first, parameters, layouts, reaching, attributes, isolation, paths)


def _require_known_leaves(observed: ObservedPass, parameters: Mapping[str, Tensor]) -> None:
    """Reject tensors that need a gradient and are not trained, also behind computed weights."""
    known = {id(weight) for weight in parameters.values()}
    shared = (tensor for contact in observed.contacts for tensor in contact.shared)
    leaves = (leaf for tensor in shared for leaf in leaves_of(tensor))
    strangers = [tuple(leaf.shape) for leaf in leaves if id(leaf) not in known]
    if strangers:
        raise MisuseError(
            f"weights of shapes={strangers[:3]}: must be among the trained ones, since they "
            "require a gradient; freeze them with requires_grad_(False), or make them parameters "
            "of the model before make_private."
        )


def _report(
    observed: ObservedPass,
    parameters: Mapping[str, Tensor],
    layouts: list[ContactLayout],
    reaching: frozenset[str],
    note: str | None,
    isolation: str,
    paths: frozenset[Path] | None,
) -> Report:
    names = {id(p): name for name, p in parameters.items()}
    rows = [row(c, path, names) for c, path in zip(observed.contacts, observed.paths, strict=True)]
    used = {name for line in rows for name in line.weights}
    return Report(
        layouts,
        rows,
        tuple(name for name in parameters if name not in used),
        _bytes_per_record(observed),
        () if note is None else (note,),
        tuple(name for name in parameters if name in used - reaching),
        isolation,
        paths,
    )


def _report_one_at_a_time(
    passes: EachRecord, parameters: Mapping[str, Tensor], batch: Any, note: str | None
) -> Report:
    """The layer table if records are processed one at a time: one row for all weights."""
    why = "A pass for every record"
    rows = [
        LayerRow("model", passes.way, why, (name,), p.numel()) for name, p in parameters.items()
    ]
    held = sum(p.numel() * p.element_size() for p in parameters.values())
    held += sum(t[0].numel() * t.element_size() for t in tensors_in(batch))
    notes = [passes.why and f"vmap does not take this model: {passes.why[:100]}", note]
    if passes.why:
        notes.append("what the code keeps of a record is gone when the next one comes")
    return Report([], rows, (), held, tuple(n for n in notes if n), (), "isolated")


def _bytes_per_record(observed: ObservedPass) -> int:
    held = sum(
        t.numel() * t.element_size() for ts in observed.inputs + observed.outputs for t in ts
    )
    return max(1, held // _RECORDS)


def _attributes_note(model: nn.Module) -> str | None:
    kept = kept_attributes(model)
    if not kept:
        return None
    return (
        f"attributes {', '.join(kept[:3])} hold tensors made from records: they are not in "
        "state_dict(), so publish that and not the module object"
    )


def _first_finite(
    probed: ProbedModel, example: Any, generator: torch.Generator
) -> tuple[Style, ObservedPass]:
    """A way to make synthetic records with finite losses, because NaN hides dependencies.

    If possible, losses are finite also for records whose integers are all equal, such as lengths of
    0.
    """
    failure: Exception | None = None
    for alike, style in itertools.product((True, False), STYLES):
        batch = synthetic(example, _RECORDS, generator, style)
        if alike:
            batch = with_both_integers(batch, style)
        try:
            observed = observe(probed, batch, _SEED)
        except SteppeError:
            raise
        except Exception as error:  # whatever error the model or the loss raises
            failure = failure or error
            continue
        if bool(torch.isfinite(observed.losses).all()):
            return style, observed
    if failure is not None:
        raise UnsupportedModelError(
            f"The model or its loss failed on {_RECORDS} synthetic records with the shapes and "
            "types of the data (inputs from N(0, 1) or [0, 1), labels 0 and 1). It must take any "
            f"number of such records.\n{as_said(failure)}"
        ) from failure
    raise UnsupportedModelError(
        "loss=not finite: must be a finite number on inputs from N(0, 1) or [0, 1) with labels 0 "
        "and 1; check the scale of the initial weights and the loss."
    )
