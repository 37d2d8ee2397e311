"""Projection on a public subspace: what lies where, and what comes back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe.clipping import GEP, ClippedSum
from steppe.clipping.clip import PublicGradients
from steppe.clipping.gep import GEPClipper
from steppe.clipping.subspace import chunks, spanned
from steppe.errors import ConfigurationError

CPU = torch.device("cpu")
WEIGHTS = {"w": nn.Parameter(torch.zeros(30, 2))}


def anchors(seed: int = 0, rank: int = 60) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(40, rank) @ torch.randn(rank, 60)


def begun(clip: GEP, matrix: Tensor) -> GEPClipper:
    return clip.begin(WEIGHTS, PublicGradients(len(matrix), lambda: iter(matrix.split(7))))


def test_bases_are_orthonormal_and_lie_in_their_chunks() -> None:
    clipper = begun(GEP(10, 3), anchors())
    assert [tuple(b.shape) for b in clipper.bases] == [(20, 4), (20, 3), (20, 3)]
    for bases in clipper.bases:
        assert torch.allclose(bases.t() @ bases, torch.eye(bases.shape[1]), atol=1e-5)


def test_gradients_that_the_public_ones_span_have_no_residual() -> None:
    matrix = anchors(rank=4)
    clipper = begun(GEP(4, 1, embedding_bound=1e6, residual_bound=1.0), matrix)
    part = clipper.encode(torch.randn(5, 4) @ torch.linalg.svd(matrix)[2][:4])
    assert float(part[:, :60].norm()) < 1e-4
    assert float(part[:, 60:].norm()) * 1e6 > 1.0


def test_more_iterations_come_closer_to_the_largest_directions() -> None:
    torch.manual_seed(3)
    left, _, right = torch.linalg.svd(torch.randn(40, 60), full_matrices=False)
    matrix = left @ torch.diag(0.8 ** torch.arange(40.0)) @ right
    missed = []
    for iterations in (1, 2, 6):
        (bases,) = spanned(
            lambda: iter([matrix]), [(60, 5)], iterations, torch.Generator().manual_seed(0), CPU
        )
        missed.append(float((right[:5] - right[:5] @ bases @ bases.t()).norm()))
    assert missed[0] > missed[1] > missed[2]
    assert missed[2] < 0.05 * missed[0] + 0.2


def test_the_residual_is_taken_before_the_embedding_is_clipped() -> None:
    """What is left over is orthogonal to the subspace, also where the coordinates are clipped."""
    clip = GEP(6, 2, embedding_bound=1e-3, residual_bound=1e3)
    clipper = begun(clip, anchors())
    gradients = torch.randn(4, 60).double()
    residual = clipper.encode(gradients)[:, :60] * clip.residual_bound
    for part, bases in zip(residual.split(30, dim=1), clipper.bases, strict=True):
        assert float((part @ bases.double()).abs().max()) < 1e-5

    class FromClipped(GEPClipper):
        def _parts(self, gradients: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
            _, embedding = super()._parts(gradients, norms)
            factors = self._factors(embedding, clip.embedding_bound) * clip.embedding_bound
            return gradients - self._inside(embedding * factors[:, None]), embedding

    clipper.__class__ = FromClipped
    residual = clipper.encode(gradients)[:, :60] * clip.residual_bound
    assert float((residual[:, :30] @ clipper.bases[0].double()).abs().max()) > 0.1


def test_decode_gives_back_what_was_not_clipped() -> None:
    gradients = torch.randn(6, 60).double()
    whole = begun(GEP(6, 2, embedding_bound=1e3, residual_bound=1e3), anchors())
    assert torch.allclose(whole.decode(whole.encode(gradients).mean(0)), gradients.mean(0))
    biased = begun(GEP(6, 2, embedding_bound=1e3, biased=True), anchors())
    assert biased.width == 6
    found = biased.decode(biased.encode(gradients).mean(0))
    inside = [
        part @ bases.double() @ bases.double().t()
        for part, bases in zip(gradients.mean(0).split(30), biased.bases, strict=True)
    ]
    assert torch.allclose(found, torch.cat(inside))


def test_both_parts_at_their_bound_have_the_length_of_the_sensitivity() -> None:
    clip = GEP(6, 2, embedding_bound=1e-3, residual_bound=1e-4)
    part = begun(clip, anchors()).encode(torch.randn(4, 60).double())
    assert part.norm(dim=1).tolist() == pytest.approx([math.sqrt(2)] * 4)
    assert clip.sensitivity == math.sqrt(2)
    assert GEP(biased=True).sensitivity == 1.0


@pytest.mark.parametrize(
    ("weights", "groups", "bases"), [(10, 3, 4), (7, 7, 7), (268_346, 3, 1000), (11, 2, 11)]
)
def test_chunks_cover_all_weights_and_all_bases(weights: int, groups: int, bases: int) -> None:
    sizes = chunks(weights, groups, bases)
    assert sum(size for size, _ in sizes) == weights
    assert sum(count for _, count in sizes) == bases
    assert all(1 <= count <= size for size, count in sizes)


def test_public_records_that_are_not_finite_are_left_out() -> None:
    matrix = anchors()
    spoilt = matrix.clone()
    spoilt[3, 5] = math.nan
    kept = torch.cat([matrix[:3], matrix[4:]])
    sizes = [(60, 5)]
    wanted, found = (
        spanned(lambda m=m: iter([m]), sizes, 1, torch.Generator().manual_seed(0), CPU)[0]  # type: ignore[misc]
        for m in (kept, spoilt)
    )
    assert torch.allclose(wanted @ wanted.t(), found @ found.t(), atol=1e-4)


@pytest.mark.parametrize("unit", [2.0**-120, 2.0**-83, 2.0**83, 2.0**115])
def test_the_unit_of_public_gradients_does_not_matter(unit: float) -> None:
    """Squares of such numbers leave float32: near 1e25 they are infinite, near 1e-25 zero."""
    matrix = anchors()
    assert not 0 < float((matrix * unit).square().sum()) < math.inf
    usual, found = (begun(GEP(10, 3, power_iterations=2), m) for m in (matrix, matrix * unit))
    for wanted, bases in zip(usual.bases, found.bases, strict=True):
        assert torch.equal(wanted, bases)


def test_one_public_record_may_be_larger_than_all_others_together() -> None:
    """The piece in which it comes is the third of six: sums of earlier pieces are rescaled."""
    matrix = anchors()
    matrix[17] *= 1e25
    clipper = begun(GEP(6, 1), matrix)
    (bases,) = clipper.bases
    assert torch.allclose(bases.t() @ bases, torch.eye(6), atol=1e-5)
    loudest = F.normalize(matrix[17].double(), dim=0).float()
    assert float((loudest @ bases).norm()) == pytest.approx(1, abs=1e-5)
    part = clipper.encode(torch.randn(4, 60))
    assert torch.isfinite(part).all()
    assert (part.norm(dim=1) > 0.1).all()


def test_public_records_without_a_gradient_do_not_choose_the_unit() -> None:
    """They come first; measured against a unit of 1, squares of the others would all be zero."""
    matrix = anchors()
    matrix[:8] = 0.0
    usual, found = (begun(GEP(6, 1), m) for m in (matrix, matrix * 2.0**-83))
    assert torch.equal(usual.bases[0], found.bases[0])


def test_directions_are_orthonormal_where_public_gradients_say_nothing() -> None:
    (bases,) = begun(GEP(6, 1), torch.zeros(40, 60)).bases
    assert torch.allclose(bases.t() @ bases, torch.eye(6), atol=1e-6)
    resumed = begun(GEP(6, 1), torch.full((40, 60), math.nan))
    resumed.load({"queries": 5.0})
    resumed.prepare()
    assert torch.allclose(resumed.bases[0].t() @ resumed.bases[0], torch.eye(6), atol=1e-6)


def test_public_gradients_of_which_none_is_finite_are_refused_at_set_up() -> None:
    public = (torch.full((5, 4), math.nan), torch.zeros(5).long())
    message = (
        r"^public='5 records': must have gradients that are finite at the weights that training "
        r"starts from, and none has; look for values that are missing or huge in them\.$"
    )
    with pytest.raises(ConfigurationError, match=message):
        private(public=public)
    public[0][2] = 1.0  # one is enough for one direction
    private(clip=GEP(1, 1), public=public)


def test_a_subspace_goes_on_while_no_public_gradient_is_finite() -> None:
    matrix = anchors()
    clipper = begun(GEP(6, 1), matrix)
    clipper.prepare()
    (before,) = clipper.bases
    kept = matrix.clone()
    matrix.fill_(math.inf)
    clipper.prepare()
    assert clipper.bases[0] is before
    matrix.copy_(kept)
    clipper.prepare()
    assert clipper.bases[0] is not before


def network(physical: int | None, clip: GEP) -> tuple[ClippedSum, list[int]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    asked: list[int] = []

    def objective(batch: Any) -> Tensor:
        asked.append(len(batch[1]))
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    public = (torch.randn(10, 4), torch.randint(3, (10,)))
    engine = ClippedSum(
        dict(model.named_parameters()), objective, clip, physical_batch=physical, public=public
    )
    return engine, asked


def test_anchors_go_through_the_model_in_physical_batches() -> None:
    bases = []
    for physical in (None, 4):
        engine, asked = network(physical, GEP(3, 1))
        engine.prepare()
        bases.append(engine.clipper.bases[0])  # type: ignore[attr-defined]
        assert asked == ([10] if physical is None else [3, 3, 4])
    assert torch.allclose(bases[0] @ bases[0].t(), bases[1] @ bases[1].t(), atol=1e-4)


def test_the_subspace_is_refreshed_at_the_weights_as_they_are() -> None:
    engine, asked = network(None, GEP(3, 1, refresh_every=2))
    seen = []
    for _ in range(4):
        engine.prepare()
        seen.append(engine.clipper.bases[0])  # type: ignore[attr-defined]
        with torch.no_grad():
            next(iter(engine.parameters.values())).add_(0.1)
    assert asked == [10, 10]
    assert seen[0].equal(seen[1])
    assert seen[2].equal(seen[3])
    assert not seen[0].equal(seen[2])


def test_a_state_of_another_model_is_refused() -> None:
    engine, _ = network(None, GEP(3, 1, refresh_every=2))
    with pytest.raises(ValueError, match=r"clip state's bases=\[\(9, 3\)\]: must have the shapes"):
        engine.clipper.load({"queries": 1.0, "bases.0": torch.zeros(9, 3)})


def test_the_bases_of_a_state_are_found_by_name() -> None:
    """A file may give them back in another order, in which `bases.10` comes before `bases.2`."""
    clip = GEP(bases=12, groups=12, refresh_every=2)
    first = begun(clip, anchors())
    first.prepare()
    stored = dict(sorted(first.state().items()))
    assert list(stored) != list(first.state())
    second = begun(clip, anchors())
    second.load(stored)
    assert all(map(torch.equal, second.bases, first.bases))


def private(**options: Any) -> steppe.Private:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    plan = steppe.Plan(
        delta=1e-3,
        noise_multiplier=1.0,
        population=30,
        batch_size=10,
        steps=2,
        clip=options.pop("clip", GEP(3, 1)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = options.pop("data", None) or (torch.randn(30, 4), torch.randint(3, (30,)))
    return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, **options)


def test_public_records_are_checked_before_any_budget_is_spent() -> None:
    with pytest.raises(
        ValueError, match=r"`public` is required, since GEP finds its subspace with public recor"
    ):
        private()
    with pytest.raises(ValueError, match=r"public='5 records': this clip learns nothing from"):
        private(clip=steppe.Flat(1.0), public=(torch.randn(5, 4), torch.zeros(5).long()))
    two = (torch.randn(2, 4), torch.zeros(2).long())
    with pytest.raises(ValueError, match=r"GEP\.bases=3: gives a group 3 directions, .* the 2 pub"):
        private(public=two)
    private(clip=GEP(3, 3), public=two)  # one for each group
    with pytest.raises(ValueError, match=r"public=a batch: must go through .*\n.*same sizes"):
        private(public=(torch.randn(5, 7), torch.zeros(5).long()))
    with pytest.raises(ValueError, match="The batch holds tensors of different lengths"):
        private(public=(torch.randn(5, 4), torch.zeros(4).long()))


@pytest.mark.parametrize("given", ["the same", "a view", "the labels", "a list"])
def test_private_records_are_not_public(given: str) -> None:
    inputs, labels = data = torch.randn(30, 4), torch.randint(3, (30,))
    public = {
        "the same": data,
        "a view": (inputs[::3], torch.zeros(10).long()),
        "the labels": (torch.randn(30, 4), labels),
        "a list": [inputs[:10], labels[:10]],
    }[given]
    with pytest.raises(ValueError, match=r"are the private records, but a clip uses public"):
        private(data=data, public=public)
    arrays = tuple(part.numpy()[:20] for part in data)
    with pytest.raises(ValueError, match=r"are the private records, but a clip uses public"):
        private(data=arrays, public=(inputs[10:], labels[10:]))
    private(data=arrays, public=(inputs[20:], labels[20:]))


def test_the_statement_says_that_public_records_were_looked_at() -> None:
    promised = private(public=(torch.randn(5, 4), torch.zeros(5).long())).statement()
    assert promised.public_records == 5
    assert "The clip also read 5 records given as public" in str(promised)
    assert promised.to_dict()["public_records"] == 5
    none = private(clip=steppe.Flat(1.0)).statement()
    assert none.to_dict()["public_records"] == 0
    assert "given as public" not in str(none)


def test_the_physical_batch_leaves_room_for_written_out_gradients() -> None:
    wide = private(public=(torch.randn(5, 4), torch.zeros(5).long())).engine.physical_batch
    flat = private(clip=steppe.Flat(1.0)).engine.physical_batch
    assert wide is not None
    assert flat is not None
    assert wide < flat


def test_dp_adam_does_not_know_the_noise_of_these_clips() -> None:
    weight = nn.Parameter(torch.zeros(2))
    for clip in (GEP(3), steppe.Quantile()):
        plan = steppe.Plan(
            delta=1e-3, noise_multiplier=1.0, population=30, batch_size=10, steps=2, clip=clip
        )
        with pytest.raises(ValueError, match=r"clip=.*: must have constant noise"):
            steppe.DPAdam.for_plan([weight], plan)
        with pytest.raises(ValueError, match=r"clip=.*: must have constant noise"):
            steppe.DPAdam([weight], noise_std=0.1).require_noise_of(plan)
