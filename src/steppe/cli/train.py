"""`steppe train`: a private run from a configuration file, or from data and ε alone."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing, run_config
from steppe.utils import validation

_EXAMPLES = """
steppe train run.toml
steppe train mnist --epsilon 2
steppe train cifar10 --start efficientnet-lite0 --epsilon 1
steppe train visits.csv --target ill --classes no,yes --holdout 0.2 --epsilon 2
steppe train prices.csv --target price --regression --target-bounds 0,500000 --epsilon 2
steppe train --data mnist --epsilon 3 --model cnn-tanh-26k --run runs/cnn --ledger mnist.jsonl
steppe train --data visits.csv --target ill --classes no,yes --columns age,visits,sex \\
             --bounds age=0,120 --bounds visits=0,50 --categories sex=f,m --missing middle \\
             --epsilon 2 --model my_project.models:build
"""
_DETAILS = """
What you leave out is chosen by rule, and printed with the reason. The run's folder contains the
complete configuration, the privacy statement, the ledger of the budget spent, checkpoints, the log,
the weights and their averages. Ctrl-C stops after the current step; `steppe resume` continues.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "train",
        run,
        purpose="Train a model privately.",
        details=_DETAILS,
        examples=_EXAMPLES,
    )
    run_config.add_options(new)
    new.add_argument(
        "--ceiling",
        action="store_true",
        help="afterwards train the same network without privacy, and print its score; it is not "
        "kept",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the table."""
    from steppe.cli.outcomes import chosen_for, chosen_text, is_terminal, print_outcome
    from steppe.training import RunFolder

    as_given = run_config.words_of(arguments)
    with validation.reworded(as_given):
        config = run_config.config_of(arguments)
        config = run_config.in_train(config, "ceiling", arguments.ceiling or None, "--ceiling")
        folder = arguments.folder or config.tables.get("train", {}).get("run")
        if folder is not None:  # before data are loaded and features computed
            RunFolder(folder).require_free()
        quiet = {} if is_terminal() else {"progress": False}
        trainer = config.trainer(arguments.folder, **quiet)
    choices = chosen_for(trainer)
    if choices and not arguments.json:
        print(f"{chosen_text(choices)}\n", flush=True)
    with validation.reworded(as_given):
        if not (trainer.parts.progress or arguments.json):  # the bar says it too
            for line in trainer.look_around():
                print(line, flush=True)
        outcome = trainer.fit()
    ceiling = trainer.ceiling() if trainer.parts.ceiling is not None else None
    print_outcome(outcome, arguments.json, choices, ceiling)
    return 0
