"""What `train` and `plan` are told about a run: a file, or data and options."""

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

_OF_FILES = ("target", "test", "holdout", "columns", "bounds", "categories", "missing")
_OF_DATA = ("classes", *_OF_FILES, "target_bounds")
# Options that may also be given beside a file, and then are put into its [train].
_IN_TRAIN = ("ledger", "ledger_epsilon", "isolation")


def add_options(new: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a run."""
    new.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a TOML file; or the data, as --data takes them",
    )
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
    new.add_argument(
        "--regression",
        action="store_true",
        help="predict a number instead of a label; the loss is mse_loss unless --loss names one",
    )
    new.add_argument(
        "--loss", metavar="NAME", help="a loss of torch.nn.functional (default: cross_entropy)"
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
    group.add_argument("--target", metavar="COLUMN", help="the column of a CSV file to predict")
    group.add_argument("--test", metavar="FILE", help="another CSV file, to evaluate on")
    group.add_argument(
        "--holdout",
        type=parsing.real_number,
        metavar="SHARE",
        help="keep this share of the records out of training, to evaluate on, such as 0.2",
    )
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
        "--target-bounds",
        type=parsing.low_and_high,
        metavar="LOW,HIGH",
        help="the lowest and highest number that a regression's target can have",
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
    group.add_argument(
        "--no-checks",
        action="store_true",
        help="leave out the checks of the records before the first step",
    )


def words_of(arguments: argparse.Namespace) -> Callable[[SteppeError], None]:
    """Names arguments in errors as they were given: as options, or as keys of the file."""
    return name_options if _file(arguments) is None else _as_in_file(arguments)


def config_of(arguments: argparse.Namespace) -> Config:
    """The configuration that a command line describes."""
    config = _config(arguments)
    if _file(arguments) is not None:
        option = "--regression" if arguments.loss is None else "--loss"
        config = in_train(config, "loss", _loss(arguments), option)
    for name in _IN_TRAIN:
        option = f"--{name.replace('_', '-')}"
        config = in_train(config, name, getattr(arguments, name), option)
    return config


def _file(arguments: argparse.Namespace) -> str | None:
    """The TOML file, if one was named."""
    given = arguments.config
    return given if given is not None and given.lower().endswith(".toml") else None


def _as_in_file(arguments: argparse.Namespace) -> Callable[[SteppeError], None]:
    """Rename arguments in errors to keys of the file, or to the options that replaced them."""
    names = {}
    for name in ("run", "loss", *_IN_TRAIN):
        given = getattr(arguments, "folder" if name == "run" else name)
        key = f"train.{name}"
        names[name] = names[key] = key if given is None else f"--{name.replace('_', '-')}"
    if getattr(arguments, "ceiling", False):
        names["ceiling"] = names["train.ceiling"] = "--ceiling"
    if arguments.regression and arguments.loss is None:
        names["loss"] = names["train.loss"] = "--regression"

    def name_keys(error: SteppeError) -> None:
        error.rename(names)
        name_other_ways(error)

    return name_keys


def _config(arguments: argparse.Namespace) -> Config:
    from pathlib import Path

    from steppe.training import Config, read

    given = {
        name: getattr(arguments, name)
        for name in ("data", "epsilon", "delta", "model", "start", "mirror", *_OF_DATA)
        if getattr(arguments, name) is not None
    }
    if arguments.no_checks:
        given["no_checks"] = True
    if arguments.config == "":
        parsing.path(arguments.config)  # says what is wrong with it
    if (file := _file(arguments)) is not None:
        for name, value in given.items():
            rule, remedy = "cannot be given beside a file", f"set it in {file}"
            raise validation.fail(f"--{name.replace('_', '-')}", value, rule, remedy)
        return read(Path(file))
    if arguments.config is not None:
        if "data" in given:
            rule, remedy = f"the data are {arguments.config!r} already", "name one of the two"
            raise validation.fail("--data", given["data"], rule, remedy)
        given["data"] = arguments.config
    return Config(_tables(given, _loss(arguments)))


def _loss(arguments: argparse.Namespace) -> str | None:
    """The loss that was asked for; None where none was."""
    if arguments.loss is None:
        return "mse_loss" if arguments.regression else None
    if arguments.regression and arguments.loss in ("cross_entropy", "nll_loss"):
        rule, remedy = "is for labels, and --regression was given", "leave out one of the two"
        raise validation.fail("--loss", arguments.loss, rule, remedy)
    return str(arguments.loss)


def _tables(given: dict[str, Any], loss: str | None) -> dict[str, Any]:
    """The tables of a configuration file, from options."""
    from steppe.data import known

    for name in ("data", "epsilon"):
        if name not in given:
            remedy = "name the data, or a TOML file" if name == "data" else "add the budget"
            raise validation.missing(f"--{name}", remedy)
    public = known(given["data"])
    data: dict[str, Any] = {"place": given["data"]} if public is None else {"name": public.name}
    data |= {name: given[name] for name in _OF_DATA if name in given}
    if "categories" in data:
        data["categories"] = dict(data["categories"])
    if "bounds" in data:
        data["bounds"] = _bounds(data["bounds"])
    if "target_bounds" in data:
        data["target_bounds"] = list(data["target_bounds"])
    if "no_checks" in given:
        data["checks"] = False
    tables: dict[str, Any] = {"data": data, "plan": {"epsilon": given["epsilon"]}}
    if loss is not None:
        tables["train"] = {"loss": loss}
    if "delta" in given:
        tables["plan"]["delta"] = given["delta"]
    if "model" in given:
        key = "factory" if ":" in given["model"] else "name"
        tables["model"] = {key: given["model"]}
    for name in ("mirror", "start"):
        if name in given:
            tables.setdefault("model", {})[name] = given[name]
    return tables


def in_train(config: Config, name: str, given: str | float | None, option: str) -> Config:
    """The configuration with an option of the command line in its `[train]`."""
    from steppe.training import Config

    if given is None:
        return config
    train = config.tables.get("train", {})
    if name in train:
        rule = f"the file has {name} = {train[name]!r}"
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
