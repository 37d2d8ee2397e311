"""Every figure draws without a screen, and nothing heavy is imported before one is asked for."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from flatness_quadratics import first, quadratic_surface, rotated, seeded, sign_surface
from matplotlib.figure import Figure

from steppe import flatness

SURFACE = quadratic_surface(rotated([1.0, 2.0, 3.0]), torch.ones(3, dtype=torch.float64))


def figures() -> dict[str, Figure]:
    track = flatness.CosineTrack()
    for _ in range(4):
        track.update(torch.randn(3))
    descent = flatness.noisy_descent((8.0, 7.5), seeded(), steps=5)
    robust = [flatness.robust_accuracy(sign_surface(1.0), seeded(), s, copies=3) for s in (0.1, 1)]
    rays = flatness.random_rays(sign_surface(1.0), seeded(), [0.5, 2.0], rays=3)
    norms = flatness.gradient_norm_histogram(torch.rand(20), clip=0.3)
    data = {"all": [(torch.ones(2, dtype=torch.float64), torch.zeros(2))]}
    path = flatness.interpolate(SURFACE.model, SURFACE.model, first, data)
    plane = flatness.Plane((-1.0, 0.0, 1.0), ((1.0, 2.0, 3.0), (0.0, 1.0, 2.0), (5.0, 5.0, 6.0)))
    return {
        "eigenvalues": flatness.eigenvalue_figure(
            {"a": flatness.top_eigenvalues(SURFACE, seeded(), 2)}
        ),
        "density": flatness.density_figure({"a": flatness.spectral_density(SURFACE, seeded(), 3)}),
        "trace": flatness.trace_figure({"a": flatness.hessian_trace(SURFACE, seeded())}),
        "line": flatness.line_figure({"a": flatness.loss_line(SURFACE, seeded(), points=3)}),
        "plane": flatness.plane_figure(plane),
        "path": flatness.path_figure(path),
        "rays": flatness.rays_figure({"a": rays, "b": rays}),
        "robustness": flatness.robustness_figure({"a": robust}),
        "norms": flatness.norms_figure({"epoch 1": norms}),
        "cosines": flatness.cosine_figure({"a": track.result()}),
        "two minima": flatness.two_minima_figure({"a": descent}),
        "no path": flatness.two_minima_figure({}),
        "descent": flatness.descent_figure({"a": descent}),
    }


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    return figures()


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_figure_can_be_saved(drawn: dict[str, Figure], kind: str) -> None:
    for name, figure in drawn.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind)
        assert len(buffer.getvalue()) > 2000, name
        assert figure.axes[0].get_title()


def test_the_first_direction_runs_to_the_right() -> None:
    plane = flatness.Plane((-1.0, 0.0, 1.0), ((0.0,) * 3, (1.0,) * 3, (2.0,) * 3))
    contours = flatness.plane_figure(plane).axes[0].collections[0]
    corners = contours.get_paths()[0].vertices  # the lowest band of the loss
    assert corners[:, 0].max() < -0.8
    assert corners[:, 1].min() == -1.0
    assert corners[:, 1].max() == 1.0


def test_figures_hold_the_numbers(drawn: dict[str, Figure]) -> None:
    lines = drawn["rays"].axes[0].get_lines()
    assert len(lines) == 2 * (3 + 1)
    means = lines[3].get_ydata()
    assert next(iter(means)) == 1.0
    legend = drawn["norms"].axes[0].get_legend()
    assert legend is not None
    assert "% clipped, 0 beyond" in legend.get_texts()[0].get_text()


def test_import_is_light() -> None:
    code = (
        "import sys, steppe.flatness, steppe.models; "
        "print(sorted({'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
