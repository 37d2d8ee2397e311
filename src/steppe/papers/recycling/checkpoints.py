"""Every way to use the last checkpoints of one run, from weights and outputs computed once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from steppe.averaging import EMA, Averages, PolynomialDecay, best_checkpoints
from steppe.papers.pictures import in_parts
from steppe.utils.module_modes import evaluating

Score = Callable[[Tensor], float]


class Recorder:
    """Keeps the last checkpoints of a run, and running averages of all of it.

    Args:
        model: being trained.
        steps: length of the run.
        keep: how many of the last checkpoints.
        decays: of exponential averages.
        gammas: of polynomial averages.
        every: how many steps lie between two stored states of the running averages.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        keep: int,
        decays: Sequence[float],
        gammas: Sequence[float],
        every: int,
    ) -> None:
        self.weights: list[Tensor] = []
        self.moments: list[int] = []
        self.running: dict[str, list[Tensor]] = {}
        self._first, self._steps, self._every = steps - keep + 1, steps, every
        self._names = [*(f"EMA {d:g}" for d in decays), *(f"PDA {g:g}" for g in gammas)]
        self._averages = Averages(
            [*(EMA(model, d) for d in decays), *(PolynomialDecay(model, g) for g in gammas)]
        )

    def update(self, model: nn.Module, step: int) -> None:
        """Take the weights after a step, counted from 1."""
        self._averages.update(model)
        if step < self._first:
            return
        self.weights.append(parameters_to_vector(model.parameters()).detach().clone())
        if (self._steps - step) % self._every == 0:
            self.moments.append(step)
            for name, average in zip(self._names, self._averages, strict=True):
                tensors = average.weights()
                flat = [tensors[key].flatten().float() for key, _ in model.named_parameters()]
                self.running.setdefault(name, []).append(torch.cat(flat))


@dataclass(frozen=True)
class Parts:
    """Which test pictures play which part, so that nothing is judged by what chose it.

    Args:
        public: to find the best checkpoints by.
        validation: to tune k, β and γ on.
        test: to report.
    """

    public: slice
    validation: slice
    test: slice


class NetworkOutputs:
    """The answers of a network at given weights, and of ensembles of them.

    Args:
        model: lends its shape; its weights are overwritten.
        inputs: pictures.
        labels: their classes.
    """

    def __init__(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        self._model, self._parts, self.labels = model, in_parts((inputs, labels)), labels

    @torch.no_grad()
    def probabilities(self, weights: Tensor) -> Tensor:
        """Inputs × classes."""
        vector_to_parameters(weights, self._model.parameters())
        with evaluating(self._model):
            found = [self._model(inputs).softmax(1) for inputs, _ in self._parts]
        return torch.cat(found)

    def right(self, probabilities: Tensor) -> Tensor:
        """Which inputs are answered rightly."""
        return probabilities.argmax(1) == self.labels


def votes(outputs: Tensor) -> Tensor:
    """For each input and class how many checkpoints chose it, with the mean to break ties."""
    chosen = torch.nn.functional.one_hot(outputs.argmax(2), outputs.shape[2]).sum(0)
    return chosen + outputs.double().mean(0) / 2


def combined(weights: Sequence[Tensor], decay: float) -> Tensor:
    """An exponential average of checkpoints, from worst to best: the best one counts most."""
    average = weights[0]
    for one in weights[1:]:
        average = decay * average + (1 - decay) * one
    return average


class Comparison:
    """Accuracies of all methods on one run.

    Args:
        recorder: what the run left.
        outputs: the test pictures, with the model's shape.
        ks: how many checkpoints to try.
        parts: which pictures tune, choose and test.
    """

    def __init__(
        self, recorder: Recorder, outputs: NetworkOutputs, ks: Sequence[int], parts: Parts
    ) -> None:
        self._recorder, self._outputs, self._ks, self._parts = recorder, outputs, ks, parts
        self._answers = torch.stack([outputs.probabilities(w) for w in recorder.weights])
        self._single = torch.stack([outputs.right(answers) for answers in self._answers]).double()

    def measured(self) -> Mapping[str, Any]:
        """Accuracy in percent on the test part by method, with the tuned k, β and γ."""
        tried = {"UPA": self._upa, "OPA": self._opa, "OMV": self._omv}
        last = len(self._recorder.weights)
        baseline = self._percent(self._single[-1], self._parts.test)
        found: dict[str, Any] = {"baseline": baseline}
        for name, method in tried.items():
            k, right = self._tuned({k: method(range(last - k, last)) for k in self._ks})
            found[name] = self._percent(right, self._parts.test)
            found[f"{name} k"] = k
        for family in ("EMA", "PDA"):
            name, right = self._tuned(
                {
                    name: self._right_of(weights[-1])
                    for name, weights in self._recorder.running.items()
                    if name.startswith(family)
                }
            )
            found[family] = self._percent(right, self._parts.test)
            found[f"{family} tuned"] = name
        for name, right in self._selected(tried).items():
            found[f"best {name}"] = self._percent(right, self._parts.test)
        gains = {
            f"{name} gain": value - baseline
            for name, value in found.items()
            if name.removeprefix("best ") in ("EMA", "UPA", "PDA", "OPA", "OMV")
        }
        curves = self._curves(found, tried)
        spread = {f"{n} sd": statistics.pstdev(c) for n, c in curves["accuracy"].items()}
        single = self._single[:, self._parts.test].mean(1)
        return {
            **found,
            **gains,
            **spread,
            "baseline, mean of the kept": 100 * float(single.mean()),
            "curves": curves,
        }

    def _selected(
        self, tried: Mapping[str, Callable[[Sequence[int]], Tensor]]
    ) -> dict[str, Tensor]:
        """The best k of the kept checkpoints by the public part, k tuned on the validation part."""
        scores = self._single[:, self._parts.public].mean(1).tolist()
        ranked = {k: best_checkpoints(scores, k, public=True) for k in self._ks if k <= len(scores)}
        by_method = {
            name: self._tuned({k: method(rows) for k, rows in ranked.items()})[1]
            for name, method in tried.items()
        }
        weights = self._recorder.weights
        decayed = {
            (k, decay): self._right_of(combined([weights[row] for row in rows], decay))
            for k, rows in ranked.items()
            for decay in (0.8, 0.9, 0.95)
        }
        return {**by_method, "EMA": self._tuned(decayed)[1]}

    def _curves(
        self, found: Mapping[str, Any], tried: Mapping[str, Callable[[Sequence[int]], Tensor]]
    ) -> dict[str, Any]:
        """Test accuracy at the stored moments, for windows that fit into what was kept."""
        recorder, first = self._recorder, self._recorder.moments[-1] - len(self._recorder.weights)
        largest = max(found[f"{name} k"] for name in tried)
        moments = [m for m in recorder.moments if m - first >= largest] or recorder.moments[-1:]
        ends = [moment - first for moment in moments]
        accuracy = {
            "baseline": [self._percent(self._single[e - 1], self._parts.test) for e in ends]
        }
        for name, method in tried.items():
            k = found[f"{name} k"]
            accuracy[name] = [
                self._percent(method(range(end - k, end)), self._parts.test) for end in ends
            ]
        stored = recorder.running[found["EMA tuned"]][-len(moments) :]
        accuracy["EMA"] = [self._percent(self._right_of(w), self._parts.test) for w in stored]
        return {"steps": moments, "accuracy": accuracy}

    def _upa(self, rows: Sequence[int]) -> Tensor:
        return self._right_of(torch.stack([self._recorder.weights[row] for row in rows]).mean(0))

    def _opa(self, rows: Sequence[int]) -> Tensor:
        return self._outputs.right(self._answers[list(rows)].mean(0))

    def _omv(self, rows: Sequence[int]) -> Tensor:
        return self._outputs.right(votes(self._answers[list(rows)]))

    def _right_of(self, weights: Tensor) -> Tensor:
        return self._outputs.right(self._outputs.probabilities(weights))

    def _tuned(self, rights: Mapping[Any, Tensor]) -> tuple[Any, Tensor]:
        """The setting that does best on the validation part, the first of equals."""
        best = max(rights, key=lambda name: self._percent(rights[name], self._parts.validation))
        return best, rights[best]

    @staticmethod
    def _percent(right: Tensor, part: slice) -> float:
        return 100 * float(right[part].double().mean())
