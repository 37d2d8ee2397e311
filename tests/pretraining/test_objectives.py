"""The contrastive loss, and the views and crops of pictures."""

from __future__ import annotations

import math

import pytest
import torch

from steppe.errors import ConfigurationError
from steppe.pretraining import Contrastive, crop_and_flip, drawn_pictures, strong_view
from steppe.pretraining.objectives import nt_xent


def test_nt_xent_is_the_cross_entropy_written_out() -> None:
    outputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = [row / row.norm() for row in outputs]
    total = 0.0
    for i in range(8):
        others = [math.exp(float(unit[i] @ unit[j]) / 0.5) for j in range(8) if j != i]
        total -= math.log(math.exp(float(unit[i] @ unit[(i + 4) % 8]) / 0.5) / sum(others))
    assert float(nt_xent(outputs, 0.5)) == pytest.approx(total / 8)


def test_a_crop_shifts_each_picture_by_itself_and_flips_half() -> None:
    torch.manual_seed(0)
    picture = torch.arange(16.0).repeat(16, 1)[None]  # brightness is the column
    found = crop_and_flip(picture.expand(200, 1, 16, 16))
    assert found.shape == (200, 1, 16, 16)
    slopes = found[:, 0, 8, 9] - found[:, 0, 8, 7]
    assert set(slopes.tolist()) == {2.0, -2.0}
    assert 60 < int((slopes < 0).sum()) < 140
    middles = (found[:, 0, 8, 7] + found[:, 0, 8, 8]) / 2
    assert len(set(middles.tolist())) == 5  # shifts of −2 to 2 pixels
    assert torch.equal(found[:, 0, 0], found[:, 0, -1])


def test_strong_views_stay_in_range_and_differ() -> None:
    torch.manual_seed(0)
    pictures = torch.rand(6, 3, 16, 16)
    one, two = strong_view(pictures), strong_view(pictures)
    assert one.shape == pictures.shape
    assert one.min() >= 0
    assert one.max() <= 1
    assert (one - two).abs().mean() > 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, r"temperature=0\.0: must be finite and above 0"),
        ({"width": 0}, r"width=0: must be a whole number"),
    ],
)
def test_constants_of_the_contrastive_loss_are_checked(
    changes: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Contrastive(**changes)  # type: ignore[arg-type]


def test_drawn_pictures_are_labelled_by_their_process() -> None:
    data = drawn_pictures(50, size=8, channels=1, seed=4)
    assert data.inputs.shape == (50, 1, 8, 8)
    assert data.targets is not None
    assert data.classes == 7
    assert int(data.targets.max()) < 7
    assert "50 pictures drawn by a program" in data.facts.sentence
    with pytest.raises(ConfigurationError, match=r"channels=2: must be 1 or 3"):
        drawn_pictures(50, channels=2)
