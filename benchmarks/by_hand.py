"""How fast could a private step be? Logistic regression written out by hand, without an engine.

`python -m benchmarks.by_hand` times four steps by turns: plain training, ours, and two that know
their model, with nothing traced and nothing checked, the same noise and the same optimizer. One has
the loss's gradient as a formula. The other leaves it to autograd, as whoever takes any loss must.
What lies between the first and ours is what the engine costs, and what lies between it and plain
training is what norms and noise cost every engine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import engines, settings, timing
from benchmarks.cases import CASES, Case
from benchmarks.report import machine, today
from steppe.noise import SecureSource, Source

RESULTS = Path(__file__).parent / "results" / "by_hand.json"


Outputs = Callable[[Tensor, Tensor], Tensor]
"""From a model's outputs and the labels to the gradient of each record's loss by its outputs."""


def by_formula(outputs: Tensor, y: Tensor) -> Tensor:
    """p − e, where p are a record's probabilities and e is its label."""
    columns = outputs.t().softmax(0)  # of ten classes in a third of the time that rows take
    columns.scatter_add_(0, y.unsqueeze(0), columns.new_full((1, len(y)), -1.0))
    return columns.t().contiguous()


@torch.enable_grad()
def by_autograd(outputs: Tensor, y: Tensor) -> Tensor:
    """The same by a backward pass, which the engine would start without autograd's checks too."""
    losses = F.cross_entropy(outputs.requires_grad_(), y, reduction="none")
    (g,) = torch.autograd.Variable._execution_engine.run_backward(
        (losses,), (torch.ones_like(losses),), False, False, (outputs,), True, accumulate_grad=False
    )
    return g


def private_gradient(
    layer: nn.Linear, x: Tensor, y: Tensor, source: Source, gradient: Outputs = by_formula
) -> Tensor:
    """Σᵢ clip(gᵢ) + noise over the batch, weight first and bias last.

    A record's gradient of the weight is that of its outputs times x; the bias has that of the
    outputs itself. So its norm is that of the outputs times √(‖x‖² + 1).
    """
    inputs, outputs = layer.in_features, layer.out_features
    g = gradient(F.linear(x, layer.weight, layer.bias), y)
    lengths = torch.linalg.vector_norm(x, dim=1).square_().add_(1.0).sqrt_()
    norms = torch.linalg.vector_norm(g, dim=1).mul_(lengths)
    g.mul_(norms.reciprocal_().mul_(settings.CLIP).clamp_(max=1.0).unsqueeze(1))
    total = source.fill_normal_(
        torch.empty(outputs * (inputs + 1)), settings.NOISE_MULTIPLIER * settings.CLIP
    )
    total[: outputs * inputs].view(outputs, inputs).addmm_(g.t(), x)
    total[outputs * inputs :].add_(g.sum(0))
    return total.div_(len(y))


def by_hand(case: Case, batch: tuple[Tensor, Tensor], gradient: Outputs) -> timing.Step:
    """A step that serves this model alone."""
    model, source = case.new_model(), SecureSource()
    (layer,) = (module for module in model.modules() if isinstance(module, nn.Linear))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    x, y = batch

    @torch.no_grad()
    def step() -> None:
        optimizer.zero_grad()
        total = private_gradient(layer, x, y, source, gradient)
        layer.weight.grad = total[: layer.weight.numel()].view_as(layer.weight)
        layer.bias.grad = total[layer.weight.numel() :]
        optimizer.step()

    return step


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of a step and its speed relative to plain, by name."""
    [case] = [case for case in CASES if case.model == "e-logistic"]
    batch = case.new_batch()
    steps = {name: engines.setup(name, case, batch, 1) for name in ("plain", "steppe")}
    steps["by hand"] = by_hand(case, batch, by_formula)
    steps["by hand, loss by autograd"] = by_hand(case, batch, by_autograd)
    for step in steps.values():
        step()
    return {
        name: {"us": round(found.seconds * 1e6, 1), "ratio": round(found.ratio, 4)}
        for name, found in timing.interleave(steps, rounds).items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_hand", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(settings.THREADS)
    found = measure(arguments.rounds)
    command = f"python -m benchmarks.by_hand --rounds {arguments.rounds}"
    stored = {"date": today(), "command": command, "machine": machine(), "steps": found}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(stored, indent=1) + "\n")
    for name, step in found.items():
        print(f"{name:<25} {step['us']:8.1f} µs  {step['ratio']:.2f} of plain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
