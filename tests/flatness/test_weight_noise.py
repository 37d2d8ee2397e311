"""Rays and robust accuracy of a model whose accuracy under noise is known."""

from __future__ import annotations

import math

import pytest
import torch
from flatness_quadratics import quadratic_surface, rotated, seeded, sign_surface
from torch import nn
from torch.nn import functional as F

from steppe.errors import ConfigurationError, DataError
from steppe.flatness import Rays, Surface, percent_gain, random_rays, robust_accuracy

# P(1 + z > 0) for standard normal z.
RIGHT = 0.5 * (1 + math.erf(1 / math.sqrt(2)))


def test_rays_leave_in_both_directions() -> None:
    rays = random_rays(sign_surface(1.0), seeded(), [0.0, 0.5, 2.0], rays=40)
    assert rays.distances == (0.0, 0.5, 2.0)
    assert all(row[:2] == (1.0, 1.0) for row in rays.accuracies)
    survivors = [row[2] for row in rays.accuracies]
    assert set(survivors) == {0.0, 1.0}
    share = sum(survivors) / 40
    assert 0.25 < share < 0.75
    assert rays.means == pytest.approx((1.0, 1.0, share))
    assert rays.wideness == pytest.approx((1 + share) / 2)  # the solution itself does not count


def test_steps_have_the_length_they_say() -> None:
    torch.manual_seed(0)
    model = nn.Linear(50, 2)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    seen: list[float] = []

    class Spy(Surface):
        def accuracy_at(self, weights: torch.Tensor) -> float:
            seen.append((weights - start.double()).norm().item())
            return 1.0

    data = [(torch.zeros(1, 50), torch.zeros(1, dtype=torch.long))]
    random_rays(Spy(model, F.cross_entropy, data), seeded(), [1.0, 3.0], rays=2)
    assert seen == pytest.approx([1.0, 3.0, 1.0, 3.0])


def test_gain_is_signed_and_relative() -> None:
    base, wider = Rays((1.0, 2.0), ((0.5, 0.3),)), Rays((1.0, 2.0), ((0.6, 0.4),))
    assert percent_gain(base, wider) == pytest.approx(25.0)
    assert percent_gain(wider, base) == pytest.approx(-20.0)
    with pytest.raises(ConfigurationError, match=r"distances=\(1.0,\): must equal the base's"):
        percent_gain(base, Rays((1.0,), ((0.6,),)))
    with pytest.raises(ConfigurationError, match=r"wideness=0.0: of the base must be above 0"):
        percent_gain(Rays((1.0,), ((0.0,),)), Rays((1.0,), ((0.6,),)))


def test_same_seed_same_rays() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(64, 5), torch.randint(3, (64,)))]
    surface = Surface(nn.Linear(5, 3), F.cross_entropy, data)
    assert random_rays(surface, seeded(1), [1.0]) == random_rays(surface, seeded(1), [1.0])
    assert random_rays(surface, seeded(1), [1.0]) != random_rays(surface, seeded(2), [1.0])


@pytest.mark.parametrize(
    ("weight", "noise", "relative"), [(1.0, 1.0, False), (5.0, 5.0, False), (5.0, 1.0, True)]
)
def test_robust_accuracy(weight: float, noise: float, relative: bool) -> None:
    copies = 1000
    found = robust_accuracy(sign_surface(weight), seeded(), noise, relative, copies)
    error = 4 * math.sqrt(RIGHT * (1 - RIGHT) / copies)
    assert found.mean == pytest.approx(RIGHT, abs=error)
    assert found.deviation == pytest.approx(math.sqrt(RIGHT * (1 - RIGHT)), rel=0.2)
    assert found.clean == 1.0


def test_no_noise_is_clean() -> None:
    found = robust_accuracy(sign_surface(1.0), seeded(), 0.0, copies=1)
    assert found.mean == found.clean == 1.0
    assert found.deviation == 0.0


def test_refusals() -> None:
    surface = sign_surface(1.0)
    with pytest.raises(ConfigurationError, match="noise=-1: must be finite and not negative"):
        robust_accuracy(surface, seeded(), -1)
    with pytest.raises(ConfigurationError, match=r"distances=\[0.0\]: must hold one above 0"):
        random_rays(surface, seeded(), [0.0])
    with pytest.raises(ConfigurationError, match=r"distances=-1.0: must be finite and not"):
        random_rays(surface, seeded(), [-1.0])
    with pytest.raises(DataError, match="Measure the loss instead"):
        robust_accuracy(quadratic_surface(rotated([1.0, 2.0])), seeded(), 0.1)
