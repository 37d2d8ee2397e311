"""The searched cells against the edge lists of the paper's code, and their start."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe import models
from steppe.models.dpnas import CIFAR, FMNIST, MNIST, Cell, Genotype

# Operations by the numbers of the paper's code; 0 carries nothing.
NUMBERED = {1: "pool", 3: "skip", 4: "relu", 5: "selu", 6: "tanh"}
EDGES = {
    "CIFAR": "501 102 512 603 113 023 504 014 024 334 505 515 625 135 645",
    "MNIST": "501 602 312 003 513 423 004 614 024 334 105 015 125 135 445",
    "FMNIST": "301 002 512 403 513 323 004 014 624 334 505 615 125 435 145",
}


@pytest.mark.parametrize(
    ("name", "genotype"), [("CIFAR", CIFAR), ("MNIST", MNIST), ("FMNIST", FMNIST)]
)
def test_edges(name: str, genotype: Genotype) -> None:
    edges = [tuple(map(int, edge)) for edge in EDGES[name].split()]
    assert genotype == tuple((NUMBERED[op], a, b) for op, a, b in edges if op)


def test_a_cell_is_sums_side_by_side() -> None:
    torch.manual_seed(0)
    cell = Cell(8, 16, FMNIST)
    x = torch.randn(2, 8, 6, 6)
    weights = [edge[0].weight for edge in cell.edges if isinstance(edge, nn.Sequential)]

    def convolved(node: Tensor, weight: Tensor) -> Tensor:
        return F.group_norm(F.conv2d(node, weight, padding=1, groups=16), 8)

    def pooled(node: Tensor) -> Tensor:
        return F.max_pool2d(node, 3, stride=1, padding=1)

    first = cell.entry[0]
    assert isinstance(first, nn.Conv2d)
    n0 = F.group_norm(F.conv2d(x, first.weight), 8)
    n1 = n0
    n2 = F.selu(convolved(n1, weights[0]))
    n3 = torch.relu(convolved(n0, weights[1])) + F.selu(convolved(n1, weights[2])) + n2
    n4 = torch.tanh(convolved(n2, weights[3])) + n3
    n5 = F.selu(convolved(n0, weights[4])) + torch.tanh(convolved(n1, weights[5])) + pooled(n2)
    n5 = n5 + torch.relu(convolved(n3, weights[6])) + pooled(n4)
    torch.testing.assert_close(cell(x), torch.cat([n1, n2, n3, n4, n5], 1))


def test_the_engine_accepts_a_cell() -> None:
    torch.manual_seed(0)
    assert steppe.inspect(Cell(8, 8, MNIST), torch.zeros(2, 8, 5, 5)).unused == ()


def test_start() -> None:
    torch.manual_seed(0)
    for model in (models.dpnas_cifar(), models.resnet20()):
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                area = layer.kernel_size[0] * layer.kernel_size[1]
                expected = math.sqrt(2 / (area * layer.out_channels))
                error = 4.5 / math.sqrt(2 * layer.weight.numel())
                assert layer.weight.std().item() == pytest.approx(expected, rel=error)
            assert not (isinstance(layer, nn.GroupNorm) and layer.affine)
