"""How long the records' gradients are, and which share of them a clip shortens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from steppe.flatness.figures import new_figure
from steppe.flatness.surface import Progress, Surface
from steppe.utils import validation
from steppe.utils.batches import each
from steppe.utils.module_modes import evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class GradientNorms:
    """A histogram of per-record gradient norms.

    Attributes:
        clip: the bound C.
        edges: of the bins, from 0.
        counts: records in each bin.
        beyond: records past the last edge.
        not_finite: records whose norm is infinite or not a number; a clip drops them.
        clipped_share: share of all records that the clip changes, those that are not finite too.
        median: of the finite norms.
    """

    clip: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    beyond: int
    not_finite: int
    clipped_share: float
    median: float


def record_gradient_norms(
    surface: Surface, chunk: int = 32, progress: Progress | None = None
) -> Tensor:
    """The gradient norm of every record at the model's weights, in float64.

    Args:
        surface: evaluate it on public data only; the result is not covered by the guarantee.
        chunk: records whose gradients are in memory at once.
        progress: called after each batch with the records done.
    """
    validation.positive_integer("chunk", chunk)
    parameters = surface.split(surface.weights)

    def single_loss(parameters: dict[str, Tensor], *record: Tensor) -> Tensor:
        *inputs, target = each(lambda tensor: tensor[None], record)
        output = torch.func.functional_call(surface.model, parameters, tuple(inputs))
        return surface.loss(output, target).sum()

    def norm(*record: Tensor) -> Tensor:
        gradients = torch.func.grad(single_loss)(parameters, *record)
        squares = [g.double().square().sum() for g in gradients.values()]
        return torch.stack(squares).sum().sqrt()

    found: list[Tensor] = []
    # Fused attention cannot run over records by vmap; the plain formula can.
    with evaluating(surface.model), sdpa_kernel(SDPBackend.MATH):
        for inputs, target in surface.batches():
            norms = torch.func.vmap(norm, chunk_size=chunk)(*inputs, target)
            found.append(norms.detach().cpu())
            if progress is not None:
                progress(sum(map(len, found)), None)
    return torch.cat(found)


def gradient_norm_histogram(
    norms: Tensor, clip: float, bins: int = 50, largest: float | None = None
) -> GradientNorms:
    """Count norms by size and how many a clip would shorten.

    Args:
        norms: one for each record, from `record_gradient_norms` or anywhere else.
        clip: the bound C.
        bins: number of equal bins.
        largest: last edge; the largest finite norm or twice the clip unless given.
    """
    validation.positive("clip", clip)
    validation.positive_integer("bins", bins)
    if norms.ndim != 1 or not len(norms):
        raise validation.fail(
            "norms", tuple(norms.shape), "must have shape (records,), not empty", "flatten them"
        )
    norms = norms.detach().double().cpu()
    finite = norms[norms.isfinite()]
    if bool((finite < 0).any()):
        raise validation.fail("norms", finite.min().item(), "must not be negative", "take norms")
    if largest is None:
        largest = max(2 * clip, finite.max().item() if len(finite) else 0.0)
    validation.positive("largest", largest)
    counts = torch.histc(finite, bins, min=0.0, max=largest)
    not_finite = len(norms) - len(finite)
    return GradientNorms(
        clip=clip,
        edges=tuple(largest * i / bins for i in range(bins + 1)),
        counts=tuple(int(count) for count in counts),
        beyond=int((finite > largest).sum()),
        not_finite=not_finite,
        clipped_share=(int((finite > clip).sum()) + not_finite) / len(norms),
        median=finite.median().item() if len(finite) else float("nan"),
    )


def norms_figure(results: Mapping[str, GradientNorms]) -> Figure:
    """Histograms, with the clip as a line and what lies beyond in the legend.

    Args:
        results: by the name to print, for instance the epoch.
    """
    figure, axes = new_figure("Gradient norm of a record", "norm", "records")
    for name, result in results.items():
        label = f"{name}: {result.clipped_share:.0%} clipped, {result.beyond} beyond"
        axes.stairs(result.counts, result.edges, label=label)
    for clip in sorted({result.clip for result in results.values()}):
        axes.axvline(clip, color="red", linewidth=1)
    axes.legend()
    return figure
