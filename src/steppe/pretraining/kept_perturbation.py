"""DPAdapter with a perturbation that is kept for several updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from steppe.pretraining.dp_adapter import whole_number
from steppe.pretraining.method import Gradients, Tensors
from steppe.pretraining.perturbation import Ascent
from steppe.utils import validation


@dataclass(frozen=True)
class KeptPerturbation:
    """`DPAdapter`'s perturbation, computed again after every `updates` steps.

    A step computes (m₂ + m₁/updates)/m₂ times as many gradients as `Standard`.

    Args:
        updates: for how many steps a perturbation is kept.
        perturbation_batch, rate, cap, scope, warmup: as for `DPAdapter`.
    """

    updates: int
    perturbation_batch: int = 5000
    rate: float = 1.0
    cap: float | None = 2.0
    scope: str = "model"
    warmup: int = 0

    def __post_init__(self) -> None:
        validation.positive_integer("updates", self.updates)
        validation.positive_integer("perturbation_batch", self.perturbation_batch)
        Ascent(self.rate, self.cap, self.scope)
        whole_number("warmup", self.warmup)

    def begin(self, weights: Tensors) -> KeptPerturbationRun:
        """Start a run over these weights."""
        return KeptPerturbationRun(self)


class KeptPerturbationRun:
    """Keeps the last perturbation."""

    def __init__(self, method: KeptPerturbation) -> None:
        self._method = method
        self._ascent = Ascent(method.rate, method.cap, method.scope)
        self._kept: list[Tensor] | None = None

    def offset(self, step: int, gradients: Gradients) -> Tensors | None:
        """The kept perturbation, or a new one when its time is over."""
        since = step - self._method.warmup
        if since < 0:
            return None
        if self._kept is None or since % self._method.updates == 0:
            found = gradients.of_fresh_batch(self._method.perturbation_batch)
            self._kept = self._ascent.of(found)
        return self._kept

    def observe(self, gradient: Tensors) -> None:
        """The update's gradient is not used."""

    def state_dict(self) -> dict[str, Any]:
        """The kept perturbation."""
        return {"kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a kept perturbation."""
        self._kept = state["kept"]
