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
from steppe.data import start_names
from steppe.finetuning import HEAD, FineTuning, head_on_features
from steppe.probing import fix
from steppe.training.config import registry
from steppe.training.config.data import Loaded
from steppe.utils import validation
from steppe.utils.user_code import made_by

# Pixels along one side that a published network sees: a third of the cost of its own 224.
_RESOLUTION = 128
TUNING_KEYS = ("start", "head", "train", "freeze", "lora", "batch_norm", "shape")


def make_model(
    table: dict[str, Any], data: Loaded | None, seed: int | None, reasons: dict[str, str]
) -> nn.Module:
    """Make the model of `[model]`.

    Without a start, batch normalisation is replaced by group normalisation.

    Args:
        table: the table; choices are stored in it.
        data: the records, for their shape and classes; None if the table is complete and the
            model's weights are stored.
        seed: for the initial weights only; it does not affect noise and sampling.
        reasons: receives the reason for a choice.
    """
    with _seeded(seed):
        given = {key: table[key] for key in TUNING_KEYS if key in table and key != "shape"}
        if given and data is not None:
            _settle(table, given, data, reasons)
        with validation.called(registry.keys_of("model", TUNING_KEYS)):
            tuning = FineTuning.from_table(given) if given else None
        model = _network(table, data, reasons)
        if tuning is None or (tuning.start is None and tuning.batch_norm is None):
            model = _without_batch_statistics(model, reasons)
        return model if tuning is None else _tuned(model, tuning, table, data)


def _network(table: dict[str, Any], data: Loaded | None, reasons: dict[str, str]) -> nn.Module:
    """The network, with fresh weights."""
    if "factory" in table:
        registry.check_keys("model", table, ("factory", *TUNING_KEYS))
        model = made_by(table["factory"], "model.factory")
        if not isinstance(model, nn.Module):
            rule = "must return a torch.nn.Module"
            raise validation.fail("model.factory", table["factory"], rule, "return the model")
        return model
    if "name" not in table and "start" in table:
        rule = "is needed beside a start: the network that it was trained with"
        raise validation.missing("model.name", 'add name = "…" or factory = "…"', rule)
    if "name" not in table and data is not None:
        table["name"], reasons["model"] = _chosen(data)
    name, options = registry.name_and_options("model", table)
    options = {key: value for key, value in options.items() if key not in TUNING_KEYS}
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
    open_classes = "classes" in known and "classes" not in options
    required = data is not None and (models.needs(name, "classes") or not data.one_number)
    if open_classes and required:
        rule = f"is needed by {name} and is not known from the data"
        raise validation.missing("data.classes", "declare the number of labels", rule)
    try:
        with validation.called(registry.keys_of("model", (*known, *options))):
            return models.create(name, **options)
    except (TypeError, RuntimeError) as error:  # a size that torch cannot hold
        raise validation.fail(
            "model", options, f"{name} cannot be made: {error}", "correct its sizes"
        ) from error


def _settle(
    table: dict[str, Any], given: dict[str, Any], data: Loaded, reasons: dict[str, str]
) -> None:
    """Check the head against the classes, and store what is chosen."""
    if isinstance(given.get("start"), str) and Path(given["start"]).expanduser().exists():
        # Absolute, so that a run can be resumed from another folder.
        table["start"] = given["start"] = str(Path(given["start"]).expanduser().resolve())
    if given.get("start") in start_names() and "factory" not in table:
        # Published weights: their network, with a new head, which is trained on fixed features.
        if "name" not in table:
            reasons["model"] = "the network of the start"
        if not {"train", "lora"} & table.keys():
            table["train"], reasons["train"] = HEAD, "a fresh head on features of the start"
        defaults = {"name": given["start"], "resolution": _RESOLUTION}
        for key, value in {**defaults, "head": data.classes, "batch_norm": "folded"}.items():
            if key not in table and value is not None:
                table[key] = value
        given |= {key: table[key] for key in TUNING_KEYS if key in table and key != "shape"}
    if "start" in given and "batch_norm" not in given:
        table["batch_norm"] = given["batch_norm"] = "frozen"
    head = given.get("head")
    if head is not None and data.classes is not None and head != data.classes:
        rule = f"must be the number of classes of the data, {data.classes}"
        raise validation.fail("model.head", head, rule, f"write head = {data.classes}")


def _tuned(
    model: nn.Module, tuning: FineTuning, table: dict[str, Any], data: Loaded | None
) -> nn.Module:
    """The model with its start, of which a part is trained."""
    example = None
    if data is not None:
        table["shape"] = list(data.shape)
        example = torch.rand(4, *data.shape, generator=torch.Generator().manual_seed(0))
    with validation.called(registry.keys_of("model", TUNING_KEYS)):
        tuning.applied(model, example, with_weights=data is not None)
    if not tuning.is_head_alone or "factory" in table:
        return model  # a network of the user's own is checked in every step
    return head_on_features(model, table["shape"], new_head=tuning.head is not None)


def _sizes_of(data: Loaded | None) -> dict[str, Any]:
    """The sizes of a record, by the argument names of networks."""
    if data is None:
        return {}
    found: dict[str, Any] = {**models.sizes(data.shape, data.classes)}
    if data.blocks:
        found["blocks"] = [list(block) for block in data.blocks]
    return found


def _without_batch_statistics(model: nn.Module, reasons: dict[str, str]) -> nn.Module:
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
