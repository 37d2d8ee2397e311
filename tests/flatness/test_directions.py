"""Cosines of directions that follow each other."""

from __future__ import annotations

import math

import pytest
import torch

from steppe.errors import ConfigurationError
from steppe.flatness import CosineTrack


def test_known_angles() -> None:
    track = CosineTrack()
    for angle in (0, 30, 90, 270):
        radians = math.radians(angle)
        track.update(7 * torch.tensor([math.cos(radians), math.sin(radians)], dtype=torch.float64))
    assert track.result().values == pytest.approx([math.sqrt(3) / 2, 0.5, -1.0])
    assert track.result().mean == pytest.approx((math.sqrt(3) / 2 - 0.5) / 3)


def test_a_direction_may_be_overwritten_afterwards() -> None:
    """Optimisers reuse their buffers."""
    track, buffer = CosineTrack(), torch.tensor([1.0, 0.0])
    track.update(buffer)
    buffer.copy_(torch.tensor([0.0, 1.0]))
    track.update(buffer)
    assert track.result().values == (0.0,)


def test_zero_points_nowhere() -> None:
    track = CosineTrack()
    track.update(torch.zeros(2))
    track.update(torch.ones(2))
    assert track.result().values == (0.0,)


def test_refusals() -> None:
    track = CosineTrack()
    track.update(torch.ones(2))
    with pytest.raises(ConfigurationError, match=r"direction=\(3,\): must have 2 entries like the"):
        track.update(torch.ones(3))
    with pytest.raises(ConfigurationError, match="direction=nan: must be finite; check the step"):
        track.update(torch.tensor([math.nan, 1.0]))
