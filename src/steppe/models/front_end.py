"""Networks with a fixed front-end and a trained head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

_AT_ONCE = 64  # records; few, so that what is computed on the way stays in the cache of a core


class FrontEnd(nn.Module, ABC):
    """A fixed feature extractor, which processes every record independently.

    Tensors that the constructor does not compute from its arguments must be buffers of the state
    dict (`persistent=True`), so that they are stored with a model.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one record, as `forward` expects it."""

    @property
    @abstractmethod
    def features(self) -> int:
        """The number of features of one record."""

    @property
    def precision(self) -> torch.dtype:
        """A type that holds features without loss; float16 if they are rounded to it."""
        return torch.float32

    @property
    def fitted(self) -> bool:
        """Whether all constants are computed; `fit` computes those that are missing."""
        return True

    def fit(self, *, progress: bool = False) -> Self:
        """Compute the missing constants, from public or procedural data alone.

        Args:
            progress: whether to show a progress bar in a terminal.
        """
        return self

    @torch.no_grad()
    def transform(
        self,
        records: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        cache: Path | None = None,
        progress: bool = False,
    ) -> Tensor:
        """The features of many records, computed a few at a time.

        Args:
            records: as `forward` takes them.
            dtype: of the features.
            cache: a folder where they may be kept, by what they are computed from; None to keep
                none. They say as much about the records as the records do.
            progress: whether to show a progress bar in a terminal.

        Returns:
            (records, features).
        """
        from tqdm import tqdm

        found = records.new_empty(len(records), self.features, dtype=dtype)
        starts = range(0, len(records), _AT_ONCE)
        for start in tqdm(starts, desc="features", disable=None if progress else True):
            found[start : start + _AT_ONCE] = self(records[start : start + _AT_ONCE])
        return found


class FixedFrontEnd(nn.Module):
    """A fixed front-end and a trained head.

    Args:
        front: maps records to features (records, features).
        head: maps features to outputs; only the head is trained.

    Guarantees:
        Only `head` learns. The front-end maps each record by itself with constants, so `features`
        may be computed once for all records before training, and costs no privacy.

    Examples:
        >>> class Halves(FrontEnd):
        ...     shape, features = (3,), 3
        ...     def forward(self, records):
        ...         return records / 2
        >>> model = FixedFrontEnd(Halves(), nn.Linear(3, 2))
        >>> records = torch.rand(5, 3)
        >>> torch.equal(model(records), model.head(model.features(records)))
        True
        >>> trained_part(model) is model.head
        True
    """

    def __init__(self, front: FrontEnd, head: nn.Module) -> None:
        super().__init__()
        self.front = front.requires_grad_(False)
        self.head = head

    def forward(self, records: Tensor) -> Tensor:
        return self.head(self.front(records))

    def features(
        self,
        records: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        cache: Path | None = None,
        progress: bool = False,
    ) -> Tensor:
        """The inputs of the head, computed once for each record: see `FrontEnd.transform`.

        Args:
            records: as `forward` takes them.
            dtype: of the features.
            cache: a folder where they may be kept, or None.
            progress: whether to show a progress bar in a terminal.

        Returns:
            (records, features). Train `head` on them; it then serves records through `forward`.
        """
        return self.front.transform(records, dtype=dtype, cache=cache, progress=progress)


def trained_part(model: nn.Module) -> nn.Module:
    """What the steps of a run train: the model, or its head on features that do not learn.

    Examples:
        >>> layer = nn.Linear(2, 1)
        >>> trained_part(layer) is layer
        True
    """
    return model.head if isinstance(model, FixedFrontEnd) else model


def stored_constants(model: nn.Module | None) -> dict[str, Tensor]:
    """The tensors of a front-end that its constructor does not make again; empty without any.

    Examples:
        >>> stored_constants(nn.Linear(2, 1))
        {}
    """
    return dict(model.front.state_dict()) if isinstance(model, FixedFrontEnd) else {}


def named_in(model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the trained part of a model, by their names in the whole model.

    Args:
        model: the whole model.
        trained: by their names in the trained part, or in the whole model already.

    Examples:
        >>> from steppe.models import ScatteringLinear
        >>> list(named_in(ScatteringLinear(side=8), {"weight": torch.zeros(10, 324)}))
        ['head.weight']
    """
    if not isinstance(model, FixedFrontEnd) or any(n.startswith("head.") for n in trained):
        return dict(trained)
    return {f"head.{name}": tensor for name, tensor in trained.items()}
