"""What the probe found about a model, for each form in which batches come to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from steppe.clipping import CEILING, ClippedSum, fitting_physical_batch, require_zeros_taken
from steppe.errors import IsolationError, MisuseError
from steppe.gradients import HOOKS_EVERYWHERE, hooks_of
from steppe.probing.alternatives import ways_on
from steppe.probing.observed_pass import ProbedModel
from steppe.probing.probe import Report, probe
from steppe.utils.batches import each, require_tensors

# Forms of a batch that are probed in a run. A probe takes up to seconds; and shapes without end are
# mostly those of the longest record in the batch, which is private.
_MOST_FORMS = 16
# Among so many records at least one is tried without the others.
_CROWD = 64
# Steps before which a model is probed again: ever rarer, since a probe may take seconds.
LOOK_AGAIN = frozenset(4**power for power in range(1, 16))


class ProbeCache:
    """Probes a model before it meets records, once for each of its states and forms of a batch.

    Args:
        model: what is trained.
        engine: told where the records lie, and how many to take at once if nobody said.
        example: a batch of the data without records.
        batch_size: how many records a step takes on average, those that fill it up included.
        isolation: how it is to be known that records stand alone, see `ISOLATION`.

    Guarantees:
        No value of a batch is read: its structure, types and shapes are all that a probe sees.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: ClippedSum,
        example: Any,
        batch_size: float,
        isolation: str = "proven",
    ) -> None:
        self._model, self._engine, self._isolation = model, engine, isolation
        many = crowd(batch_size)
        self._crowd = min(many, engine.physical_batch or many)
        # Data lie on the host, and a loop moves its batches to where the weights are.
        self._example = each(lambda tensor: tensor.to(engine.device), example)
        self._chooses = engine.physical_batch is None
        self._room = CEILING if self._chooses else None
        self._reports: dict[tuple[object, object], Report] = {}
        self._batches: dict[object, Any] = {}  # without records, by form

    def report(self, batch: Any = None) -> Report:
        """What holds for the model as it is now: modules, modes, hooks, weights.

        Args:
            batch: how it comes to the model, possibly transformed; as the data has it unless given.
        """
        batch = self._example if batch is None else batch
        state, form = state_of(self._model), form_of(batch)
        known = self._reports.get((state, form))
        return self._first_report(state, form, batch) if known is None else known

    def _first_report(self, state: object, form: object, batch: Any) -> Report:
        if len({known for _, known in self._reports} | {form}) > _MOST_FORMS:
            raise MisuseError(
                f"batch=another shape: must come in at most {_MOST_FORMS} shapes and types in "
                "a run, each of which is checked once; crop or pad to a few fixed sizes."
            )
        require_tensors(batch)
        self._engine.packing.require_sizes()
        # Without its rows: the probe looks at shapes and types alone.
        self._batches[form] = each(lambda tensor: tensor[:0], batch)
        self._reports[state, form] = self._probe(self._batches[form], self._crowd)
        if self._engine.padded_to is not None:
            require_zeros_taken(self._engine.objective, self._batches[form])
        return self._reports[state, form]

    def look_again(self) -> None:
        """Prove again where the model is now, see `proven_again`."""
        now = state_of(self._model)
        for form, batch in self._batches.items():
            # Looked up and not compared: weights in other states have other shapes.
            known = self._reports.get((now, form))
            if known is not None and known.isolation == "proven":
                proof = proven_again(
                    known,
                    self._model,
                    self._engine.objective,
                    batch,
                    self._crowd,
                    self._room,
                )
                self._reports[now, form] = proof
                self._engine.passes.paths = proof.paths

    def _probe(self, batch: Any, crowd: int) -> Report:
        trained = {n: p for n, p in self._engine.parameters.items() if p.requires_grad}
        if not trained:
            raise MisuseError(
                "model=no trainable weights: must have some in every step; set requires_grad on "
                "what to train."
            )
        try:
            return probe(
                self._model,
                trained,
                self._engine.objective,
                batch,
                company=crowd,
                room=self._room,
                isolation=self._isolation,
                each=self._engine.each,
            )
        except IsolationError as error:
            if self._isolation != "proven":
                raise
            subject = ProbedModel(self._model, trained, self._engine.objective)
            raise IsolationError(f"{error} {ways_on(subject, batch)}") from error

    def expect(self, parts: Sequence[Any]) -> None:
        """Make the engine ready for parts of a batch, or for the data's own form without any."""
        engine = self._engine
        reports = [self.report(part) for part in parts] or [self.report()]
        engine.passes.layouts = reports[0].layouts
        engine.passes.paths, engine.passes.look_again = reports[0].paths, self.look_again
        if any(report.layouts != engine.passes.layouts for report in reports):
            raise MisuseError(
                "parts=of several forms: must go through the model in the same way, and these "
                "have different sizes a record in it; give all parts one form."
            )
        if self._chooses:
            largest = max(report.bytes_per_record for report in reports)
            bytes_per_record = largest + engine.bytes_written_out
            weights = sum(p.numel() * p.element_size() for p in engine.parameters.values())
            engine.physical_batch = fitting_physical_batch(bytes_per_record, weights)

    def padding_rows(self) -> dict[str, int]:
        """Rows of embedding tables that only ever stand for padding, by the table's name."""
        padded = padding_by_table(self._model)
        # A table that is also used as an output layer learns its padding row there.
        elsewhere = {
            name
            for row in self.report().rows
            if row.path not in ("embedding", "embedding bag")
            for name in row.weights
        }
        return {
            name: padded[id(weight)]
            for name, weight in self._engine.parameters.items()
            if id(weight) in padded and name not in elsewhere
        }


def crowd(batch_size: float) -> int:
    """Among how many records one is tried: more than the mean, since batches are drawn at random.

    Args:
        batch_size: how many records a step takes on average.
    """
    return max(_CROWD, 2 * math.ceil(batch_size))


def proven_again(
    known: Report,
    model: nn.Module,
    objective: Callable[[Any], Tensor],
    batch: Any,
    most: int,
    room: int | None = None,
) -> Report:
    """What is proven of a model during a run: its code may do something else than before.

    Args:
        known: what was found before.
        model, objective, batch, most, room: as for `prove`.

    Guarantees:
        Refuses a model in which records meet. Paths that were proven stay known.
    """
    from steppe.isolation import prove

    try:
        proof = prove(model, objective, batch, most, room=room)
    except IsolationError as error:
        error.add_note(
            "Before the first step nothing of this was to be seen; it came during the run, so that "
            "earlier steps may have said more than they should. Do not publish this model."
        )
        raise
    return replace(known, layouts=proof.layouts, paths=(known.paths or frozenset()) | proof.paths)


def padding_by_table(model: nn.Module) -> dict[int, int]:
    """The row that stands for padding, by `id` of the embedding table."""
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None
    }


def state_of(model: nn.Module) -> object:
    """Everything about a model that code of its own could change between two steps, but its values.

    Modules and weights themselves are in it, which keeps them: the place of one that is gone could
    be taken by another.
    """
    return (*map(tuple, HOOKS_EVERYWHERE), *map(_module_state, model.modules()))


def _module_state(module: nn.Module) -> object:
    kind, kept = type(module), vars(module)
    options = _OPTIONS if kind.__module__.startswith("torch.nn.") else _SWITCHES
    return (
        module,
        kind.forward,
        kept.get("forward"),
        # Its mode among them. Of functions their code: a pass may make one anew every time.
        *[
            value.__code__ if type(value) is FunctionType else value
            for value in kept.values()
            if type(value) in options
        ],
        *[name for name, buffer in kept["_buffers"].items() if buffer is not None],
        *[
            # Its place first: tensors that are not the same one must not be asked whether they are.
            (id(weight), weight, weight.dtype, weight.device, weight.shape)
            for weight in kept["_parameters"].values()
            if weight is not None and weight.requires_grad
        ],
        *chain(*hooks_of(module)),
    )


# Attributes that say what a module does. Those with numbers may be counted up in every pass, or
# follow a schedule, and be nothing that a probe must see; the whole ones of torch's layers stay.
_SWITCHES: frozenset[type] = frozenset((bool, str, FunctionType, MethodType, BuiltinFunctionType))
_OPTIONS = _SWITCHES | {int}


def form_of(batch: Any) -> object:
    """Everything about a batch but its values and the number of its records.

    Examples:
        >>> import torch
        >>> form_of((torch.zeros(7, 2), [3])) == form_of((torch.ones(0, 2), [4]))
        True
        >>> form_of(torch.zeros(7, 2)) == form_of(torch.zeros(7, 3))
        False
    """
    if isinstance(batch, Tensor):
        return batch.dtype, batch.device, tuple(batch.shape[1:])
    if isinstance(batch, tuple | list):
        return type(batch), *map(form_of, batch)
    if isinstance(batch, dict):
        return dict, *((key, form_of(item)) for key, item in batch.items())
    return type(batch)
