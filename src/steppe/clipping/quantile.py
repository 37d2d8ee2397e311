"""Place 4: a bound that follows a quantile of the records' norms, privately."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.clipping.clip import (
    NormClipper,
    PublicGradients,
    State,
    count_weights,
    movable_bound,
    refuse_public,
    row_norms,
)
from steppe.gradients import RecordGradients
from steppe.utils import validation


@dataclass(frozen=True)
class Quantile:
    """Clip at a bound C that moves towards the `target` quantile of the gradients' norms.

    A query releases one vector: the gradients clipped to C and divided by it, and one more number,
    a(n − B/2), where n of B records had a norm of at most C. The bound of the next query follows
    from the noised answer alone, C ← C exp(−learning_rate (n/B − target)), with the expected batch
    as B. Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021.

    Args:
        target: the share of records that should pass unclipped.
        learning_rate: how fast log C follows.
        start: C of the first query.
        low, high: the range of C.
        count_share: the part of the privacy budget 1/σ² that is spent on the count. With the
            plan's noise multiplier σ the count gets noise of σ / (2 √count_share) records and the
            gradients get the multiplier σ / √(1 − count_share). `share_for` turns a count noise
            into a share.

    Guarantees:
        A record's part of the released vector is at most `sensitivity` long, for every C: its
        clipped gradient over C has length at most 1, its centred count is ±a/2, and
        a = 2 √(count_share / (1 − count_share)). A record whose gradient is not finite adds zero to
        both. C is computed from released numbers and public constants only.

    Examples:
        >>> Quantile(count_share=0.75).sensitivity
        2.0
    """

    target: float = 0.5
    learning_rate: float = 0.2
    start: float = 0.1
    low: float = 1e-3
    high: float = 100.0
    count_share: float = 1e-3

    def __post_init__(self) -> None:
        for name, check in (
            ("target", validation.open_unit),
            ("learning_rate", validation.positive),
            ("start", movable_bound),
            ("low", movable_bound),
            ("high", movable_bound),
            ("count_share", validation.open_unit),
        ):
            number = check(f"Quantile.{name}", getattr(self, name))
            object.__setattr__(self, name, number)
        if not self.low <= self.start <= self.high:
            raise validation.fail(
                "Quantile.start",
                self.start,
                f"must lie between low={self.low} and high={self.high}",
                "widen the range or start inside it",
            )

    @staticmethod
    def share_for(noise_multiplier: float, count_noise: float) -> float:
        """The share of the budget that gives the count a wanted noise.

        Args:
            noise_multiplier: σ of the plan, `plan.sigma`. It does not depend on the share.
            count_noise: standard deviation of the noise on the count, in records. Andrew et al.
                take a twentieth of the expected batch.

        Returns:
            (σ / (2 count_noise))², for `count_share`.

        Examples:
            >>> Quantile.share_for(noise_multiplier=2.5, count_noise=2048 / 20)
            0.00014901161193847656
        """
        sigma = validation.positive("noise_multiplier", noise_multiplier)
        noise = validation.positive("count_noise", count_noise)
        share = (sigma / (2 * noise)) ** 2
        if not 0 < share < 1:
            raise validation.fail(
                "count_noise",
                count_noise,
                f"must be above half the noise multiplier {sigma}, or the count alone costs more",
                "use more, such as a twentieth of the batch",
            )
        return share

    @property
    def sensitivity(self) -> float:
        """The largest l2 change of the released vector when one record is added or removed."""
        return 1 / math.sqrt(1 - self.count_share)

    @property
    def constant_noise(self) -> bool:
        """The answer is multiplied by the bound, which changes."""
        return False

    @property
    def count_weight(self) -> float:
        """a, what the count is multiplied by so that one noise covers it and the gradients."""
        return 2 * math.sqrt(self.count_share / (1 - self.count_share))

    def begin(
        self, parameters: Mapping[str, Tensor], public: PublicGradients | None = None
    ) -> QuantileClipper:
        """Start a run. Its state is C."""
        refuse_public(public)
        return QuantileClipper(self, count_weights(parameters))


class QuantileClipper(NormClipper):
    """A run's bound and how it moves.

    Attributes:
        bound: C, a public number.
    """

    releases_gradients = False

    def __init__(self, clip: Quantile, weights: int) -> None:
        super().__init__(weights + 1, self._factors)
        self.clip, self.bound = clip, clip.start

    def _factors(self, norms: Tensor) -> Tensor:
        """min(1, C/norm) / C; NaN where the norm is NaN."""
        return (1 / norms).clamp_(max=1 / self.bound)

    def _counted(self, norms: Tensor) -> Tensor:
        """a/2 for a norm of at most C, −a/2 above, 0 where it is not finite."""
        half = torch.full_like(norms, self.clip.count_weight / 2)
        sides = torch.where(norms <= self.bound, half, -half)
        return torch.where(torch.isfinite(norms), sides, 0.0)

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        """Add the clipped gradients over C and the centred count; return the norms."""
        norms = super().add_(out[:-1], gradients)
        out[-1] += float(self._counted(norms).sum())
        return norms

    def encode(self, gradients: Tensor) -> Tensor:
        """The clipped gradient over C and the centred count, row by row."""
        counted = self._counted(row_norms(gradients)).to(gradients.dtype)
        return torch.cat([super().encode(gradients), counted[:, None]], dim=1)

    def decode(self, answer: Tensor) -> Tensor:
        """The mean clipped gradient; moves C by the mean count."""
        gradient = answer[:-1].mul_(self.bound)
        clip = self.clip
        below = 0.5 + float(answer[-1]) / clip.count_weight  # the share of records, up to noise
        # One move spans at most the whole range, however large the noise is.
        range_ = math.log(clip.high / clip.low)
        move = min(max(-clip.learning_rate * (below - clip.target), -range_), range_)
        self.bound = min(max(self.bound * math.exp(move), clip.low), clip.high)
        return gradient

    def state(self) -> State:
        """The bound."""
        return {"bound": self.bound}

    def load(self, state: State) -> None:
        """Load a bound."""
        bound = validation.positive("clip state's bound", state.get("bound"))
        if not self.clip.low <= bound <= self.clip.high:
            raise validation.fail(
                "clip state's bound",
                bound,
                f"must lie between low={self.clip.low} and high={self.clip.high}",
                "load a state of this very clip",
            )
        self.bound = bound
