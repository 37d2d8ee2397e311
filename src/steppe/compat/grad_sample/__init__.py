"""Per-example gradients by the names that Opacus has for them. Every layer has them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from steppe.compat.absent import NOT_WRAPPED, ONE_PROCESS, refusing

_SHARDED = ("GradSampleModuleFastGradientClippingFSDP", "GradSampleModuleFastGradientClippingTP")
_Sampler = TypeVar("_Sampler", bound=Callable[..., Any])


def register_grad_sampler(target: object) -> Callable[[_Sampler], _Sampler]:
    """Accepted, and of no effect: layers of your own need no sampler.

    Args:
        target: the class of a layer, or several.
    """
    del target
    return lambda sampler: sampler


__getattr__ = refusing(
    __name__,
    dict.fromkeys(_SHARDED, ONE_PROCESS)
    | dict.fromkeys(
        (
            "AbstractGradSampleModule",
            "GradSampleHooks",
            "GradSampleModule",
            "GradSampleModuleExpandedWeights",
            "GradSampleModuleFastGradientClipping",
            "GradSampleModuleNoOp",
        ),
        NOT_WRAPPED,
    ),
)
