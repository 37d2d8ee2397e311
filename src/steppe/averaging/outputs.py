"""Averages of outputs over checkpoints: mean probability (OPA) and majority vote (OMV)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from steppe.averaging.layout import require_of
from steppe.averaging.uncertainty import Prediction, prediction
from steppe.utils.module_modes import evaluating
from steppe.utils.validation import fail, positive_integer

# An iterable that yields the same checkpoints each time.
CheckpointSource = Iterable[Mapping[str, Tensor]]

_DECIMALS = 12  # probabilities that agree so far are a tie


@dataclass
class Outputs:
    """The outputs of all checkpoints for each input, as sums.

    Args:
        count: how many checkpoints.
        mean: mean class probabilities, inputs × classes.
        scatter: sum of squared deviations from the mean, inputs × classes.
        votes: how many checkpoints chose each class, inputs × classes.
    """

    count: int
    mean: Tensor
    scatter: Tensor
    votes: Tensor

    @property
    def mean_labels(self) -> Tensor:
        """OPA: the class with the largest mean probability, the lowest of equals."""
        return self._comparable().argmax(dim=-1)

    @property
    def vote_labels(self) -> Tensor:
        """OMV: most votes, then largest mean probability, then lowest class."""
        leads = self.votes == self.votes.amax(dim=-1, keepdim=True)
        return self._comparable().masked_fill(~leads, -1.0).argmax(dim=-1)

    def _comparable(self) -> Tensor:
        # The order of the checkpoints decides the last bits of a mean and must not decide a label.
        return self.mean.round(decimals=_DECIMALS)


class Ensemble(ABC):
    """Several checkpoints of one run that predict together.

    Checkpoints are read one group after another and each is asked about all inputs, so memory
    does not grow with their number: three numbers per input and class.

    Args:
        model: the model they belong to; it answers with one logit a class. It is not changed.
        checkpoints: `store.last(k)`, or a list of state dicts.
        batch_size: how many inputs are evaluated at a time.
        together: how many checkpoints are evaluated in one batched call. More than one is faster
            for small models, where calls cost more than arithmetic, but not for convolutions on a
            CPU.

    Guarantees:
        Post-processing of the checkpoints: no privacy cost.
    """

    def __init__(
        self,
        model: nn.Module,
        checkpoints: CheckpointSource,
        batch_size: int = 1024,
        together: int = 1,
    ) -> None:
        if isinstance(checkpoints, Iterator):
            rule = "can be iterated over only once"
            raise fail("checkpoints", type(checkpoints).__name__, rule, "give a list or store.last")
        self.model = model
        self.checkpoints = checkpoints
        self.batch_size = positive_integer("batch_size", batch_size)
        self.together = positive_integer("together", together)

    @abstractmethod
    def labels(self, inputs: Tensor) -> Tensor:
        """The class of each input."""

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Outputs:
        """Evaluate every checkpoint on every input.

        Args:
            inputs: any number of inputs along the first dimension.
        """
        found: Outputs | None = None
        with evaluating(self.model):
            for group in self._groups(inputs.device):
                parts = [self._probabilities(group, part) for part in inputs.split(self.batch_size)]
                for probabilities in torch.cat(parts, dim=1):
                    found = _add(found, probabilities)
        if found is None:
            raise fail("checkpoints", [], "must not be empty", "give at least one checkpoint")
        return found

    def predict(
        self, inputs: Tensor, interval: float = 0.95, labels: Tensor | None = None
    ) -> Prediction:
        """Labels with their agreement, and intervals around the class probabilities.

        Args:
            inputs: any number of inputs along the first dimension.
            interval: confidence of the Student-t intervals, in (0, 1).
            labels: what another model says, to ask how far the checkpoints agree with it.

        Returns:
            Those labels, or else labels by this ensemble's rule; see `Prediction` for what the
            intervals cover.
        """
        found = self.outputs(inputs)
        chosen = self._choose(found) if labels is None else labels
        return prediction(chosen, found.count, found.mean, found.scatter, found.votes, interval)

    @abstractmethod
    def _choose(self, found: Outputs) -> Tensor: ...

    def _groups(self, device: torch.device) -> Iterator[list[dict[str, Tensor]]]:
        iterator = iter(self.checkpoints)
        while group := list(islice(iterator, self.together)):
            for checkpoint in group:
                require_of(self.model, checkpoint)
            yield [{name: t.to(device) for name, t in one.items()} for one in group]

    def _probabilities(self, group: list[dict[str, Tensor]], inputs: Tensor) -> Tensor:
        """Probabilities in float64: checkpoints × inputs × classes."""
        if len(group) == 1:
            logits = functional_call(self.model, group[0], (inputs,)).unsqueeze(0)
        else:
            stacked = {name: torch.stack([one[name] for one in group]) for name in group[0]}

            def answer(tensors: dict[str, Tensor]) -> Any:
                return functional_call(self.model, tensors, (inputs,))

            logits = vmap(answer)(stacked)
        if logits.dim() != 3:
            rule = f"answers with shape {tuple(logits.shape[1:])} to {len(inputs)} inputs"
            raise fail("model", type(self.model).__name__, rule, "give one logit for each class")
        probabilities = logits.double().softmax(dim=-1)
        if bool(probabilities.isnan().any()):
            rule = "answers with numbers that are not finite"
            raise fail("checkpoint", "a model", rule, "leave out checkpoints that diverged")
        return probabilities


class OPA(Ensemble):
    """Output-probability averaging: the class with the largest mean probability.

    Examples:
        >>> model = nn.Linear(1, 2, bias=False)
        >>> sure = {"weight": torch.tensor([[3.0], [0.0]])}
        >>> unsure = {"weight": torch.tensor([[0.0], [0.1]])}
        >>> ensemble = OPA(model, [sure, unsure, unsure])
        >>> ensemble.labels(torch.ones(1, 1))
        tensor([0])
        >>> OMV(model, [sure, unsure, unsure]).labels(torch.ones(1, 1))
        tensor([1])
    """

    def labels(self, inputs: Tensor) -> Tensor:
        """The class of each input by mean probability; the lowest of equals."""
        return self.outputs(inputs).mean_labels

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Mean class probabilities, inputs × classes."""
        return self.outputs(inputs).mean

    def _choose(self, found: Outputs) -> Tensor:
        return found.mean_labels


class OMV(Ensemble):
    """Output majority vote: the class that most checkpoints choose.

    Ties go to the class with the larger mean probability among the leaders, then to the lowest.
    """

    def labels(self, inputs: Tensor) -> Tensor:
        """The class of each input by votes."""
        return self.outputs(inputs).vote_labels

    def votes(self, inputs: Tensor) -> Tensor:
        """How many checkpoints chose each class, inputs × classes."""
        return self.outputs(inputs).votes

    def _choose(self, found: Outputs) -> Tensor:
        return found.vote_labels


def _add(found: Outputs | None, probabilities: Tensor) -> Outputs:
    """Welford's update of mean and scatter, which stays accurate when they hardly differ."""
    if found is None:
        zeros = torch.zeros_like(probabilities)
        found = Outputs(0, zeros, zeros.clone(), torch.zeros_like(zeros, dtype=torch.int64))
    found.count += 1
    before = probabilities - found.mean
    found.mean += before / found.count
    found.scatter += before * (probabilities - found.mean)
    chosen = probabilities.argmax(dim=-1, keepdim=True)
    found.votes.scatter_add_(-1, chosen, torch.ones_like(chosen))
    return found
