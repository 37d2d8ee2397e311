"""`steppe plan`: statement, event, time and memory of a run, before any budget is spent."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing, run_config
from steppe.cli.printing import print_json
from steppe.utils import validation

if TYPE_CHECKING:
    from steppe.training import BuiltConfig


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "plan",
        run,
        purpose="What a run will promise and need: statement, event, memory, speed.",
        details="No model is trained and no budget is spent. Time and memory are measured on "
        "synthetic records\nof the same shape, on this machine.",
        examples="steppe plan run.toml\nsteppe plan run.toml --isolation each --json\n"
        "steppe plan visits.csv --target ill --classes no,yes --holdout 0.2 --epsilon 2",
    )
    run_config.add_options(new)


def _checked(assembly: BuiltConfig) -> str | None:
    """What the owner's checks will read."""
    from steppe.records import as_records, read_by_checks

    return read_by_checks(as_records(assembly.loaded.train), assembly.plan.population)


def run(arguments: argparse.Namespace) -> int:
    """Print the statement, the event and the forecast."""
    from steppe.cli.forecast import forecast
    from steppe.cli.outcomes import chosen, chosen_text
    from steppe.probing import ISOLATION
    from steppe.training import CALLED
    from steppe.utils.batches import count

    as_given = run_config.words_of(arguments)
    with validation.reworded(as_given):
        config = run_config.config_of(arguments)
        config.require_augment(None)
        assembly = config.assemble()
    plan = assembly.known_plan
    loaded = assembly.loaded
    public = 0 if loaded.public is None else count(loaded.public)
    with validation.reworded(as_given), validation.called(CALLED):
        needs = forecast(assembly, plan)
        statement = replace(
            plan.statement(),
            also_read=loaded.also_read,
            held_out=loaded.held_out,
            checked=_checked(assembly) if loaded.checks else None,
            public_records=public,
            isolation=needs.isolation,
        )
    choices = chosen(assembly.resolved, assembly.reasons)
    if arguments.json:
        print_json(
            {
                "plan": plan.to_dict(),
                "statement": statement.to_dict(),
                "event": str(plan.event()),
                "forecast": needs.to_dict(),
                "chosen": choices,
                "configuration": assembly.resolved,
            }
        )
        return 0
    if choices:
        print(f"{chosen_text(choices)}\n")
    print(statement)
    print(f"\nisolation: {ISOLATION[needs.isolation]}")
    print(f"event: {plan.event()}")
    print(f"\nforecast: {needs}")
    return 0
