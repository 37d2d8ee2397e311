"""Place 4: gradients inside and outside of a public subspace, clipped separately."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.clipping.clip import (
    PublicGradients,
    State,
    count_weights,
    finite_rows,
    movable_bound,
    row_norms,
)
from steppe.clipping.subspace import anywhere, chunks, spanned
from steppe.gradients import RecordGradients, representable
from steppe.utils import validation


@dataclass(frozen=True)
class GEP:
    """Gradient embedding perturbation: project on directions that public records span.

    A query releases one vector: the residual outside of the subspace over its bound, and the
    coordinates inside over theirs. Most of a gradient lies in few directions, so the coordinates
    get noise in `bases` dimensions only. The residual gets noise in all dimensions, but it is short
    and clipped to a small norm. Yu et al., Do Not Let Privacy Overbill Utility: Gradient Embedding
    Perturbation for Private Learning, 2021.

    Needs `make_private(..., public=batch)`: records that need no protection, in the form that the
    loss takes; random labels will do. Their gradients are taken at the weights of each query.

    Args:
        bases: dimensions of the subspace, over all groups.
        groups: into how many contiguous chunks the weights are cut, each with a subspace of its
            own; the bases go to the chunks by the root of their size.
        power_iterations: passes over the public records to find a subspace.
        embedding_bound: largest norm of a record's coordinates.
        residual_bound: largest norm of a record's residual.
        biased: omit the residual. Less noise, but gradients outside of the subspace are lost.
        refresh_every: how many queries use the same subspace.

    Guarantees:
        A record's part of the released vector is at most `sensitivity` long: √2, or 1 if biased,
        both from one batch under one Gaussian, so a plan's σ costs what it costs without GEP and
        each part gets noise of √2 σ in units of its bound. The subspace depends on public records
        and released weights only. A record whose gradient is not finite adds zero.

    Examples:
        >>> GEP(bases=100).sensitivity
        1.4142135623730951
    """

    bases: int = 1000
    groups: int = 3
    power_iterations: int = 1
    embedding_bound: float = 5.0
    residual_bound: float = 2.0
    biased: bool = False
    refresh_every: int = 1

    def __post_init__(self) -> None:
        for name in ("bases", "groups", "power_iterations", "refresh_every"):
            number = validation.positive_integer(f"GEP.{name}", getattr(self, name))
            object.__setattr__(self, name, number)
        for name in ("embedding_bound", "residual_bound"):
            bound = movable_bound(f"GEP.{name}", getattr(self, name))
            object.__setattr__(self, name, bound)
        if not isinstance(self.biased, bool):
            raise validation.fail("GEP.biased", self.biased, "must be True or False", "use False")
        if self.groups > self.bases:
            raise validation.fail(
                "GEP.groups",
                self.groups,
                f"must not exceed bases={self.bases}, each needs one",
                "use fewer groups or more bases",
            )

    @property
    def sensitivity(self) -> float:
        """The largest l2 change of the released vector when one record is added or removed."""
        return 1.0 if self.biased else math.sqrt(2.0)

    @property
    def constant_noise(self) -> bool:
        """The answer is multiplied by the directions in use."""
        return False

    def begin(
        self, parameters: Mapping[str, Tensor], public: PublicGradients | None = None
    ) -> GEPClipper:
        """Start a run. Its state is the subspace in use."""
        if public is None:
            raise validation.missing(
                "public",
                "pass make_private(..., public=batch), or use another clip",
                "is required, since GEP finds its subspace with public records",
            )
        sizes = chunks(count_weights(parameters), self.groups, self.bases)
        most = max(bases for _, bases in sizes)
        if public.records < most:
            raise validation.fail(
                "GEP.bases",
                self.bases,
                f"gives a group {most} directions, which must not exceed the {public.records} "
                "public records, since they span no more",
                "use fewer bases, more groups or more public records",
            )
        return GEPClipper(self, sizes, public, next(iter(parameters.values())).device)


class GEPClipper:
    """A run's subspace.

    Args:
        clip: the public constants.
        sizes: (weights, bases) of every chunk.
        public: the public records' gradients.
        device: where the weights are.
    """

    writes_out = True
    releases_gradients = False

    def __init__(
        self,
        clip: GEP,
        sizes: Sequence[tuple[int, int]],
        public: PublicGradients,
        device: torch.device,
    ) -> None:
        self.clip, self._sizes, self._public, self._device = clip, list(sizes), public, device
        self._weights = sum(weights for weights, _ in sizes)
        self._residual = 0 if clip.biased else self._weights
        self.width = self._residual + clip.bases
        self._queries = 0
        self._bases: list[Tensor] | None = None

    @property
    def bases(self) -> list[Tensor]:
        """Orthonormal directions of every chunk, `(weights, bases)` each."""
        if self._bases is None:
            self._bases = self._search()
        return self._bases

    def prepare(self) -> None:
        """Find the subspace at the current weights, if it is due."""
        if self._queries % self.clip.refresh_every == 0:
            self._bases = self._search()
        self._queries += 1

    @torch.no_grad()
    def _search(self) -> list[Tensor]:
        """The subspace at the current weights.

        Where no public record has a gradient that is finite any more, the one in use goes on: a
        run does not end for it, and any directions are as private.
        """
        # Which directions a search starts from is public; a number of its own for each search
        # makes a run that was taken up again find the same ones.
        generator = torch.Generator().manual_seed(self._queries)
        iterations, read = self.clip.power_iterations, self._public.gradients
        found = spanned(read, self._sizes, iterations, generator, self._device)
        if found is not None:
            return found
        if self._queries == 0:
            raise validation.fail(
                "public",
                f"{self._public.records} records",
                "must have gradients that are finite at the weights that training starts from, and "
                "none has",
                "look for values that are missing or huge in them",
            )
        if self._bases is not None:
            return self._bases
        start = anywhere(self._sizes, generator, self._device)
        return [torch.linalg.qr(directions).Q for directions in start]

    def add_(self, out: Tensor, gradients: RecordGradients) -> Tensor:
        """Add the clipped residuals and coordinates; return the norms."""
        matrix = gradients.written_out(out.dtype)
        norms = row_norms(matrix)
        residual, embedding = self._parts(matrix, norms)
        if not self.clip.biased:
            factors = self._factors(residual, self.clip.residual_bound)
            out[: self._residual].addmv_(residual.t(), factors)
        out[self._residual :].addmv_(
            embedding.t(), self._factors(embedding, self.clip.embedding_bound)
        )
        return norms

    def encode(self, gradients: Tensor) -> Tensor:
        """The clipped residual and coordinates, each over its bound, row by row."""
        residual, embedding = self._parts(gradients, row_norms(gradients))
        inside = embedding * self._factors(embedding, self.clip.embedding_bound)[:, None]
        if self.clip.biased:
            return inside
        outside = residual * self._factors(residual, self.clip.residual_bound)[:, None]
        return torch.cat([outside, inside], dim=1)

    def _parts(self, gradients: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """What lies outside of the subspace, and the coordinates inside; zero if not finite."""
        gradients = finite_rows(gradients, norms)
        embedding = torch.cat(
            [
                chunk @ bases.to(chunk.dtype)
                for chunk, bases in zip(self._split(gradients), self.bases, strict=True)
            ],
            dim=1,
        )
        # The residual is taken from the coordinates before their clip: that is what is orthogonal.
        residual = gradients - self._inside(embedding)
        finite = row_norms(residual) + row_norms(embedding)  # products may leave float32
        return finite_rows(residual, finite), finite_rows(embedding, finite)

    def _factors(self, part: Tensor, bound: float) -> Tensor:
        """min(1, bound / norm) / bound."""
        return representable((1 / row_norms(part)).clamp_(max=1 / bound), part.dtype)

    def _split(self, gradients: Tensor) -> Iterator[Tensor]:
        return iter(gradients.split([weights for weights, _ in self._sizes], dim=1))

    def _inside(self, embedding: Tensor) -> Tensor:
        """From coordinates to vectors."""
        parts = embedding.split([bases for _, bases in self._sizes], dim=1)
        vectors = [part @ b.t().to(part.dtype) for part, b in zip(parts, self.bases, strict=True)]
        return torch.cat(vectors, dim=1)

    def decode(self, answer: Tensor) -> Tensor:
        """The mean residual plus the vector of the mean coordinates."""
        gradient = self._inside(answer[None, self._residual :] * self.clip.embedding_bound)[0]
        if not self.clip.biased:
            gradient.add_(answer[: self._residual], alpha=self.clip.residual_bound)
        return gradient

    def state(self) -> State:
        """How many queries there were, and the subspace if the next one uses it."""
        state: State = {"queries": float(self._queries)}
        if self._bases is not None and self._queries % self.clip.refresh_every:
            state |= {f"bases.{index}": bases for index, bases in enumerate(self._bases)}
        return state

    def load(self, state: State) -> None:
        """Go on after that many queries."""
        # By name, because a file may return them in any order.
        names = (f"bases.{index}" for index in range(len(self._sizes)))
        found = [value for name in names if isinstance(value := state.get(name), Tensor)]
        shapes = [tuple(bases.shape) for bases in found]
        if found and shapes != self._sizes:
            raise validation.fail(
                "clip state's bases",
                shapes,
                f"must have the shapes {self._sizes}",
                "load a state of this very clip and model",
            )
        self._queries, self._bases = int(state["queries"]), found or None
