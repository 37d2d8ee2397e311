"""`steppe ledger`, and a budget given with the first run that uses a ledger."""

from __future__ import annotations

import re
from pathlib import Path

from cli_calls import Shell


def test_a_budget_is_made_before_any_run_and_holds_for_all(shell: Shell, project: Path) -> None:
    out = shell.ok("ledger create budget.jsonl --epsilon 3.5 --delta 1e-4")
    assert out == "ledger: budget.jsonl, budget ε = 3.5 at δ = 0.0001, no run yet\n"
    assert "is a ledger already, and its budget cannot be changed" in shell.refused(
        "ledger create budget.jsonl --epsilon 9 --delta 1e-4"
    )
    found = shell.json("ledger show budget.jsonl")
    assert (found["runs"], found["epsilon"], found["left"]) == ([], 0.0, 3.5)

    shell.ok("train run.toml --run one --ledger budget.jsonl")
    code, _, err = shell("train run.toml --run two --ledger budget.jsonl")
    assert code == 2
    assert "the ledger allows 3.5 at delta=0.0001; plan a run with a smaller epsilon" in err
    assert not (project / "two" / "config.json").exists()
    out = shell.ok("ledger show budget.jsonl")
    assert "\ndata: own.npz\n" in out
    assert re.search(r"\n\w{12}  +12 of 12  +2\.99\d\d  0\.0001\n", out)
    assert "\ntogether: ε = 2.99" in out
    assert "\nnot spent: ε = 0.50" in out

    # What the first run wrote is what later runs must share.
    (project / "other.npz").write_bytes((project / "own.npz").read_bytes())
    code, _, err = shell(
        "train --data other.npz --classes 2 --epsilon 0.1 --run three --ledger budget.jsonl"
    )
    assert code == 2
    assert "--data='other.npz': must be that of the ledger, 'own.npz'" in err


def test_a_ledger_gets_its_budget_from_the_first_run(shell: Shell, project: Path) -> None:
    shell.ok("train run.toml --run one --ledger new.jsonl --ledger-epsilon 3.2")
    found = shell.json("ledger show new.jsonl")
    assert found["budget"] == {"epsilon": 3.2, "delta": 1e-4}
    assert 0 < found["left"] < 0.3
    # The same budget may be repeated, as it is when the run is resumed; another is refused.
    shell.ok("resume one")
    code, _, err = shell("train run.toml --run two --ledger new.jsonl --ledger-epsilon 3.2")
    assert code == 2
    assert "together, and the ledger allows 3.2" in err
    code, _, err = shell("train run.toml --run two --ledger new.jsonl --ledger-epsilon 9")
    assert code == 2
    assert err == (
        "steppe: error: --ledger-epsilon=9.0: is not the budget of the ledger, ε = 3.2 at δ = "
        "0.0001; leave it out, since the ledger keeps its own budget.\n"
    )
    shell.ok("train run.toml --run free --ledger free.jsonl")
    code, _, err = shell("train run.toml --run two --ledger free.jsonl --ledger-epsilon 9")
    assert code == 2
    assert "is not the budget of the ledger, which has none; leave it out" in err
    for value in ("3", "-3"):
        message = shell.refused(f"train run.toml --run two --ledger-epsilon {value}")
        assert message.startswith("steppe: error: --ledger-epsilon=")


def test_damage_and_cut_lines_are_found(shell: Shell, project: Path) -> None:
    ledger = project / "run" / "ledger.jsonl"
    found = shell.json(f"ledger show {ledger}")
    assert found["budget"] is None
    assert found["left"] is None
    assert [run["charged"] for run in found["runs"]] == [12]
    out = shell.ok(f"ledger verify {ledger} --anchor {found['anchor']}")
    assert out == f"{ledger}: intact, 1 run\nanchor: {found['anchor']}\n"

    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]))
    shell.ok(f"ledger verify {ledger}")  # whole lines were cut: only the anchor shows it
    code, out, _ = shell(f"ledger verify {ledger} --anchor {found['anchor']}")
    assert code == 1
    assert "it was cut or exchanged" in out
    ledger.write_text("".join(lines).replace('"last":12', '"last":11'))
    code, out, _ = shell(f"ledger verify {ledger}")
    assert code == 1
    assert "does not have the hash it must have: it was changed" in out
    assert "must be LENGTH:HASH" in shell.refused(f"ledger verify {ledger} --anchor x")
    for command in ("show", "verify"):
        assert "there is no such file" in shell.refused(f"ledger {command} none.jsonl")


def test_runs_beside_each_other_without_a_ledger_in_common(shell: Shell, project: Path) -> None:
    note = (
        "note: run, beside this run, was trained on the same data and is not in this run's ledger"
    )
    assert note in shell.ok("train run.toml --run second")
    assert "beside" not in (project / "second" / "log.jsonl").read_text()
    # Runs that share the ledger are counted together, so there is nothing to say about them.
    (project / "elsewhere").mkdir()
    out = shell.ok("train run.toml --run elsewhere/one --ledger both.jsonl")
    assert "note:" not in out
    assert "note:" not in shell.ok("train run.toml --run elsewhere/two --ledger both.jsonl")
    out = shell.ok("train run.toml --run elsewhere/three")
    assert "note: one, two, beside this run, were trained on the same data and are not in" in out
