"""Networks for tables: their sizes, their embeddings, and private steps on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import steppe
from steppe import models
from steppe.errors import ConfigurationError


def test_a_category_becomes_its_row_of_the_table() -> None:
    network = models.create("embedding-mlp", features=9, classes=3, blocks=[[1, 6], [7, 2]])
    front = network[0]
    assert front.width == 1 + 4 + 2  # a column with fewer categories stays as it is
    x = torch.zeros(2, 9)
    x[0, 3] = x[:, 0] = x[:, 7] = 1.0
    found = front(x)
    torch.testing.assert_close(found[0, 3:], front.tables[0].weight[:, 2])
    torch.testing.assert_close(found[1, 3:], torch.zeros(4))  # a missing one
    torch.testing.assert_close(found[:, :3], x[:, [0, 7, 8]])
    assert network(x).shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": [[0, 5], [4, 5]]}, "must not overlap"),
        ({"blocks": [[7, 5]]}, "must lie within the 9 inputs"),
        ({"blocks": [[1]]}, "must be pairs"),
        ({"width": 0}, "width=0"),
        ({"depth": 0}, "depth=0"),
        ({"classes": 0}, "classes=0"),
    ],
)
def test_sizes_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        models.create("embedding-mlp", **{"features": 9, "classes": 2, **options})


@pytest.mark.parametrize("name", ["mlp", "embedding-mlp"])
@pytest.mark.parametrize("classes", [2, None])
def test_steps_are_proven_private(name: str, classes: int | None) -> None:
    options: dict[str, Any] = {"blocks": [[2, 6]]} if name == "embedding-mlp" else {}
    model = models.create(name, features=8, classes=classes, width=8, **options)
    x = torch.randn(40, 8)
    y = torch.randint(2, (40,)) if classes else torch.randn(40)
    plan = steppe.Plan(epsilon=3.0, delta=1e-3, population=40, batch_size=20, steps=2)
    private = steppe.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        (x, y),
        plan,
        loss=F.cross_entropy if classes else F.mse_loss,
    )
    for batch in private:
        private.step(batch)
    assert private.report().isolation == "proven"
