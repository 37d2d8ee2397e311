"""The figure of `steppe budget`: ε along the run, for its noise and for half and twice as much."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from steppe.cli.parsing import require_writable
from steppe.errors import ConfigurationError
from steppe.flatness import new_figure
from steppe.plan import Plan
from steppe.utils.files import writing
from steppe.utils.validation import one_of

_FORMATS = (".png", ".svg", ".pdf")
_POINTS = 12


def draw(plan: Plan, path: Path) -> None:
    """Write the figure.

    Args:
        plan: the run.
        path: of the file; its suffix defines the format.
    """
    figure, axes = new_figure("What the run has cost after each step", "steps", "ε")
    for factor, style in ((0.5, ":"), (1.0, "-"), (2.0, "--")):
        sigma = plan.sigma * factor
        try:
            run = replace(plan, epsilon=None, noise_multiplier=sigma)
        except ConfigurationError:  # half the noise may be too little for a guarantee
            continue
        taken = _spread(run.total_steps)
        costs = [run.epsilon_spent(steps) for steps in taken]
        axes.plot(taken, costs, style, label=f"σ = {sigma:.4g}")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(title=f"δ = {plan.delta:g}")
    with writing("figure", path):
        figure.savefig(path)


def check(path: Path) -> None:
    """Check path and suffix before anything is computed."""
    require_writable("figure", path)
    one_of("figure", path.suffix, _FORMATS, f"name it {path.stem or 'budget'}.svg")


def _spread(total: int) -> list[int]:
    """Numbers of steps from the first to the last, denser at the start where ε is steep."""
    points = min(_POINTS, total)
    return sorted({max(1, math.ceil(total * (i / points) ** 2)) for i in range(1, points + 1)})
