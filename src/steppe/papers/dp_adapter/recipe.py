"""One setting: a start by one method on the public half of the classes, then a private run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe import models
from steppe.finetuning import load_start
from steppe.flatness import Surface, robust_accuracy
from steppe.papers.experiment import Constants
from steppe.papers.pictures import Batch, Pictures, fit, in_parts, load
from steppe.papers.plans import plan_of
from steppe.pretraining import (
    AMP,
    SAM,
    DPAdapter,
    KeptPerturbation,
    MeanPerturbation,
    PublicData,
    Standard,
    pretrain,
)

PAPER = "Wang et al., DPAdapter, 2024"
CLASSES = 5  # in each half
METHODS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (Standard, SAM, AMP, DPAdapter, KeptPerturbation, MeanPerturbation)
}
RECIPE: Constants = {
    "data": "fashion-mnist",
    "model": "cnn-tanh-26k",
    "pretraining": {"batch_size": 50, "steps": 3000},
    "delta": 1e-5,
    "population": 30_000,
    "batch": 1000,
    "epochs": 20,
    "clip": 0.1,
    "rate": 2.0,
    "momentum": 0.9,
    "noise": 0.3,  # on each weight, relative to its tensor's root mean square
}


@lru_cache(maxsize=1)
def halves(name: str) -> tuple[Pictures, Pictures]:
    """The pictures of the first five classes, which are public, and of the others."""
    whole = load(name)
    return _half(whole, first=True), _half(whole, first=False)


def _half(whole: Pictures, first: bool) -> Pictures:
    def of(part: Batch) -> Batch:
        chosen = (part[1] < CLASSES) == first
        return part[0][chosen], part[1][chosen] - (0 if first else CLASSES)

    return Pictures(of(whole.train), of(whole.test))


def measure(constants: Constants, seed: int) -> Mapping[str, Any]:
    """Upstream, robust and private accuracy, and what the start cost."""
    public, private = halves(constants["data"])
    torch.manual_seed(seed)
    model = models.create(constants["model"], classes=CLASSES)
    upstream: Mapping[str, Any] = {}
    if "method" in constants:
        upstream = _upstream(model, public, constants, seed)
    fitted = fit(
        private,
        model,
        plan_of(constants),
        seed,
        rate=constants["rate"],
        momentum=constants["momentum"],
    )
    return {**upstream, **fitted.measured()}


def _upstream(
    model: nn.Module, public: Pictures, constants: Constants, seed: int
) -> Mapping[str, Any]:
    """Train the start in place, with a new head afterwards."""
    table = dict(constants["method"])
    method = METHODS[table.pop("kind")](**table)
    data = PublicData(*public.train, constants["data"], *public.test, CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        outcome = pretrain(
            model,
            data,
            method,
            seed=seed,
            run=Path(folder) / "run",
            progress=False,
            **constants["pretraining"],
        )
        generator = torch.Generator().manual_seed(seed)
        surface = Surface(model.eval(), F.cross_entropy, _parts(public.test))
        robust = robust_accuracy(surface, generator, constants["noise"], relative=True, copies=5)
        load_start(model.train(), outcome.start, head=CLASSES)
    return {
        "upstream": outcome.scores["accuracy"],
        "robust": robust.mean,
        "cost": outcome.times_standard,
        "start seconds": outcome.seconds,
    }


def _parts(test: tuple[Tensor, Tensor]) -> list[Batch]:
    return in_parts(test)
