"""Private training of a network on a picture data set, as the papers' experiments need it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from steppe import data, models
from steppe.gradients import Kernels
from steppe.plan import Plan
from steppe.private import Private, make_private
from steppe.randomness import SeededSource
from steppe.utils import validation
from steppe.utils.module_modes import evaluating

# Public constants that the papers' code uses for MNIST and for Fashion-MNIST alike.
_GREY = ((0.1307,), (0.3081,))
_COLOUR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
# Records at once: measured fastest for the small networks on two cores, from 125 to 2200, and as
# good as any other on one.
PHYSICAL_BATCH = 1000
# The ways that a measurement chooses for the two convolutions of the CNN of 26k weights. Ways that
# are timed anew may differ from run to run, and with them the last bits, which grow.
_WAYS = {
    "conv 1->16 8x8 on 28x28->13x13 stride 2x2": "product",
    "conv 16->32 4x4 on 12x12->5x5 stride 2x2": "pixel gram",
}
# Pictures at once where nothing is learned: few, so that their maps stay in a core's cache.
_EVALUATED_AT_ONCE = 50

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Pictures:
    """A data set in memory.

    Args:
        train: pictures and labels to train on.
        test: pictures and labels that are public and free to look at.
    """

    train: Batch
    test: Batch


@lru_cache(maxsize=2)
def load(name: str, side: int | None = None) -> Pictures:
    """MNIST, Fashion-MNIST or CIFAR, normalised by constants.

    Args:
        name: of the data set.
        side: keep the middle square of so many pixels a side, for networks made for that size;
            whole pictures unless given.
    """
    found = data.load(name)
    (x, y), (x_test, y_test) = found.train.tensors(), found.test.tensors()
    return Pictures(
        (_middle(_normalised(x), side), y), (_middle(_normalised(x_test), side), y_test)
    )


def _middle(x: Tensor, side: int | None) -> Tensor:
    if side is None:
        return x
    edge = (x.shape[-1] - side) // 2
    return x[..., edge : edge + side, edge : edge + side].contiguous()


def _normalised(x: Tensor) -> Tensor:
    mean, deviation = _GREY if x.shape[1] == 1 else _COLOUR
    return x.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(deviation).view(-1, 1, 1))


class NoNoise(SeededSource):
    """A seeded source without noise, for the papers' curves of training that is not private."""

    def fill_normal_(self, tensor: Tensor, std: float) -> Tensor:
        """Zeros."""
        del std
        return tensor.zero_()


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained network and how it got there.

    Attributes:
        model: at the last step.
        private: knows what the run cost.
        epochs: when the accuracy was taken.
        accuracies: on the test pictures.
        records_per_second: through training, evaluations left out.
        noisy: whether the noise of the plan was added; without it the run costs no finite ε.
    """

    model: nn.Module
    private: Private
    epochs: tuple[float, ...]
    accuracies: tuple[float, ...]
    records_per_second: float
    noisy: bool

    def measured(self) -> Mapping[str, Any]:
        """What an experiment stores."""
        plan = self.private.plan
        return {
            "accuracy": self.accuracies[-1],
            "epochs": self.epochs,
            "accuracies": self.accuracies,
            "epsilon": plan.epsilon_spent(self.private.steps_done) if self.noisy else None,
            "delta": plan.delta,
            "sigma": plan.sigma if self.noisy else 0.0,
            "steps": self.private.steps_done,
            "records a second": self.records_per_second,
        }


def fit(
    pictures: Pictures,
    model: str | nn.Module,
    plan: Plan,
    seed: int,
    *,
    rate: float,
    optimizer: str = "SGD",
    momentum: float = 0.0,
    decay: float = 0.0,
    evaluations: int = 8,
    physical_batch: int = PHYSICAL_BATCH,
    after_step: Callable[[Private], None] | None = None,
    source: SeededSource | None = None,
    groups: Sequence[Tensor] | None = None,
) -> Fitted:
    """Train a network.

    Args:
        pictures: what to train and test on.
        model: a name in `steppe.models`, made for the pictures' colours; or a network with a
            start.
        plan: the public constants.
        seed: of the first weights, the sampling and the noise.
        rate: learning rate.
        optimizer: "SGD", or "Adam" with torch's other constants.
        momentum: of SGD.
        decay: weight decay after the clip and the noise, in the optimizer; `plan.l2` is the one
            before the clip.
        evaluations: how often the accuracy is taken, at equal distances; the last one at the end.
        physical_batch: records that go through the network at once.
        after_step: called after each step, for averages and measurements.
        source: instead of a new one with the seed.
        groups: the rows of each group, for plans that sample groups at rates of their own.

    Guarantees:
        None: a seed decides the noise, so that the result can be repeated, to the last bit with as
        many threads of the same machine, and protects nobody.
    """
    torch.manual_seed(seed)
    network = model if isinstance(model, nn.Module) else _created(model, pictures)
    validation.one_of("optimizer", optimizer, ["SGD", "Adam"])
    weights = network.parameters()
    source = SeededSource(seed) if source is None else source
    private = make_private(
        network,
        torch.optim.Adam(weights, lr=rate, weight_decay=decay)
        if optimizer == "Adam"
        else torch.optim.SGD(weights, lr=rate, momentum=momentum, weight_decay=decay),
        pictures.train,
        plan,
        loss=F.cross_entropy,
        physical_batch=physical_batch,
        kernels=Kernels(pinned=_WAYS, measure=False),
        source=source,
        groups=groups,
    )
    total = plan.total_steps
    moments = {round(total * (i + 1) / evaluations) for i in range(evaluations)}
    epochs, accuracies, paused = [], [], 0.0
    begin = time.perf_counter()
    name = model if isinstance(model, str) else type(model).__name__
    for batch in tqdm(private, desc=f"{name}, seed {seed}", leave=False, disable=None):
        private.step(batch)
        done = private.steps_done
        if done not in moments and after_step is None:
            continue
        pause = time.perf_counter()
        if after_step is not None:
            after_step(private)
        if done in moments:
            epochs.append(done * plan.batch_size / len(pictures.train[1]))
            accuracies.append(accuracy(network, pictures.test))
        paused += time.perf_counter() - pause
    seconds = time.perf_counter() - begin - paused
    return Fitted(
        network,
        private,
        tuple(epochs),
        tuple(accuracies),
        round(total * plan.batch_size / seconds, 1),
        noisy=not isinstance(source, NoNoise),
    )


def _created(name: str, pictures: Pictures) -> nn.Module:
    colours = pictures.train[0].shape[1]
    options = {"channels": colours} if "channels" in models.parameters(name) else {}
    return models.create(name, **options)


def in_parts(test: Batch) -> list[Batch]:
    """Pictures and labels in the parts that a core evaluates fastest."""
    x, y = (part.split(_EVALUATED_AT_ONCE) for part in test)
    return list(zip(x, y, strict=True))


@torch.no_grad()
def accuracy(model: nn.Module, test: Batch) -> float:
    """The share of right answers."""
    with evaluating(model):
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in in_parts(test))
    return right / len(test[1])
