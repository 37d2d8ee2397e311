"""Run folders as the trainer writes them, made in milliseconds."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch

import steppe
from steppe.averaging import Prediction
from steppe.citations import bibtex
from steppe.flatness import (
    Eigenvalues,
    HessianTrace,
    LossLine,
    Rays,
    RobustAccuracy,
    SpectralDensity,
    gradient_norm_histogram,
)
from steppe.report import add_flatness, add_gradient_norms, add_intervals

MODELS = ("last", "SWA(start=200)", "EMA(decay=0.99)", "Window(100)", "PolynomialDecay(8)")
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>\"'&\u202e"


@cache
def plan(epsilon: float = 2.0) -> steppe.Plan:
    # The noise that these budgets need, so that no test searches for it again.
    sigma = {1.0: 3.2254, 2.0: 1.84893, 3.0: 1.39358}[epsilon]
    constants = {"delta": 1e-5, "population": 60_000, "batch_size": 2048, "steps": 585}
    return steppe.Plan(noise_multiplier=sigma, **constants)


@cache
def statement_json(epsilon: float, not_private_reason: str | None) -> str:
    return plan(epsilon).statement(not_private_reason).to_json()


def write_run(
    folder: Path,
    *,
    epsilon: float = 2.0,
    models: tuple[str, ...] = MODELS,
    shift: float = 0.0,
    finished: bool = True,
    not_private_reason: str | None = None,
    evaluations: int = 24,
    isolation: object = "proven",
) -> Path:
    """A run whose accuracies rise as those of real runs do."""
    folder.mkdir(parents=True)
    promised = json.loads(statement_json(epsilon, not_private_reason))
    (folder / "statement.json").write_text(json.dumps({**promised, "isolation": isolation}))
    facts = {**plan(epsilon).to_dict(), "digest": plan(epsilon).digest()}
    (folder / "plan.json").write_text(json.dumps(facts))
    config = {
        "data": {"name": "fashion-mnist", "root": "/home/ann/private data/cache/arrays"},
        "model": {"name": "plain_cnn", "width": 16},
        "optimizer": {"name": "SGD", "lr": 2.0, "momentum": 0.9, "nesterov": False},
        "averages": [{"name": "EMA", "decay": 0.99}, {"name": "SWA", "start": 200}],
        "train": {"seed": None, "evaluate_every": 24, "api_key": "hunter2"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(7)
    log: list[dict[str, Any]] = [{"kind": "note", "step": 0, "text": "BatchNorm became GroupNorm."}]
    final = {}
    for i in range(1, evaluations + 1):
        step = round(585 * i / evaluations)
        spent = epsilon * math.sqrt(step / 585)
        log.append({"kind": "progress", "step": step, "epsilon": spent, "seconds": i, "rate": 9.5})
        for place, model in enumerate(models):
            if place and step < 60:
                continue
            noise = 0.006 * float(torch.randn((), generator=generator)) if place == 0 else 0.0
            accuracy = 0.86 + shift - 0.7 * math.exp(-step / 55) + 0.004 * place + noise
            final[model] = {
                "model": model,
                "accuracy": accuracy,
                "loss": 1.1 * (1 - accuracy) + 0.3,
            }
            entry = {"kind": "evaluation", "step": step, "epsilon": spent, "seconds": i * 4.5}
            log.append({**entry, **final[model]})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    if finished:
        result = {
            "table": list(final.values()),
            "epsilon": plan(epsilon).epsilon_spent(),
            "delta": 1e-5,
            "steps": 585,
            "seconds": 110.4,
            "citation": bibtex(plan(epsilon)),
            "layers": [
                _layer(["0.weight", "0.bias"], "conv2d", "convolution", 1040),
                _layer(["3.weight", "3.bias"], "conv2d", "convolution", 8224),
                _layer(["7.weight", "7.bias"], "linear", "linear", 16416),
                _layer(["9.weight", "9.bias"], "linear", "linear", 330),
            ],
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def measure(folder: Path, *, public: bool = True, models: tuple[str, ...] = MODELS[:3]) -> Path:
    """Add every kind of measurement to a run."""
    generator = torch.Generator().manual_seed(3)
    results = {}
    for place, model in enumerate(models):
        width = 1.0 + 0.35 * place
        distances = tuple(float(d) for d in range(0, 21, 2))
        rays = tuple(
            tuple(0.87 * math.exp(-((d / (14 * width * (1 + 0.1 * ray))) ** 2)) for d in distances)
            for ray in range(5)
        )
        positions = tuple(i / 10 - 1 for i in range(21))
        losses = tuple(0.4 + 1.6 * p * p / width for p in positions)
        nodes = tuple(sorted([-1.0, -0.4, 0.0, 0.3, 1.2, 4.0, 9.0 / width, 21.0 / width]))
        masses = (0.01, 0.02, 0.93, 0.03, 0.006, 0.003, 0.0008, 0.0002)
        results[model] = [
            Rays(distances, rays),
            LossLine(positions, losses, tuple(None for _ in positions)),
            Eigenvalues((21 / width, 9 / width, 4.0, 1.2, 0.9), (0.0,) * 5, 60),
            SpectralDensity((nodes,), (masses,), 26010),
            HessianTrace((310.0 / width, 290.0 / width)),
            RobustAccuracy(0.05, True, 0.871, (0.86 - 0.05 / width, 0.85 - 0.05 / width)),
        ]
    add_flatness(folder, results, data="the Fashion-MNIST test set", public=public)
    logits = 2.2 * torch.randn(2000, 10, generator=generator)
    probabilities = logits.softmax(1)
    targets = torch.multinomial((1.3 * logits).softmax(1), 1, generator=generator).squeeze(1)
    half = 0.04 * torch.rand(2000, 1, generator=generator) * probabilities.sqrt()
    prediction = Prediction(
        labels=probabilities.argmax(1),
        probabilities=probabilities,
        low=(probabilities - half).clamp(min=0),
        high=(probabilities + half).clamp(max=1),
        agreement=torch.ones(2000),
        label_width=torch.zeros(2000),
        count=20,
        interval=0.95,
    )
    name = "the Fashion-MNIST test set"
    add_intervals(folder, prediction, targets, model="OPA(20)", data=name, public=public)
    norms = (torch.randn(5000, generator=generator) * 0.8).exp() * 0.12
    histogram = gradient_norm_histogram(norms, clip=0.1, bins=50, largest=0.5)
    add_gradient_norms(folder, histogram, data=name, public=public)
    return folder


def _layer(weights: list[str], operation: str, path: str, numel: int) -> dict[str, Any]:
    why = "per-record norms from activations and output gradients"
    return {"weights": weights, "operation": operation, "path": path, "numel": numel, "why": why}
