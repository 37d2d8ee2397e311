"""How long `make_private` takes before the first step.

`python -m benchmarks.set_up --before PATH` times it for models by name, an MLP, a small CNN and an
encoder of the size of BERT-base (batch 16, length 128), in a process each, by turns for this tree
and for the one in PATH (a worktree of an earlier commit), and beside it a plain training step of
the same batch. The least of all rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "set_up.json"
NOW, BEFORE = "now", "before"
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
# Name to the form of a record; the catalogue's, and two that everyone writes.
MODELS: dict[str, tuple[int, ...]] = {
    "mlp": (784,),
    "cnn": GREY,
    "logistic": (784,),
    "cnn-relu-26k": GREY,
    "cnn-tanh-26k": GREY,
    "cnn-tanh-cifar": COLOUR,
    "dpnas-mnist": GREY,
    "dpnas-cifar": COLOUR,
    "gn-resnet-10": COLOUR,
    "gn-resnet-18": COLOUR,
    "resnet-20": COLOUR,
    "wrn-16-4": COLOUR,
    "vit": COLOUR,
    "bert-base": (128,),
}
BATCH, RECORDS, STEPS = 64, 256, 3
BATCHES = {"bert-base": 16}
WORDS = 30_522


def seconds(name: str, batch: int = BATCH) -> dict[str, float]:
    """Seconds of `make_private` and of a plain step, in this process with the library it finds."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    import steppe
    from steppe import models

    torch.manual_seed(0)
    if name == "mlp":
        model: Any = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    elif name == "cnn":
        convolutions = (nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 32, 5), nn.ReLU())
        model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 400, 10))
    elif name == "bert-base":
        model = encoder()
    else:
        model = models.create(name)
    inputs = torch.randn(RECORDS, *MODELS[name])
    if name == "bert-base":
        inputs = torch.randint(WORDS, inputs.shape)
    data = inputs, torch.randint(10, (RECORDS,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def plain() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data[0][:batch]), data[1][:batch]).backward()
        optimizer.step()

    plain()  # what torch makes ready in its first pass is no part of either
    steps = []
    for _ in range(STEPS):
        start = time.perf_counter()
        plain()
        steps.append(time.perf_counter() - start)
    optimizer.zero_grad(set_to_none=True)
    plan = steppe.Plan(
        noise_multiplier=1.0, delta=1e-5, population=RECORDS, batch_size=batch, steps=10
    )
    start = time.perf_counter()
    steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    return {"set_up": time.perf_counter() - start, "step": min(steps)}


def encoder() -> Any:
    """BERT-base by torch's own layers: 12 blocks of width 768, and a head for ten classes."""
    import torch
    from torch import Tensor, nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, 768), nn.Embedding(128, 768)
            self.norm = nn.LayerNorm(768)
            layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True)
            self.blocks = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.head = nn.Linear(768, 10)

        def forward(self, words: Tensor) -> Tensor:
            places = self.places(torch.arange(words.shape[1], device=words.device))
            return self.head(self.blocks(self.norm(self.words(words) + places))[:, 0])

    return Encoder()


def commit_of(tree: Path) -> str:
    """Which commit a tree is of."""
    asked = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def of_process(name: str, tree: Path, batch: int) -> dict[str, float]:
    """The same in a process of its own, with the library of a tree."""
    here = str(Path(__file__).resolve())
    paths = os.pathsep.join((str(tree / "src"), os.environ.get("PYTHONPATH", "")))
    typed = [sys.executable, here, "--one", name, "--batch", str(batch)]
    environment = {**os.environ, "PYTHONPATH": paths}
    ended = subprocess.run(
        typed, env=environment, cwd=tree, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{name} in {tree}: {ended.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def measure(name: str, trees: dict[str, Path], rounds: int, batch: int) -> dict[str, Any]:
    """Seconds by tree, the least of all rounds; trees take turns."""
    found: dict[str, list[dict[str, float]]] = {tree: [] for tree in trees}
    for number in range(rounds):
        order = list(trees) if number % 2 == 0 else list(reversed(trees))
        for tree in order:
            found[tree].append(of_process(name, trees[tree], batch))
    step = min(times["step"] for several in found.values() for times in several)
    least = {tree: min(t["set_up"] for t in several) for tree, several in found.items()}
    return {
        "plain_step": round(step, 5),
        **{
            tree: {"seconds": round(time, 4), "plain_steps": round(time / step, 2)}
            for tree, time in least.items()
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.set_up", description=__doc__)
    parser.add_argument("--before", type=Path, help="a worktree of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.one is not None:
        print(json.dumps(seconds(arguments.one, arguments.batch)))
        return 0
    from benchmarks.report import machine, today

    trees = {NOW: ROOT} if arguments.before is None else {NOW: ROOT, BEFORE: arguments.before}
    said = [f"--rounds={arguments.rounds}", f"--batch={arguments.batch}"]
    if arguments.before is not None:
        said.append("--before=PATH")
    command = shlex.join(["python", "-m", "benchmarks.set_up", *said])
    stored: dict[str, Any] = {"date": today(), "command": command, "machine": machine()}
    stored["commits"] = {name: commit_of(tree) for name, tree in trees.items()}
    for name in arguments.models:
        batch = BATCHES.get(name, arguments.batch)
        stored[name] = found = measure(name, trees, arguments.rounds, batch)
        times = "  ".join(
            f"{tree} {found[tree]['seconds']:7.2f} s = {found[tree]['plain_steps']:6.1f} steps"
            for tree in trees
        )
        print(f"{name:<16} {times}", flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
