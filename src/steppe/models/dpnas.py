"""DPNASNet: three networks that a search under differential privacy found (Cheng et al. 2022).

A network is a stem, three cells with pools between them, and a head. A cell has six nodes; each
node but the first is a sum of operations on earlier nodes, and the cell returns nodes one to five
side by side. Normalisation has no weights anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steppe.models.initialisation import he_fan_out_
from steppe.utils import validation

_NODES = 5  # after the first, which is the cell's input

# (operation, from node, to node); edges of the search that carry nothing are left out.
Genotype = tuple[tuple[str, int, int], ...]

MNIST: Genotype = (
    ("selu", 0, 1),
    ("tanh", 0, 2),
    ("skip", 1, 2),
    ("selu", 1, 3),
    ("relu", 2, 3),
    ("tanh", 1, 4),
    ("skip", 3, 4),
    ("pool", 0, 5),
    ("pool", 2, 5),
    ("pool", 3, 5),
    ("relu", 4, 5),
)
FMNIST: Genotype = (
    ("skip", 0, 1),
    ("selu", 1, 2),
    ("relu", 0, 3),
    ("selu", 1, 3),
    ("skip", 2, 3),
    ("tanh", 2, 4),
    ("skip", 3, 4),
    ("selu", 0, 5),
    ("tanh", 1, 5),
    ("pool", 2, 5),
    ("relu", 3, 5),
    ("pool", 4, 5),
)
CIFAR: Genotype = (
    ("selu", 0, 1),
    ("pool", 0, 2),
    ("selu", 1, 2),
    ("tanh", 0, 3),
    ("pool", 1, 3),
    ("selu", 0, 4),
    ("skip", 3, 4),
    ("selu", 0, 5),
    ("selu", 1, 5),
    ("tanh", 2, 5),
    ("pool", 3, 5),
    ("tanh", 4, 5),
)


def dpnas_mnist(classes: int = 10) -> nn.Module:
    """DPNASNet for MNIST, 1×28×28: 213,418 parameters.

    Args:
        classes: number of labels.
    """
    return _grey(MNIST, classes)


def dpnas_fmnist(classes: int = 10) -> nn.Module:
    """DPNASNet for Fashion-MNIST, 1×28×28: 214,570 parameters.

    Args:
        classes: number of labels.
    """
    return _grey(FMNIST, classes)


def dpnas_cifar(classes: int = 10) -> nn.Module:
    """DPNASNet for CIFAR, 3×32×32: 529,434 parameters.

    Args:
        classes: number of labels.
    """
    return _network(CIFAR, 3, 48, (48, 96, 192), side=4, activation=nn.SELU, classes=classes)


def _grey(genotype: Genotype, classes: int) -> nn.Module:
    return _network(genotype, 1, 32, (32, 32, 64), side=3, activation=nn.Tanh, classes=classes)


def _network(
    genotype: Genotype,
    channels: int,
    stem: int,
    widths: tuple[int, ...],
    side: int,
    activation: type[nn.Module],
    classes: int,
) -> nn.Module:
    """Stem, cells and head; `side` is the edge of the image after the pools."""
    validation.positive_integer("classes", classes)
    layers: list[nn.Module] = [nn.Conv2d(channels, stem, 3, padding=1, bias=False), _norm(stem)]
    inputs = stem
    for width in widths:
        layers += [Cell(inputs, width, genotype), nn.MaxPool2d(2)]
        inputs = _NODES * width
    layers += [
        nn.Conv2d(inputs, 128, 1, bias=False),
        _norm(128),
        nn.Flatten(),
        nn.Linear(128 * side * side, 128),
        activation(),
        nn.Linear(128, classes),
    ]
    return he_fan_out_(nn.Sequential(*layers))


class Cell(nn.Module):
    """One searched cell: `inputs` channels in, five times `width` channels out."""

    def __init__(self, inputs: int, width: int, genotype: Genotype) -> None:
        super().__init__()
        self.entry = nn.Sequential(nn.Conv2d(inputs, width, 1, bias=False), _norm(width))
        self.edges = nn.ModuleList(_operation(name, width) for name, _, _ in genotype)
        self.ends = [(source, target) for _, source, target in genotype]

    def forward(self, x: Tensor) -> Tensor:
        nodes: list[Tensor] = [self.entry(x)]
        for node in range(1, _NODES + 1):
            arriving = [
                edge(nodes[source])
                for edge, (source, target) in zip(self.edges, self.ends, strict=True)
                if target == node
            ]
            nodes.append(sum(arriving[1:], start=arriving[0]))
        return torch.cat(nodes[1:], dim=1)


def _operation(name: str, width: int) -> nn.Module:
    if name == "skip":
        return nn.Identity()
    if name == "pool":
        return nn.MaxPool2d(3, stride=1, padding=1)
    activation = {"relu": nn.ReLU, "selu": nn.SELU, "tanh": nn.Tanh}[name]
    # The code of the paper calls this a separable convolution, but it has no pointwise half.
    depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
    return nn.Sequential(depthwise, _norm(width), activation())


def _norm(width: int) -> nn.Module:
    return nn.GroupNorm(8, width, affine=False)
