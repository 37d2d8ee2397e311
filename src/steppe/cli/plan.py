"""`steppe plan`: statement, event, time and memory of a run, before any budget is spent."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import print_json
from steppe.cli.typed_names import name_other_ways
from steppe.utils import validation


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "plan",
        run,
        purpose="What a run will promise and need: statement, event, memory, speed.",
        details="No model is trained and no budget is spent. Time and memory are measured on "
        "synthetic records\nof the same shape, on this machine.",
        examples="steppe plan run.toml\nsteppe plan run.toml --isolation each --json",
    )
    new.add_argument("config", type=parsing.path, metavar="CONFIG", help="a TOML file")
    parsing.add_isolation(new)
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Print the statement, the event and the forecast."""
    from steppe.cli.forecast import forecast
    from steppe.cli.outcomes import chosen, chosen_text
    from steppe.cli.train import in_train
    from steppe.probing import ISOLATION
    from steppe.training import CALLED, read
    from steppe.utils.batches import count

    config = in_train(read(arguments.config), "isolation", arguments.isolation)
    config.require_augment(None)
    assembly = config.assemble()
    plan = assembly.known_plan
    loaded = assembly.loaded
    public = 0 if loaded.public is None else count(loaded.public)
    with validation.reworded(name_other_ways), validation.called(CALLED):
        needs = forecast(assembly, plan)
        statement = replace(
            plan.statement(),
            also_read=loaded.also_read,
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
