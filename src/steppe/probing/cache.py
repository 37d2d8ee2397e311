"""The results of the probe for each state of a model and form of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import is_
from typing import Any

from torch import nn

from steppe.clipping import CEILING, ClippedSum
from steppe.errors import IsolationError, MisuseError
from steppe.probing.alternatives import offer_other_isolation
from steppe.probing.model_state import form_of, state_of
from steppe.probing.observed_pass import ProbedModel
from steppe.probing.probe import probe
from steppe.probing.report import Report
from steppe.probing.zero_records import require_zeros_taken
from steppe.utils.batches import each, require_tensors

# The most forms of a batch that are probed in a run. A probe takes up to seconds, and more shapes
# usually follow from the longest record in the batch, which is private.
MOST_FORMS = 16
# The proof follows at least this many records at once, if the engine allows it.
_LEAST_AT_ONCE = 64
# Steps before which a model is proven again: at growing distances, because it may take seconds.
LOOK_AGAIN = frozenset(4**power for power in range(1, 16))


class ProbeCache:
    """Probes a model before it processes records, once for each of its states and forms of a batch.

    Args:
        model: the model to train.
        engine: gets the record axes, and the physical batch if the user did not set it.
        batch_size: the expected number of records in a step, including padding.
        isolation: how isolation is ensured, see `KINDS`.
        most_forms: the most forms of a batch that are probed in a run; None for any number.
        alternatives: whether the error for a model that is not proven offers the other kinds of
            isolation, with their measured cost.

    Guarantees:
        No value of a batch is read, only its structure, types and shapes.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: ClippedSum,
        batch_size: float,
        isolation: str = "proven",
        *,
        most_forms: int | None = MOST_FORMS,
        alternatives: bool = True,
    ) -> None:
        self._model, self._engine, self._isolation = model, engine, isolation
        self._most_forms, self._alternatives = most_forms, alternatives
        many = max(_LEAST_AT_ONCE, 2 * math.ceil(batch_size))  # batches are drawn at random
        self._at_once = min(many, engine.physical_batch or many)
        self._chooses = alternatives and engine.physical_batch is None
        self._activation_bytes = CEILING if self._chooses else None
        self._reports: dict[tuple[object, object], Report] = {}
        self._batches: dict[object, Any] = {}  # without records, by form
        self._expected: list[Report] = []
        self._forms: list[object] = []  # of the batches of the current step

    def knows(self, batch: Any) -> bool:
        """Whether batches of this form were probed with the current state of the model."""
        return (state_of(self._model), form_of(batch)) in self._reports

    def is_new_form(self, batch: Any) -> bool:
        """Whether batches of other forms were probed before, and none of this form."""
        return bool(self._batches) and form_of(batch) not in self._batches

    def report(self, batch: Any) -> Report:
        """The report for the current state of the model: modules, modes, hooks, weights.

        Args:
            batch: an input of the model; its values are not read.
        """
        state, form = state_of(self._model), form_of(batch)
        known = self._reports.get((state, form))
        return self._first_report(state, form, batch) if known is None else known

    def _first_report(self, state: object, form: object, batch: Any) -> Report:
        forms = {known for _, known in self._reports} | {form}
        if self._most_forms is not None and len(forms) > self._most_forms:
            raise MisuseError(
                f"batch=another shape: must come in at most {self._most_forms} shapes and types in "
                "a run, each of which is checked once; crop or pad to a few fixed sizes."
            )
        require_tensors(batch)
        self._engine.weights.require_sizes()
        self._engine.weights.require_own(self._model)
        # Without its rows, because the probe uses shapes and types only.
        self._batches[form] = each(lambda tensor: tensor[:0], batch)
        self._reports[state, form] = self._probe(self._batches[form])
        if self._engine.padded_to is not None:
            require_zeros_taken(self._engine.objective, self._batches[form])
        return self._reports[state, form]

    def look_again(self) -> None:
        """Repeat the proof for the current state, because the code may have changed its behaviour.

        Guarantees:
            Rejects a model that mixes records. Paths that were proven before stay valid.
        """
        now = state_of(self._model)
        for form, batch in self._batches.items():
            # Looked up and not compared, because weights may have other shapes in other states.
            known = self._reports.get((now, form))
            if known is not None and known.isolation == "proven":
                self._reports[now, form] = self._proven_again(known, batch)
        reports = [self._reports.get((now, form)) for form in self._forms]
        if reports and reports[0] is not None:
            self._engine.passes.expect(reports[0].layouts, reports[0].paths, self.look_again)

    def _proven_again(self, known: Report, batch: Any) -> Report:
        from steppe.isolation import prove

        objective = self._engine.objective
        try:
            proof = prove(
                self._model,
                objective,
                batch,
                self._at_once,
                activation_bytes=self._activation_bytes,
            )
        except IsolationError as error:
            error.add_note(
                "The check before the first step passed. The model changed during the run, so "
                "earlier steps may have released more than the account says. Do not publish this "
                "model."
            )
            raise
        paths = (known.paths or frozenset()) | proof.paths
        return replace(known, layouts=proof.layouts, paths=paths)

    def _probe(self, batch: Any) -> Report:
        trained = {n: p for n, p in self._engine.parameters.items() if p.requires_grad}
        if not trained:
            rule = "has no trainable weights, and needs some in every step"
            raise MisuseError.missing("model", "set requires_grad on what to train", rule)
        try:
            return probe(
                self._model,
                trained,
                self._engine.objective,
                batch,
                at_once=self._at_once,
                activation_bytes=self._activation_bytes,
                isolation=self._isolation,
                one_at_a_time=self._engine.one_at_a_time,
            )
        except IsolationError as error:
            if self._isolation != "proven" or not self._alternatives:
                raise
            probed = ProbedModel(self._model, trained, self._engine.objective)
            offer_other_isolation(error, probed, batch)
            raise

    def expect(self, parts: Sequence[Any]) -> Report:
        """Prepare the engine for a batch in parts; return the report of the first part."""
        reports = [self.report(part) for part in parts]
        if len(reports) == len(self._expected) and all(map(is_, reports, self._expected)):
            return reports[0]
        first = reports[0]
        if any(report.layouts != first.layouts for report in reports):
            raise MisuseError(
                "parts=of several shapes: must have the same sizes for every record, because they "
                "go through the model as one batch; give all parts one shape."
            )
        self._engine.passes.expect(first.layouts, first.paths, self.look_again)
        if self._chooses:
            largest = max(report.bytes_per_record for report in reports)
            self._engine.choose_physical_batch(largest)
        self._expected, self._forms = reports, [form_of(part) for part in parts]
        return first

    def padding_rows(self, report: Report) -> dict[str, int]:
        """The padding row of each embedding table that has one, by name.

        Args:
            report: for batches in the form of the data.
        """
        padded = padding_by_table(self._model)
        # If a table is also an output layer, its padding row is trained there.
        elsewhere = {
            name
            for row in report.rows
            if row.path not in ("embedding", "embedding bag")
            for name in row.weights
        }
        return {
            name: padded[id(weight)]
            for name, weight in self._engine.parameters.items()
            if id(weight) in padded and name not in elsewhere
        }


def padding_by_table(model: nn.Module) -> dict[int, int]:
    """The padding row, by `id` of the embedding table."""
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None
    }
