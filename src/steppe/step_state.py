"""The state of a private step, checked before a run goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from steppe.plan import Plan
from steppe.utils import validation
from steppe.utils.memory import free_memory


def require_state(state: Any, plan: Plan, steps_done: int, weights: int) -> None:
    """Require a `state_dict` of this plan that is not older than the steps charged.

    Args:
        state: to check.
        plan: of the resumed run.
        steps_done: steps that are charged already.
        weights: the total size of the trained weights.
    """
    _require_form(state)
    if state["plan"] != plan.digest():
        raise validation.fail(
            "state['plan']",
            state["plan"],
            f"must be {plan.digest()}, the digest of this run's plan",
            "load it into a run of the plan that made it",
        )
    done = state["steps_done"]
    if type(done) is not int or not steps_done <= done <= plan.total_steps:
        raise validation.fail(
            "steps_done",
            done,
            f"must be from {steps_done}, the steps charged so far, to {plan.total_steps}, the "
            "steps of the plan",
            "load the newest state of a run of this plan",
        )
    for name, vector in state["point"].items():
        if not isinstance(vector, Tensor) or vector.shape != (weights,):
            raise validation.fail(
                f"state['point'][{name!r}]",
                tuple(vector.shape) if isinstance(vector, Tensor) else vector,
                f"must be a vector of the model's {weights} trained weights",
                "load it into a run with the same model",
            )


def require_memory(vectors: int, width: int, dtype: torch.dtype) -> None:
    """Refuse a noise that keeps more vectors between steps than there is memory for.

    Args:
        vectors: how many.
        width: their length.
        dtype: their type.
    """
    needed, free = vectors * width * dtype.itemsize, free_memory()
    if free is not None and needed > free:
        raise validation.fail(
            "noise",
            f"{vectors} vectors",
            f"of {width} numbers are kept between steps, which takes {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free",
            "use BLT(), which keeps one for each buffer",
        )


def _require_form(state: Any) -> None:
    parts: dict[str, type] = {
        "plan": str,
        "steps_done": int,
        "clip": Mapping,
        "point": Mapping,
        "noise": Mapping,
    }
    if not isinstance(state, Mapping):
        shown = type(state).__name__
    else:
        wrong = [name for name, kind in parts.items() if not isinstance(state.get(name), kind)]
        if not wrong:
            return
        shown = f"without {', '.join(wrong)}"
    rule = f"must contain {', '.join(parts)}"
    raise validation.fail("state", shown, rule, "load what state_dict() returned")
