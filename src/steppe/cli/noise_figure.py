"""The figure of `steppe noise`: the noise in the iterates, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steppe.cli.noise_rows import NoiseRow
from steppe.flatness import new_figure
from steppe.utils.files import writing

_LINES = 6


def draw(rows: Sequence[NoiseRow], path: Path) -> None:
    """Write the figure: independent noise, and the best of each other kind.

    Args:
        rows: what is compared, independent noise with Poisson sampling first.
        path: of the file; its suffix defines the format.
    """
    figure, axes = new_figure(
        "Noise in the iterates of SGD", "steps", "standard deviation, for a clip of 1"
    )
    best: dict[str, NoiseRow] = {}
    for row in sorted(rows, key=lambda row: row.error):
        best.setdefault(row.name.partition("(")[0] + row.name.partition(",")[2], row)
    shown = [rows[0], *(row for row in best.values() if row is not rows[0])][: _LINES + 1]
    steps = np.arange(1, rows[0].steps + 1)
    for row in shown:
        axes.plot(steps, row.spread, "--" if row is rows[0] else "-", label=row.name)
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(title=f"ε = {rows[0].epsilon:.3g}, δ = {rows[0].plan.delta:g}")
    with writing("figure", path):
        figure.savefig(path)
