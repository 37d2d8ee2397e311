"""Honest user code over pixels: windows, patches, pooling, padding and channels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from isolation_case import Honest
from isolation_networks import pictures, using, within
from torch import Tensor, nn
from torch.nn import functional as F


class Flat(nn.Module):
    """All numbers of a picture in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(192, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.view(len(x), -1))))


class Windows(nn.Module):
    """Swin: windows of pixels, shifted by a roll, attend within themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, h: Tensor) -> Tensor:
        x = h.permute(0, 2, 3, 1)
        b, height, width, c = x.shape
        x = torch.roll(x, shifts=(-2, -2), dims=(1, 2))
        x = x.view(b, height // 4, 4, width // 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        q, k, v = self.qkv(x.reshape(-1, 16, c)).chunk(3, dim=-1)
        x = F.scaled_dot_product_attention(q, k, v)
        x = x.view(b, height // 4, width // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        x = torch.roll(x.reshape(b, height, width, c), shifts=(2, 2), dims=(1, 2))
        return x.permute(0, 3, 1, 2)


class PatchesByConvolution(nn.Module):
    """ViT: patches by a convolution of their size, then a mean over them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.places = nn.Conv2d(3, 6, 4, stride=4), nn.Parameter(torch.randn(1, 4, 6))
        self.norm, self.last = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        return self.last(self.norm(patches + self.places).mean(1))


class PatchesByUnfold(nn.Module):
    """Patches cut out by unfold, laid out as rows of one long product."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(48, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5)
        rows = torch.tanh(self.inner(patches.reshape(-1, 48)))
        return self.last(rows.view(x.shape[0], -1, 6).amax(1))


class Folded(nn.Module):
    """Patches by F.unfold, weighed, and put back by F.fold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 16, 1))

    def forward(self, h: Tensor) -> Tensor:
        columns = F.unfold(h, 2, stride=2) * self.weight
        return F.fold(columns, h.shape[2:], 2, stride=2)


class Residual(nn.Module):
    """A block with group normalisation and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4)

    def forward(self, h: Tensor) -> Tensor:
        return F.relu(h + self.norm(self.conv(h)), inplace=True)


class SqueezeExcite(nn.Module):
    """Channels weighed by their mean over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(self.up(torch.relu(self.down(F.adaptive_avg_pool2d(h, 1)))))


class ChannelShuffle(nn.Module):
    """Channels of two groups in turn."""

    def forward(self, h: Tensor) -> Tensor:
        b, c, height, width = h.shape
        return h.view(b, 2, c // 2, height, width).transpose(1, 2).reshape(b, c, height, width)


class UNet(nn.Module):
    """Down and up again, with what was there before beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 6, 2, stride=2), nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.join = nn.Conv2d(8, 4, 1)

    def forward(self, h: Tensor) -> Tensor:
        return self.join(torch.cat([h, self.up(torch.tanh(self.down(h)))], dim=1))


class DynamicFilter(nn.Module):
    """Each record's own filter, by one grouped convolution with a group for each."""

    def __init__(self) -> None:
        super().__init__()
        self.makes = nn.Linear(4, 4)

    def forward(self, h: Tensor) -> Tensor:
        b, c, height, width = h.shape
        filters = self.makes(h.mean((2, 3))).view(b * c, 1, 1, 1)
        return F.conv2d(h.reshape(1, b * c, height, width), filters, groups=b * c).view_as(h)


class Turned(nn.Module):
    """Each picture turned by an angle that it gives itself.

    With a margin of zeros: with `padding_mode="border"`, NaN ends the process in torch 2.13.
    """

    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Linear(4, 6)
        nn.init.zeros_(self.angle.weight)
        self.angle.bias.data.copy_(torch.tensor([0.9, 0.1, 0.0, -0.1, 0.9, 0.0]))

    def forward(self, h: Tensor) -> Tensor:
        theta = self.angle(h.mean((2, 3))).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(h.shape), align_corners=False)
        return F.grid_sample(h, grid, align_corners=False)


class Frames(nn.Module):
    """Video: the frames of every record through one network, then a recurrent layer over them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gru = nn.Conv2d(1, 4, 3, stride=2), nn.GRU(4, 6, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        frames = self.conv(x.flatten(0, 1)[:, None]).amax((2, 3))
        return self.last(self.gru(frames.unflatten(0, (len(x), -1)))[0][:, -1])


def flipped(h: Tensor) -> Tensor:
    """Beside itself in other positions."""
    return h - h.flip(3) + h.rot90(1, (2, 3)) + h.transpose(2, 3)


def shuffled(h: Tensor) -> Tensor:
    """Channels laid out as pixels, and back."""
    return F.pixel_unshuffle(torch.tanh(F.pixel_shuffle(h, 2)), 2)


def resized(h: Tensor) -> Tensor:
    """Made small and large again."""
    small = F.interpolate(h, scale_factor=0.5, mode="bilinear", align_corners=False)
    return F.interpolate(small, size=h.shape[-2:], mode="nearest")


def pooled(h: Tensor) -> Tensor:
    """Three ways to halve a picture."""
    return F.adaptive_max_pool2d(h, 4) + F.max_pool2d(h, 2) - F.avg_pool2d(h, 2, ceil_mode=True)


def softmax_over_pixels(h: Tensor) -> Tensor:
    """Where in the picture, for each channel."""
    return h.flatten(2).softmax(-1).view(h.shape) * h


def coordinates(h: Tensor) -> Tensor:
    """CoordConv: the place of each pixel beside its channels."""
    line = torch.linspace(-1, 1, h.shape[-1])
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    grid = torch.stack([rows, columns]).expand(h.shape[0], -1, -1, -1)
    return torch.cat([h[:, :2], grid * h[:, 2:]], 1)


def _pixels(name: str, change: Any, kind: str = "forward", channels: int = 4) -> Honest:
    return Honest(name, kind, using(within(change, channels), pictures))


def _whole(name: str, model: Any, kind: str = "forward") -> Honest:
    return Honest(name, kind, using(model, pictures))


CASES = (
    _whole("laid flat", Flat, "shape"),
    _pixels("windows of pixels", Windows, "shape"),
    _whole("patches by convolution", PatchesByConvolution, "shape"),
    _whole("patches by unfold", PatchesByUnfold, "shape"),
    _pixels("patches and back", Folded),
    _pixels("residual block", Residual),
    _pixels("squeeze and excite", SqueezeExcite),
    _pixels("channels shuffled", ChannelShuffle),
    _pixels("down and up", UNet),
    _pixels("filter of each record", DynamicFilter, "shape"),
    _pixels("turned by itself", Turned),
    _whole("frames of a record", Frames, "shape"),
    _pixels("reflected margin", partial(nn.Conv2d, 4, 4, 3, padding=1, padding_mode="reflect")),
    _pixels("circular margin", partial(nn.Conv2d, 4, 4, 3, padding=1, padding_mode="circular")),
    _pixels("turned and flipped", flipped),
    _pixels("pixels shuffled", shuffled),
    _pixels("resized", resized),
    _pixels("pooled", pooled),
    _pixels("softmax over pixels", softmax_over_pixels),
    _pixels("places beside", coordinates),
    _pixels("channels dropped", partial(nn.Dropout2d, 0.3)),
    _pixels("rolled over pixels", lambda h: h * h.roll((1, 2), (2, 3))),
    _pixels("mean of each channel off", lambda h: h - h.mean((2, 3), keepdim=True)),
    _pixels("whole picture standardised", lambda h: F.layer_norm(h, h.shape[1:])),
)
