"""Networks for the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from steppe.utils import validation


def mlp(
    features: int = 784, classes: int | None = None, width: int = 64, depth: int = 2
) -> nn.Module:
    """A multilayer perceptron with ReLU.

    Args:
        features: numbers in one record, whatever their shape.
        classes: number of labels; None for one number per record, as for a regression.
        width: units of a hidden layer.
        depth: number of hidden layers.

    Examples:
        >>> mlp(8, classes=3)(torch.zeros(2, 8)).shape, mlp(8)(torch.zeros(2, 8)).shape
        (torch.Size([2, 3]), torch.Size([2]))
    """
    features = validation.positive_integer("features", features)
    return nn.Sequential(nn.Flatten(), *_layers(features, classes, width, depth))


def embedding_mlp(
    features: int = 784,
    classes: int | None = None,
    blocks: Sequence[Sequence[int]] = (),
    width: int = 64,
    depth: int = 2,
    embedding: int = 4,
) -> nn.Module:
    """A multilayer perceptron that embeds the categories of a table first.

    Args:
        features: numbers in one record.
        classes: number of labels; None for one number per record, as for a regression.
        blocks: first input and number of inputs of each column of categories, which are inputs of 0
            or 1. A run from a table knows them.
        width: units of a hidden layer.
        depth: number of hidden layers.
        embedding: numbers that a column with more categories becomes.

    Examples:
        >>> embedding_mlp(9, classes=3, blocks=[(1, 8)])(torch.zeros(2, 9)).shape
        torch.Size([2, 3])
    """
    features = validation.positive_integer("features", features)
    known = tuple(_block(block, features) for block in blocks)
    front = Embedded(features, known, validation.positive_integer("embedding", embedding))
    return nn.Sequential(front, *_layers(front.width, classes, width, depth))


class Embedded(nn.Module):
    """Replaces the inputs of each column of categories by a few learnt numbers.

    Args:
        features: numbers in one record.
        blocks: first input and number of inputs of each column of categories.
        embedding: numbers that a column with more categories becomes.

    Attributes:
        width: numbers in one record afterwards.
    """

    def __init__(self, features: int, blocks: Sequence[tuple[int, int]], embedding: int) -> None:
        super().__init__()
        self._blocks = tuple((first, size) for first, size in blocks if size > embedding)
        inside = {at for first, size in self._blocks for at in range(first, first + size)}
        if len(inside) < sum(size for _, size in self._blocks):
            raise validation.fail("blocks", blocks, "must not overlap", "give each column once")
        self._rest = [at for at in range(features) if at not in inside]
        self.tables = nn.ModuleList(
            nn.Linear(size, embedding, bias=False) for _, size in self._blocks
        )
        self.width = len(self._rest) + embedding * len(self._blocks)

    def forward(self, inputs: Tensor) -> Tensor:
        parts = [inputs[:, first : last + 1] for first, last in _runs(self._rest)]
        for (first, size), table in zip(self._blocks, self.tables, strict=True):
            parts.append(table(inputs[:, first : first + size]))
        return torch.cat(parts, 1)


def _runs(places: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive places.

    Examples:
        >>> _runs([0, 1, 2, 5])
        [(0, 2), (5, 5)]
    """
    found: list[tuple[int, int]] = []
    for place in places:
        if found and found[-1][1] == place - 1:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found


def _layers(inputs: int, classes: int | None, width: int, depth: int) -> list[nn.Module]:
    width = validation.positive_integer("width", width)
    depth = validation.positive_integer("depth", depth)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    if classes is None:
        return [*layers, nn.Linear(inputs, 1), nn.Flatten(0)]
    return [*layers, nn.Linear(inputs, validation.positive_integer("classes", classes))]


def _block(block: Any, features: int) -> tuple[int, int]:
    pair = tuple(block) if isinstance(block, Sequence) else ()
    if len(pair) != 2 or not all(type(number) is int for number in pair):
        rule = "must be pairs: the first input and the number of inputs of a column"
        raise validation.fail("blocks", block, rule, "write [[3, 8]], say")
    if pair[0] < 0 or pair[1] < 1 or sum(pair) > features:
        rule = f"must lie within the {features} inputs of a record"
        raise validation.fail("blocks", list(pair), rule, "correct it")
    return pair
