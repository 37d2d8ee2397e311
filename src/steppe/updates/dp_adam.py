"""Place 6: Adam with the noise variance subtracted from its second moment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from steppe.errors import ConfigurationError
from steppe.utils.validation import fail, non_negative, positive, positive_integer

if TYPE_CHECKING:
    from steppe.plan import Plan

Levels = tuple[tuple[int, float], ...]


class DPAdam(Optimizer):
    """Adam with the variance of the privacy noise taken out of the second moment.

    The private gradient is the true one plus noise of a known variance, so its squares are too
    large by that variance, often a hundred times over. Plain Adam then divides every weight's step
    by the same number, like SGD with momentum. Here the step is

        m̂ / (√max(v̂ − n̂, floor · n̂) + eps),

    where m̂ and v̂ are Adam's moments and n̂ averages the noise variances with the weights that v̂
    gives to the squares. Tang et al., DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply
    Bias Correction), 2024.

    Args:
        params: the weights, or groups of them, as for any torch optimizer.
        lr: the learning rate. Steps are larger than with plain Adam at the same rate, because the
            denominator is smaller.
        noise_std: standard deviation of the noise on the mean gradient, noise multiplier ×
            sensitivity / expected batch; or levels of it as (number of steps, standard deviation),
            the last of which holds on. `for_plan` fills it in.
        betas: how much of the past the two moments keep.
        eps: added to the denominator, as in Adam.
        floor: the smallest second moment that is used, relative to the noise variance. With the
            usual betas v̂ itself fluctuates by 0.03 of it in the long run, three times less than the
            default, and by more before: 0.14 after 100 steps, 0.04 after 1,200.

    Guarantees:
        Post-processing of the private gradient and of public constants: no privacy cost.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = DPAdam([weight], lr=0.1, noise_std=1e-3)
        >>> weight.grad = torch.tensor([1.0, -2.0])
        >>> optimizer.step()
        >>> weight.detach()
        tensor([-0.1000,  0.1000])
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        noise_std: float | Sequence[tuple[int, float]],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        floor: float = 0.1,
    ) -> None:
        defaults = {"lr": lr, "noise_std": noise_std, "betas": betas, "eps": eps, "floor": floor}
        super().__init__(params, {**defaults, "taken": 0})

    @classmethod
    def for_plan(
        cls,
        params: Any,
        plan: Plan,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        floor: float = 0.1,
    ) -> DPAdam:
        """The optimizer for a plan's noise, schedules included.

        Args:
            params: the weights, or groups of them.
            plan: the public constants; its population must be known.
            lr: the learning rate.
            betas: how much of the past the two moments keep.
            eps: added to the denominator, as in Adam.
            floor: the smallest second moment that is used, relative to the noise variance.

        Returns:
            A `DPAdam` that takes one step for each step of the plan.

        Examples:
            >>> from steppe.plan import Plan
            >>> plan = Plan(
            ...     delta=1e-3, noise_multiplier=1.0, batch_size=20, population=100, steps=5
            ... )
            >>> optimizer = DPAdam.for_plan([torch.nn.Parameter(torch.zeros(2))], plan)
            >>> optimizer.param_groups[0]["noise_std"]
            ((5, 0.05),)
        """
        return cls(params, lr, noise_std=_of_plan(plan), betas=betas, eps=eps, floor=floor)

    def require_noise_of(self, plan: Plan) -> None:
        """Refuse a plan whose noise on the mean gradient is another one than `noise_std`."""
        expected = _of_plan(plan)
        for group in self.param_groups:
            given = group["noise_std"]
            starts = [*_starts(expected), *(s for s in _starts(given) if s < plan.total_steps)]
            if not all(_is_close(_std_at(given, s), _std_at(expected, s)) for s in starts):
                raise _other_noise(given, expected)

    def at_step(self, step: int, noise_std: float) -> None:
        """The next step is that one of the plan, counted from 0, also where steps were lost.

        Args:
            step: its number.
            noise_std: the noise that the plan puts on its mean gradient. Every group's must say the
                same, also where a state that was loaded since has another one.
        """
        for group in self.param_groups:
            if not _is_close(_std_at(group["noise_std"], step), noise_std):
                raise _other_noise(group["noise_std"], noise_std)
            group["taken"] = step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add weights to train; every setting may differ from the other groups'."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        rate = group["lr"]
        non_negative("lr", rate.item() if isinstance(rate, Tensor) and rate.numel() == 1 else rate)
        non_negative("eps", group["eps"])
        positive("floor", group["floor"], "a common choice is 0.1")
        betas = group["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise fail("betas", betas, "must be two numbers", "use (0.9, 0.999)")
        for beta in betas:
            if non_negative("betas", beta, "use (0.9, 0.999)") >= 1:
                raise fail("betas", betas, "must lie in [0, 1)", "use (0.9, 0.999)")
        group["noise_std"] = _levels(group["noise_std"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every weight that has a gradient.

        Args:
            closure: as for any torch optimizer; a private step leaves it out.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            variance = _std_at(group["noise_std"], group["taken"]) ** 2
            group["taken"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group, variance)
        return loss

    def _move(self, parameter: Tensor, group: dict[str, Any], variance: float) -> None:
        (beta1, beta2), state = group["betas"], self.state[parameter]
        # Half precision could not hold the small differences that the correction is about.
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        if not state:
            zeros = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)
            state.update(step=0, noise_sq=0.0, exp_avg=zeros, exp_avg_sq=zeros.clone())
        for name in ("exp_avg", "exp_avg_sq"):  # torch loads states in the weight's precision
            state[name] = state[name].to(dtype)
        gradient = parameter.grad.to(dtype)  # type: ignore[union-attr]
        state["step"] += 1
        first = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["noise_sq"] = beta2 * state["noise_sq"] + (1 - beta2) * variance
        # What the moments lack because they started from zero.
        share1, share2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        noise = state["noise_sq"] / share2
        scale = (second / share2).sub_(noise).clamp_(min=group["floor"] * noise)
        move = first / scale.sqrt_().add_(group["eps"])
        parameter.add_(move.to(parameter.dtype), alpha=-float(group["lr"]) / share1)


def _of_plan(plan: Plan) -> Levels:
    """The noise that a plan puts on the mean gradient."""
    if not plan.clip.constant_noise:
        raise fail(
            "clip",
            plan.clip,
            "must have constant noise, since DPAdam corrects for its variance",
            "use Flat, Automatic or PerLayer with DPAdam, or torch.optim.Adam with this clip",
        )
    return tuple((steps, std / plan.divisor) for steps, std in plan.noise_levels)


def _is_close(given: float, expected: float) -> bool:
    return math.isclose(given, expected, rel_tol=1e-6)


def _other_noise(given: Levels, expected: Levels | float) -> ConfigurationError:
    return fail(
        "noise_std",
        given,
        f"must be {expected}, the noise that the plan puts on the mean gradient",
        "make the optimizer with DPAdam.for_plan, and load states of the same plan only",
    )


def _starts(levels: Levels) -> list[int]:
    """The first step of every level."""
    return list(itertools.accumulate((steps for steps, _ in levels[:-1]), initial=0))


def _levels(noise_std: float | Iterable[tuple[int, float]]) -> Levels:
    """One form for a constant and for a schedule."""
    remedy = "give the noise on the mean gradient, or make the optimizer with DPAdam.for_plan"
    if not isinstance(noise_std, tuple | list):
        return ((1, non_negative("noise_std", noise_std, remedy)),)
    pairs = [level for level in noise_std if isinstance(level, tuple | list) and len(level) == 2]
    if not pairs or len(pairs) != len(noise_std):
        raise fail("noise_std", noise_std, "must be a number or pairs (steps, std)", remedy)
    return tuple(
        (positive_integer("steps of noise_std", steps), non_negative("noise_std", std, remedy))
        for steps, std in pairs
    )


def _std_at(levels: Levels, step: int) -> float:
    """The standard deviation in one step, counted from 0; the last level holds on."""
    for count, std in levels:
        if step < count:
            return std
        step -= count
    return levels[-1][1]
