"""The layer table of a model, without data or loss."""

from __future__ import annotations

from torch import Tensor, nn

from steppe.errors import IsolationError
from steppe.gradients import EachRecord
from steppe.probing.alternatives import offer_other_isolation
from steppe.probing.observed_pass import ProbedModel
from steppe.probing.placeholder_loss import require_inputs, squared_outputs
from steppe.probing.probe import probe
from steppe.probing.report import KINDS, Report
from steppe.probing.unsupported_modules import require_uncompiled
from steppe.utils import validation


def inspect(model: nn.Module, *inputs: Tensor, isolation: str = "proven") -> Report:
    """How the per-example gradient of each layer is computed, and why; prints as a table.

    Args:
        model: any module.
        inputs: a batch of any number of records, as for the model; only shapes and types are used.
        isolation: as for `steppe.make_private`.

    Returns:
        The layer table, which is empty if no weight is trained.

    Examples:
        >>> import torch
        >>> print(inspect(nn.Linear(3, 2), torch.zeros(1, 3)))  # doctest: +ELLIPSIS
        weights       operation  path    size  why
        weight, bias  linear     linear  8     ...
        memory: 0.00 MB a record
        isolation: proven from the operations
    """
    require_inputs(inputs)
    validation.one_of("isolation", isolation, KINDS)
    require_uncompiled(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        return Report([], [], (), 1)
    objective = squared_outputs(lambda batch: model(*batch))
    try:
        return probe(
            model,
            parameters,
            objective,
            inputs,
            isolation=isolation,
            one_at_a_time=EachRecord(parameters, model) if isolation == "each" else None,
        )
    except IsolationError as error:
        if isolation == "proven":
            offer_other_isolation(error, ProbedModel(model, parameters, objective), inputs)
        raise
