"""Every network by name: its size, its output, and that records do not see each other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import steppe
from steppe import models
from steppe.errors import ConfigurationError
from steppe.gradients.objective import RecordLosses


@dataclass(frozen=True)
class Known:
    name: str
    shape: tuple[int, ...]
    parameters: int


NUMBERS = ("linear", "mlp", "embedding-mlp")  # without classes
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
KNOWN = (
    Known("linear", (256,), 257),
    Known("logistic", GREY, 7_850),
    Known("mlp", (784,), 54_465),
    Known("embedding-mlp", (784,), 54_465),
    Known("scattering-linear", GREY, 39_690),
    Known("patches-linear", COLOUR, 92_160),
    Known("cnn-relu-26k", GREY, 26_010),
    Known("cnn-tanh-26k", GREY, 26_010),
    Known("cnn-tanh-26k-ftrl", GREY, 26_010),
    Known("cnn-opacus-cifar", COLOUR, 131_466),
    Known("cnn-selu-cifar", COLOUR, 550_570),
    Known("cnn-tanh-cifar", COLOUR, 550_570),
    Known("cnn-tanh-cifar-ftrl", COLOUR, 550_570),
    Known("dpnas-mnist", GREY, 213_418),
    Known("dpnas-fmnist", GREY, 214_570),
    Known("dpnas-cifar", COLOUR, 529_434),
    Known("gn-resnet-10", COLOUR, 4_903_242),
    Known("gn-resnet-18", COLOUR, 11_173_962),
    Known("gn-resnet-50", (3, 8, 8), 23_520_842),
    Known("resnet-20", COLOUR, 268_346),
    Known("wrn-16-4", COLOUR, 2_753_818),
    Known("wrn-28-10", (3, 8, 8), 36_500_378),
    Known("efficientnet-lite0", (3, 32, 32), 3_383_818),
    Known("vit", COLOUR, 2_693_578),
)
EACH = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)


def size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_table_is_complete() -> None:
    assert tuple(known.name for known in KNOWN) == models.names()


@EACH
def test_parameter_count(known: Known) -> None:
    assert size(models.create(known.name)) == known.parameters


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("gn-resnet-10", {"channels": 1}, 4_902_090),
        ("resnet-20", {"classes": 100}, 274_196),
        ("linear", {"features": 2, "bias": False}, 2),
    ],
)
def test_parameter_count_with_options(name: str, options: dict[str, int], parameters: int) -> None:
    assert size(models.create(name, **options)) == parameters


# The patch front-end is not fitted yet: `test_patches.py` tests this for it.
@pytest.mark.parametrize(
    "known", [k for k in KNOWN if k.name != "patches-linear"], ids=lambda known: known.name
)
def test_records_do_not_see_each_other(known: Known) -> None:
    torch.manual_seed(0)
    model = models.create(known.name)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(3, *known.shape, generator=generator)
    changed = inputs.clone()
    changed[1] = torch.randn(known.shape, generator=generator)
    with torch.no_grad():
        before, after = model(inputs), model(changed)
    assert before.shape == ((3,) if known.name in NUMBERS else (3, 10))
    assert torch.isfinite(before).all()
    torch.testing.assert_close(after[[0, 2]], before[[0, 2]], rtol=0, atol=1e-5)
    assert (after[1] - before[1]).abs().max() > 1e-4


# Every kind of layer once; the others are more of the same and only slower.
@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("logistic", GREY, {}),
        ("scattering-linear", GREY, {}),
        ("cnn-tanh-26k", GREY, {}),
        ("cnn-opacus-cifar", COLOUR, {}),
        ("resnet-20", (3, 8, 8), {}),
        ("vit", (3, 8, 8), {"size": 8, "width": 24, "depth": 2}),
        pytest.param("gn-resnet-10", (3, 8, 8), {}, marks=pytest.mark.slow),
        pytest.param("wrn-16-4", (3, 8, 8), {}, marks=pytest.mark.slow),
    ],
)
def test_the_engine_accepts_it(
    name: str, shape: tuple[int, ...], options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proven with as many numbers of records as code of the user's is tried with."""
    monkeypatch.setattr(RecordLosses, "depends_on_no_size", False)
    torch.manual_seed(0)
    report = steppe.inspect(models.create(name, **options), torch.zeros(2, *shape))
    assert report.unused == ()


@pytest.mark.parametrize(
    ("name", "near"),
    [("dpnas-minst", "dpnas-mnist"), ("ResNet18", "gn-resnet-18"), ("wrn-16-5", "wrn-16-4")],
)
def test_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"name='{name}': must be one of linear, .*; .* '{near}'"
    ):
        models.create(name)


def test_unknown_option_is_named() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"depth=3: is not an option of 'logistic'; use features, classes\.",
    ):
        models.create("logistic", depth=3)


@pytest.mark.parametrize("name", [known.name for known in KNOWN if known.name != "linear"])
def test_class_count_must_be_a_positive_integer(name: str) -> None:
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ConfigurationError, match=r"classes=.*: must be a whole number"):
            models.create(name, classes=bad)
