"""Choices at several places that have no account together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steppe.noise import Correlated
from steppe.sampling import CyclicPoisson
from steppe.utils import validation

if TYPE_CHECKING:
    from steppe.plan.plan import Plan


def check_noise_and_sampling(plan: Plan) -> None:
    """Refuse a correlated noise with a sampler for which its account is not known."""
    if not isinstance(plan.noise, Correlated):
        return
    kind, sampler = type(plan.noise).__name__, type(plan.sampling).__name__
    if not plan.sampling.public_population:
        raise validation.fail(
            "noise",
            plan.noise,
            f"cannot be used with {sampler}(): no account of correlated noise is known where a "
            "record can take part in any step by chance",
            "set sampling=FixedOrder(epochs=…) and adjacency='zero-out', or noise=Gaussian()",
        )
    if isinstance(plan.sampling, CyclicPoisson) and plan.adjacency != "zero-out":
        raise validation.fail(
            "adjacency",
            plan.adjacency,
            "cannot be used with CyclicPoisson and correlated noise",
            "set adjacency='zero-out'",
        )
    if plan.population is None:
        return
    if plan.sampling.turns(plan.population, plan.batch_size, plan.total_steps) is None:
        raise validation.fail(
            "noise",
            plan.noise,
            f"cannot be used with {sampler}(): it does not say in which steps a record can take "
            "part, so the sensitivity is not known",
            "make its turns() return a Participation, or use FixedOrder(epochs=…)",
        )
    plan.noise.check_steps(plan.total_steps)
    if isinstance(plan.sampling, CyclicPoisson):
        reach, parts = plan.noise.reach(plan.total_steps), plan.sampling.parts
        if reach > parts:
            raise validation.fail(
                "noise",
                plan.noise,
                f"reaches back over {reach} steps, and a record may take part again after {parts}: "
                f"sampling amplifies {kind} only if its C has at most as many bands as parts",
                f"use BandedToeplitz({parts}), CyclicPoisson({reach}), or FixedOrder",
            )
