"""Procedural pictures: their law, and that nothing but the arguments decides them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from steppe.errors import ConfigurationError
from steppe.procedural import PROCESSES, pictures, pictures_with_labels


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (33, 2), (32, 3), (16, 4)])
def test_pictures_have_256_levels_and_differ(size: int, channels: int) -> None:
    found = pictures(12, size, channels)
    assert found.shape == (12, channels, size, size)
    assert found.dtype == torch.float32
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    torch.testing.assert_close(found * 255, (found * 255).round(), rtol=0, atol=1e-4)
    assert len(found.flatten(1).unique(dim=0)) == 12


def test_a_seed_decides_and_the_global_generator_does_not() -> None:
    first = pictures(300, 8, 1, seed=3)
    torch.manual_seed(5)
    torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1)
    before = torch.get_rng_state()
    assert torch.equal(pictures(270, 8, 1, seed=3), first[:270])  # ends within a second block
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(pictures(20, 8, 1, seed=4), first[:20])


def test_half_of_grey_pictures_are_bright_on_black() -> None:
    grey = pictures_with_labels(1000, 16, 1)
    found = Counter(PROCESSES[number] for number in grey.process)
    assert set(found) == set(PROCESSES)
    assert 400 < found["shapes"] + found["strokes"] < 600
    black = (grey.pictures < 0.05).float().mean((1, 2, 3)) > 0.5
    on_black = grey.process >= PROCESSES.index("shapes")
    assert float(black[on_black].float().mean()) > 0.8
    assert float(black[~on_black].float().mean()) < 0.1


def test_colours_share_their_brightness() -> None:
    drawn = pictures_with_labels(400, 16, 3)
    assert int(drawn.process.max()) < PROCESSES.index("shapes")
    pixels = drawn.pictures.movedim(1, 0).flatten(1)
    correlation = torch.corrcoef(pixels)[0, 1:]
    assert float(correlation.min()) > 0.6
    assert float(correlation.max()) < 0.98


def test_the_spectrum_falls_as_that_of_natural_pictures() -> None:
    """Power proportional to frequency^−a, with a near 2 for natural pictures."""
    found = pictures(512, 64, 1)
    natural = found[pictures_with_labels(512, 64, 1).process < PROCESSES.index("shapes")][:, 0]
    window = torch.hann_window(64, periodic=False)
    centred = (natural - natural.mean((1, 2), keepdim=True)) * window * window[:, None]
    power = torch.fft.rfft2(centred).abs().square().mean(0)
    along = power[0, 2:16].log()
    frequency = torch.arange(2, 16.0).log()
    slope = torch.corrcoef(torch.stack([frequency, along]))[0, 1] * along.std() / frequency.std()
    assert 1.5 < -float(slope) < 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count=0: must be a whole number of at least 1"),
        ({"count": 1, "size": 7}, "size=7: must lie between 8 and 256"),
        ({"count": 1, "channels": 5}, "channels=5: must lie between 1 and 4"),
        ({"count": 1, "seed": 0.5}, "seed=0.5: must be a whole number"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        pictures(**arguments)
