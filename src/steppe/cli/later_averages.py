"""Averages of a run that were not kept, computed from its store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from steppe.averaging import (
    EMA,
    OMV,
    OPA,
    Average,
    AveragedWeights,
    PolynomialDecay,
    reconstruct,
    stored_snapshots,
    write_checkpoint,
)
from steppe.cli.stored_run import StoredRun
from steppe.models import named_in
from steppe.training import (
    Evaluation,
    OutputAverage,
    averages,
    build,
    check_keys,
    label,
    mean_output_scores,
    row,
    vote_scores,
    write_weights,
)
from steppe.utils.files import writing
from steppe.utils.validation import called, fail

OUTPUTS = ("OPA", "OMV")
_WEIGHTS = ("SWA", "EMA", "Window", "PolynomialDecay")


class LaterAverages:
    """Requested averages, checked before any checkpoint is read.

    Args:
        stored: the run.
        wanted: names and options of averages.
        burn_in: leave out checkpoints up to this step.

    Guarantees:
        Post-processing of what the run released: no privacy cost.
    """

    def __init__(
        self, stored: StoredRun, wanted: Sequence[tuple[str, dict[str, Any]]], burn_in: int
    ) -> None:
        self._stored, self._burn_in = stored, burn_in
        self._entries = stored.entries(burn_in)
        # Power averages include all steps, so with a burn-in only checkpoints can be used.
        self._snapshots = stored_snapshots(stored.store) if burn_in == 0 else []
        self._wanted = [self._made(name, options) for name, options in wanted]

    def rows(self, evaluation: Evaluation) -> list[dict[str, Any]]:
        """Score every average, and write averages of weights into the run's folder.

        Args:
            evaluation: on held-out data.
        """
        model = self._stored.trained
        rebuilt = (EMA, PolynomialDecay) if self._snapshots else ()
        walked = [w for w in self._wanted if isinstance(w, Average) and not isinstance(w, rebuilt)]
        for entry in self._entries:
            with torch.no_grad():
                write_checkpoint(model, self._stored.store.load(entry))
            for average in walked:
                average.update(model)
        rows = [row("last stored", evaluation.scores(model))]
        for one in self._wanted:
            if isinstance(one, OutputAverage):
                rows.append(self._of_outputs(one, evaluation))
            elif self._snapshots and isinstance(one, EMA | PolynomialDecay):
                rows.append(self._rebuilt(one, evaluation))
            else:
                name = f"{label(one)} of {one.updates} stored"
                rows.append(self._of_weights(name, one, evaluation))
        if self._snapshots:  # all rows have the same columns
            rows = [{**line, "residual": line.get("residual")} for line in rows]
        return rows

    def _made(self, name: str, options: dict[str, Any]) -> Average | OutputAverage:
        known = {key: kind for key, kind in averages().items() if key in (*OUTPUTS, *_WEIGHTS)}
        if name in OUTPUTS:
            check_keys("average", options, ("k",))
            if not self._stored.has_classes:
                rule = "averages the probabilities of classes, and the run has none"
                raise fail("average", name, rule, "use averages of weights, such as EMA:decay=0.9")
            with called({"k": "average.k"}):
                asked = OutputAverage(known[name], options.get("k", len(self._entries)))
                self._stored.store.last(asked.k, self._burn_in)  # refuses more than there are
            return asked
        made: Average = build("average", known, name, options, model=self._stored.trained)
        return made

    def _rebuilt(self, one: EMA | PolynomialDecay, evaluation: Evaluation) -> dict[str, Any]:
        model, snapshots = self._stored.trained, self._snapshots
        if isinstance(one, EMA):
            found = reconstruct(model, snapshots, decay=one.decay, warmup=one.warmup)
        else:
            found = reconstruct(model, snapshots, gamma=one.gamma)
        scores = self._of_weights(f"{label(one)} of all steps", found, evaluation)
        return {**scores, "residual": found.residual}

    def _of_weights(
        self, name: str, average: AveragedWeights, evaluation: Evaluation
    ) -> dict[str, Any]:
        stored = self._stored
        about = {"model": name, "plan": stored.plan_digest}
        reason = stored.store.not_private_reason
        with writing("run", stored.folder.path):
            weights = named_in(stored.whole, average.weights())
            write_weights(stored.folder.average(name), weights, about, reason)
        with average.applied(stored.trained):
            return row(name, evaluation.scores(stored.trained))

    def _of_outputs(self, one: OutputAverage, evaluation: Evaluation) -> dict[str, Any]:
        inputs, targets = evaluation.inputs_and_targets()
        checkpoints = self._stored.store.last(one.k, self._burn_in)
        found = OPA(self._stored.trained, checkpoints).outputs(inputs)
        score = vote_scores if one.kind is OMV else mean_output_scores
        return row(str(one), score(found, targets))
