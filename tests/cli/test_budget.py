"""`steppe budget`: the answers of the issue, the missing constant, the words, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_calls import Shell

from steppe import Plan
from steppe.cli import solve_budget
from steppe.cli.solve_budget import complete
from steppe.errors import ConfigurationError

RUN = "budget --population 60000 --batch-size 2048 --delta 1e-5"
SMALL = "budget --population 1000 --batch-size 100 --delta 1e-4"


def test_epsilon_of_the_issue(shell: Shell) -> None:
    result = shell.json(f"{RUN} --steps 585 --noise-multiplier 1.0")
    assert result["epsilon"] == pytest.approx(5.349, abs=0.01)
    assert result["found"] == "epsilon"


def test_noise_of_the_issue(shell: Shell) -> None:
    result = shell.json(f"{RUN} --steps 1171 --epsilon 2")
    assert result["noise_multiplier"] == pytest.approx(2.477, abs=0.01)
    assert 1.99 < result["epsilon"] <= 2.0
    assert result["asked_epsilon"] == 2.0


def test_epochs_are_steps(shell: Shell) -> None:
    result = shell.json(f"{RUN} --epochs 20 --noise-multiplier 1.0")
    assert result["steps"] == 585
    assert result["epochs"] == pytest.approx(19.968)


KNOWN = {
    "delta": 1e-4,
    "epsilon": 2.0,
    "noise_multiplier": 1.5,
    "steps": 100,
    "batch_size": 100,
    "population": 1000,
}


@pytest.mark.parametrize(("name", "worse"), [("steps", 1), ("batch_size", 1), ("population", -1)])
def test_the_missing_count_is_the_best_one(name: str, worse: int) -> None:
    known = {key: value for key, value in KNOWN.items() if key != name}
    plan = complete(known, name)
    found = int(getattr(plan, name))
    assert plan.epsilon_spent() <= 2.0
    beyond = {**known, name: found + worse}
    del beyond["epsilon"]
    assert Plan(**beyond).epsilon_spent() > 2.0


@pytest.mark.parametrize("name", ["batch_size", "population"])
def test_counts_are_found_for_a_length_in_epochs_too(name: str) -> None:
    known = {key: value for key, value in KNOWN.items() if key not in (name, "steps")}
    plan = complete({**known, "epochs": 10.0}, name)
    assert 1.9 < plan.epsilon_spent() <= 2.0


def test_a_budget_that_everything_fits_gives_the_end_of_the_range() -> None:
    known = {name: value for name, value in KNOWN.items() if name != "batch_size"}
    assert complete({**known, "noise_multiplier": 50.0}, "batch_size").batch_size == 1000


def test_searches_find_the_last_number_within_the_budget() -> None:
    for wanted in (1, 2, 7, 8, 9, 100, 5_000):
        assert solve_budget._largest(lambda n: n, wanted + 0.5, "steps", 10**4) == wanted
        assert (
            solve_budget._smallest(lambda n, w=wanted: w / n, 1.0, "population", 1, 10**4) == wanted
        )
    assert solve_budget._largest(lambda n: n, 10**6, "steps", 10**4) == 10**4
    far = solve_budget._largest(lambda n: n, 10**7, "steps", 10**8)
    assert 1 <= 10**7 / far < 1.0002  # large answers are right to four digits


@pytest.mark.parametrize("least", [1, 2, 7, 64, 100, 5_000])
def test_searches_begin_where_a_cost_is_known(least: int) -> None:
    def cost(value: int) -> float:
        if value < least:
            raise ConfigurationError(f"steps={10**9 // value}: are too many")
        return value

    for wanted in (least, least + 1, min(3 * least, 10**4), 10**4):
        assert solve_budget._largest(cost, wanted + 0.5, "batch_size", 10**4) == wanted
    with pytest.raises(ConfigurationError, match=f"is exceeded even with batch_size={least}, whi"):
        solve_budget._largest(cost, least - 0.5, "batch_size", 10**4)


def test_what_no_size_mends_is_said_as_it_is() -> None:
    def cost(value: int) -> float:
        raise ConfigurationError(f"delta=1e-13 with {value}: is too small")

    with pytest.raises(ConfigurationError, match="delta=1e-13 with 1: is too small"):
        solve_budget._largest(cost, 1.0, "batch_size", 1000)


@pytest.mark.slow
def test_batches_of_one_need_not_be_accountable(shell: Shell) -> None:
    line = "budget --population 1000000 --epochs 20 --epsilon 2 --noise-multiplier 1"
    found = shell.json(f"{line} --delta 1e-9")
    assert 1.999 < found["epsilon"] <= 2.0
    assert found["batch_size"] > 1000


def test_a_budget_that_no_population_meets() -> None:
    with pytest.raises(ConfigurationError, match=r"is exceeded even with population=90, which"):
        solve_budget._smallest(lambda n: 1.0, 0.5, "population", 10, 90)


def test_all_five_are_checked_against_each_other(shell: Shell) -> None:
    line = f"{SMALL} --steps 10 --noise-multiplier 2"
    code, out, _ = shell(f"{line} --epsilon 0.1")
    assert code == 1
    assert "The run costs more than the ε = 0.1 that was asked for." in out
    code, out, _ = shell(f"{line} --epsilon 5")
    assert code == 0
    assert "costs more" not in out


def test_sam_costs_two_queries(shell: Shell) -> None:
    line = f"{SMALL} --steps 10"
    twice = shell.json(f"{line} --point SAM --noise-multiplier 2")
    once = shell.json(f"{line} --noise-multiplier {2 / 2**0.5}")
    assert twice["queries"] == 2
    assert twice["epsilon"] == pytest.approx(once["epsilon"], rel=1e-6)


def test_a_falling_noise_costs_more_than_its_start(shell: Shell) -> None:
    line = f"{SMALL} --steps 40 --noise-multiplier 2"
    falling = shell.json(f"{line} --noise StepSchedule:drop=0.6,every=10")
    assert falling["noise"] == "StepSchedule"
    assert falling["epsilon"] > shell.json(line)["epsilon"]


def test_a_clip_shares_the_noise_out(shell: Shell) -> None:
    line = f"{SMALL} --steps 10 --noise-multiplier 2"
    shared = shell.json(f"{line} --clip Quantile:count_share=0.75")
    alone = shell.json(line)
    assert shared["epsilon"] == alone["epsilon"]
    noise = [result["variations"][0]["noise_on_the_mean"] for result in (shared, alone)]
    assert noise == pytest.approx([0.04, 0.02])
    assert shell.refused(f"{line} --clip Median") == (
        "steppe: error: --clip.name='Median': is not known here, only Automatic, Flat, GEP, "
        "PerLayer, Quantile; did you mean 'Quantile'?\n"
    )


def test_a_cap(shell: Shell) -> None:
    line = f"{SMALL} --steps 10 --noise-multiplier 2 --cap 120"
    assert shell.json(f"{line} --adjacency zero-out")["cap"] == 120
    assert shell.refused(line) == (
        "steppe: error: adjacency='add-remove': cannot be used with capped batches, which need a "
        "public population; set adjacency='zero-out', or use Poisson().\n"
    )
    assert "argument --cap: 'x' is not a whole number" in shell.refused(f"{SMALL} --cap x")
    err = shell.refused(f"{SMALL} --steps 10 --noise-multiplier 2 --cap 0 --adjacency zero-out")
    assert "--cap=0: must be a whole number of at least 1; give a whole number, or leave it" in err


def test_a_figure_that_cannot_be_written(shell: Shell, tmp_path: Path) -> None:
    line = f"{SMALL} --steps 10 --noise-multiplier 2 --figure"
    assert "there is no folder" in shell.refused(f"{line} {tmp_path}/nowhere/budget.svg")


def test_words_and_tables(shell: Shell) -> None:
    out = shell.ok(f"{SMALL} --steps 10 --epsilon 2")
    assert "← the least noise that stays within the budget" in out
    words = " ".join(out.split())
    assert "Each of the 10 steps uses about 100 of 1,000 records" in words
    assert "by a factor of at most 7.4" in words  # e² = 7.389, rounded up
    assert "has a true positive rate of at most 7.4%" in words
    rows = out.split("\n\n")[-1].splitlines()
    assert [row.split("  ")[0] for row in rows[1:3]] == ["this run", "half the steps"]
    assert len(rows) == 8


def test_variations_that_cannot_be_are_left_out(shell: Shell) -> None:
    result = shell.json(
        "budget --population 150 --batch-size 100 --steps 3 --delta 1e-4 --epsilon 2"
    )
    names = [row["change"] for row in result["variations"]]
    assert "twice the batch" not in names
    assert "half the batch" in names


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_figure(shell: Shell, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"budget{ending}"
    out = shell.ok(f"{SMALL} --steps 10 --noise-multiplier 2 --figure {path}")
    assert out.endswith(f"figure: {path}\n")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("found", ["--noise-multiplier 2", "--epsilon 2"])
def test_a_large_delta_is_one_warning_and_no_guarantee(shell: Shell, found: str) -> None:
    for _ in range(2):  # also where a process runs several commands
        code, out, err = shell(
            f"budget --population 100 --batch-size 10 --steps 3 --delta 0.1 {found}"
        )
    words = " ".join(out.split())
    assert code == 0
    assert "This is no meaningful guarantee, whatever ε is: with δ at 1/population or" in words
    assert "reasonable" not in words
    assert err.startswith("steppe: warning: delta=0.1: is not below 1/population=0.01")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--epsilon 2 --delta 1e-5",
            "--noise-multiplier, --steps, --batch-size, --population are missing, and only one "
            "constant can be found from the others; give 3 more.",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --epsilon -1 --delta 1e-5",
            "--epsilon=-1.0: must be finite and above 0; a common range is 0.5 to 8.",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --epsilon nan --delta 1e-5",
            "--epsilon=nan: must not be NaN; a common range is 0.5 to 8.",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --noise-multiplier 1 --delta 2",
            "--delta=2.0: must lie strictly between 0 and 1; use less than 1 over the population, "
            "such as 1e-5.",
        ),
        (
            "--population 100 --batch-size 1000 --steps 9 --noise-multiplier 1 --delta 1e-5",
            "--batch-size=1000.0: must not exceed the population of 100; use a smaller batch.",
        ),
        (
            "--population 1000 --batch-size 100 --steps 0 --noise-multiplier 1 --delta 1e-5",
            "--steps=0: must be a whole number of at least 1.",
        ),
        (
            "--population 1000 --batch-size 100 --epsilon 0.01 --noise-multiplier 1 --delta 1e-5",
            "--epsilon=0.01: is exceeded even with steps=1, which costs 1.685; use a larger "
            "epsilon, or more noise.",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --noise-multiplier 1 --delta 1e-5 "
            "--noise StepSchedule:drop=0.6",
            "`--noise.every` is needed by StepSchedule; add every = ….",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --noise-multiplier 1 --delta 1e-5 "
            "--noise StepSchedule:dorp=0.6",
            "--noise.dorp=0.6: is not known here, only drop, every, grid; did you mean 'drop'?",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --noise-multiplier 1 --delta 1e-5 "
            "--noise StepSchedule:drop=much,every=3",
            "StepSchedule.drop='much': must be a number; write it like 0.01.",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --noise-multiplier 1 --delta 1e-5 "
            "--noise Falling",
            "--noise.name='Falling': is not known here, only BISR, BLT, BandInvMF, BandedToeplitz, "
            "Dense, ExponentialSchedule, Gaussian, PolynomialSchedule, SqrtToeplitz, StepSchedule, "
            "TimeSchedule, Tree; did you mean 'BandInvMF'?",
        ),
        (
            "--population 1000 --batch-size 100 --steps 9 --noise-multiplier 1 --delta 1e-5 "
            "--figure budget.jpg",
            "--figure='.jpg': must be one of '.png', '.svg', '.pdf'; name it budget.svg.",
        ),
    ],
)
def test_bad_constants(shell: Shell, options: str, message: str) -> None:
    assert shell.refused(f"budget {options}") == f"steppe: error: {message}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--steps 3", "the following arguments are required: --delta"),
        (
            "--steps 3.5 --delta 1e-5",
            "argument --steps: '3.5' is not a whole number; write it like 60000",
        ),
        (
            "--epsilon two --delta 1e-5",
            "argument --epsilon: 'two' is not a number; write it like 0.5 or 1e-5",
        ),
        (
            "--steps 3 --epochs 1 --delta 1e-5",
            "argument --epochs: not allowed with argument --steps",
        ),
        (
            "--delta 1e-5 --point Sam",
            "argument --point: invalid choice: 'Sam' (choose from 'Here', 'SAM', 'SAT', "
            "'SATMomentum')",
        ),
    ],
)
def test_bad_words(shell: Shell, options: str, message: str) -> None:
    expected = f"steppe budget: error: {message}\nSee steppe budget --help.\n"
    assert shell.refused(f"budget {options}") == expected
