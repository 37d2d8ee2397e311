"""The `[plan]` table, completed by rule."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from steppe.clipping import Flat
from steppe.plan import Plan
from steppe.training import recipes
from steppe.training.config import registry
from steppe.utils import validation

PLACES = ("clip", "point", "noise", "sampling")
PLAN_KEYS = tuple(item.name for item in fields(Plan) if item.name != "population_source")
_CALLED = {
    **registry.keys_of("plan", PLAN_KEYS),
    "rate": "optimizer.lr",
    "momentum": "optimizer.momentum",
}


@validation.called(_CALLED)
def settle(
    plan: dict[str, Any],
    optimizer: dict[str, Any],
    *,
    records: int,
    published: bool,
    weights: int,
    front_end: str | None,
    columns: bool,
    curvature: float | None,
    reasons: dict[str, str],
) -> Plan:
    """The plan of a configuration.

    Args:
        plan: the table; choices are stored in it.
        optimizer: the table of the optimizer, likewise.
        records: the length of the data.
        published: whether that number is public. If not, and if no population is declared, the plan
            has none, and its statement says that the length was read.
        weights: number of trained weights.
        front_end: the front-end where only a linear head on it is trained, as for `choose`.
        columns: whether a record is a vector, such as a row of a table.
        curvature: the curvature of a regression loss; None for classification.
        reasons: receives the reason for each choice.
    """
    if published:
        plan.setdefault("population", records)
    places = {name: registry.place(f"plan.{name}", plan[name]) for name in PLACES if name in plan}
    left_open = _left_open(plan, optimizer, places)
    if left_open:
        _require_rules(left_open, plan, optimizer, places)
        model = {
            "weights": weights,
            "front_end": front_end,
            "columns": columns,
            "curvature": curvature,
        }
        recipe = _recipe(plan, optimizer, places, records, model)
        _fill(left_open, recipe, plan, optimizer, places)
        for name in left_open:
            reasons[name] = recipe.reasons["rate" if name == "lr" else name]
    constants = {key: value for key, value in plan.items() if key not in PLACES}
    return Plan(**constants, **places)


def _left_open(
    plan: dict[str, Any], optimizer: dict[str, Any], places: dict[str, Any]
) -> list[str]:
    found = [name for name in ("delta", "batch_size", "clip", "point") if name not in plan]
    decided = "sampling" in places and places["sampling"].decides_length
    if "steps" not in plan and "epochs" not in plan and not decided:
        found.append("steps")
    if "lr" not in optimizer:
        found.append("lr")
    return found


def _require_rules(
    left_open: list[str], plan: dict[str, Any], optimizer: dict[str, Any], places: dict[str, Any]
) -> None:
    """Raise an error if there is no rule for these choices."""
    if "epsilon" not in plan:
        listed = ", ".join("optimizer.lr" if name == "lr" else name for name in left_open)
        rule = f"is needed to choose {listed} by rule"
        raise validation.missing("plan.epsilon", "give it, or all of these constants", rule)
    sampling = places.get("sampling")
    if sampling is not None and sampling.public_population:
        listed = ", ".join("optimizer.lr" if name == "lr" else f"plan.{name}" for name in left_open)
        rule = f"is not chosen by rule with {type(sampling).__name__}; rules are for Poisson"
        raise validation.missing(listed, "give these constants", rule)
    usual = optimizer.get("name", "SGD") == "SGD" and isinstance(places.get("clip", Flat()), Flat)
    if "lr" in left_open and not usual:
        rule = "is chosen by rule for SGD and Flat only"
        raise validation.missing("optimizer.lr", "give a learning rate", rule)


def _recipe(
    plan: dict[str, Any],
    optimizer: dict[str, Any],
    places: dict[str, Any],
    records: int,
    model: dict[str, Any],
) -> recipes.Recipe:
    clip = places.get("clip")
    given: dict[str, Any] = {
        "population": plan.get("population", records),
        "epsilon": plan["epsilon"],
        **model,
        "delta": plan.get("delta"),
        "batch_size": plan.get("batch_size"),
        "steps": plan.get("steps"),
        "clip": clip.bound if isinstance(clip, Flat) else None,
        "point": places.get("point"),
        "momentum": optimizer.get("momentum"),
    }
    if "epochs" in plan:
        batch = recipes.choose(**given, rate=1.0).batch_size
        epochs = validation.positive("plan.epochs", plan["epochs"])
        given["steps"] = max(1, math.floor(epochs * given["population"] / batch))
    return recipes.choose(**given, rate=optimizer.get("lr"))


def _fill(
    left_open: list[str],
    recipe: recipes.Recipe,
    plan: dict[str, Any],
    optimizer: dict[str, Any],
    places: dict[str, Any],
) -> None:
    for name in ("delta", "batch_size", "steps"):
        if name in left_open:
            plan[name] = getattr(recipe, name)
    if "clip" in left_open:
        places["clip"], plan["clip"] = Flat(recipe.clip), {"name": "Flat", "bound": recipe.clip}
    if "point" in left_open:
        places["point"] = recipe.point
        plan["point"] = {"name": type(recipe.point).__name__, **vars(recipe.point)}
    if "lr" in left_open:
        optimizer.setdefault("name", "SGD")
        optimizer.setdefault("momentum", recipe.momentum)
        optimizer["lr"] = recipe.rate
