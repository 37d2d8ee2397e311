"""Loss on the straight line through two solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from steppe.flatness.figures import new_figure
from steppe.flatness.surface import MeanScores, Progress, Surface
from steppe.utils.validation import fail

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POSITIONS = tuple(i / 20 - 0.5 for i in range(41))


@dataclass(frozen=True)
class Path:
    """Losses between and beyond two solutions.

    Attributes:
        positions: α of (1 − α)·first + α·second; 0 is the first solution, 1 the second.
        measured: for each data set by name, loss and accuracy at each position.
    """

    positions: tuple[float, ...]
    measured: Mapping[str, tuple[MeanScores, ...]]


def interpolate(
    first: nn.Module,
    second: nn.Module,
    loss: Callable[..., Tensor],
    data: Mapping[str, Iterable[Any]],
    positions: Sequence[float] = _POSITIONS,
    progress: Progress | None = None,
) -> Path:
    """Measure every data set along the line through two solutions of one architecture.

    Curves of training and test data that run in parallel mean that the loss has little to gain from
    the training set alone; a second solution in the wider part of the valley is the flatter one.

    Args:
        first: the solution at 0.
        second: the solution at 1.
        loss: function of (output, target).
        data: batches as for `Surface`, by name. Public data only: the result is not covered by the
            guarantee.
        positions: α to measure; from −0.5 to 1.5 unless given.
        progress: called after each pass over a data set.
    """
    _require_same_shape(first, second)
    if not data:
        raise fail("data", dict(data), "must name at least one data set", "pass {'test': batches}")
    surfaces = {name: Surface(first, loss, batches) for name, batches in data.items()}
    start = next(iter(surfaces.values())).weights.double()
    end = Surface(second, loss, ()).weights.double()
    found: dict[str, list[MeanScores]] = {name: [] for name in surfaces}
    for i, position in enumerate(positions):
        # lerp returns its ends exactly, so the two solutions are measured as they are.
        weights = torch.lerp(start, end, position)
        for j, (name, surface) in enumerate(surfaces.items()):
            found[name].append(surface.at(weights))
            if progress is not None:
                progress(i * len(surfaces) + j + 1, len(positions) * len(surfaces))
    return Path(tuple(positions), {name: tuple(row) for name, row in found.items()})


def _require_same_shape(first: nn.Module, second: nn.Module) -> None:
    models = (first, second)
    shapes = [
        [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
        for model in models
    ]
    if shapes[0] != shapes[1]:
        raise fail(
            "second",
            type(second).__name__,
            "must have the same trained weights as `first`: names, shapes and order",
            "use one architecture",
        )
    trained = {name for name, _ in shapes[0]}
    frozen = [{n: p for n, p in m.named_parameters() if n not in trained} for m in models]
    if not _all_equal(*frozen):
        raise fail(
            "second",
            type(second).__name__,
            "must have the same frozen weights as `first`, which stay fixed on the line",
            "unfreeze what differs",
        )
    if not _all_equal(*(dict(model.named_buffers()) for model in models)):
        raise fail(
            "second",
            type(second).__name__,
            "must have the same buffers as `first`, since statistics cannot be interpolated",
            "replace BatchNorm, for instance with steppe.fix",
        )


def _all_equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        torch.equal(value, others[name]) for name, value in some.items()
    )


def path_figure(result: Path) -> Figure:
    """Loss along the line, one curve for each data set.

    Args:
        result: what to draw.
    """
    figure, axes = new_figure("From one solution to the other", "α", "mean loss")
    for name, row in result.measured.items():
        axes.plot(result.positions, [measured.loss for measured in row], label=name)
    for solution in (0, 1):
        axes.axvline(solution, color="grey", linestyle=":")
    axes.legend()
    return figure
