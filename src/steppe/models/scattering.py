"""A fixed scattering front-end: wavelets, moduli, averages, and a linear head that learns.

The scattering transform (Bruna and Mallat, "Invariant scattering convolution networks", 2013)
describes a picture by how much it oscillates, where, how finely and in which direction, without a
weight to learn. A private linear head on top of it is a strong and cheap baseline (Tramèr and
Boneh, "Differentially private learning needs better features", 2021): all of the budget goes into
one small convex problem.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.models.front_end import FixedFrontEnd, FrontEnd
from steppe.utils import validation

_ANGLES = 8
_SIGMA = 0.8  # width of the finest wavelet, in pixels
_FREQUENCY = 0.75 * math.pi  # of the finest wavelet, in radians a pixel
_SLANT = 0.5  # a wavelet is twice as long across its oscillation as along it
_SHRINK = 4  # pixels between two places of the output: two octaves
_PATHS = 1 + 2 * _ANGLES + _ANGLES**2
# Found on 10,000 held-out records of Fashion-MNIST, see docs/defaults.md.
_LOUDNESS = 0.7  # exponent of a coefficient: as for the ear, twice the energy is not twice as loud
_SURROUND = 0.4  # share of the mean of 3×3 places that is taken off each


class Scattering(FrontEnd):
    """Scattering coefficients of a picture: two octaves, eight directions, up to second order.

    For a picture x the maps are, averaged by a Gaussian φ and kept at every fourth pixel: x itself;
    |x ∗ ψ| for the 16 wavelets ψ; ||x ∗ ψ| ∗ ψ'| for the fine ψ and the coarse ψ', 64 pairs. Then,
    within the picture: coefficients are taken to the power 0.7 and each place loses a part of what
    its neighbours share, which makes features less alike; groups of maps are brought to mean 0 and
    variance 1, and the whole to norm 1.

    Args:
        side: height and width of a picture, a multiple of 4.
        colours: number of colours; each is transformed by itself.
        groups: how many groups the 81 maps of a colour are normalised in; must divide 81.
        mirror: average the features with those of the mirror image.

    Guarantees:
        A record's features depend on that record and on constants alone, nothing is learned or
        counted: training on them has the sensitivity of training on the pictures, and computing
        them once before training costs no privacy.

    Examples:
        >>> Scattering(side=28)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 3969])
    """

    fine: Tensor
    coarse: Tensor
    windows: Tensor
    average: Tensor
    average_halved: Tensor
    contrast: Tensor

    def __init__(
        self, side: int = 28, colours: int = 1, groups: int = 27, mirror: bool = False
    ) -> None:
        super().__init__()
        if side % _SHRINK or side < 2 * _SHRINK:
            raise validation.fail(
                "side", side, "must be a multiple of 4, at least 8", "pad or crop"
            )
        validation.positive_integer("colours", colours)
        if _PATHS % validation.positive_integer("groups", groups):
            raise validation.fail("groups", groups, f"must divide {_PATHS}", "use 27")
        self.side = side
        self.colours = colours
        self.groups = groups
        self.mirror = mirror
        padded = side + 2 * _SHRINK
        fine, coarse, windows = _wavelets(padded)
        # Not in the state dict: constants, and a trained head fits any copy of them.
        self.register_buffer("fine", fine, persistent=False)
        self.register_buffer("coarse", coarse, persistent=False)
        self.register_buffer("windows", windows, persistent=False)
        self.register_buffer("average", _average(side, padded, 1), persistent=False)
        self.register_buffer("average_halved", _average(side, padded // 2, 2), persistent=False)
        self.register_buffer("contrast", _contrast(side // _SHRINK), persistent=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one picture: (colours, side, side)."""
        return self.colours, self.side, self.side

    @property
    def features(self) -> int:
        """Numbers in the description of one picture."""
        return self.colours * _PATHS * (self.side // _SHRINK) ** 2

    def forward(self, pictures: Tensor) -> Tensor:
        """Features (records, features) of pictures (records, colours, side, side)."""
        if pictures.shape[1:] != self.shape:
            raise validation.fail(
                "pictures",
                tuple(pictures.shape),
                f"must have the shape (records, *{self.shape})",
                "set side and colours to those of the pictures",
            )
        found = self._normalised(self.maps(pictures))
        if self.mirror:
            found = found + self._normalised(self.maps(pictures.flip(-1)))
            found = F.normalize(found)
        return found

    def maps(self, pictures: Tensor) -> Tensor:
        """The coefficients before normalisation: (records, colours · 81, side / 4, side / 4)."""
        flat = pictures.reshape(-1, 1, self.side, self.side)
        padded = F.pad(flat, (_SHRINK,) * 4, mode="reflect")
        spectrum = torch.fft.fft2(padded)
        fine = _modulus(torch.fft.ifft2(spectrum * self.fine))
        parts = (
            padded.flatten(2) @ self.average,
            fine.flatten(2) @ self.average,
            self._coarse(spectrum) @ self.average_halved,
            self._coarse(torch.fft.fft2(fine)) @ self.average_halved,
        )
        grid = self.side // _SHRINK
        return torch.cat(parts, dim=1).reshape(pictures.shape[0], -1, grid, grid)

    def _coarse(self, spectrum: Tensor) -> Tensor:
        """|signal ∗ ψ'| for the coarse wavelets ψ', at every second pixel of both axes, flattened.

        A wavelet's spectrum is one blob, so only the window of frequencies around it is turned
        back. Moving that window to the origin multiplies the signal by a pure oscillation, which
        the modulus does not see; so nothing is aliased and a quarter of the work is left.
        """
        half = math.isqrt(self.windows.shape[1])
        flat = spectrum.flatten(-2)
        if torch.compiler.is_exporting():  # ONNX indexes real numbers alone; here that is slower
            seen = torch.view_as_complex(torch.view_as_real(flat)[..., self.windows, :])
        else:
            seen = flat[..., self.windows]
        seen = seen * self.coarse
        signal = torch.fft.ifft2(seen.unflatten(-1, (half, half)))
        return _modulus(signal).flatten(-2).flatten(1, -2)

    def _normalised(self, maps: Tensor) -> Tensor:
        loud = maps.sign() * maps.abs().pow(_LOUDNESS)
        apart = loud.flatten(2) @ self.contrast
        grouped = F.group_norm(apart, self.colours * self.groups, eps=1e-6)
        return F.normalize(grouped.flatten(1))


class ScatteringLinear(FixedFrontEnd):
    """Scattering features and a linear head without a bias.

    Args:
        side: height and width of a picture.
        classes: number of labels.
        colours: number of colours.
        groups: groups of maps that are normalised together, see `Scattering`.
        mirror: average the features with those of the mirror image.

    Guarantees:
        Only `head` learns. `features` may be computed once for all records, see `Scattering`.

    Examples:
        >>> model = ScatteringLinear(side=8, classes=3)
        >>> pictures = torch.rand(5, 1, 8, 8)
        >>> torch.allclose(model(pictures), model.head(model.features(pictures)))
        True
    """

    def __init__(
        self,
        side: int = 28,
        classes: int = 10,
        colours: int = 1,
        groups: int = 27,
        mirror: bool = False,
    ) -> None:
        validation.positive_integer("classes", classes)
        front = Scattering(side, colours, groups, mirror)
        # No bias: it would be a feature of size 1 beside features of norm 1, take half of every
        # clipped squared norm, and say what the part that all pictures share can say as well.
        super().__init__(front, nn.Linear(front.features, classes, bias=False))


def scattering_linear(
    side: int = 28, classes: int = 10, colours: int = 1, groups: int = 27
) -> nn.Module:
    """Scattering with a linear head; colour pictures are averaged with their mirror image."""
    return ScatteringLinear(side, classes, colours, groups, mirror=colours > 1)


def _modulus(signal: Tensor) -> Tensor:
    # Five times as fast as Tensor.abs, which goes through a complex result.
    squares = torch.view_as_real(signal).square()
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def _wavelets(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Spectra of the fine wavelets, of the coarse ones on their windows, and the windows.

    Returns:
        fine (8, size, size); coarse (8, size² / 4); places of the coarse windows in a flattened
        spectrum (8, size² / 4).
    """
    angles = [math.pi * k / _ANGLES for k in range(_ANGLES)]
    fine = torch.stack([_morlet(size, _SIGMA, _FREQUENCY, angle) for angle in angles])
    whole = torch.stack([_morlet(size, 2 * _SIGMA, _FREQUENCY / 2, angle) for angle in angles])
    windows = torch.stack([_window(size, _FREQUENCY / 2, angle) for angle in angles])
    coarse = whole.flatten(1).gather(1, windows) / 4  # for ifft2 of a quarter of the places
    return fine.float(), coarse.float(), windows


def _morlet(size: int, sigma: float, frequency: float, angle: float) -> Tensor:
    """Spectrum of a Morlet wavelet, (size, size): a Gaussian around its frequency, 0 at 0.

    In space it is (exp(i ξ·u) − κ) times a Gaussian envelope; κ makes its mean exactly 0. The
    spectrum of samples is the sum over all aliases of the continuous one.
    """
    step = 2 * math.pi / size
    down, right = math.sin(angle), math.cos(angle)
    turns = torch.arange(-2, 3, dtype=torch.float64) * 2 * math.pi
    axis = (torch.arange(size, dtype=torch.float64) * step)[:, None] + turns
    y = axis[:, None, :, None]
    x = axis[None, :, None, :]
    along, across = right * x + down * y, (right * y - down * x) / _SLANT

    def gaussian(centre: float) -> Tensor:
        exponent = -0.5 * sigma**2 * ((along - centre) ** 2 + across**2)
        return exponent.exp().sum((-2, -1))

    moved, still = gaussian(frequency), gaussian(0.0)
    return moved - moved[0, 0] / still[0, 0] * still


def _window(size: int, frequency: float, angle: float) -> Tensor:
    """Places of the size/2 × size/2 frequencies nearest to a wavelet's own, in order."""
    half = size // 2

    def axis(centre: float) -> Tensor:
        first = round(centre / (2 * math.pi) * size) - half // 2
        return (first + torch.arange(half)) % size

    rows, columns = axis(frequency * math.sin(angle)), axis(frequency * math.cos(angle))
    return (rows[:, None] * size + columns).flatten()


def _average(side: int, size: int, step: int) -> Tensor:
    """The Gaussian average at every fourth pixel, as a matrix (size², (side / 4)²).

    The places lie symmetrically in the picture, so that a mirror image has mirrored maps.

    Args:
        side: pixels of the picture along one axis.
        size: samples of the padded signal along one axis.
        step: pixels from one sample to the next.
    """
    sigma = 2 * _SIGMA
    places = torch.arange(side // _SHRINK, dtype=torch.float64) * _SHRINK + (_SHRINK - 1) / 2
    samples = torch.arange(size, dtype=torch.float64) * step - _SHRINK
    weights = (-0.5 * ((places[:, None] - samples) / sigma) ** 2).exp()
    axis = weights / weights.sum(1, keepdim=True)
    return torch.kron(axis, axis).T.contiguous().float()


def _contrast(grid: int) -> Tensor:
    """What takes a part of the mean around it off each place, as a matrix (grid², grid²).

    At the edge the outermost places stand for those beyond it.
    """
    near = (torch.arange(grid)[:, None] + torch.arange(-1, 2)).clamp(0, grid - 1)
    axis = F.one_hot(near, grid).sum(1) / 3
    return torch.eye(grid * grid) - _SURROUND * torch.kron(axis, axis).T
