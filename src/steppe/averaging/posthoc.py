"""Any horizon after training: power averages kept now and then, combined by least squares.

After Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models
<https://arxiv.org/abs/2312.02696>, 2024. An average of T updates is a vector of T weights that sum
to one. Snapshots of two power averages at several times give vectors that span, nearly, the vector
of every smooth average, so the same combination of the snapshots gives nearly that average.

The weights are known in closed form (`steppe.averaging.profiles`), so the inner products of the
least squares are those of the true discrete averages, not of their limit for many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steppe.averaging.average import AveragedWeights
from steppe.averaging.averages import Averages
from steppe.averaging.layout import ModelTensors
from steppe.averaging.polynomial import PolynomialDecay
from steppe.averaging.profiles import ema_profile, power_profile
from steppe.averaging.store import CheckpointStore
from steppe.utils.validation import exactly_one, fail, non_negative, positive_integer

# Half of the weight in the last 21 % and 3.8 % of the run. Karras et al. use 6.94 and 16.97; a
# wider pair fits long averages better, which win under noise.
GAMMAS = (2.0, 17.0)
_KIND = "power average "


@dataclass(frozen=True)
class Snapshot:
    """A power average at some step.

    Args:
        step: how many updates it contains.
        gamma: its power.
        load: reads its tensors.
    """

    step: int
    gamma: float
    load: Callable[[], Mapping[str, Tensor]]


class PowerAverages:
    """Keeps power averages during training and stores them every few updates.

    Args:
        model: the model to average.
        store: where the snapshots go, beside the checkpoints of the run. Its keep rule applies.
        every: updates from one snapshot to the next. Twenty snapshots of a run allow most horizons.
        gammas: the powers; two that differ are needed.

    Guarantees:
        Post-processing: no privacy cost, however many horizons are tried on public data.

    Examples:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> powers = PowerAverages(model, CheckpointStore(tempfile.mkdtemp()), every=5)
        >>> for _ in range(20):
        ...     powers.update(model)
        >>> [(s.step, s.gamma) for s in powers.snapshots()][:3]
        [(5, 2.0), (10, 2.0), (15, 2.0)]
        >>> found = reconstruct(model, powers.snapshots(), gamma=5)
        >>> found.residual < 0.1
        True
    """

    def __init__(
        self,
        model: nn.Module,
        store: CheckpointStore,
        every: int,
        gammas: Sequence[float] = GAMMAS,
    ) -> None:
        check_gammas(gammas)
        self.every = positive_integer("every", every)
        self._store = store
        self._averages = [PolynomialDecay(model, float(gamma)) for gamma in gammas]
        self._together = Averages(self._averages)

    def update(self, model: nn.Module) -> None:
        """Add the model's current weights, and store snapshots every few updates."""
        self._together.update(model)
        for average in self._averages:
            if average.updates % self.every == 0:
                self._store.append(average.weights(), average.updates, kind=_kind(average.gamma))

    def snapshots(self) -> list[Snapshot]:
        """What is stored."""
        return stored_snapshots(self._store)

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the averages; the snapshots are in the store."""
        return self._together.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved state, and remove snapshots that were stored after it."""
        self._together.load_state_dict(state)
        for average in self._averages:
            self._store.rewind(average.updates, kind=_kind(average.gamma))


def _kind(gamma: float) -> str:
    return f"{_KIND}{gamma!r}"


def check_gammas(gammas: Any) -> None:
    """Refuse anything but powers of which two differ."""
    if not isinstance(gammas, Sequence) or isinstance(gammas, str):
        raise fail("gammas", gammas, "must be a list of powers", f"use {GAMMAS}")
    for gamma in gammas:
        non_negative("gammas", gamma)
    if len(set(gammas)) < 2:
        raise fail("gammas", gammas, "must have two different powers", f"use {GAMMAS}")


def stored_snapshots(store: CheckpointStore) -> list[Snapshot]:
    """The power averages in a store, also one that another process writes."""
    gammas = sorted(float(k.removeprefix(_KIND)) for k in store.kinds() if k.startswith(_KIND))
    return [
        Snapshot(entry.step, gamma, partial(store.load, entry))
        for gamma in gammas
        for entry in store.entries(_kind(gamma))
    ]


class Reconstruction(AveragedWeights):
    """An average that was not kept, from those that were.

    Attributes:
        residual: ‖weights of the combination − weights of the target‖ / ‖weights of the target‖.
            For weights that are constant but for independent noise, this is the size of the
            error next to the noise that the true average still has; a drift adds to it.
        amplification: sum of the sizes of the coefficients; rounding of the snapshots grows by it.
        coefficients: one for each snapshot; they sum to one.
    """

    def __init__(
        self,
        model: nn.Module,
        snapshots: Sequence[Snapshot],
        coefficients: NDArray[np.float64],
        residual: float,
    ) -> None:
        self.layout = ModelTensors.of(model)
        self.coefficients = coefficients
        self.residual = residual
        self.amplification = float(np.abs(coefficients).sum())
        totals = [torch.zeros(s.shape, dtype=torch.float64) for s in self.layout.averaged.values()]
        newest = max(snapshots, key=lambda snapshot: snapshot.step)
        self._buffers: list[Tensor] = []
        for coefficient, snapshot in zip(coefficients.tolist(), snapshots, strict=True):
            now = self.layout.read(snapshot.load())
            for tensor, total in zip(now.averaged, totals, strict=True):
                total += coefficient * tensor.double()
            if snapshot is newest:
                self._buffers = now.copied
        specs = self.layout.averaged.values()
        self._means = [t.to(s.device, s.dtype) for t, s in zip(totals, specs, strict=True)]

    def _averaged(self) -> list[Tensor]:
        return self._means

    def _copied(self) -> list[Tensor]:
        return self._buffers


def reconstruct(
    model: nn.Module,
    snapshots: Sequence[Snapshot],
    gamma: float | None = None,
    decay: float | None = None,
    warmup: bool = True,
    at: int | None = None,
) -> Reconstruction:
    """The polynomial-decay or exponential average that was not kept, by least squares.

    Args:
        model: the model they belong to.
        snapshots: power averages at several steps.
        gamma: the power of the wanted `PolynomialDecay`; give this or `decay`.
        decay: the weight of the past of the wanted `EMA`.
        warmup: whether that EMA warms up.
        at: the step of the wanted average; None is the newest snapshot's.

    Returns:
        The average, with its residual. Snapshots are read one at a time; the profiles take eight
        bytes for each snapshot and step.

    Guarantees:
        Post-processing: no privacy cost.
    """
    if not snapshots:
        raise fail("snapshots", [], "must not be empty", "update PowerAverages during training")
    newest = max(snapshot.step for snapshot in snapshots)
    at = newest if at is None else positive_integer("at", at)
    if at > newest:
        raise fail(
            "at", at, f"is later than the newest snapshot, {newest}", "choose an earlier step"
        )
    exactly_one("", gamma=gamma, decay=decay)
    if gamma is not None:
        target = power_profile(gamma, at)
    else:
        target = ema_profile(cast(float, decay), at, warmup)
    coefficients, residual = fit(snapshots, target, newest)
    return Reconstruction(model, snapshots, coefficients, residual)


def fit(
    snapshots: Sequence[Snapshot], target: NDArray[np.float64], steps: int
) -> tuple[NDArray[np.float64], float]:
    """Coefficients that sum to one and come closest to a profile, and the relative residual."""
    wanted = np.zeros(steps)
    wanted[: len(target)] = target
    profiles = np.zeros((steps, len(snapshots)))
    for column, snapshot in enumerate(snapshots):
        profiles[: snapshot.step, column] = power_profile(snapshot.gamma, snapshot.step)
    # Differences to one snapshot leave the sum free, so that weights which never moved come back
    # as they are however poor the fit is.
    pivot = max(range(len(snapshots)), key=lambda column: snapshots[column].step)
    others = [column for column in range(len(snapshots)) if column != pivot]
    differences = profiles[:, others] - profiles[:, [pivot]]
    coefficients = np.zeros(len(snapshots))
    coefficients[others] = np.linalg.lstsq(differences, wanted - profiles[:, pivot])[0]
    coefficients[pivot] = 1 - coefficients.sum()
    residual = np.linalg.norm(profiles @ coefficients - wanted) / np.linalg.norm(wanted)
    return coefficients, float(residual)
