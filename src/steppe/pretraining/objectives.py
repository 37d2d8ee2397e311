"""What pre-training minimises: a loss of labels, or a contrastive loss without labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.models import head_name, head_of, set_module
from steppe.pretraining.augment import strong_view
from steppe.utils import validation
from steppe.utils.module_modes import evaluating

_AT_ONCE = 256


class PublicObjective(Protocol):
    """A loss of a batch of public records. Other than in private training, records may mix."""

    @property
    def needs_targets(self) -> bool:
        """Whether it uses labels."""

    @property
    def largest_part(self) -> int | None:
        """How many records of a large batch go through the model at once; None for a batch's."""

    def prepared(self, model: nn.Module) -> AbstractContextManager[None]:
        """A block in which the model has the layers that the loss needs."""

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor | None) -> Tensor:
        """The mean loss of a batch."""

    def scores(self, model: nn.Module, inputs: Tensor, targets: Tensor | None) -> dict[str, float]:
        """Scores on held-out records, with `loss` among them."""

    def of_start(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights that a start keeps, in the block of `prepared`."""


@dataclass(frozen=True)
class Labels:
    """A loss of outputs and labels.

    Args:
        loss_function: of outputs and labels, as its mean over a batch.
    """

    loss_function: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy

    @property
    def needs_targets(self) -> bool:
        """Yes."""
        return True

    @property
    def largest_part(self) -> int | None:
        """So many, since the mean of a large batch is the mean over its parts."""
        return _AT_ONCE

    def prepared(self, model: nn.Module) -> AbstractContextManager[None]:
        """The model as it is."""
        return nullcontext()

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor | None) -> Tensor:
        """The mean loss of a batch."""
        found: Tensor = self.loss_function(model(inputs), targets)  # type: ignore[arg-type]
        return found

    @torch.no_grad()
    def scores(self, model: nn.Module, inputs: Tensor, targets: Tensor | None) -> dict[str, float]:
        """Mean loss, and accuracy where the labels are classes."""
        if targets is None:
            return {}
        total, right, classes = 0.0, 0, not targets.is_floating_point()
        with evaluating(model):
            for x, y in zip(inputs.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
                outputs = model(x)
                total += float(self.loss_function(outputs, y)) * len(x)
                right += int((outputs.argmax(-1) == y).sum()) if classes else 0
        scores = {"loss": total / len(inputs)}
        return {"accuracy": right / len(inputs), **scores} if classes else scores

    def of_start(self, model: nn.Module) -> dict[str, Tensor]:
        """All weights."""
        return dict(model.state_dict())


@dataclass(frozen=True)
class Contrastive:
    """NT-Xent, the loss of SimCLR: two views of a picture are alike, those of others are not.

    Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020. During
    the training the network's head is replaced by a projection of two layers; the start has the
    weights below the head, so that fine-tuning gives it a new one (`head=`).

    Args:
        temperature: of the softmax over similarities.
        width: of the projection.
        view: makes one random view of a batch of pictures.
    """

    temperature: float = 0.5
    width: int = 128
    view: Callable[[Tensor], Tensor] = strong_view

    def __post_init__(self) -> None:
        validation.positive("temperature", self.temperature, "0.1 to 0.5 is common")
        validation.positive_integer("width", self.width)

    @property
    def needs_targets(self) -> bool:
        """No."""
        return False

    @property
    def largest_part(self) -> int | None:
        """As many as an update's, because every picture is compared with the others."""
        return None

    @contextmanager
    def prepared(self, model: nn.Module) -> Any:
        """A block in which a projection is in the place of the head."""
        name, head = head_name(model), head_of(model)
        width = head.in_features
        set_module(
            model,
            name,
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, self.width)).to(
                head.weight
            ),
        )
        try:
            yield
        finally:
            set_module(model, name, head)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor | None) -> Tensor:
        """The mean loss of two views of every picture."""
        views = torch.cat([self.view(inputs), self.view(inputs)])
        return nt_xent(model(views), self.temperature)

    @torch.no_grad()
    def scores(self, model: nn.Module, inputs: Tensor, targets: Tensor | None) -> dict[str, float]:
        """The mean loss over parts of 256 pictures, with the same views whenever it is called."""
        with evaluating(model), torch.random.fork_rng():
            torch.manual_seed(0)
            parts = [part for part in inputs.split(_AT_ONCE) if len(part) > 1]
            losses = [float(self.loss(model, part, None)) for part in parts]
        return {"loss": sum(losses) / len(losses)} if losses else {}

    def of_start(self, model: nn.Module) -> dict[str, Tensor]:
        """All weights but the projection's."""
        state: Mapping[str, Tensor] = model.state_dict()
        prefix = f"{head_name(model).rpartition('.')[0]}."  # of the projection's last layer
        return {name: one for name, one in state.items() if not name.startswith(prefix)}


def nt_xent(outputs: Tensor, temperature: float) -> Tensor:
    """The normalised temperature-scaled cross-entropy.

    Args:
        outputs: (2·n, width): the first views of n pictures, then the second ones.
        temperature: divides the cosine similarities.

    Examples:
        >>> nt_xent(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), 1.0)
        tensor(0.5514)
    """
    unit = F.normalize(outputs, dim=1)
    alike = unit @ unit.T / temperature
    alike.fill_diagonal_(-torch.inf)
    partner = torch.arange(len(outputs), device=outputs.device).roll(len(outputs) // 2)
    return F.cross_entropy(alike, partner)
