"""A network below its head as fixed features, computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.finetuning.isolated_features import prove_features
from steppe.models import (
    FixedFrontEnd,
    FrontEnd,
    features_key,
    head_name,
    head_of,
    set_module,
    stored_features,
)
from steppe.starts import begins_with_those_of


class Trunk(FrontEnd):
    """A network without its head, in evaluation mode always.

    Args:
        network: with the identity in the place of its head.
        shape: of one record.
        features: numbers that the head takes.
        normalised: whether the features of each record are brought to mean 0 and norm 1.
    """

    def __init__(
        self, network: nn.Module, shape: Sequence[int], features: int, normalised: bool
    ) -> None:
        super().__init__()
        self.network = network
        self._shape, self._features = tuple(shape), features
        self.normalised = normalised
        self.eval()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return self._shape

    @property
    def features(self) -> int:
        """Numbers in the description of one record."""
        return self._features

    @property
    def digest(self) -> str:
        """What decides the features of a record: layers, weights and sizes."""
        sha = hashlib.sha256(f"{self.network!r} {self.normalised}".encode())
        for name, tensor in self.network.state_dict().items():
            sha.update(name.encode())
            sha.update(tensor.detach().to("cpu").contiguous().numpy().tobytes())
        return sha.hexdigest()

    def train(self, mode: bool = True) -> Trunk:
        """Stays in evaluation mode, so that nothing in it mixes records or draws at random."""
        return super().train(False)

    @property
    def precision(self) -> torch.dtype:
        """float16 if features are normalised, because they are then rounded to it."""
        return torch.float16 if self.normalised else torch.float32

    @torch.no_grad()
    def transform(
        self,
        records: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        cache: Path | None = None,
        progress: bool = False,
    ) -> Tensor:
        """As `FrontEnd.transform`; only normalised features are kept in the folder."""
        if cache is None or not self.normalised:
            return super().transform(records, dtype=dtype, progress=progress)

        def compute() -> Tensor:
            return super(Trunk, self).transform(records, dtype=torch.float16, progress=progress)

        key = features_key(records, self.digest, False)
        return stored_features(cache, key, (len(records), self.features), compute).to(dtype)

    def forward(self, records: Tensor) -> Tensor:
        """The features of records."""
        found: Tensor = self.network(records)
        if not self.normalised:
            return found
        # Rounded here, so that features that were stored in half precision are the same.
        return F.normalize(F.layer_norm(found, found.shape[-1:])).half().float()


def head_on_features(
    model: nn.Module, shape: Sequence[int], *, new_head: bool = False
) -> FixedFrontEnd:
    """Split a network into fixed features and its head, of which the head alone is trained.

    Args:
        model: a network whose last layer is linear; its head is taken out of it. It must treat each
            record by itself in evaluation mode, which is proven for a network of your own.
        shape: of one record.
        new_head: whether the head is fresh. It then begins at zero and sees features of mean 0 and
            norm 1, so that gradients of all records have about the same length.

    Returns:
        The two parts. `features` computes what the head sees once for all records.

    Raises:
        IsolationError: it is not proven that features of a record depend on that record alone.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> import torch
        >>> whole = head_on_features(model, (4,))
        >>> whole.features(torch.zeros(3, 4)).shape
        torch.Size([3, 8])
    """
    name, head = head_name(model), head_of(model)
    set_module(model, name, nn.Identity())
    if new_head:
        nn.init.zeros_(head.weight)
        if head.bias is not None:
            nn.init.zeros_(head.bias)
    trunk = Trunk(model, shape, head.in_features, new_head)
    prove_features(trunk, model)
    found = FixedFrontEnd(trunk, head)
    begins_with_those_of(found.head, model)
    return found
