"""`steppe train`: a private run from a configuration file, or from data and ε alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing
from steppe.cli.typed_names import name_options, name_other_ways
from steppe.errors import SteppeError
from steppe.utils import validation

if TYPE_CHECKING:
    from steppe.training import Config

_EXAMPLES = """
steppe train run.toml
steppe train --data mnist --epsilon 2
steppe train --data cifar10 --start efficientnet-lite0 --epsilon 1
steppe train --data mnist --epsilon 3 --model cnn-tanh-26k --run runs/cnn --ledger mnist.jsonl
steppe train --data visits.csv --target ill --classes 2 --test visits-2025.csv --epsilon 2
steppe train --data visits.csv --target ill --classes no,yes --columns age,visits,sex \\
             --bounds age=0,120 --bounds visits=0,50 --categories sex=f,m --missing middle \\
             --epsilon 2 --model my_project.models:build
"""
_DETAILS = """
What you leave out is chosen by rule, and printed with the reason. The run's folder contains the
complete configuration, the privacy statement, the ledger of the budget spent, checkpoints, the log,
the weights and their averages. Ctrl-C stops after the current step; `steppe resume` continues.
"""
_OF_DATA = ("classes", "target", "test", "columns", "bounds", "categories", "missing")


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
    new.add_argument("config", nargs="?", type=parsing.path, metavar="CONFIG", help="a TOML file")
    new.add_argument(
        "--data",
        help="instead of a TOML file: a public data set, a file or folder, or module:factory",
    )
    new.add_argument("--epsilon", type=parsing.real_number, metavar="ε", help="the privacy budget")
    new.add_argument(
        "--delta", type=parsing.real_number, metavar="δ", help="chosen by rule by default"
    )
    new.add_argument("--model", help="a name, or module:factory; chosen by rule by default")
    new.add_argument(
        "--mirror",
        action=argparse.BooleanOptionalAction,
        help="whether the mirror image of a picture shows the same, as for photographs (default: "
        "as declared for a public data set, otherwise for pictures in colour)",
    )
    new.add_argument(
        "--start",
        metavar="START",
        help="a start file, or published weights such as efficientnet-lite0 (default: none)",
    )
    parsing.add_run_folder(new)
    new.add_argument(
        "--ledger",
        metavar="FILE",
        help="the ledger that all runs on the same data share (default: one for this run alone)",
    )
    new.add_argument(
        "--ledger-epsilon",
        type=parsing.real_number,
        metavar="ε",
        help="the budget of a new ledger, for all its runs together at the δ of this one",
    )
    parsing.add_isolation(new)
    parsing.add_json(new)
    _add_own_data(new.add_argument_group("your own data"))


def _add_own_data(group: Any) -> None:
    group.add_argument(
        "--classes",
        type=parsing.count_or_names,
        metavar="N",
        help="the number of classes, or their names separated by commas",
    )
    group.add_argument("--target", metavar="COLUMN", help="the column of labels of a CSV file")
    group.add_argument("--test", metavar="FILE", help="another CSV file, to evaluate on")
    group.add_argument(
        "--columns",
        type=parsing.several(str),
        metavar="A,B,…",
        help="the columns of a CSV file to use (default: all)",
    )
    group.add_argument(
        "--bounds",
        type=parsing.column_and_range,
        action="append",
        metavar="COLUMN=LOW,HIGH",
        help="the lowest and highest value of a column, once for each column, or "
        "LOW,HIGH for all values (default: read from the records, outside the guarantee)",
    )
    group.add_argument(
        "--categories",
        type=parsing.column_and_texts,
        action="append",
        metavar="COLUMN=A,B,…",
        help="the categories of a column of text, each of which becomes an input of 0 or 1; once "
        "for each column",
    )
    group.add_argument(
        "--missing",
        choices=("middle",),
        help="replace missing values by the middle of the column's bounds",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the table."""
    from steppe.cli.outcomes import chosen_for, chosen_text, is_terminal, print_outcome
    from steppe.training import RunFolder

    as_given = name_options if arguments.config is None else _as_in_file(arguments)
    with validation.reworded(as_given):
        config = in_train(_config(arguments), "ledger", arguments.ledger)
        config = in_train(config, "ledger_epsilon", arguments.ledger_epsilon)
        config = in_train(config, "isolation", arguments.isolation)
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
    print_outcome(outcome, arguments.json, choices)
    return 0


def _as_in_file(arguments: argparse.Namespace) -> Callable[[SteppeError], None]:
    """Rename arguments in errors to keys of the file, or to the options that replaced them."""
    names = {}
    given_here = {
        "run": arguments.folder,
        "ledger": arguments.ledger,
        "ledger_epsilon": arguments.ledger_epsilon,
        "isolation": arguments.isolation,
    }
    for name, given in given_here.items():
        key = f"train.{name}"
        names[name] = names[key] = key if given is None else f"--{name.replace('_', '-')}"

    def name_keys(error: SteppeError) -> None:
        error.rename(names)
        name_other_ways(error)

    return name_keys


def _config(arguments: argparse.Namespace) -> Config:
    from steppe.data import known
    from steppe.training import Config, read

    given = {
        name: getattr(arguments, name)
        for name in ("data", "epsilon", "delta", "model", "start", "mirror", *_OF_DATA)
        if getattr(arguments, name) is not None
    }
    if arguments.config is not None:
        for name, value in given.items():
            raise validation.fail(
                f"--{name}", value, "cannot be given beside a file", f"set it in {arguments.config}"
            )
        return read(arguments.config)
    for name in ("data", "epsilon"):
        if name not in given:
            raise validation.missing(f"--{name}", "add it, or name a TOML file")
    public = known(given["data"])
    data: dict[str, Any] = {"place": given["data"]} if public is None else {"name": public.name}
    data |= {name: given[name] for name in _OF_DATA if name in given}
    if "categories" in data:
        data["categories"] = dict(data["categories"])
    if "bounds" in data:
        data["bounds"] = _bounds(data["bounds"])
    tables: dict[str, Any] = {"data": data, "plan": {"epsilon": given["epsilon"]}}
    if "delta" in given:
        tables["plan"]["delta"] = given["delta"]
    if "model" in given:
        key = "factory" if ":" in given["model"] else "name"
        tables["model"] = {key: given["model"]}
    if "mirror" in given:
        tables["model"] = {**tables.get("model", {}), "mirror": given["mirror"]}
    if "start" in given:
        tables.setdefault("model", {})["start"] = given["start"]
    return Config(tables)


def in_train(config: Config, name: str, given: str | float | None) -> Config:
    """The configuration with an option of the command line in its `[train]`."""
    from steppe.training import Config

    if given is None:
        return config
    train = config.tables.get("train", {})
    if name in train:
        rule = f"the file has {name} = {train[name]!r}"
        option = f"--{name.replace('_', '-')}"
        raise validation.fail(option, given, rule, "leave out one of the two")
    return Config({**config.tables, "train": {**train, name: given}})


def _bounds(given: list[tuple[str, tuple[float, float]]]) -> Any:
    """One pair for all values, or a pair for each column, as in a TOML file."""
    by_column = {column: list(ends) for column, ends in given}
    if "" not in by_column:
        return by_column
    if len(given) > 1:
        rule = "LOW,HIGH without a column is for all columns"
        raise validation.fail("--bounds", by_column[""], rule, "write it once, or name each column")
    return by_column[""]
