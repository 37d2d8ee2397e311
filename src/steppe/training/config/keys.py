"""The keys of a configuration file, and the checks before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steppe.probing import KINDS
from steppe.training.config import registry
from steppe.training.config.data import DATA_KEYS
from steppe.training.config.plan import PLACES, PLAN_KEYS
from steppe.training.ledger_summary import RUN
from steppe.training.losses import LOSSES, loss_of, of_numbers
from steppe.utils import validation

TABLES = ("data", "model", "plan", "optimizer", "scheduler", "averages", "train")
COUNTS = (
    *("store_every", "checkpoint_every", "evaluate_every", "block", "physical_batch"),
    *("public_batch", "public_every"),
)
_OTHERS = (
    "run",
    "keep",
    "publish",
    "ledger",
    "ledger_epsilon",
    "loss",
    "isolation",
    "seed",
    "progress",
    "ceiling",
)
_TRAIN_KEYS = (*COUNTS, *_OTHERS)
KEPT_KEYS = ("last", "every")
# Arguments and the keys they come from, for errors that are found later.
CALLED = {
    **registry.keys_of("plan", PLAN_KEYS),
    **registry.keys_of("train", _TRAIN_KEYS),
    **registry.keys_of("data", ("classes", "groups", "public")),
    "fixed_shapes": "plan.sampling.fixed_shapes",
}
_LARGEST_SEED = 2**63 - 1


def check(tables: Mapping[str, Any]) -> None:
    """Check all keys and names before anything is loaded.

    Args:
        tables: the configuration.
    """
    data = tables.get("data", {})
    for name, known in (("data", DATA_KEYS), ("plan", PLAN_KEYS), ("train", _TRAIN_KEYS)):
        registry.check_keys(name, tables.get(name, {}), known)
    if ("name" in data) == ("place" in data):
        raise validation.fail(
            "data.name",
            data.get("name"),
            "must be the name of a public data set, unless data.place is given",
            'write name = "mnist", or place = "visits.csv"',
        )
    _check_texts("data", data, ("name", "place", "called", "target", "test"))
    if not isinstance(data.get("checks", True), bool):
        rule = "must be true or false"
        raise validation.fail("data.checks", data["checks"], rule, "write checks = false")
    if "target_bounds" in data and not of_numbers(loss_of(tables.get("train", {}))):
        rule = "is for a regression, and the loss is not for numbers"
        remedy = 'write loss = "mse_loss" under [train], or leave it out'
        raise validation.fail("data.target_bounds", data["target_bounds"], rule, remedy)
    _check_texts("model", tables.get("model", {}), ("name", "factory", "start"))
    _check_train(tables.get("train", {}))
    if "classes" in data and of_numbers(loss_of(tables.get("train", {}))):
        rule = f"is for class labels, but the loss {tables['train']['loss']} is for regression"
        raise validation.fail("data.classes", data["classes"], rule, "leave out data.classes")
    # Checked here, because otherwise the error would be about the learning rate.
    for where, classes in (
        ("optimizer", registry.optimizers()),
        ("scheduler", registry.schedulers()),
    ):
        name = tables.get(where, {}).get("name")
        if isinstance(name, str) and name not in classes:
            raise registry.unknown(f"{where}.name", name, classes)
    averages = tables.get("averages", {})
    if isinstance(averages, Mapping) and "name" in averages:
        rule = "is not a key of this table, whose keys are the names of averages"
        raise validation.fail(
            "averages.name", averages["name"], rule, "write EMA = { decay = 0.99 }"
        )
    registry.check_keys("averages", averages, registry.averages())
    for place in PLACES:
        if place in tables.get("plan", {}):
            registry.place(f"plan.{place}", tables["plan"][place])


def _check_texts(where: str, table: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        if not isinstance(table.get(key, ""), str):
            raise validation.fail(
                f"{where}.{key}", table[key], "must be text", f'write {key} = "…"'
            )


def _check_train(train: Mapping[str, Any]) -> None:
    _check_texts("train", train, ("run", "ledger", "loss", "publish"))
    if train.get("ledger", "").startswith(RUN):
        rule = "is a path relative to a run's folder, but this file is not in one"
        raise validation.fail("train.ledger", train["ledger"], rule, "write the path of the ledger")
    if "ledger_epsilon" in train:
        validation.positive("train.ledger_epsilon", train["ledger_epsilon"])
        if "ledger" not in train:
            rule = "is the budget of a ledger, and none is named"
            remedy = "name the file that all runs on the same data share, as ledger="
            raise validation.fail("train.ledger_epsilon", train["ledger_epsilon"], rule, remedy)
    if train.get("loss", "cross_entropy") not in LOSSES:
        raise registry.unknown("train.loss", train["loss"], LOSSES)
    validation.one_of("train.isolation", train.get("isolation", KINDS[0]), KINDS)
    for key in COUNTS:
        if key in train:
            validation.positive_integer(f"train.{key}", train[key])
    seed = train.get("seed", 0)
    if type(seed) is not int or not 0 <= seed <= _LARGEST_SEED:
        rule = "must be a whole number from 0 to 2⁶³ − 1"
        raise validation.fail("train.seed", seed, rule, "write seed = 1, or leave it out")
    for key in ("progress", "ceiling"):
        if not isinstance(train.get(key, True), bool):
            rule, remedy = "must be true or false", f"write {key} = false"
            raise validation.fail(f"train.{key}", train[key], rule, remedy)
    keep = train.get("keep", {})
    if not isinstance(keep, Mapping):
        raise validation.fail(
            "train.keep", keep, "must be a table", "for example, write keep = { last = 20 }"
        )
    registry.check_keys("train.keep", keep, KEPT_KEYS)
