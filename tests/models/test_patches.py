"""The patch front-end against its definition, and what it takes and refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import steppe
from steppe.errors import ConfigurationError, MisuseError, StorageError
from steppe.isolation import prove
from steppe.models import Patches, PatchesLinear
from steppe.models.patches import input_checks
from steppe.models.patches.layer import _tents
from steppe.models.patches.whitening import FeatureWhitening, principal
from steppe.procedural import pictures


@pytest.fixture(scope="module")
def front() -> Patches:
    """A small front-end for pictures of 16 × 16 in colour."""
    return Patches(side=16, dictionary=16).fit(pictures=500)


@pytest.fixture(scope="module")
def shown() -> Tensor:
    return pictures(37, 16, seed=9)


def definition(front: Patches, picture: Tensor) -> Tensor:
    """Features of one picture by their definition, patch by patch, in double precision."""
    layer = front.layer
    tents = _tents(12, 3).double()

    def pooled(one: Tensor) -> Tensor:
        maps = one.new_zeros(2, len(layer.dictionary), 3, 3)
        for row in range(12):
            for column in range(12):
                patch = one[:, row : row + 5, column : column + 5].flatten()
                white = layer.whitening.double() @ patch + layer.offset.double()
                unit = white / (white.norm() + layer.softness.double())
                response = layer.dictionary.double() @ unit
                both = torch.stack([response - 0.25, -response - 0.25]).clamp_min(0)
                maps += both[:, :, None, None] * tents[:, row, None] * tents[:, column]
        return maps

    maps = pooled(picture) + pooled(picture.flip(-1))
    # Places first, then signs and patches.
    rooted = maps.permute(2, 3, 0, 1).flatten().sqrt()
    found = F.normalize(rooted - rooted.mean(), dim=0)
    centred = found - front.whitening.mean.double()
    directions = front.whitening.directions.double()
    centred -= (directions @ centred * front.whitening.shrink.double()) @ directions
    return F.normalize(centred, dim=0)


@pytest.mark.parametrize("in_bfloat16", [False, True])
def test_features_are_the_definition(front: Patches, shown: Tensor, in_bfloat16: bool) -> None:
    chosen, front.layer.in_bfloat16 = front.layer.in_bfloat16, in_bfloat16
    try:
        found = front(shown[:3]).double()
    finally:
        front.layer.in_bfloat16 = chosen
    wanted = torch.stack([definition(front, picture.double()) for picture in shown[:3]])
    error = (found - wanted).norm(dim=1)
    assert float(error.max()) < (0.05 if in_bfloat16 else 1e-3)


def test_whitened_patches_have_the_covariance_one() -> None:
    front = Patches(side=16, colours=1, dictionary=4).fit(pictures=400)
    seen = F.unfold(pictures(400, 16, 1, seed=11), 5).transpose(1, 2).flatten(0, 1)
    white = front.layer.whitened(seen)
    variances = torch.linalg.eigvalsh(torch.cov(white.T))
    assert float(variances[-1]) < 1.4  # below 1 where the regular part counts
    assert float(variances[-5:].min()) > 0.6
    torch.testing.assert_close(front.layer.dictionary.norm(dim=1), torch.ones(4))


def test_principal_directions_are_those_of_the_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    scales = 0.8 ** torch.arange(60.0)
    rows = torch.randn(500, 60, generator=generator) * scales
    rows -= rows.mean(0)
    variances, directions = principal(rows, 10, seed=0)
    exact, axes = torch.linalg.eigh(rows.T @ rows / 500)
    torch.testing.assert_close(variances, exact.flip(0)[:10], rtol=1e-3, atol=0)
    torch.testing.assert_close(
        (directions @ axes.flip(1)[:, :10]).abs(), torch.eye(10), rtol=0, atol=0.02
    )


def test_whitening_multiplies_by_the_root_of_r_over_lambda_plus_r() -> None:
    rows = torch.randn(400, 30, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 31.0)
    mean, covariance = rows.mean(0), torch.cov(rows.T, correction=0)
    layer = FeatureWhitening(30, directions=12, reference=8)
    layer.fit_(rows.clone(), seed=0)
    values, axes = torch.linalg.eigh(covariance)
    scale = values[-8]
    factors = torch.where(torch.arange(30) >= 18, (scale / (values + scale)).sqrt(), 1.0)
    wanted = (rows - mean) @ axes * factors @ axes.T
    torch.testing.assert_close(layer(rows), wanted, rtol=0.01, atol=0.1)


def test_a_record_has_the_same_bits_wherever_it_lies(front: Patches, shown: Tensor) -> None:
    found = front.transform(shown)
    assert torch.equal(found.norm(dim=1).round(decimals=2), torch.ones(37))
    assert torch.equal(front.transform(shown.flip(0)).flip(0), found)
    assert torch.equal(front.transform(shown[20:21]), found[20:21])
    torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1)
    assert torch.equal(front.transform(shown), found)
    assert torch.equal(front.transform(shown, dtype=torch.float16).float(), found)
    changed = torch.cat([shown[:5], torch.rand(32, 3, 16, 16)])
    assert torch.equal(front.transform(changed)[:5], found[:5])


def test_a_mirror_image_has_the_same_features_where_maps_are_added(shown: Tensor) -> None:
    both = Patches(side=16, dictionary=8, seed=1).fit(pictures=400)
    torch.testing.assert_close(both(shown), both(shown.flip(-1)), rtol=0, atol=2e-3)
    assert both.mirror
    assert not Patches(side=16, colours=1).mirror
    one = Patches(side=16, dictionary=8, mirror=False).fit(pictures=400)
    assert float((one(shown) - one(shown.flip(-1))).norm(dim=1).min()) > 0.05


def test_fitting_takes_nothing_from_the_global_generator_and_is_repeated(front: Patches) -> None:
    before = torch.get_rng_state()
    again = Patches(side=16, dictionary=16).fit(pictures=500)
    assert torch.equal(torch.get_rng_state(), before)
    assert again.digest() == front.digest()
    assert Patches(side=16, dictionary=16, seed=1).fit(pictures=500).digest() != front.digest()


def test_a_state_dict_carries_the_front_end(front: Patches, shown: Tensor) -> None:
    model = PatchesLinear(side=16, dictionary=16)
    model.front = front
    assert not model.head.weight.any()
    torch.nn.init.normal_(model.head.weight)
    loaded = PatchesLinear(side=16, dictionary=16)
    assert not loaded.front.fitted
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(shown), model(shown))
    assert torch.equal(loaded.features(shown), front.transform(shown))
    empty = PatchesLinear(side=16, dictionary=16)
    empty.load_state_dict(PatchesLinear(side=16, dictionary=16).state_dict())
    with pytest.raises(MisuseError, match="has no constants yet; call `fit\\(\\)` or load"):
        empty(shown)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"side": 64}, id="averaged first"),
        pytest.param({"scattering": True}, id="with scattering", marks=pytest.mark.slow),
    ],
)
def test_isolation_is_proven_with_the_front_end_inside(options: dict[str, int | bool]) -> None:
    given = {"side": 16, "colours": 3, "dictionary": 4, "classes": 3, **options}
    model = PatchesLinear(**given)  # type: ignore[arg-type]
    model.front.fit(pictures=1400 if "scattering" in options else 300)
    side, colours = given["side"], given["colours"]
    shown = torch.rand(24, colours, side, side)  # type: ignore[call-overload]
    labels = torch.arange(24) % 3

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    prove(model, objective, (shown[:2], labels[:2]))
    plan = steppe.Plan(epsilon=3, delta=1e-5, population=24, batch_size=12, steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = steppe.make_private(
        model, optimizer, TensorDataset(shown, labels), plan, loss=F.cross_entropy
    )
    for batch in private:
        private.step(batch)
    assert model.head.weight.any()


def test_sizes_follow_from_the_pictures() -> None:
    assert Patches().features == 9_216
    assert Patches(28, 1).features == 8_192
    assert Patches(96, 3).features == 9_216
    beside = Patches(32, 3, scattering=True)
    assert beside.features == 24_768
    assert (beside.sizes.directions, beside.sizes.reference) == (600, 500)
    assert (Patches().sizes.directions, Patches().sizes.reference) == (300, 200)


def test_features_are_kept_and_found_again(
    front: Patches, shown: Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "features"
    found = front.transform(shown, cache=folder)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    written = path.stat().st_mtime_ns
    assert torch.equal(front.transform(shown, cache=folder), found)
    assert path.stat().st_mtime_ns == written
    other = Patches(side=16, dictionary=16, seed=1).fit(pictures=500)
    assert not torch.equal(other.transform(shown, cache=folder), found)
    front.transform(shown[:36], cache=folder)
    assert len([*folder.iterdir()]) == 3
    assert not capsys.readouterr().err


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"?", lambda data: data[:-2]])
def test_a_damaged_file_is_computed_again(
    front: Patches,
    shown: Tensor,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = front.transform(shown, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert torch.equal(front.transform(shown, cache=tmp_path), found)
    assert (
        "damaged, or of other constants; the features are computed again" in capsys.readouterr().err
    )
    assert path.read_bytes() == whole


def test_a_file_of_other_constants_is_computed_again(
    front: Patches, shown: Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = front.transform(shown, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    other = Patches(side=16, dictionary=16, seed=1).fit(pictures=500)
    other.transform(shown, cache=tmp_path)
    (beside,) = {*tmp_path.iterdir()} - {path}
    beside.replace(path)
    assert torch.equal(front.transform(shown, cache=tmp_path), found)
    assert "of other constants" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_an_error(
    front: Patches, shown: Tensor, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        front.transform(shown, cache=tmp_path / "file" / "features")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :1], r"must have the shape \(records, 3, 16, 16\)"),
        (lambda x: x[..., :4, :4], r"must have the shape \(records, 3, 16, 16\)"),
        (lambda x: (x * 255).to(torch.uint8), "'torch.uint8': must be floats from 0 to 1; convert"),
        (
            lambda x: x * 255,
            "pictures='with values above 1': must lie between 0 and 1; divide 8-bit values by 255",
        ),
        (lambda x: x - 0.5, "pictures='with values below 0': must lie between 0 and 1"),
        (lambda x: x.where(x != x[3, 0, 0, 0], math.nan), "'with NaN or infinity': must be finite"),
        (lambda x: x[:, :, :1, :1].expand(-1, 3, 16, 16) * 0, "every picture has a single colour"),
        (lambda x: x[:0], "has no records"),
    ],
)
def test_other_pictures_are_refused(
    front: Patches, shown: Tensor, change: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        front.transform(change(shown))


def test_one_constant_picture_among_others_has_finite_features(
    front: Patches, shown: Tensor
) -> None:
    for level in (0.0, 0.5, 1.0):
        found = front.transform(torch.cat([torch.full((1, 3, 16, 16), level), shown]))
        assert torch.isfinite(found).all()


def test_too_little_memory_is_said_before_any_work(
    front: Patches, shown: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_checks, "free_memory", lambda: 10**8)
    with pytest.raises(
        ConfigurationError,
        match=r"pictures=37: 288 features each need 0\.5 GB of memory and 0\.1 GB are free; "
        "use dictionary=4",
    ):
        front.transform(shown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 15}, "side=15: must lie between 16 and 96: a patch has 5 × 5 pixels"),
        ({"side": 97}, "side=97: must lie between 16 and 96"),
        ({"colours": 5}, "colours=5: must lie between 1 and 4"),
        ({"dictionary": 0}, "dictionary=0: must be a whole number of at least 1"),
        ({"side": 18, "scattering": True}, "side=18: must be a multiple of 4"),
        ({"seed": -1}, "seed=-1: must be a whole number of at least 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Patches(**options)  # type: ignore[arg-type]


def test_too_few_procedural_pictures_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="pictures=100: are too few for 72 directions"):
        Patches(side=16, dictionary=16).fit(pictures=100)
