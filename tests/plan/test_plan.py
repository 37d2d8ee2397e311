"""The plan: every bad constant refused by name, and one set of numbers for all users of it."""

import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, replace
from fractions import Fraction
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest

from steppe.accounting import Segment, epsilon
from steppe.clipping import Flat
from steppe.errors import ConfigurationError, PrivacyWarning
from steppe.noise import Gaussian
from steppe.plan import Plan
from steppe.points import Here
from steppe.sampling import CappedPoisson, Poisson

NAN, INF = float("nan"), float("inf")


def plan(**changes: Any) -> Plan:
    given: dict[str, Any] = {
        "delta": 1e-5,
        "batch_size": 2048,
        "noise_multiplier": 1.0,
        "steps": 585,
        "population": 60_000,
    }
    return Plan(**{**given, **changes})


def asked(**changes: Any) -> Plan:
    return plan(noise_multiplier=None, **changes)


@dataclass(frozen=True)
class Twice(Here):
    """A point that asks the same batch `times` times."""

    times: int = 2

    @property
    def queries(self) -> int:
        return self.times


@dataclass(frozen=True)
class Halving(Gaussian):
    """Noise that halves at mid-run."""

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        return ((steps // 2, 1.0), (steps - steps // 2, 0.5))


@dataclass(frozen=True)
class Levels(Gaussian):
    """Equal stretches of noise, each with its own factor; any numbers will do."""

    factors: Any = (1.0,)

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        each = np.int64(steps // len(self.factors))
        return tuple((each, factor) for factor in self.factors)  # type: ignore[misc]


@dataclass
class Loose:
    """A clip that can be changed behind the plan's back."""

    bound: Any = 1.0

    constant_noise = True

    @property
    def sensitivity(self) -> float:
        return self.bound

    def begin(self, parameters: Any, public: Any = None) -> Any:
        return Flat(self.bound).begin(parameters)


@dataclass(frozen=True)
class Tight:
    """The same clip, frozen, with no checks of its own."""

    bound: Any = 1.0

    constant_noise = True

    @property
    def sensitivity(self) -> float:
        return self.bound

    def begin(self, parameters: Any, public: Any = None) -> Any:
        return Flat(self.bound).begin(parameters)


@dataclass(frozen=True)
class Short(Gaussian):
    """A schedule that leaves the last steps unpaid, or pays for some that are not taken."""

    missing: int = 1

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        return ((steps - self.missing, 1.0),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0, "noise_multiplier": None}, r"epsilon=0: must be finite and above 0; a com"),
        ({"epsilon": -1.0, "noise_multiplier": None}, r"epsilon=-1\.0: must be finite and above 0"),
        ({"epsilon": NAN, "noise_multiplier": None}, r"epsilon=nan: must not be NaN"),
        ({"epsilon": INF, "noise_multiplier": None}, r"epsilon=inf: must be finite"),
        ({"epsilon": True, "noise_multiplier": None}, r"epsilon=True: must be a real number"),
        ({"delta": 0.0}, r"delta=0\.0: must lie strictly between 0 and 1; use less than"),
        ({"delta": -1e-5}, r"delta=-1e-05: must lie strictly"),
        ({"delta": 1}, r"delta=1: must lie strictly"),
        ({"delta": 2.0}, r"delta=2\.0: must lie strictly"),
        ({"delta": NAN}, r"delta=nan: must not be NaN"),
        ({"delta": 1e-15}, r"delta=1e-15: is below 1e-12"),
        ({"noise_multiplier": 0.0}, r"noise_multiplier=0\.0: must be finite and above 0; without"),
        ({"noise_multiplier": -1}, r"noise_multiplier=-1: must be finite and above 0"),
        ({"noise_multiplier": NAN}, r"noise_multiplier=nan: must not be NaN"),
        ({"noise_multiplier": INF}, r"noise_multiplier=inf"),
        (
            {"noise_multiplier": 1e-200},
            r"noise_multiplier=1e-200: must lie between 1e-06 and 1e\+06",
        ),
        (
            {"noise_multiplier": 1e300},
            r"noise_multiplier=1e\+300: must lie between 1e-06 and 1e\+06",
        ),
        ({"noise_multiplier": 10**400}, r"noise_multiplier=10+: must be a number that a float can"),
        (
            {"noise": Levels(factors=(1.0, 1e-9)), "steps": 586},
            r"noise_multiplier=1e-09: must lie between",
        ),
        (
            {"epsilon": 2.0},
            r"epsilon=2\.0: cannot be given together with noise_multiplier=1\.0; epsilon cal",
        ),
        ({"noise_multiplier": None}, r"`epsilon` or `noise_multiplier` is required; epsilon cal"),
        ({"steps": 0}, r"steps=0: must be a whole number of at least 1"),
        ({"steps": -3}, r"steps=-3: must be a whole number"),
        ({"steps": 1.5}, r"steps=1\.5: must be a whole number"),
        ({"steps": None, "epochs": 0}, r"epochs=0: must be finite and above 0"),
        ({"steps": None, "epochs": NAN}, r"epochs=nan"),
        ({"epochs": 3}, r"steps=585: cannot be given together with epochs=3; epochs are"),
        ({"steps": None}, r"`steps` or `epochs` is required; epochs are"),
        ({"population": 0}, r"population=0: must be a whole number of at least 1"),
        ({"population": 10**400}, r"population=10+: must be at most 2⁵³"),
        ({"steps": 10**400}, r"steps=10+: must be at most 2⁵³"),
        ({"steps": None, "epochs": 1e300}, r"steps=9223372036854775808: must be at most 2⁵³"),
        ({"steps": 10**9}, r"steps=1000000000: must be at most 100,000,000 with subsampling"),
        ({"steps": 10**6, "delta": 1e-10}, r"delta=1e-10: is below 4\.5e-10, .* of 1000000 steps"),
        ({"population": 1e5}, r"population=100000\.0: must be a whole number"),
        ({"batch_size": 60_001}, r"batch_size=60001\.0: must not exceed the population of 60000"),
        ({"batch_size": 0}, r"batch_size=0: must be finite and above 0"),
        ({"batch_size": NAN}, r"batch_size=nan"),
        ({"clip": 1.0}, r"clip=1\.0: must be a Clip; use Flat\(1\.0\)"),
        ({"clip": Flat}, r"clip=<class .*: must be a Clip"),
        ({"clip": Loose()}, r"clip=Loose\(.*: could change after .*; declare Loose with @datacl"),
        ({"clip": Tight(NAN)}, r"clip\.bound=nan: cannot be written into the plan's statement"),
        ({"clip": Tight(object())}, r"clip\.bound=<object .*: cannot be written into the plan's"),
        ({"noise": Levels(factors=[1.0])}, r"noise\.factors=\[1\.0\]: cannot be written"),
        ({"noise": Levels(factors=(1.0, 1j))}, r"noise\.factors\[1\]=1j: cannot be written"),
        ({"noise": None}, r"noise=None: must be a Noise; use Gaussian\(\)"),
        ({"sampling": "shuffle"}, r"sampling='shuffle': must be a Sampler; use Poisson"),
        ({"point": 2}, r"point=2: must be a Point; use Here\(\)"),
        ({"point": Twice(0)}, r"point\.queries=0"),
        ({"l2": -0.1}, r"l2=-0\.1: must be finite and not negative"),
        ({"l2": 1e300}, r"l2=1e\+300: must be at most 1e\+18; a common range"),
        ({"l2": {"head": 1e19}}, r"l2.*=1e\+19: must be at most 1e\+18"),
        ({"views": 0}, r"views=0: must be a whole number"),
        ({"adjacency": "add"}, r"adjacency='add': must be one of 'add-remove', 'zero-out'"),
        (
            {"sampling": CappedPoisson()},
            r"adjacency='add-remove': cannot be used with capped batches, .*'zero-out'",
        ),
        ({"unit": " "}, r"unit=' ': must be a word"),
        ({"unit": "record\n8. guarantee: none"}, r"unit='record\\n8\. guar.*: must be a word"),
        ({"population_source": "guess"}, r"population_source='guess': must be one of"),
    ],
)
def test_bad_constants_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        plan(**changes)


@pytest.mark.parametrize("bound", [0.0, -1.0, NAN, INF])
def test_bad_clips_are_refused(bound: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^Flat\.bound="):
        plan(clip=Flat(bound))


def test_delta_of_one_over_the_population_warns() -> None:
    with pytest.warns(PrivacyWarning, match=r"delta=0\.001: is not below 1/population"):
        plan(delta=1e-3)
    with pytest.warns(PrivacyWarning, match=r"delta=0\.001: is not below 1/population=0\.001"):
        plan(delta=1e-3, population=1000, batch_size=10)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError):
        plan(max_grad_nrom=1.0)
    with pytest.raises(TypeError):
        Plan(1e-5, 2048)  # type: ignore[misc]


def test_frozen_hashable_replaceable() -> None:
    one, two = plan(), plan()
    assert one == two
    assert hash(one) == hash(two)
    assert replace(one, steps=10).total_steps == 10
    with pytest.raises(FrozenInstanceError):
        one.delta = 0.1  # type: ignore[misc]


def test_known_cost() -> None:
    assert plan().epsilon_spent() == pytest.approx(5.349, abs=0.01)


def test_known_noise() -> None:
    run = asked(epsilon=2.0, steps=None, epochs=40)
    assert run.total_steps == 1171
    assert run.sigma == pytest.approx(2.477, abs=0.01)
    assert 0.999 * 2.0 <= run.epsilon_spent() <= 2.0


def test_epochs_and_steps_agree() -> None:
    by_steps, by_epochs = asked(epsilon=2.0, steps=29), asked(epsilon=2.0, steps=None, epochs=1)
    assert by_epochs.total_steps == 29
    assert by_epochs.sigma == by_steps.sigma


@pytest.mark.parametrize(
    ("epochs", "population", "batch", "steps"),
    [
        (40, 60_000, 2048, 1171),
        (0.3, 100, 1, 30),
        (0.1, 30, 1, 3),
        (1, 93, 1, 93),
        (0.01, 10, 5, 1),
    ],
)
def test_epochs_to_steps(epochs: float, population: int, batch: float, steps: int) -> None:
    run = plan(steps=None, epochs=epochs, population=population, batch_size=batch, delta=1e-6)
    assert run.total_steps == steps


def test_population_from_the_data() -> None:
    unknown = plan(population=None)
    for cost in ("rate", "sigma_needed", "digest"):
        with pytest.raises(ConfigurationError, match=r"^`population` is required .* for_populat"):
            _ = {
                "rate": lambda: unknown.rate,
                "sigma_needed": lambda: asked(population=None, epsilon=2.0).sigma,
                "digest": unknown.digest,
            }[cost]()
    known = unknown.for_population(60_000)
    assert known.rate == plan().rate
    assert known.population_source == "data"
    assert "was read once" in str(known.statement())
    with pytest.raises(ConfigurationError, match=r"^population=60000: is already fixed"):
        known.for_population(60_001)


def test_public_constants_do_not_move_with_the_data() -> None:
    # The declared population sets the rate and the divisor whatever the data's length.
    run = plan(batch_size=100.5)
    assert run.divisor == 100.5
    assert run.rate == Poisson().realised_rate(60_000, 100.5) == pytest.approx(100.5 / 60_000)


def test_noise_follows_the_sensitivity_but_its_cost_does_not() -> None:
    small, large = plan(clip=Flat(0.1)), plan(clip=Flat(10.0))
    assert small.noise_std == pytest.approx(0.1)
    assert large.noise_std == pytest.approx(10.0)
    assert small.epsilon_spent() == large.epsilon_spent()


def test_two_queries_of_one_batch_cost_one_at_a_smaller_noise() -> None:
    twice = plan(point=Twice())
    assert twice.segments()[0].noise_multiplier == pytest.approx(1 / math.sqrt(2))
    assert twice.sigma == 1.0
    once = epsilon([Segment(plan().rate, 1 / math.sqrt(2), 585)], 1e-5)
    assert twice.epsilon_spent() == once
    needed = asked(epsilon=2.0, point=Twice()).sigma
    assert needed == pytest.approx(math.sqrt(2) * asked(epsilon=2.0).sigma, rel=1e-3)


def test_a_schedule_is_accounted_step_by_step() -> None:
    run = plan(noise=Halving(), steps=101, noise_multiplier=2.0)
    assert [(s.steps, s.noise_multiplier) for s in run.segments()] == [(50, 2.0), (51, 1.0)]
    assert [s.steps for s in run.segments(60)] == [50, 10]
    assert run.epsilon_spent(50) == epsilon([Segment(run.rate, 2.0, 50)], 1e-5)
    assert [run.noise_std_at(step) for step in (0, 49, 50, 100)] == [2.0, 2.0, 1.0, 1.0]
    for outside in (-1, 101):
        with pytest.raises(ConfigurationError, match=f"^step={outside}: lies outside the 101"):
            run.noise_std_at(outside)
    for missing in (1, -1):
        with pytest.raises(ConfigurationError, match=r"^noise=Short.*does not cover the 101 steps"):
            plan(noise=Short(missing=missing), steps=101).segments()


def test_spending_grows_from_nothing_to_the_whole() -> None:
    run = plan()
    spent = [run.epsilon_spent(done) for done in (0, 1, 100, 585)]
    assert spent[0] == 0.0
    assert spent == sorted(spent)
    assert spent[-1] == run.epsilon_spent()
    with pytest.raises(ConfigurationError, match=r"^steps_done=586: exceeds the 585 steps"):
        run.epsilon_spent(586)
    with pytest.raises(ConfigurationError, match=r"^steps_done=-1: must be a whole number"):
        run.epsilon_spent(-1)


def test_capped_sampling_is_accounted_as_such() -> None:
    run = plan(sampling=CappedPoisson(), adjacency="zero-out")
    segment = run.segments()[0]
    assert (segment.cap, segment.population) == (run.cap, 60_000)
    assert isinstance(run.event().event, dpa.TruncatedSubsampledGaussianDpEvent)
    assert run.epsilon_spent() == pytest.approx(plan().epsilon_spent(), rel=1e-3)
    text = str(run.statement())
    assert f"limited to {run.cap} of them" in text
    assert "No second opinion" in text


def test_fixed_shapes_cost_nothing_and_are_said() -> None:
    capped = plan(sampling=CappedPoisson(), adjacency="zero-out")
    fixed = replace(capped, sampling=CappedPoisson(fixed_shapes=True))
    assert plan().padded_to is None
    assert capped.padded_to is None
    assert fixed.padded_to == fixed.cap == capped.cap
    assert replace(fixed, sampling=CappedPoisson(9, fixed_shapes=True)).padded_to == 9
    assert fixed.event() == capped.event()
    assert fixed.segments() == capped.segments()
    assert fixed.epsilon_spent() == capped.epsilon_spent()
    assert fixed.sigma == capped.sigma
    assert fixed.digest() != capped.digest()  # it runs another program
    assert fixed.to_dict()["sampling"] == {
        "kind": "CappedPoisson",
        "cap": None,
        "fixed_shapes": True,
    }
    words = f"limited to {fixed.cap} of them at random, padded to {fixed.cap} rows so that"
    assert words in fixed.statement().items["assumptions"]
    assert "padded" not in str(capped.statement())
    assert fixed.statement().to_dict()["fixed_shapes"] is True
    assert capped.statement().to_dict()["fixed_shapes"] is False
    assert "size of the first batch" in str(capped.statement())
    assert "size of the first batch" not in str(fixed.statement())
    assert "; the time that kernels take on the first batch." in str(fixed.statement())


def test_event_is_made_of_the_numbers_in_use() -> None:
    run = plan()
    assert run.event() == dpa.SelfComposedDpEvent(
        dpa.PoissonSampledDpEvent(run.rate, dpa.GaussianDpEvent(1.0)), 585
    )


def test_calibrate_fixes_the_noise() -> None:
    fixed = plan().calibrate(epsilon=3.0)
    assert fixed.epsilon is None
    assert 0.999 * 3.0 <= fixed.epsilon_spent() <= 3.0
    budget = asked(epsilon=3.0)
    assert budget.calibrate() == fixed
    with pytest.raises(ConfigurationError, match=r"^`epsilon` is required: the plan has none"):
        plan().calibrate()


def test_digest_tells_mechanisms_apart_and_nothing_else() -> None:
    base = plan()
    assert base.digest() == plan(population=np.int64(60_000), batch_size=2048.0).digest()
    assert base.digest() == plan(steps=None, epochs=20).digest()
    assert asked(epsilon=3.0).digest() == plan().calibrate(epsilon=3.0).digest()
    others = [
        plan(steps=584),
        plan(clip=Flat(0.5)),
        plan(noise=Gaussian(grid=True)),
        plan(adjacency="zero-out"),
        plan(l2=0.1),
        plan(views=4),
        plan(delta=1e-6),
        plan(noise_multiplier=1.1),
        plan(unit="user"),
    ]
    assert len({base.digest(), *(other.digest() for other in others)}) == len(others) + 1


def test_digest_is_the_same_in_another_process() -> None:
    code = (
        "from steppe.plan import Plan;"
        "print(Plan(population=60000, steps=585, noise_multiplier=1, batch_size=2048, delta=1e-5)"
        ".digest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == plan().digest()


def test_places_are_described_by_name_and_constants() -> None:
    described = plan(clip=Flat(0.5)).to_dict()
    assert described["clip"] == {"kind": "Flat", "bound": 0.5}
    assert described["point"] == {"kind": "Here"}
    assert described["asked"]["steps"] == 585


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_whatever_trains_can_print_its_statement(number: Any) -> None:
    for clip in (Flat(number), Tight(number)):
        run = plan(clip=clip, noise=Levels(factors=(number, 1)), steps=10, noise_multiplier=2)
        assert json.loads(run.statement().to_json())["sensitivity"] == 0.5
        assert run.to_dict()["clip"]["bound"] == 0.5
        assert run.to_dict()["noise"]["factors"] == [0.5, 1]
        same = plan(clip=type(clip)(0.5), noise=Levels(factors=(0.5, 1)), steps=10)
        assert run.digest() == replace(same, noise_multiplier=2.0).digest()


@pytest.mark.parametrize(
    ("changes", "probability"),
    [
        ({"noise_multiplier": 0.01}, "1.0e\\+00"),
        ({"noise_multiplier": 0.2}, "1.1e-04"),
        ({"noise_multiplier": 0.4, "delta": 1e-8}, "5.2e-11"),
        ({"noise_multiplier": 0.6, "delta": 1e-8, "adjacency": "replace-one"}, "1.3e-08"),
        ({"noise_multiplier": 0.8, "delta": 1e-8, "noise": Levels(factors=(1.0, 0.5))}, "5.2e-11"),
        ({"noise_multiplier": 0.4, "delta": 4e-8, "point": Twice()}, "1.0e-10"),
    ],
)
def test_noise_whose_end_would_show_a_record_is_refused(
    changes: dict[str, Any], probability: str
) -> None:
    level = r"^noise_multiplier=[\d.]+: a value beyond .* reveals a record with probability "
    with pytest.raises(ConfigurationError, match=level + probability + ", which must be below del"):
        plan(**{"steps": 586, **changes})


def test_the_end_of_the_noise_matters_to_nobody_else() -> None:
    for sigma, delta in [(0.31, 1e-5), (0.45, 1e-7), (0.7, 1e-10), (1.0, 1e-12)]:
        run = plan(noise_multiplier=sigma, delta=delta)
        shown = run.total_steps * run.rate * math.erfc((9.4 - 1 / sigma) / math.sqrt(2)) / 2
        assert shown < 1e-3 * delta


def test_a_budget_that_needs_too_little_noise_is_refused() -> None:
    said = r"^epsilon=200\.0: allows noise_multiplier=0\.2\d+, with which a value beyond"
    with pytest.raises(ConfigurationError, match=said):
        _ = asked(epsilon=200.0).sigma


def test_warnings_point_at_the_plan() -> None:
    with pytest.warns(PrivacyWarning) as caught:
        Plan(delta=0.1, batch_size=2, noise_multiplier=1.0, steps=3, population=60)
    assert caught[0].filename == __file__


def test_full_batches_cost_exactly_what_the_closed_form_says() -> None:
    run = plan(batch_size=60_000, noise_multiplier=300.0, steps=10**6, delta=1e-12)
    assert run.epsilon_spent() == pytest.approx(28.4672666, abs=1e-6)


def test_statement_carries_the_numbers_of_the_plan() -> None:
    run = plan(noise=Gaussian(grid=True), unit="patient")
    data = run.statement().to_dict()
    assert data["epsilon"] == run.epsilon_spent()
    assert data["rdp_epsilon"] > data["epsilon"]
    assert data["digest"] == run.digest()
    assert data["rounded_noise"] is True
    assert plan().statement().rounded_noise is False
    assert "patient" in data["items"]["unit"]
    assert run.statement("seeded noise").to_dict()["epsilon"] is None


def test_replace_one_has_no_second_opinion() -> None:
    data = plan(adjacency="replace-one", steps=10).statement().to_dict()
    assert data["rdp_epsilon"] is None


def test_making_a_plan_imports_no_accountant() -> None:
    code = (
        "import sys; from steppe.plan import Plan;"
        "Plan(delta=1e-5, batch_size=8, noise_multiplier=1.0, steps=9, population=99);"
        "print([m for m in ('scipy', 'dp_accounting', 'opacus', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
