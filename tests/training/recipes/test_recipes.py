"""Defaults by rule: what they are, what they depend on, and that they train."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import steppe
from steppe import models
from steppe.errors import ConfigurationError
from steppe.training import recipes


def network(**changes: object) -> recipes.Recipe:
    constants = {"population": 60_000, "epsilon": 2.0, "weights": 26_010, **changes}
    return recipes.choose(**constants)  # type: ignore[arg-type]


def test_every_constant_has_a_reason_and_is_printed() -> None:
    recipe = network()
    text = str(recipe)
    for name in ("delta", "batch_size", "steps", "clip", "momentum", "point", "rate", "averages"):
        assert name in text
        assert recipe.reasons[name] in text
    assert "SAT(radius=0.03)" in text


def test_the_plan_spends_the_budget_and_no_more() -> None:
    plan = network(epsilon=1.0).plan()
    assert 0.99 < plan.epsilon_spent() <= 1.0
    assert plan.population_source == "declared"


@pytest.mark.parametrize(
    ("population", "delta"), [(60_000, 1e-5), (10_000, 1e-5), (9_999, 1e-4), (1_000_000, 1e-7)]
)
def test_delta_is_the_power_of_ten_below_one_over_the_population(
    population: int, delta: float
) -> None:
    recipe = network(population=population, rate=1.0)
    assert recipe.delta == pytest.approx(delta)
    assert recipe.delta < 1 / population


def test_small_data_have_at_most_half_of_the_records_in_a_batch() -> None:
    recipe = network(population=100, rate=1.0)
    assert recipe.batch_size == 50
    assert recipe.reasons["batch_size"].endswith(", at most half")


@pytest.mark.parametrize(
    ("population", "batch"), [(1, 1), (100, 50), (3_000, 256), (60_000, 2_000), (10**7, 8_192)]
)
def test_the_batch_is_a_share_within_limits(population: int, batch: int) -> None:
    assert network(population=population, rate=1.0).batch_size == batch


def test_the_rate_grows_with_the_budget_and_shrinks_with_the_model() -> None:
    rates = [network(epsilon=epsilon).rate for epsilon in (1.0, 2.0, 3.0)]
    assert rates == sorted(rates)
    assert rates[0] < rates[2]
    assert network(weights=10_000_000).rate < network().rate


def test_only_the_rate_times_the_clip_counts() -> None:
    small, large = network(clip=0.1), network(clip=1.0)
    assert small.rate * small.clip == pytest.approx(large.rate * large.clip, rel=0.02)


def test_the_ratio_of_signal_to_noise_is_what_a_run_without_signal_shows() -> None:
    """Noise alone moves the weights by σ·C·√(weights·steps)/batch, as the rule assumes."""
    recipe = network(population=400, weights=500, steps=30, momentum=0.0, rate=1.0, clip=0.5)
    plan = recipe.plan()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(30, 500, generator=generator) * plan.sigma * 0.5 / plan.batch_size
    moved = float(noise.sum(0).norm())
    assert recipes.signal_to_noise(plan, 500) == pytest.approx(0.5 / moved, rel=0.1)


def test_given_constants_are_kept_and_said_to_be() -> None:
    recipe = network(batch_size=512, steps=7, rate=0.3, point=steppe.Here(), delta=1e-6)
    assert (recipe.batch_size, recipe.steps, recipe.rate, recipe.delta) == (512, 7, 0.3, 1e-6)
    for name in ("batch_size", "steps", "rate", "point", "delta"):
        assert recipe.reasons[name] == "given"
    assert recipe.reasons["clip"] != "given"


def test_a_model_with_fixed_features_is_recognised() -> None:
    head = recipes.for_model(models.create("scattering-linear"), population=60_000, epsilon=2.0)
    assert head.point == steppe.Here()
    assert head.rate > 10 * network().rate
    assert recipes.for_model(models.create("cnn-relu-26k"), population=60_000, epsilon=2.0) == (
        network()
    )


def test_a_head_takes_few_steps_of_large_batches() -> None:
    """lr · C as found best on held-out records of Fashion-MNIST at ε = 1, 2, 3."""
    model = models.create("scattering-linear")
    for epsilon, best in ((1.0, 23.0), (2.0, 43.0), (3.0, 62.0)):
        head = recipes.for_model(model, population=60_000, epsilon=epsilon)
        assert (head.batch_size, head.steps) == (12_000, 200)
        assert head.rate * head.clip == pytest.approx(best, rel=0.1)


@pytest.mark.parametrize(("colours", "front_end"), [(3, "patches"), (1, "grey patches")])
def test_a_head_on_patches_moves_by_the_noise_of_one_logit(colours: int, front_end: str) -> None:
    """Features have norm 1: their number adds no noise to a logit, so it does not count."""
    small, large = (
        models.PatchesLinear(16, colours=colours, dictionary=dictionary) for dictionary in (4, 64)
    )
    assert recipes.front_end_of(small) == front_end
    rates = []
    for epsilon in (1.0, 3.0, 8.0):
        one = recipes.for_model(small, population=50_000, epsilon=epsilon)
        other = recipes.for_model(large, population=50_000, epsilon=epsilon)
        assert one.rate == other.rate
        batch = 25_000 if epsilon > 4 else 15_000
        assert (one.batch_size, one.point) == (batch, steppe.Here())
        assert one.steps == (50 if colours == 3 else 100)
        reach = one.rate * one.clip / (1 - one.momentum)
        rates.append(reach / recipes.signal_to_noise(one.plan(), 1))
    assert rates == pytest.approx([rates[0]] * 3, rel=0.01)
    assert recipes.publishes(small) == "last"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"front_end": "patch"}, "front_end='patch': must be one of 'features', 'patches'"),
        ({"epsilon": 0.0}, "epsilon=0.0: must be finite and above 0"),
        ({"epsilon": math.nan}, "epsilon=nan: must not be NaN"),
        ({"population": 0}, "population=0: must be a whole number"),
        ({"weights": 0}, "weights=0: must be a whole number"),
        ({"rate": -1.0}, "rate=-1.0: must be finite and above 0"),
    ],
)
def test_bad_constants_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        network(**changes)


def test_nothing_but_data_model_and_epsilon_gives_a_good_model() -> None:
    """Two clouds that a linear layer separates: by the recipe it does, in one go."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (4_000,), generator=generator)
    x = torch.randn(4_000, 20, generator=generator) + 1.5 * (2 * y[:, None] - 1) / math.sqrt(5)
    torch.manual_seed(0)
    model = nn.Linear(20, 2)
    recipe = recipes.for_model(model, population=4_000, epsilon=1.0, steps=100)
    private = steppe.make_private(
        model,
        recipe.optimizer(model),
        (x, y),
        recipe.plan(),
        loss=F.cross_entropy,
        source=steppe.SeededSource(0),
    )
    for batch in private:
        private.step(batch)
    assert float((model(x).argmax(1) == y).float().mean()) > 0.97


@pytest.mark.parametrize("momentum", [1.0, -0.1, float("nan"), "x", True])
def test_a_momentum_that_no_rate_goes_with_is_refused(momentum: object) -> None:
    with pytest.raises(ConfigurationError, match="momentum="):
        network(momentum=momentum)
