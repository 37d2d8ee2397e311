"""What the probe found about a model, for each form in which batches come to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from steppe.clipping import ClippedSum
from steppe.clipping.batches import each
from steppe.clipping.physical import fitting_physical_batch
from steppe.clipping.probing import Report, probe
from steppe.clipping.probing.shift import padding_by_table
from steppe.errors import MisuseError

# Forms of a batch that are probed in a run. A probe takes up to seconds; and shapes without end are
# mostly those of the longest record in the batch, which is private.
_MOST_FORMS = 16


class Probed:
    """Probes a model before it meets records, once for each of its states and forms of a batch.

    Args:
        model: what is trained.
        engine: told where the records lie, and how many to take at once if nobody said.
        example: a batch of the data without records.

    Guarantees:
        No value of a batch is read: its structure, types and shapes are all that a probe sees.
    """

    def __init__(self, model: nn.Module, engine: ClippedSum, example: Any) -> None:
        self._model, self._engine = model, engine
        # Data lie on the host, and a loop moves its batches to where the weights are.
        self._example = each(lambda tensor: tensor.to(engine.device), example)
        self._chooses = engine.physical_batch is None
        self._reports: dict[tuple[object, object], Report] = {}

    def report(self, batch: Any = None) -> Report:
        """What holds for the model as it is now: modules, modes, hooks, weights.

        Args:
            batch: how it comes to the model, possibly transformed; as the data has it unless given.
        """
        batch = self._example if batch is None else batch
        model = self._model
        # Modules and weights themselves, which are kept: the place of one that is gone could be
        # taken by another.
        state = (
            *((m, m.training, *m._forward_hooks, *m._forward_pre_hooks) for m in model.modules()),
            *(p for p in model.parameters() if p.requires_grad),
        )
        form = form_of(batch)
        if (state, form) not in self._reports:
            if len({known for _, known in self._reports} | {form}) > _MOST_FORMS:
                raise MisuseError(
                    f"batch=another shape: must come in at most {_MOST_FORMS} shapes and types in "
                    "a run, each of which is checked once; crop or pad to a few fixed sizes."
                )
            self._reports[state, form] = self._probe(batch)
        return self._reports[state, form]

    def _probe(self, batch: Any) -> Report:
        trained = {n: p for n, p in self._engine.parameters.items() if p.requires_grad}
        if not trained:
            raise MisuseError(
                "model=no trainable weights: must have some in every step; set requires_grad on "
                "what to train."
            )
        # Without its rows: the probe looks at shapes and types alone.
        example = each(lambda tensor: tensor[:0], batch)
        return probe(self._model, trained, self._engine.objective, example)

    def expect(self, parts: Sequence[Any]) -> None:
        """Make the engine ready for parts of a batch, or for the data's own form without any."""
        engine = self._engine
        reports = [self.report(part) for part in parts] or [self.report()]
        engine.layouts = reports[0].layouts
        if any(report.layouts != engine.layouts for report in reports):
            raise MisuseError(
                "parts=of several forms: must go through the model in the same way, and these "
                "have different numbers of rows a record in it; give all parts one form."
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
