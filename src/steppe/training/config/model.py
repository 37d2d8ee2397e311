"""The `[model]` table: the network that a run trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from steppe import models
from steppe.probing import fix
from steppe.training.config import registry
from steppe.training.config.data import Loaded
from steppe.utils import validation
from steppe.utils.user_code import made_by


def make_model(
    table: dict[str, Any], data: Loaded | None, seed: int | None, reasons: dict[str, str]
) -> nn.Module:
    """Make the model of `[model]`. Batch normalisation is replaced by group normalisation.

    Args:
        table: the table; choices are stored in it.
        data: the records, for their shape and classes; None if the table is complete.
        seed: for the initial weights only; it does not affect noise and sampling.
        reasons: receives the reason for a choice.
    """
    with _seeded(seed):
        if "factory" in table:
            registry.check_keys("model", table, ("factory",))
            model = made_by(table["factory"], "model.factory")
            if not isinstance(model, nn.Module):
                rule = "must return a torch.nn.Module"
                raise validation.fail("model.factory", table["factory"], rule, "return the model")
            return _fixed(model, reasons)
        if "name" not in table and data is not None:
            table["name"], reasons["model"] = _chosen(data)
        name, options = registry.name_and_options("model", table)
        if name.endswith(".py"):
            remedy = f"write {Path(name).stem}:function, and run where `import` finds it"
            raise validation.fail("model.name", name, "is a file, not a function", remedy)
        with validation.called({"name": "model.name"}):
            known = models.parameters(name)
        if data is not None and "mirror" in known and "mirror" not in options:
            table["mirror"], reasons["mirror"] = _mirror(data)
            options["mirror"] = table["mirror"]
        for key, value in _sizes_of(data).items():
            if key in known and key not in options:
                table[key] = options[key] = value
        if data is not None and "classes" in known and "classes" not in options:
            rule = f"is needed by {name} and is not known from the data"
            raise validation.missing("data.classes", "declare the number of labels", rule)
        try:
            with validation.called(registry.keys_of("model", (*known, *options))):
                return _fixed(models.create(name, **options), reasons)
        except (TypeError, RuntimeError) as error:  # a size that torch cannot hold
            raise validation.fail(
                "model", options, f"{name} cannot be made: {error}", "correct its sizes"
            ) from error


def _sizes_of(data: Loaded | None) -> dict[str, int]:
    return {} if data is None else models.sizes(data.shape, data.classes)


def _fixed(model: nn.Module, reasons: dict[str, str]) -> nn.Module:
    count = sum(isinstance(layer, _BatchNorm) for layer in model.modules())
    if count:
        layers = "one layer" if count == 1 else f"{count} layers"
        reasons["normalisation"] = (
            f"replaces batch normalisation in {layers}, which would mix records"
        )
    return fix(model)


def _chosen(data: Loaded) -> tuple[str, str]:
    shape = data.shape
    if data.one_number:
        return "linear", "one number per record; name a network for a non-linear model"
    square = len(shape) == 3 and shape[1] == shape[2]
    if square and models.takes_patches(shape[1], shape[0]):
        why = "features made of procedural pictures and a linear head: the best that was measured"
        return "patches-linear", why
    if square and shape[1] % 4 == 0:
        why = "fixed features and a linear head: the whole budget is spent on few weights"
        return "scattering-linear", why
    return "logistic", "few weights, so little noise; name a network for a non-linear model"


def _mirror(data: Loaded) -> tuple[bool, str]:
    """Whether the maps of mirror images are added, by what is public about the data."""
    if data.mirror is not None:
        shows = "the same" if data.mirror else "something else"
        return data.mirror, f"declared for {data.name}: the mirror image of a picture shows {shows}"
    if data.shape[0] > 1:
        why = "pictures in colour are taken for photographs; --no-mirror for digits and letters"
        return True, why
    return False, "grey pictures may be digits or letters; --mirror for photographs and the like"


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield
