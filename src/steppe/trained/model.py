"""A trained model that is ready for new records."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steppe.accounting import caution
from steppe.averaging import OPA
from steppe.errors import PrivacyWarning, SteppeError
from steppe.trained.inputs import Inputs
from steppe.trained.outputs import Intervals, output_intervals, outputs
from steppe.trained.run import TrainedRun
from steppe.trained.weight_files import WeightFile
from steppe.training import LAST, meant
from steppe.utils import validation
from steppe.utils.formatting import rounded_up
from steppe.utils.user_code import level

_CHECKPOINTS = 20


class TrainedModel:
    """A model of a run: its network with the weights, and what its records go through before it.

    `load` makes it. Whatever takes records takes them as the user has them: a path to a CSV or
    `.npy` file; for a run on a table columns by name (a dict, a data frame) or a list of rows; for
    other runs a tensor, an array or nested lists, where pictures may be uint8 as in a file.

    Args:
        run: what the run left behind.
        weights: of this model.

    Attributes:
        name: `last`, or the name of an average, with its constants.
        module: from prepared inputs to outputs, with its weights loaded and in evaluation mode.
        inputs: called with records, prepares the inputs that `module` takes.
        run: what the run left behind.
    """

    def __init__(self, run: TrainedRun, weights: WeightFile) -> None:
        self.run, self.name = run, weights.model
        run.put_on(weights)
        self.module: nn.Module = run.whole
        self.inputs: Inputs = run.inputs
        self.privacy: dict[str, Any] = dict(run.privacy)
        if weights.not_private_reason is not None:  # whatever the statement says of others
            self.privacy |= {"private": False, "not_private_reason": weights.not_private_reason}
            self.privacy["epsilon"] = None

    @cached_property
    def classes(self) -> list[str] | list[int] | None:
        """The labels, in the order of the outputs: names where they were declared, numbers
        elsewhere; None where the model answers with numbers."""
        if not self.run.has_classes:
            return None
        declared = self.run.classes
        if isinstance(declared, list):
            return [name.strip() for name in declared]
        if declared is None:
            made_up = torch.zeros(1, *self.inputs.shape, dtype=getattr(torch, self.inputs.kind))
            declared = outputs(self.module, {}, made_up).shape[-1]
        return list(range(declared))

    def predict(self, records: Any) -> NDArray[Any]:
        """The label of each record, or the outputs of a run without classes.

        Outputs are in the units of the targets, also if these were scaled (`target_bounds`).
        """
        found = self._outputs(records)
        if self.classes is None:
            return self.run.in_units(found).numpy()
        return self._labels(found.argmax(-1))

    def predict_proba(self, records: Any) -> NDArray[np.float64]:
        """The probability of each class, records × classes, in the order of `classes`."""
        if self.classes is None:
            rule = "answers with numbers, and has no classes to give probabilities of"
            raise validation.fail("model", self.name, rule, "call predict or intervals")
        return self._outputs(records).softmax(-1).numpy()

    def intervals(
        self,
        records: Any,
        confidence: float = 0.95,
        checkpoints: int | None = None,
        burn_in: int = 0,
    ) -> Intervals:
        """The predictions of `predict`, with intervals from the stored checkpoints of the run.

        An interval is a lower estimate of the effect of the training noise on the prediction,
        because checkpoints of one run are correlated.

        Args:
            records: as for `predict`.
            confidence: of the intervals, in (0, 1).
            checkpoints: how many, the newest; None for 20, or all if there are fewer.
            burn_in: leave out checkpoints up to this step.
        """
        store, trained = self.run.store, self.run.trained
        stored = sum(entry.step > burn_in for entry in store.entries())
        k = min(_CHECKPOINTS, stored) if checkpoints is None else checkpoints
        with validation.called({"k": "checkpoints", "interval": "confidence"}):
            chosen = store.last(k, burn_in)
            features = self.run.features(self.inputs(records))
            own = outputs(trained, {}, features)
            if self.classes is None:
                _, half, count = output_intervals(trained, chosen, features, confidence)
                own, half = self.run.in_units(own), self.run.widths(half)
                ends = (own - half).numpy(), (own + half).numpy()
                return Intervals(own.numpy(), *ends, None, None, count, confidence)
            found = OPA(trained, chosen).predict(features, confidence, own.argmax(-1))
        at = found.labels.unsqueeze(-1)
        low, high, probability = (
            values.gather(-1, at).squeeze(-1).numpy()
            for values in (found.low, found.high, found.probabilities)
        )
        labels, agreement = self._labels(found.labels), found.agreement.numpy()
        return Intervals(labels, low, high, probability, agreement, found.count, confidence)

    def _outputs(self, records: Any) -> Tensor:
        return outputs(self.run.trained, {}, self.run.features(self.inputs(records)))

    def _labels(self, places: Tensor) -> NDArray[Any]:
        return np.array(self.classes)[places.numpy()]

    @property
    def caution(self) -> str | None:
        """A warning about the guarantee, or None."""
        reason = self.privacy.get("not_private_reason")
        if reason is not None or not self.privacy["private"]:
            return f"NOT PRIVATE: {reason or 'no reason was kept'}"
        return caution(self.privacy.get("isolation"), str(self.privacy.get("unit", "record")))

    def __repr__(self) -> str:
        promise = f"ε = {rounded_up(self.privacy['epsilon'])} at δ = {self.privacy['delta']:g}"
        found = promise if self.caution is None else self.caution
        return f"<{self.name} of {self.run.data_name}: {found}>"


def load(
    run: str | Path, *, average: str | None = None, model: nn.Module | None = None
) -> TrainedModel:
    """A model of a run, ready for new records.

    It needs only the run's folder, which may have been moved: the training records are not read.
    Nothing is unpickled.

    Args:
        run: the folder of a run that has ended.
        average: which of its models: "last", or the name of an average of weights, which may be
            shortened if it is unambiguous, such as "EMA". None for the published model.
        model: the network, for a run made in Python or whose `model.factory` cannot be imported; a
            copy of it gets the weights.

    Returns:
        The model. If the run is not private, or isolation was only probed, there is a warning.

    Guarantees:
        Post-processing: no privacy cost. Any model of the run may be used; choosing one by scores
        on private records costs privacy.
    """
    with _pointing_to_model():
        found = TrainedRun(run, model)
        weights = _chosen(found, average)
        ready = TrainedModel(found, weights)
    if ready.caution is not None:
        warnings.warn(ready.caution, PrivacyWarning, stacklevel=level())
    return ready


def _chosen(run: TrainedRun, average: str | None) -> WeightFile:
    """The file of the weights that were asked for."""
    published = run.published()
    if published is None:
        raise run.not_ended()
    if average is None:
        return published
    files = {file.model: file for file in run.weight_files()}
    found = meant(average, list(files)) if isinstance(average, str) else []
    if len(found) == 1:
        return files[found[0]]
    if found:
        rule = f"is ambiguous between {', '.join(found)}"
        raise validation.fail("average", average, rule, "write more of the name")
    rule = "is not a model of weights that this run kept"
    names = " or ".join((LAST, *(name for name in files if name != LAST)))
    remedy = f"choose {names}; `steppe average` makes others from stored checkpoints"
    raise validation.fail("average", average, rule, remedy)


@contextmanager
def _pointing_to_model() -> Iterator[None]:
    """Inside the block, an error about a network that cannot be made names the way around it."""

    def change(error: SteppeError) -> None:
        if error.name == "model.factory":
            error.otherwise = "Or pass the network that was trained, as model=."

    with validation.reworded(change):
        yield
