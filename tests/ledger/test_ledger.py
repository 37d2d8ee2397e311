"""The account: charged before it is spent, never too little, and added up over runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from ledger_cases import DATA, charge, plan
from synced import contents_when_synced

from steppe import CappedPoisson, Plan, accounting
from steppe.accounting.segment import Segments, merged
from steppe.errors import BudgetExhausted, ConfigurationError, DataError
from steppe.ledger import Anchor, Ledger
from steppe.ledger.chain import Writer
from steppe.ledger.runs import LedgerRun, LedgerState
from steppe.noise import StepSchedule
from steppe.sampling import Periodic


def test_a_ledger_that_is_not_there_does_not_read_as_nothing_spent(ledger: Ledger) -> None:
    assert ledger.runs() == {}
    with pytest.raises(DataError, match=r"there is no such file, so the cost of earlier runs is"):
        ledger.epsilon(1e-5)
    with ledger.begin(plan(), DATA, block=8):
        assert ledger.epsilon(1e-5) == 0.0


def test_a_ledger_is_a_path() -> None:
    with pytest.raises(ConfigurationError, match="ledger=5: must be a path"):
        Ledger(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("step", "charged"), [(1, 8), (8, 8), (9, 16), (17, 20), (20, 20)])
def test_a_step_is_charged_with_its_block(ledger: Ledger, step: int, charged: int) -> None:
    run = charge(ledger, step)
    assert ledger.runs()[run].charged == charged
    assert ledger.epsilon(1e-5) == plan().epsilon_spent(charged)


def test_the_charge_is_on_the_disk_before_cover_returns(ledger: Ledger) -> None:
    with ledger.begin(plan(), DATA, block=3) as account:
        for step in range(1, 21):
            account.cover(step)
            assert ledger.runs()[account.run.id].charged >= step


def test_the_plan_is_a_hard_limit(ledger: Ledger) -> None:
    with ledger.begin(plan(), DATA, block=8) as account:
        account.cover(20)
        with pytest.raises(BudgetExhausted, match="step=21: all 20 steps of the plan are charged"):
            account.cover(21)


def test_runs_add_up(ledger: Ledger) -> None:
    charge(ledger, 20)
    charge(ledger, 5, of=plan(noise_multiplier=2.0, batch_size=100))
    both = (
        *plan().segments(),
        *plan(noise_multiplier=2.0, batch_size=100).segments(8),
    )
    assert ledger.epsilon(1e-5) == accounting.epsilon(both, 1e-5)
    assert ledger.epsilon(1e-5) > plan().epsilon_spent()


def test_schedules_and_caps_are_charged_as_they_are(ledger: Ledger) -> None:
    own = plan(
        noise=StepSchedule(0.8, every=5), sampling=CappedPoisson(80), adjacency="zero-out", steps=20
    )
    charge(ledger, 7, block=7, of=own)
    assert ledger.epsilon(1e-5) == own.epsilon_spent(7)


def test_groups_of_records_have_accounts_of_their_own(ledger: Ledger) -> None:
    own = plan(sampling=Periodic(6), steps=12)
    charge(ledger, 4, block=4, of=own)
    assert ledger.epsilon(1e-5) == own.epsilon_spent(4)
    other = plan(sampling=Periodic(4, first=0.3), steps=5)
    charge(ledger, 5, block=5, of=other)
    # A record may be of any group in either run; the worst combination counts.
    combined = [
        accounting.epsilon((*one, *two), 1e-5)
        for one in own.segments_by_group(4)
        for two in other.segments_by_group(5)
    ]
    assert ledger.epsilon(1e-5) == max(combined)


def test_giving_back_in_groups(ledger: Ledger) -> None:
    own = plan(sampling=Periodic(6), steps=12)
    with ledger.begin(own, DATA, block=12) as account:
        account.cover(1)
        account.pause(5)
    assert ledger.epsilon(1e-5) == own.epsilon_spent(5)


def test_seeded_noise_protects_nothing(ledger: Ledger) -> None:
    charge(ledger, 1)
    with ledger.begin(plan(), DATA, block=8, not_private_reason="seeded") as account:
        assert ledger.epsilon(1e-5) < 10.0  # no step of it was begun yet
        account.cover(1)
    assert ledger.epsilon(1e-5) == math.inf


def test_an_orderly_end_gives_back_what_was_not_begun(ledger: Ledger) -> None:
    own = plan(noise=StepSchedule(0.8, every=5))
    with ledger.begin(own, DATA, block=8) as account:
        account.cover(9)
        account.pause(11)
        assert account.charged == 11
    assert ledger.epsilon(1e-5) == own.epsilon_spent(11)


@pytest.mark.parametrize("of", [plan(), plan(sampling=Periodic(10))])
def test_a_pause_before_the_first_charge_leaves_the_ledger_whole(ledger: Ledger, of: Plan) -> None:
    before = charge(ledger, 3, of=of)
    with ledger.begin(of, DATA, block=5) as account:
        account.pause(0)
        run = account.run.id
    assert ledger.runs()[run].charged == 0
    assert ledger.epsilon(1e-5) == of.epsilon_spent(8)
    with ledger.resume(run, of, DATA, block=5, anchor=Anchor()) as account:
        account.cover(1)
    assert [ledger.runs()[name].charged for name in (before, run)] == [8, 5]


def test_a_record_that_makes_no_sense_is_never_written(ledger: Ledger) -> None:
    with ledger.begin(plan(), DATA, block=5) as account:
        account.cover(1)
        length = account.anchor.length
        with pytest.raises(ValueError, match="9"):
            account._write({"kind": "pause", "run": account.run.id, "last": 9, "returned": []})
        assert account.anchor.length == length
    assert ledger.epsilon(1e-5) == plan().epsilon_spent(5)


def test_one_seeded_part_voids_a_run(ledger: Ledger) -> None:
    run = charge(ledger, 3)
    reason = "the noise is known"
    again = {"block": 5, "anchor": Anchor()}
    with ledger.resume(run, plan(), DATA, **again, not_private_reason=reason) as account:  # type: ignore[arg-type]
        assert account.run.not_private_reason == reason
    assert ledger.epsilon(1e-5) == math.inf
    with ledger.resume(run, plan(), DATA, **again) as account:  # type: ignore[arg-type]
        assert account.run.not_private_reason == reason


def test_a_paused_account_charges_nothing_more(ledger: Ledger) -> None:
    with ledger.begin(plan(), DATA, block=8) as account:
        account.cover(1)
        account.pause(3)
        with pytest.raises(BudgetExhausted):
            account.cover(4)


def test_resuming_goes_on_after_everything_charged(ledger: Ledger) -> None:
    run = charge(ledger, 9)
    with ledger.resume(run, plan(), DATA, block=3, anchor=ledger.anchor()) as account:
        assert account.charged == 16
        account.cover(17)
        assert account.charged == 19
    assert ledger.epsilon(1e-5) == plan().epsilon_spent(19)


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_a_torn_end_counts_as_the_charge_that_was_announced(ledger: Ledger, cut: int) -> None:
    run = charge(ledger, 9)  # two charges: 8, 16
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-cut])
    assert ledger.runs()[run].charged == 16  # also for a reader, who mends nothing
    with ledger.resume(run, plan(), DATA, block=8, anchor=Anchor()) as account:
        assert account.charged == 16
    assert ledger.epsilon(1e-5) == plan().epsilon_spent(16)
    assert [r["kind"] for r in read_records(ledger)][-2:] == ["repair", "resume"]


def test_a_torn_opening_of_another_run_costs_at_most_a_block(ledger: Ledger) -> None:
    first = charge(ledger, 1)
    charge(ledger, 1)
    whole = ledger.path.read_bytes().splitlines(keepends=True)
    assert b'"kind":"run"' in whole[3]
    ledger.path.write_bytes(b"".join(whole[:3]) + whole[3][:50])
    assert ledger.runs()[first].charged == 16


def test_a_torn_opening_after_a_pause_costs_nothing(ledger: Ledger) -> None:
    with ledger.begin(plan(), DATA, block=8) as account:
        account.cover(1)
        account.pause(5)
    with ledger.path.open("ab") as file:
        file.write(b'{"seq":5,"kind":"run"')
    assert ledger.epsilon(1e-5) == plan().epsilon_spent(5)
    charge(ledger, 1)
    assert len(ledger.runs()) == 2


@pytest.mark.parametrize("left", [60, -1])
def test_a_budget_is_not_lost_with_an_incomplete_line(ledger: Ledger, left: int) -> None:
    limited = Ledger(ledger.path, epsilon=1.5, delta=1e-5)
    limited.create()
    ledger.path.write_bytes(ledger.path.read_bytes()[:left])
    with pytest.raises(DataError, match="incomplete first line, which had the budget"):
        ledger.begin(plan(), DATA, block=8)
    limited.create()
    assert ledger.budget == {"epsilon": 1.5, "delta": 1e-5}


def test_a_ledger_torn_at_birth_can_be_used(ledger: Ledger) -> None:
    ledger.path.write_bytes(b'{"seq":1,"ki')
    charge(ledger, 1)
    assert ledger.epsilon(1e-5) == plan().epsilon_spent(8)


def test_a_ledger_that_is_shorter_than_the_checkpoint_remembers(ledger: Ledger) -> None:
    run = charge(ledger, 9)
    anchor = ledger.anchor()
    whole = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(whole[:-1]))
    with pytest.raises(DataError, match="must contain record 4 with the hash in the checkpoint"):
        ledger.resume(run, plan(), DATA, block=8, anchor=anchor)


def test_the_lock_is_free_after_a_refusal(ledger: Ledger) -> None:
    run = charge(ledger, 1)
    for _ in range(2):
        with pytest.raises(DataError, match="is not in the ledger"):
            ledger.resume("strange", plan(), DATA, block=8, anchor=Anchor())
    ledger.resume(run, plan(), DATA, block=8, anchor=Anchor()).close()


def test_a_charge_is_on_the_disk_before_the_step_may_be_taken(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger.begin(plan(), DATA, block=8) as account:
        synced = contents_when_synced(ledger.path, monkeypatch)
        account.cover(1)
        assert synced == [ledger.path.read_bytes()]
        assert b'"kind":"charge"' in synced[0]


def test_a_run_enters_once(ledger: Ledger) -> None:
    run = charge(ledger, 1)
    with pytest.raises(ConfigurationError, match="is in the ledger already"):
        ledger.begin(plan(), DATA, block=8, run=run)


@pytest.mark.parametrize("block", [0, -1, 2.5, True])
def test_a_block_has_a_step(ledger: Ledger, block: object) -> None:
    with pytest.raises(ConfigurationError, match="block="):
        ledger.begin(plan(), DATA, block=block)  # type: ignore[arg-type]


def test_records_of_another_version_are_refused(ledger: Ledger) -> None:
    run = charge(ledger, 1)
    writer = Writer(ledger.path)
    writer.append({"kind": "surprise", "run": run})
    writer.close()
    with pytest.raises(DataError, match="line 4 has a format that this version does not know"):
        ledger.epsilon(1e-5)


def read_records(ledger: Ledger) -> tuple[dict[str, object], ...]:
    from steppe.ledger.chain import read

    return read(ledger.path).records


def test_many_runs_with_groups_are_added_up_in_time_and_never_too_little() -> None:
    state = LedgerState()
    own = [plan(sampling=Periodic(4, first=0.3), noise_multiplier=5.0 + i) for i in range(8)]
    for i, each in enumerate(own):
        state.runs[str(i)] = LedgerRun(str(i), "", 20, 1e-5, {}, None, 20, each.segments_by_group())
    found = state.worst_runs()
    assert len(found) <= 32  # and not 2^8
    for groups in ([0] * 8, [1] * 8, [0, 1] * 4):
        costs = zip(own, groups, strict=True)
        alone = merged(part for each, i in costs for part in each.segments_by_group()[i])
        worse = [run for run in found if holds(run, alone)]
        assert worse
        assert accounting.epsilon(worse[0], 1e-5) >= accounting.epsilon(alone, 1e-5)


def holds(run: Segments, part: Segments) -> bool:
    """Whether every step of the part is one of the run."""
    steps = {replace(segment, steps=1): segment.steps for segment in run}
    return all(steps.get(replace(each, steps=1), 0) >= each.steps for each in part)


@pytest.mark.parametrize(
    "changes", [{"last": 8}, {"last": 0}, {"last": "9"}, {"last": 21}, {"last": 9, "cost": []}]
)
def test_a_charge_that_makes_no_sense_is_refused(
    ledger: Ledger, changes: dict[str, object]
) -> None:
    run = charge(ledger, 1, block=8)
    cost = read_records(ledger)[-1]["cost"]
    writer = Writer(ledger.path)
    writer.append({"kind": "charge", "run": run, "cost": cost, "next": None, **changes})
    writer.close()
    with pytest.raises(DataError, match="line 4 has a format that"):
        ledger.epsilon(1e-5)
