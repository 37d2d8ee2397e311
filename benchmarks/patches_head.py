"""Why a private head on patch features has the constants it has, on held-out training records.

`python -m benchmarks.patches_head` trains heads of several reaches side by side, on the same
Poisson batches of all training records but 5,000, each with noise of its own, and scores the last
weights and the exponential average on those 5,000. The test records are not touched. Products of
these heads are in bfloat16, for speed, so no ε is claimed for them. Every setting goes to
`benchmarks/results/patches-head.json` as it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

import steppe
from benchmarks import patch_features, stored
from steppe.papers.experiment import Column, Experiment, ExperimentRun
from steppe.training import recipes

HELD_OUT = 5_000
CLIP, MOMENTUM = 0.1, 0.9
_AT_ONCE = 4096
_BUDGETS = {
    "cifar10": (1.0, 3.0, 8.0),
    "fashion-mnist": (1.0, 3.0),
    # Nothing was chosen on these: they show whether the choice carries over.
    patch_features.COARSE: (1.0, 3.0),
    "mnist": (1.0, 3.0),
}
FACTORS = (1.2, 1.8, 2.4, 3.2)


def experiment() -> Experiment:
    """All reaches of a data set in one run."""
    chosen = (
        constants("cifar10", 50),
        constants("fashion-mnist", 50),
        constants("fashion-mnist", 100, (1.8, 2.4)),
        constants(patch_features.COARSE, 50),
        constants("mnist", 100),
    )
    settings = {f"{found['data']}, {found['steps']} steps": found for found in chosen}
    return Experiment(
        name="patches-head",
        paper="Strong defaults",
        item="a private head on patch features, 5,000 held-out records",
        settings=settings,
        seeds=(0,),
        measure=measure,
        columns=(Column("best factor", "{:.2g}"),),
        expected="one factor is within half a point of the best everywhere",
        minutes=5.0,
    )


def constants(data: str, steps: int, factors: Sequence[float] = FACTORS) -> dict[str, Any]:
    """Everything that decides a run but its seed."""
    return {
        "data": data,
        "epsilons": _BUDGETS[data],
        "factors": factors,
        "steps": steps,
        "share": 0.3,
        "clip": CLIP,
        "momentum": MOMENTUM,
        "held out": HELD_OUT,
    }


def measure(setting: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Accuracy in % on the held-out records, for each ε and factor."""
    rows, _ = patch_features.features(setting["data"], seed)
    x, y = rows.given
    generator = torch.Generator().manual_seed(seed + 1)
    mixed = torch.randperm(len(x), generator=generator)
    held_out, train = mixed[: setting["held out"]], mixed[setting["held out"] :]
    heads = Heads(setting, len(train), x.shape[1], int(y.max()) + 1)
    for _ in tqdm(range(setting["steps"]), desc=setting["data"], disable=None, leave=False):
        taken = train[torch.rand(len(train), generator=generator) < setting["share"]]
        heads.step(x, y, taken, generator)
    scored = heads.scores(x[held_out].float(), y[held_out])
    last = {name: found["last"] for name, found in scored.items()}
    return {"accuracy": scored, "best factor": _best(last, setting)}


def _best(last: Mapping[str, float], setting: Mapping[str, Any]) -> float:
    """The factor with the highest mean over ε."""
    means = {
        factor: sum(last[_name(epsilon, factor)] for epsilon in setting["epsilons"])
        for factor in setting["factors"]
    }
    return max(means, key=lambda factor: means[factor])


def _name(epsilon: float, factor: float) -> str:
    return f"ε = {epsilon:g}, {factor:g}"


class Heads:
    """Linear heads of several ε and reaches, trained on the same batches.

    Args:
        setting: constants.
        population: number of records.
        features: numbers of a record.
        classes: of the labels.
    """

    def __init__(
        self, setting: Mapping[str, Any], population: int, features: int, classes: int
    ) -> None:
        self.names, rates, noise = [], [], []
        for epsilon in setting["epsilons"]:
            plan = steppe.Plan(
                epsilon=epsilon,
                delta=1e-5,
                population=population,
                batch_size=setting["share"] * population,
                steps=setting["steps"],
                clip=steppe.Flat(setting["clip"]),
            )
            for factor in setting["factors"]:
                reach = factor * recipes.signal_to_noise(plan, 1)
                self.names.append(_name(epsilon, factor))
                rates.append(reach * (1 - setting["momentum"]) / setting["clip"])
                noise.append(plan.sigma * setting["clip"])
        self.batch, self.clip = setting["share"] * population, setting["clip"]
        self.momentum, self.classes = setting["momentum"], classes
        self.rates = torch.tensor(rates).repeat_interleave(classes)[:, None]
        self.noise = torch.tensor(noise).repeat_interleave(classes)[:, None]
        self.weights = torch.zeros(len(self.names) * classes, features)
        self.moving = torch.zeros_like(self.weights)
        self.average = torch.zeros_like(self.weights)
        # The average of `recipes.averages`: over about the last fifth.
        self.decay, self.done = 1 - 2 / (max(1, setting["steps"] // 5) + 1), 0

    def step(self, x: Tensor, y: Tensor, taken: Tensor, generator: torch.Generator) -> None:
        """One step of all heads on the same records, with noise for each."""
        total = torch.zeros_like(self.weights)
        weights = self.weights.bfloat16()
        for part in taken.split(_AT_ONCE):
            features = x[part].bfloat16()
            logits = (features @ weights.T).float().unflatten(1, (-1, self.classes))
            wrong = logits.softmax(-1) - F.one_hot(y[part], self.classes)[:, None]
            wrong *= self.clip / wrong.norm(dim=-1, keepdim=True).clamp_min(self.clip)
            total += (wrong.flatten(1).bfloat16().T @ features).float()
        drawn = torch.randn(total.shape, generator=generator)
        self.moving.mul_(self.momentum).add_((total + self.noise * drawn) / self.batch)
        self.weights -= self.rates * self.moving
        self.done += 1
        self.average.mul_(self.decay).add_(self.weights, alpha=1 - self.decay)

    def scores(self, x: Tensor, y: Tensor) -> dict[str, dict[str, float]]:
        """Accuracy in % of the last weights and of their average, by ε and factor."""
        unbiased = self.average / (1 - self.decay**self.done)
        found = {}
        for key, weights in (("last", self.weights), ("EMA", unbiased)):
            labels = (x @ weights.T).unflatten(1, (-1, self.classes)).argmax(-1)
            found[key] = (100 * (labels == y[:, None]).double().mean(0)).tolist()
        return {
            name: {key: round(values[place], 2) for key, values in found.items()}
            for place, name in enumerate(self.names)
        }


def cells(run: ExperimentRun) -> list[list[str]]:
    """A row for each ε: accuracy of the last weights by factor, and of the best one's average."""
    rows = []
    for epsilon in run.constants["epsilons"]:
        accuracy = run.measured["accuracy"]
        found = [accuracy.get(_name(epsilon, factor)) for factor in FACTORS]
        best = max(filter(None, found), key=lambda scores: float(scores["last"]))
        last = ["" if scores is None else f"{scores['last']:.2f}" for scores in found]
        rows.append([f"{epsilon:g}", *last, f"{best['EMA']:.2f}"])
    return rows


def table(runs: Sequence[ExperimentRun]) -> str:
    """Accuracy in % by data, steps, ε and factor."""
    from steppe.papers.summary import aligned

    head = ["setting", "ε", *(f"{factor:g}" for factor in FACTORS), "EMA of the best"]
    return aligned([head, *([run.setting, *row] for run in runs for row in cells(run))])


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then show everything; returns the exit status."""
    results, left = stored.run(experiment(), "patches_head", __doc__, argv)
    print(table(results.current()))
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
