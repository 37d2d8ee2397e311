"""A BERT of transformers: private steps, set-up and memory beside plain training and Opacus.

`python -m benchmarks.hf` builds a BERT-base configuration (110M weights, random ones) with a head
for two classes and takes steps on one batch of 16 records of 128 words: all weights (full), LoRA of
peft on queries and values, and norms, biases and head alone (bitfit). The ways train by turns in
one process; peak memory is measured in a process for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import steppe
from benchmarks import memory, settings, timing
from benchmarks.report import machine, today
from steppe.integrations.record_losses import record_losses

RESULTS = Path(__file__).parent / "results" / "hf.json"
BATCH, LENGTH, CLASSES = 16, 128, 2
MODES = ("full", "lora", "bitfit")
PLAIN, OURS, PEER = "plain", "steppe", "opacus-ghost"
STEPS = 1

Batch = dict[str, Tensor]


def model_of(mode: str, sizes: dict[str, int] | None = None) -> nn.Module:
    """The model in training mode without dropout; `sizes` makes it smaller."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **(sizes or {}),
    )
    model: Any = BertForSequenceClassification(config)
    if mode == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=8, target_modules=["query", "value"], task_type="SEQ_CLS")
        )
    if mode == "bitfit":
        for name, weight in model.named_parameters():
            kept = name.endswith("bias") or "LayerNorm" in name or name.startswith("classifier")
            weight.requires_grad_(kept)
    return model.train()


def batch_of(model: nn.Module) -> Batch:
    """One batch. Positions are given, because Opacus needs a row of them for each record."""
    words = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    torch.manual_seed(1)
    return {
        "input_ids": torch.randint(1, words, (BATCH, LENGTH)),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
        "token_type_ids": torch.zeros(BATCH, LENGTH, dtype=torch.long),
        "position_ids": torch.arange(LENGTH).expand(BATCH, -1).clone(),
        "labels": torch.randint(0, CLASSES, (BATCH,)),
    }


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=settings.LEARNING_RATE)


def plain(model: nn.Module, batch: Batch) -> timing.Step:
    """Training without privacy."""
    optimizer = _optimizer(model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        record_losses(model, batch).mean().backward()
        optimizer.step()

    return step


def ours(model: nn.Module, batch: Batch) -> timing.Step:
    """The loop of make_private; every record is drawn, so every batch is the same."""
    plan = steppe.Plan(
        noise_multiplier=settings.NOISE_MULTIPLIER,
        clip=steppe.Flat(settings.CLIP),
        delta=1e-3,
        population=BATCH,
        batch_size=BATCH,
        steps=1_000,
    )
    private = steppe.make_private(model, _optimizer(model), batch, plan, objective=record_losses)
    batches = iter(private)

    def step() -> None:
        private.step(next(batches))

    return step


def opacus_ghost(model: nn.Module, batch: Batch) -> timing.Step:
    """Opacus in the mode that is its fastest here."""
    from opacus.grad_sample import get_gsm_class
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    wrapped = get_gsm_class("ghost")(
        model, loss_reduction="mean", max_grad_norm=settings.CLIP, use_ghost_clipping=True
    )
    kind = get_optimizer_class(clipping="flat", distributed=False, grad_sample_mode="ghost")
    optimizer = kind(
        optimizer=_optimizer(model),
        noise_multiplier=settings.NOISE_MULTIPLIER,
        max_grad_norm=settings.CLIP,
        expected_batch_size=BATCH,
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses = record_losses(wrapped, batch)
        DPTensorFastGradientClipping(wrapped, optimizer, losses, "mean").backward()
        optimizer.step()

    return step


WAYS: dict[str, Callable[[nn.Module, Batch], timing.Step]] = {
    PLAIN: plain,
    OURS: ours,
    PEER: opacus_ghost,
}


def measure(
    mode: str, rounds: int, sizes: dict[str, int] | None = None
) -> dict[str, dict[str, float]]:
    """Seconds of a step, relative to plain, and the set-up in plain steps, by way."""
    steps, set_up = {}, {}
    for name, way in WAYS.items():
        model = model_of(mode, sizes)
        batch = batch_of(model)
        start = time.perf_counter()
        steps[name] = way(model, batch)
        set_up[name] = time.perf_counter() - start
        steps[name]()
    found = timing.interleave(steps, rounds, slow_rounds=rounds, slot=0.0)
    return {
        name: {
            "seconds": round(one.seconds, 4),
            "ratio": round(one.ratio, 3),
            "set_up_steps": round(set_up[name] / found[PLAIN].seconds, 2),
        }
        for name, one in found.items()
    }


def peak(mode: str, way: str, sizes: dict[str, int] | None = None) -> float:
    """MB that steps take above the weights, in this process, which has done nothing else."""
    model = model_of(mode, sizes)
    batch = batch_of(model)
    level = memory.resident_mb()
    step = WAYS[way](model, batch)
    step()

    def train() -> None:
        for _ in range(STEPS):
            step()

    return round(memory.peak_mb(train) - level, 1)


def _peak_alone(mode: str, way: str) -> float:
    command = [sys.executable, "-m", "benchmarks.hf", "--peak", mode, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hf", description=__doc__)
    parser.add_argument("--modes", default=",".join(MODES), help="of full, lora, bitfit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="", help="what to store about the machine's other work")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    parser.add_argument("--peak", nargs=2, metavar=("MODE", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(settings.THREADS)
    warnings.simplefilter("ignore")  # the peer warns about its own hooks
    if arguments.peak:
        print(peak(*arguments.peak))
        return 0
    command = f"python -m benchmarks.hf --modes {arguments.modes} --rounds {arguments.rounds}"
    stored: dict[str, Any] = {"date": today(), "command": command, "machine": machine()}
    stored["note"] = arguments.note
    for mode in arguments.modes.split(","):
        stored[mode] = measure(mode, arguments.rounds)
        print(f"BERT-base, {mode}, {BATCH} records of {LENGTH} words")
        for way, row in stored[mode].items():
            row["peak_mb"] = _peak_alone(mode, way)
            print(
                f"  {way:<13} {row['seconds']:7.3f} s  {row['ratio']:.2f} of plain  set-up "
                f"{row['set_up_steps']:.1f} steps  {row['peak_mb']:.0f} MB",
                flush=True,
            )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
