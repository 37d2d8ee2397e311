"""The time and memory that a run will need, measured on synthetic records."""

from __future__ import annotations

import copy
import resource
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

from steppe.errors import PrivacyWarning
from steppe.models import FixedFrontEnd
from steppe.noise import Correlated, Dense
from steppe.plan import Plan
from steppe.private import make_private
from steppe.probing import synthetic
from steppe.records import as_records
from steppe.sampling import FixedOrder, Poisson
from steppe.training import BuiltConfig, as_columns, features, loss_of

# The first step also times the kernels, so the fastest of the other steps counts.
_TRIALS = 3
_SEED = 0


@dataclass(frozen=True)
class Forecast:
    """The time and memory that a run will need.

    Attributes:
        seconds_a_step: of one step with the expected batch size.
        seconds: of all steps, without evaluation and checkpoints.
        peak_bytes: the peak memory of this process, with the loaded data, plus the memory of fixed
            features of all records.
        threads: of torch.
        isolation: how it is known that a record's gradient depends on that record alone.
    """

    seconds_a_step: float
    seconds: float
    peak_bytes: int
    threads: int
    isolation: str

    def __str__(self) -> str:
        return (
            f"{self.seconds_a_step:.3g} s a step, {self.seconds:,.3g} s for all steps; "
            f"{self.peak_bytes / 2**20:,.0f} MB at most; {self.threads} threads"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def forecast(assembly: BuiltConfig, plan: Plan) -> Forecast:
    """Take a few steps like those of the run on synthetic records.

    Args:
        assembly: the parts of the run; they are not changed.
        plan: its plan, with its population.

    Returns:
        Times and memory of this machine at this moment.

    Guarantees:
        No private value is read, only the shapes and types of a record.
    """
    size = max(1, round(plan.batch_size))
    form = as_records(assembly.loaded.train).example()
    generator = torch.Generator().manual_seed(_SEED)
    records = as_columns(synthetic(form, size, generator))
    if isinstance(assembly.model, FixedFrontEnd):
        made_up = torch.randn(size, assembly.model.front.features, generator=generator)
        records = F.normalize(made_up), records[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the records are synthetic
        trial = replace(
            plan,
            epsilon=None,
            noise_multiplier=plan.sigma,
            epochs=None,
            steps=_TRIALS,
            population=size,
            batch_size=size,
            **_as_often(plan),
        )
    model = copy.deepcopy(assembly.trained)
    private = make_private(
        model,
        torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=1e-3, momentum=0.9),
        records,
        trial,
        loss=loss_of(assembly.resolved["train"]),
        isolation=assembly.isolation,
        physical_batch=assembly.resolved["train"].get("physical_batch"),
        public=features(assembly.model, assembly.loaded.public, progress=False, as_batch=True),
    )
    seconds = []
    for batch in private:
        begun = time.perf_counter()
        private.step(batch)
        seconds.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    a_step = min(seconds[1:])
    return Forecast(
        seconds_a_step=a_step,
        seconds=a_step * plan.total_steps,
        peak_bytes=_features_to_come(assembly)
        + (peak if sys.platform == "darwin" else peak * 1024)  # bytes there, KB elsewhere
        + plan.noise_memory * 4 * private.engine.width,
        threads=torch.get_num_threads(),
        isolation=private.report().isolation,
    )


def _as_often(plan: Plan) -> dict[str, Any]:
    """Sampling of all records in every trial step, and noise that goes with it."""
    if not isinstance(plan.noise, Correlated):
        return {"sampling": Poisson(), "adjacency": "add-remove"}
    noise = Dense() if isinstance(plan.noise, Dense) else plan.noise  # one for few steps
    return {"sampling": FixedOrder(_TRIALS), "adjacency": "zero-out", "noise": noise}


def _features_to_come(assembly: BuiltConfig) -> int:
    """Bytes of the fixed features of all records, which are not computed here."""
    if not isinstance(assembly.model, FixedFrontEnd):
        return 0
    front = assembly.model.front
    parts = (assembly.loaded.train, assembly.loaded.evaluate, assembly.loaded.public)
    records = sum(len(part) for part in parts if part is not None)
    return records * front.features * front.precision.itemsize
