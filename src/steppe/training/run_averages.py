"""Place 7 in a run: averages of weights and outputs, snapshots, and their scores."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from steppe.averaging import (
    GAMMAS,
    OMV,
    OPA,
    SWA,
    Average,
    Averages,
    CheckpointStore,
    Ensemble,
    Keep,
    PowerAverages,
    check_gammas,
)
from steppe.errors import ConfigurationError
from steppe.training.evaluation import Evaluation, Scores, mean_output_scores, vote_scores
from steppe.training.losses import NO_CLASSES
from steppe.training.publishing import LAST
from steppe.utils import validation


@dataclass(frozen=True)
class OutputAverage:
    """An average of outputs over the newest stored checkpoints of the run.

    Args:
        kind: `OPA` or `OMV`.
        k: the number of checkpoints.

    Guarantees:
        Post-processing: no privacy cost.

    Examples:
        >>> str(OutputAverage(OPA, k=20))
        'OPA(k=20)'
    """

    kind: type[Ensemble]
    k: int

    def __post_init__(self) -> None:
        if self.kind not in (OPA, OMV):
            raise validation.fail("kind", self.kind, "must be OPA or OMV", "use OPA")
        validation.positive_integer("k", self.k)

    def __str__(self) -> str:
        return f"{self.kind.__name__}(k={self.k})"


@dataclass(frozen=True)
class Snapshots:
    """Power averages in the run's store, from which averages of any horizon can be computed later.

    They have no row in the table; see `steppe.averaging.reconstruct`.

    Args:
        every: steps between snapshots.
        gammas: the powers; two different ones are needed.

    Guarantees:
        Post-processing: no privacy cost.

    Examples:
        >>> str(Snapshots(every=10))
        'PowerAverages(every=10, gammas=(2.0, 17.0))'
    """

    every: int
    gammas: tuple[float, ...] = GAMMAS

    def __post_init__(self) -> None:
        validation.positive_integer("every", self.every)
        check_gammas(self.gammas)

    def __str__(self) -> str:
        return f"PowerAverages(every={self.every}, gammas={self.gammas})"


Keepable = Average | OutputAverage | Snapshots


class Scored(NamedTuple):
    """A model of the run and its scores.

    Args:
        name: of the model.
        scores: on the evaluation data.
        seconds: the time to compute and score it.
    """

    name: str
    scores: Scores
    seconds: float


class RunAverages:
    """The averages that a run keeps beside its last weights.

    Args:
        model: the model.
        averages: averages of weights made for it, averages of outputs, and snapshots.
        steps: of the plan.
        stored: the steps whose checkpoints will be in the store at the end.
        no_outputs: why averages of outputs are not possible; None if they are.
    """

    def __init__(
        self,
        model: nn.Module,
        averages: Sequence[object],
        steps: int,
        stored: Sequence[int],
        no_outputs: str | None,
    ) -> None:
        for average in averages:
            if isinstance(average, Average):
                _require_weights(average, model, steps)
            elif isinstance(average, OutputAverage | Snapshots):
                _require_store(average, steps, stored)
            else:
                remedy = "use EMA(model, 0.99) or OutputAverage(OPA, 20)"
                raise validation.fail("averages", average, "is not an average", remedy)
            if isinstance(average, OutputAverage) and no_outputs is not None:
                raise _refused(average, no_outputs)
        self._model = model
        self._outputs = [average for average in averages if isinstance(average, OutputAverage)]
        self._snapshots = [average for average in averages if isinstance(average, Snapshots)]
        weights = [average for average in averages if isinstance(average, Average)]
        self._together = Averages(weights) if weights else None
        self._powers: list[PowerAverages] = []
        for name, times in Counter(self.labels).items():
            if times > 1:
                rule = f"is the name of {times} averages, which the table could not distinguish"
                raise validation.fail("averages", name, rule, "leave one out, or change a setting")

    def require_classes(self, scores: Scores) -> None:
        """Reject averages of outputs if the scores show that there are no classes."""
        if self._outputs and "accuracy" not in scores:
            raise _refused(self._outputs[0], NO_CLASSES)

    def open(self, store: CheckpointStore | None) -> None:
        """Begin to write snapshots into the run's store."""
        if store is not None:
            self._powers = [
                PowerAverages(self._model, store, one.every, one.gammas) for one in self._snapshots
            ]

    @property
    def averages(self) -> dict[str, Average]:
        """The averages of weights that have begun, by name."""
        found = self._together or ()
        return {label(average): average for average in found if average.covers}

    @property
    def of_weights(self) -> list[str]:
        """The names of all averages of weights."""
        return [label(average) for average in self._together or ()]

    @property
    def labels(self) -> list[str]:
        """Every average's name."""
        return [*self.of_weights, *map(str, (*self._outputs, *self._snapshots))]

    @property
    def methods(self) -> list[Any]:
        """The methods in use, for citations."""
        outputs = (average.kind for average in self._outputs)
        return [*(self._together or ()), *outputs, *(PowerAverages for _ in self._snapshots)]

    @property
    def averages_outputs(self) -> bool:
        """Whether any of them is an average of outputs."""
        return bool(self._outputs)

    def update(self) -> None:
        """Add the model's current weights."""
        if self._together is not None:
            self._together.update(self._model)
        for powers in self._powers:
            powers.update(self._model)

    def scores(self, evaluation: Evaluation) -> Iterator[Scored]:
        """The scores of the last weights and of every average of weights."""
        begun = time.monotonic()
        yield Scored(LAST, evaluation.scores(self._model), time.monotonic() - begun)
        for name, average in self.averages.items():
            begun = time.monotonic()
            with average.applied(self._model):
                found = evaluation.scores(self._model)
            yield Scored(name, found, time.monotonic() - begun)

    def output_scores(self, evaluation: Evaluation, store: CheckpointStore) -> Iterator[Scored]:
        """The scores of the averages of outputs. Each stored checkpoint is evaluated once per k.

        If the run was cut short and stored fewer than k checkpoints, all of them are used, and the
        name says how many. Time that several averages share counts for each of them.
        """
        stored = len(store.entries())
        if not self._outputs or not stored or not evaluation.has_targets:
            return
        inputs, targets = evaluation.inputs_and_targets()
        for k in dict.fromkeys(average.k for average in self._outputs):
            begun = time.monotonic()
            found = OPA(self._model, store.last(min(k, stored))).outputs(inputs)
            shared = time.monotonic() - begun
            for average in self._outputs:
                if average.k == k:
                    begun = time.monotonic()
                    score = mean_output_scores if average.kind is OPA else vote_scores
                    scores = score(found, targets)
                    name = str(average) if k <= stored else f"{average} of {stored} stored"
                    yield Scored(name, scores, shared + time.monotonic() - begun)

    def state_dict(self) -> dict[str, Any]:
        """The state of the averages of weights."""
        return {
            "averages": {} if self._together is None else self._together.state_dict(),
            "powers": [powers.state_dict() for powers in self._powers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        if self._together is not None:
            self._together.load_state_dict(state["averages"])
        for powers, saved in zip(self._powers, state["powers"], strict=True):
            powers.load_state_dict(saved)


def stored_steps(every: int | None, steps: int, keep: Keep | None) -> list[int]:
    """The steps whose checkpoints a run has in its store at the end.

    Examples:
        >>> stored_steps(3, 10, None), stored_steps(None, 10, None)
        ([3, 6, 9], [])
    """
    return (keep or Keep()).kept(range(every, steps + 1, every) if every else ())


def _require_weights(average: Average, model: nn.Module, steps: int) -> None:
    average.layout.now(model)  # an error for the average of another model
    if isinstance(average, SWA) and average.warmup > steps:
        rule = f"would begin after the {steps} steps of the plan"
        raise validation.fail("averages", label(average), rule, "give a shorter warm-up")


def _require_store(average: OutputAverage | Snapshots, steps: int, stored: Sequence[int]) -> None:
    name = str(average)
    if not stored:
        remedy = "set store_every, to a tenth of the steps or less"
        raise validation.fail("averages", name, "needs stored checkpoints", remedy)
    if isinstance(average, OutputAverage) and average.k > len(stored):
        rule = f"needs more than the {len(stored)} checkpoints that the run will have stored"
        raise validation.fail("averages", name, rule, "use a smaller k, or store more often")
    if isinstance(average, Snapshots) and average.every > steps:
        rule = f"would take no snapshot in the {steps} steps of the plan"
        raise validation.fail("averages", name, rule, "take them more often")


def _refused(average: OutputAverage, rule: str) -> ConfigurationError:
    remedy = "use averages of weights, such as EMA and SWA"
    return validation.fail("averages", str(average), rule, remedy)


def label(average: Average) -> str:
    """An average's name with its constants.

    Examples:
        >>> from steppe.averaging import EMA
        >>> label(EMA(nn.Linear(2, 1), decay=0.99))
        'EMA(decay=0.99, warmup=1)'
    """
    settings: Mapping[str, Any] = average.settings()
    exact = {name: repr(float(value)).removesuffix(".0") for name, value in settings.items()}
    inside = ", ".join(f"{name}={value}" for name, value in exact.items())
    return f"{type(average).__name__}({inside})"
