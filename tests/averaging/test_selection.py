"""Choosing: free on public data only, and private choices with the law they promise."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from averaging_cases import bits, same_bits
from torch import nn

from steppe.averaging import (
    OMV,
    SWA,
    CheckpointAverage,
    best_checkpoints,
    choose,
    private_choice,
    tune,
)
from steppe.averaging.permute_and_flip import exponential_coin, permute_and_flip
from steppe.errors import ConfigurationError
from steppe.noise import SeededSource


@pytest.mark.parametrize("public", [False, None, 1, "yes"])
def test_private_data_are_not_free(public: object) -> None:
    model = nn.Linear(1, 2)
    for call in (
        lambda: choose({1: 0.5}, public=public),  # type: ignore[arg-type]
        lambda: best_checkpoints([0.5], 1, public=public),  # type: ignore[arg-type]
        lambda: tune(model, {}, torch.ones(1, 1), torch.ones(1), public=public),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            ConfigurationError,
            match=r"public.* must be True, since choosing .* costs privacy; .* or private_choice",
        ):
            call()


def test_public_choices() -> None:
    found = choose({3: 0.5, 5: 0.75, 10: 0.75}, public=True)
    assert (found.name, found.epsilon) == (5, 0.0)
    assert found.scores == {3: 0.5, 5: 0.75, 10: 0.75}
    assert best_checkpoints([0.3, 0.9, 0.3, 0.1], k=3, public=True) == [0, 2, 1]
    with pytest.raises(ConfigurationError, match=r"k=3: is more than the 2 checkpoints scored"):
        best_checkpoints([0.3, 0.9], k=3, public=True)
    with pytest.raises(ConfigurationError, match=r"scores='a': has no finite number for a score"):
        choose({"a": math.nan}, public=True)
    with pytest.raises(ConfigurationError, match=r"scores=\{\}: must not be empty"):
        choose({}, public=True)


def test_tuning_finds_the_accurate_average_of_either_kind() -> None:
    model = nn.Linear(2, 2, bias=False).train()
    before = bits(model)
    right, wrong = SWA(model), SWA(model)
    eye = torch.eye(2)
    for average, weight in ((right, eye), (wrong, -eye)):
        with torch.no_grad():
            model.weight.copy_(weight)
        average.update(model)
    model.load_state_dict(before)
    candidates = {
        "wrong": wrong,
        "right": right,
        "votes": OMV(model, [{"weight": eye}, {"weight": -eye}, {"weight": -eye}]),
    }
    found = tune(model, candidates, eye, torch.arange(2), public=True)
    assert found.name == "right"
    assert found.scores == {"wrong": 0.0, "right": 1.0, "votes": 0.0}
    assert same_bits(bits(model), before)
    assert model.training


@pytest.mark.parametrize("shape", [(4, 1), (1,), (8,)])
def test_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    model = nn.Linear(2, 2)
    average = SWA(model)
    average.update(model)
    targets = torch.zeros(shape, dtype=torch.long)
    for candidate in (average, OMV(model, [bits(model)])):
        with pytest.raises(ConfigurationError, match=r"targets=.*: must be \(4,\), one cl"):
            tune(model, {"one": candidate}, torch.ones(4, 2), targets, public=True)


def test_the_best_checkpoint_weighs_most_in_the_exponential_average() -> None:
    model = nn.Linear(1, 1, bias=False)
    stored = [{"weight": torch.tensor([[value]])} for value in (10.0, 20.0, 30.0)]
    order = best_checkpoints([0.2, 0.9, 0.5], k=3, public=True)
    found = CheckpointAverage(model, [stored[i] for i in order], decay=0.25)
    expected = 0.25**2 * 10 + 0.25 * 0.75 * 30 + 0.75 * 20
    assert found.weights()["weight"].item() == pytest.approx(expected)
    with pytest.raises(ConfigurationError, match=r"checkpoints=\[\]: must not be empty"):
        CheckpointAverage(model, [])
    with pytest.raises(ConfigurationError, match=r"decay=1: must lie in \[0, 1\)"):
        CheckpointAverage(model, stored, decay=1)


def closed_form(gaps: list[float]) -> list[float]:
    """Permute-and-flip by summing over all orders."""
    law = [0.0] * len(gaps)
    orders = list(itertools.permutations(range(len(gaps))))
    for order in orders:
        remaining = 1.0
        for position in order:
            law[position] += remaining * math.exp(-gaps[position]) / len(orders)
            remaining *= 1 - math.exp(-gaps[position])
    return law


def test_the_law_of_the_private_choice() -> None:
    draws, scores, epsilon = 6000, {"a": 3.0, "b": 4.0, "c": 1.5}, 0.8
    source = SeededSource(5)
    counts = Counter(private_choice(scores, 1, epsilon, source).name for _ in range(draws))
    gaps = [epsilon / 2 * (4.0 - score) for score in scores.values()]
    for name, probability in zip(scores, closed_form(gaps), strict=True):
        deviation = math.sqrt(probability * (1 - probability) / draws)
        assert abs(counts[name] / draws - probability) < 4 * deviation


def test_the_law_is_private_for_every_neighbour() -> None:
    epsilon = 1.0
    base = [3.0, 4.0, 4.0]

    def law(scores: list[float]) -> list[float]:
        return closed_form([epsilon / 2 * (max(scores) - score) for score in scores])

    for moves in itertools.product((-1, 0, 1), repeat=3):
        other = [score + move for score, move in zip(base, moves, strict=True)]
        for one, two in zip(law(base), law(other), strict=True):
            assert abs(math.log(one / two)) <= epsilon + 1e-12


def test_the_law_equals_report_noisy_max_with_exponential_noise() -> None:
    gaps = [0.0, 0.4, 1.3]
    noise = torch.empty(200_000, 3, dtype=torch.float64)
    noise.exponential_(generator=torch.Generator().manual_seed(0))
    winners = (noise - torch.tensor(gaps)).argmax(dim=1)
    for position, probability in enumerate(closed_form(gaps)):
        share = (winners == position).double().mean().item()
        assert abs(share - probability) < 4 * math.sqrt(probability / 200_000)


@pytest.mark.parametrize("gap", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(9, 4)])
def test_the_exponential_coin(gap: Fraction) -> None:
    source, draws = SeededSource(8), 4000
    heads = sum(exponential_coin(gap, source) for _ in range(draws)) / draws
    probability = math.exp(-gap)
    assert abs(heads - probability) <= 4 * math.sqrt(probability * (1 - probability) / draws)


def test_hopeless_candidates_end_quickly_and_the_best_alone_wins() -> None:
    gaps = [Fraction(10**15), Fraction(0), Fraction(10**15) + Fraction(1, 7)]
    assert {permute_and_flip(gaps, SeededSource(seed)) for seed in range(20)} == {1}


def test_a_private_choice_says_what_it_cost() -> None:
    found = private_choice({1: 0.25, 2: 0.5}, sensitivity=0.01, epsilon=0.5)
    assert found.epsilon == 0.5
    assert found.scores is None
    assert found.not_private_reason is None
    marked = private_choice({1: 0.25}, 1, 1, SeededSource(1))
    assert "comes from a seed" in (marked.not_private_reason or "")
    with pytest.raises(ConfigurationError, match=r"epsilon=0: must be finite and above 0"):
        private_choice({1: 0.25}, 1, 0)
    with pytest.raises(ConfigurationError, match=r"sensitivity=-1: must be finite and above 0"):
        private_choice({1: 0.25}, -1, 1)
    with pytest.raises(ConfigurationError, match=r"scores='x': has no finite number for a score"):
        private_choice({"x": math.inf}, 1, 1)
    with pytest.raises(ConfigurationError, match=r"scores='x': has no finite number for a score"):
        private_choice({"x": "many"}, 1, 1)  # type: ignore[dict-item]
    assert choose({"a": torch.tensor(0.9)}, public=True).name == "a"  # type: ignore[dict-item]
