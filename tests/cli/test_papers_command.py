"""`steppe papers`: runs, stores and shows one made-up experiment; bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_calls import Shell

from steppe.papers import Column, Experiment, catalogue, coverage

COIN = Experiment(
    name="coin",
    paper="Nobody",
    item="Table 0",
    settings={"fair": {"p": 0.5}, "bent": {"p": 0.7}},
    seeds=(0, 1),
    measure=lambda constants, seed: {"mean": constants["p"] + seed},
    columns=(Column("mean"),),
    expected="one half",
    minutes=0.01,
)


@pytest.fixture(autouse=True)
def _one_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "experiments", lambda: iter([COIN]))


def test_list_run_show(shell: Shell, tmp_path: Path) -> None:
    there = f"--results {tmp_path}"
    (row,) = shell.json(f"papers list {there}")["experiments"]
    assert (row["name"], row["runs"], row["left"]) == ("coin", 4, 4)
    out = shell.ok(f"papers list {there}")
    assert "| coin       | 0 of 4 |" in out
    looked = f"\nresults are looked for in {tmp_path}"
    assert out.endswith(f"{looked}, where there are none; --results names another\n")
    assert "nothing stored yet" in shell.ok(f"papers show coin {there}")

    code, out, err = shell(f"papers run coin {there} --seeds 0 --settings fair")
    assert code == 0
    assert "| fair    | 1     | 0.5  |" in out
    assert "coin: 1 runs left" in err

    code, out, err = shell(f"papers run coin {there}")
    assert code == 0
    assert "coin: 3 runs left" in err
    assert shell.ok(f"papers list {there}").endswith(f"{looked}\n")
    stored = shell.json(f"papers show coin {there}")["runs"]
    assert [(run["setting"], run["seed"]) for run in stored] == [
        ("fair", 0),
        ("bent", 0),
        ("fair", 1),
        ("bent", 1),
    ]
    assert stored[0]["command"] == "steppe papers run coin --seeds 0 --settings fair"


def test_the_overview_is_written(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip = coverage.Item(name="Table 0", says="half", experiment="coin", came="{fair|mean} heads")
    drawn = coverage.Item(name="Figure 0", says="a coin", why_not="a drawing", result=False)
    monkeypatch.setattr(coverage.page, "PAPERS", {"Nobody": (flip, drawn)})
    there = f"--results {tmp_path}"
    page = tmp_path / "README.md"
    assert shell.ok(f"papers overview {there}").startswith(
        f"{page}: 0 done, 0 shortened, 1 not run"
    )
    assert "| Table 0 | not run yet | – | half | – |" in page.read_text()
    assert shell(f"papers run coin {there} --settings fair")[0] == 0  # keeps it up to date
    row = "| Table 0 | done; 2 of 4 runs are left | – | half | 0.5 / 1.5 heads (2 seeds) |"
    assert row in page.read_text()
    found = shell.json(f"papers overview {there}")
    assert (found["page"], found["done"], found["not run"]) == (str(page), 1, 0)


def test_time_that_is_used_up_leaves_work(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell(f"papers run coin --results {tmp_path} --minutes 0.001")
    assert code == 1
    assert "stopped: the next run needs 0.6 s; start again to go on" in err
    assert "nothing stored yet" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("show dice", "experiment='dice': must be one of coin; did you mean 'coin'?"),
        ("run coin --settings odd", "--settings='odd': must be one of 'fair', 'bent'."),
        (
            "run coin --minutes -1",
            "--minutes=-1.0: must be finite and above 0.",
        ),
    ],
)
def test_bad_input(shell: Shell, tmp_path: Path, words: str, message: str) -> None:
    assert shell.refused(f"papers {words} --results {tmp_path}") == f"steppe: error: {message}\n"


def test_results_that_are_damaged(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "coin.json").write_text("{")
    message = shell.refused(f"papers show coin --results {tmp_path}")
    assert "must be a file that the runner wrote" in message


def test_seeds_that_are_no_numbers(shell: Shell) -> None:
    assert shell.refused("papers run coin --seeds 0,x") == (
        "steppe papers run: error: argument --seeds: 'x' is not a whole number; write it like "
        "60000\n"
        "See steppe papers run --help.\n"
    )
