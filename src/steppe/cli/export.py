"""`steppe export`: a model of a run as a file for other programs, with a card."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import print_json
from steppe.utils import validation

_DETAILS = """
Writes the published model, or the one that --model names, and a card about it: card.json for
programs and README.md for people, with the privacy statement, what the inputs are and how to load
the file. safetensors has the weights; torch and onnx have a program, fixed front-end included, that
takes any number of records. The accuracy is in the card if the data are one of the public sets or
--public says that it may be shown.
"""
_FORMATS = ("safetensors", "torch", "onnx")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "export",
        run,
        purpose="A model of a run as a file for other programs, with a card.",
        details=_DETAILS,
        examples="steppe export runs/first\n"
        "steppe export runs/first --format onnx --out model\n"
        "steppe export runs/first --model SWA",
    )
    new.add_argument("folder", type=parsing.path, metavar="RUN", help="folder of the run")
    new.add_argument(
        "--out",
        type=parsing.path,
        metavar="FOLDER",
        help="a new folder (default: RUN/export/FORMAT)",
    )
    new.add_argument(
        "--format",
        choices=_FORMATS,
        default=_FORMATS[0],
        help="of the file (default: safetensors); onnx needs the extra onnx",
    )
    new.add_argument(
        "--model",
        dest="average",
        metavar="NAME",
        help="last, or an average of weights, such as EMA (default: the published model)",
    )
    new.add_argument(
        "--public",
        action="store_true",
        help="allow scores on the held-out data to be shown in the card",
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and print where they are."""
    from steppe.trained import export, load
    from steppe.training import RunFolder

    folder = RunFolder(arguments.folder)
    if folder.config.exists() and not folder.toml.exists():
        rule = "was made in Python, so that its network is not known"
        remedy = "export it there: steppe.trained.export(steppe.load(run, model=…), folder)"
        raise validation.fail("run", arguments.folder, rule, remedy)
    with validation.called({"average": "--model", "folder": "--out"}):
        model = load(arguments.folder, average=arguments.average)
        out = arguments.out or arguments.folder / "export" / arguments.format
        file = export(model, out, arguments.format, public=arguments.public)
    if arguments.json:
        print_json({"model": model.name, "file": str(file), "private": model.privacy["private"]})
    else:
        print(f"{model.name} of {arguments.folder}\nwritten: {file}, with card.json and README.md")
    return 0
