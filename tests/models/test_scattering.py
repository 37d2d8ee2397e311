"""The scattering front-end against its definition and its closed properties."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from steppe import models
from steppe.errors import ConfigurationError
from steppe.models.scattering import Scattering, ScatteringLinear, _morlet

ANGLES = [math.pi * k / 8 for k in range(8)]
FINE = {"sigma": 0.8, "frequency": 0.75 * math.pi}
COARSE = {"sigma": 1.6, "frequency": 0.375 * math.pi}


def strokes(records: int = 3, side: int = 28) -> Tensor:
    """Smooth pictures: blurred random dots."""
    generator = torch.Generator().manual_seed(0)
    dots = torch.rand(records, 1, side + 8, side + 8, generator=generator)
    return F.avg_pool2d((dots > 0.9).float() * 3, 9, stride=1)


def in_space(size: int, sigma: float, frequency: float, angle: float) -> Tensor:
    """A Morlet wavelet by its formula at pixels −size/2 … size/2 − 1, in double precision."""
    axis = torch.arange(size, dtype=torch.float64) - size // 2
    y, x = axis[:, None], axis[None, :]
    along = math.cos(angle) * x + math.sin(angle) * y
    across = math.cos(angle) * y - math.sin(angle) * x
    envelope = torch.exp(-(along**2 + (across * 0.5) ** 2) / (2 * sigma**2)).to(torch.complex128)
    wave = torch.exp(1j * frequency * along)
    kappa = (wave * envelope).sum() / envelope.sum()
    return (wave - kappa) * envelope * 0.5 / (2 * math.pi * sigma**2)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("kind", [FINE, COARSE], ids=["fine", "coarse"])
def test_a_wavelet_is_a_morlet_of_mean_zero(kind: dict[str, float], angle: float) -> None:
    spectrum = _morlet(36, **kind, angle=angle)
    assert float(spectrum[0, 0]) == 0
    direct = torch.fft.fft2(torch.fft.ifftshift(in_space(36, **kind, angle=angle)))
    torch.testing.assert_close(spectrum.to(torch.complex128), direct, rtol=0, atol=2e-4)


def test_the_filters_together_lose_and_add_little_energy() -> None:
    """Littlewood-Paley: |φ|² + ½ Σ (|ψ(ω)|² + |ψ(−ω)|²) ≤ 1, so that no distance grows."""
    size = 36
    omega = torch.fft.fftfreq(size, dtype=torch.float64) * 2 * math.pi
    low = torch.exp(-(1.6**2) * (omega[:, None] ** 2 + omega**2))
    total = torch.zeros(size, size, dtype=torch.float64)
    for kind in (FINE, COARSE):
        for angle in ANGLES:
            square = _morlet(size, **kind, angle=angle) ** 2
            total += (square + square.flip(0, 1).roll((1, 1), (0, 1))) / 2
    assert float((low + total).max()) < 1.05
    inside = omega.abs()[:, None].maximum(omega.abs()) < 0.8 * math.pi
    assert float((low + total)[inside].min()) > 0.1  # no frequency is lost


def obvious(pictures: Tensor) -> Tensor:
    """The definition, at full resolution and in double precision."""
    padded = F.pad(pictures.double(), (4, 4, 4, 4), mode="reflect")
    size = padded.shape[-1]
    banks = [torch.stack([_morlet(size, **k, angle=a) for a in ANGLES]) for k in (FINE, COARSE)]
    fine, coarse = ((torch.fft.ifft2(torch.fft.fft2(padded) * b)).abs() for b in banks)
    second = torch.fft.ifft2(torch.fft.fft2(fine)[:, :, None] * banks[1]).abs().flatten(1, 2)
    places = torch.arange(pictures.shape[-1] // 4, dtype=torch.float64) * 4 + 1.5
    weights = torch.exp(-((places[:, None] - torch.arange(size) + 4) ** 2) / (2 * 1.6**2))
    weights /= weights.sum(1, keepdim=True)
    return weights @ torch.cat([padded, fine, coarse, second], dim=1) @ weights.T


@pytest.mark.parametrize("side", [28, 32])
def test_the_fast_way_is_the_definition(side: int) -> None:
    pictures = strokes(side=side)
    wanted = obvious(pictures)
    found = Scattering(side).maps(pictures).double()
    assert found.shape == (3, 81, side // 4, side // 4)
    for part in (slice(0, 1), slice(1, 9), slice(9, 17), slice(17, 81)):
        error = (found[:, part] - wanted[:, part]).norm() / wanted[:, part].norm()
        # The coarse windows cut the tails of the Gaussians, and |.| is sampled at every 2nd pixel.
        assert float(error) < 0.03, part


def test_features_are_normalised_within_each_record() -> None:
    pictures = torch.cat([strokes(), torch.zeros(1, 1, 28, 28)])
    front = Scattering()
    features = front(pictures)
    assert features.shape == (4, front.features) == (4, 81 * 49)
    torch.testing.assert_close(features[:3].norm(dim=1), torch.ones(3))
    groups = features[:3].reshape(3, 27, -1)
    torch.testing.assert_close(groups.mean(-1), torch.zeros(3, 27), rtol=0, atol=1e-6)
    assert torch.isfinite(features).all()  # a blank picture has no scale


def test_features_are_louder_than_their_surround() -> None:
    """Each map to the power 0.7, minus 0.4 of the mean of 3×3 places, standardised by threes."""
    pictures = strokes(records=2) - 0.2  # the first map has both signs
    front = Scattering()
    maps = front.maps(pictures).double()
    assert bool((maps < 0).any())
    loud = torch.where(maps < 0, -1.0, 1.0) * maps.abs() ** 0.7
    near = [[min(max(k + d, 0), 6) for k in range(7)] for d in (-1, 0, 1)]
    around = sum(loud[..., rows, :][..., columns] for rows in near for columns in near) / 9
    groups = (loud - 0.4 * around).reshape(2, 27, -1)
    variance = groups.var(-1, correction=0, keepdim=True)
    groups = (groups - groups.mean(-1, keepdim=True)) / (variance + 1e-6).sqrt()
    wanted = groups.flatten(1) / groups.flatten(1).norm(dim=1, keepdim=True)
    torch.testing.assert_close(front(pictures).double(), wanted, rtol=1e-3, atol=1e-5)


def test_a_small_shift_moves_features_less_than_pixels() -> None:
    dots = (torch.rand(8, 1, 20, 20, generator=torch.Generator().manual_seed(0)) > 0.9).float()
    pictures = F.pad(dots, (4, 4, 4, 4))
    shifted = pictures.roll(1, -1)
    front = Scattering()
    pixels = (shifted - pictures).norm() / pictures.norm()
    maps = front.maps(pictures)[:, 1:]
    moved = (front.maps(shifted)[:, 1:] - maps).norm() / maps.norm()
    assert float(moved) < 0.5 * float(pixels)


def test_a_mirror_image_has_mirrored_maps() -> None:
    pictures = strokes()
    maps = Scattering().maps(pictures)
    mirrored = Scattering().maps(pictures.flip(-1)).flip(-1)
    turned = [(8 - k) % 8 for k in range(8)]
    torch.testing.assert_close(mirrored[:, 0], maps[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mirrored[:, 1:9], maps[:, 1:9][:, turned], rtol=1e-3, atol=1e-5)
    both = Scattering(mirror=True)
    torch.testing.assert_close(both(pictures), both(pictures.flip(-1)))


def test_colours_are_described_one_by_one() -> None:
    pictures = torch.cat([strokes(2, 32), strokes(2, 32).flip(-1), strokes(2, 32).flip(-2)], dim=1)
    maps = Scattering(32, colours=3).maps(pictures)
    torch.testing.assert_close(maps[:, 81:162], Scattering(32).maps(pictures[:, 1:2]))


def test_batches_do_not_matter_and_only_the_head_learns() -> None:
    torch.manual_seed(0)
    model = ScatteringLinear()
    pictures = strokes(7)
    features = model.features(pictures)
    torch.testing.assert_close(features, model.front(pictures), rtol=0, atol=1e-6)
    torch.testing.assert_close(model.head(features), model(pictures), rtol=0, atol=1e-6)
    assert list(model.state_dict()) == ["head.weight"]


def test_all_of_a_clipped_gradient_is_about_features() -> None:
    """With norm 1 and no bias a record's gradient is as long as its error; a bias makes it √2."""
    torch.manual_seed(0)
    model = ScatteringLinear()
    features, label = model.features(strokes(1)), torch.tensor([3])
    F.cross_entropy(model.head(features), label).backward()
    error = model.head(features).detach().softmax(1) - F.one_hot(label, 10)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert length == pytest.approx(float(error.norm()), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="side=30: must be a multiple of 4"):
        Scattering(30)
    with pytest.raises(ConfigurationError, match="groups=10: must divide 81"):
        Scattering(groups=10)
    with pytest.raises(ConfigurationError, match=r"must have the shape \(records, \*\(1, 28, 28\)"):
        models.create("scattering-linear")(torch.zeros(2, 3, 32, 32))
