"""`steppe data`: public data sets and published weights in the cache."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import print_json
from steppe.utils.formatting import table

_EXAMPLES = """
steppe data example
steppe data list
steppe data fetch mnist
steppe data fetch efficientnet-lite0
steppe data verify mnist
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    own = parsing.new_group(
        commands,
        "data",
        purpose="Public data sets and starts: example, list, fetch, verify.",
        examples=_EXAMPLES,
    )
    example = parsing.new_command(
        own,
        "example",
        run_example,
        purpose="Write a small public table, to try the commands on.",
        details="944 answers to the American National Election Study of 1996, public domain.",
        examples="steppe data example\nsteppe data example tables/votes.csv",
    )
    example.add_argument(
        "file",
        nargs="?",
        type=parsing.path,
        default="votes.csv",
        metavar="FILE",
        help="where to write it (default: votes.csv)",
    )
    listing = parsing.new_command(
        own,
        "list",
        run_list,
        purpose="The data sets by name, and which are in the cache.",
        examples="steppe data list --json",
    )
    fetch = parsing.new_command(
        own,
        "fetch",
        run_fetch,
        purpose="Download data sets into the cache, and check them.",
        details="The cache is the folder STEPPE_DATA, or the user's cache directory.",
        examples="steppe data fetch mnist fashion-mnist",
    )
    verify = parsing.new_command(
        own,
        "verify",
        run_verify,
        purpose="Check data sets in the cache against their SHA-256.",
        examples="steppe data verify mnist",
    )
    for command in (fetch, verify):
        command.add_argument(
            "names", nargs="+", metavar="NAME", help="a name from `steppe data list`"
        )
    for command in (example, listing, fetch, verify):
        parsing.add_json(command)


def run_example(arguments: argparse.Namespace) -> int:
    """Write the table that comes with the package, and say what to do with it."""
    from steppe import data
    from steppe.utils import validation
    from steppe.utils.files import write_atomically, writing

    path, table = Path(arguments.file), data.example_table()
    parsing.require_writable("file", path)
    if path.exists() and path.read_bytes() != table.content:
        raise validation.fail("file", path, "is another file", "name a new one")
    with writing("file", path):
        write_atomically(path, table.content)
    command = f"steppe train {shlex.quote(str(path))} {table.options} --holdout 0.2 --epsilon 2"
    if arguments.json:
        print_json({"file": str(path), "about": table.about, "train": command})
    else:
        print(f"written: {path}\n{table.about}\ntry: {command} --run runs/first")
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Print the data sets."""
    from steppe import data

    folder = data.cache_folder()
    entries = [data.find(name) for name in data.names()]
    cached = {entry.name: (folder / f"{entry.name}.npz").exists() for entry in entries}
    weights = [data.find_start_entry(name) for name in data.start_names()]
    here = {entry.name: data.start_path(entry.name).exists() for entry in weights}
    if arguments.json:
        rows = [
            {"name": e.name, "classes": e.classes, "cached": cached[e.name], "about": e.about}
            for e in entries
        ]
        starts = [{"name": e.name, "cached": here[e.name], "about": e.about} for e in weights]
        print_json({"cache": str(folder), "data_sets": rows, "starts": starts})
        return 0
    lines = [(e.name, "yes" if cached[e.name] else "no", str(e.classes), e.about) for e in entries]
    lines += [(e.name, "yes" if here[e.name] else "no", "–", e.about) for e in weights]
    print(table([("name", "cached", "classes", "what"), *lines], left=4))
    print(f"\ncache: {folder}")
    return 0


def run_fetch(arguments: argparse.Namespace) -> int:
    """Fetch data sets and say where they came from."""
    from steppe import data

    rows = []
    for name in _known(arguments.names):
        if name in data.start_names():
            path = data.fetch_start(name)
            row = {"name": name, "path": str(path), "sha256": data.verify_start(name)}
            rows.append(row)
            if not arguments.json:
                print(f"{name}: {path}\n  SHA-256 {row['sha256']}", flush=True)
            continue
        found = data.load(name)
        path = data.cache_folder() / f"{name}.npz"
        rows.append(
            {"name": name, "path": str(path), "source": found.source, "sha256": found.sha256}
        )
        if not arguments.json:
            print(f"{name}: {path}\n  from {found.source}\n  SHA-256 {found.sha256}", flush=True)
    if arguments.json:
        print_json({"data_sets": rows})
    return 0


def _known(names: list[str]) -> list[str]:
    """The names of data sets and starts; another one is an error."""
    from steppe import data

    return [name if name in data.start_names() else data.find(name).name for name in names]


def run_verify(arguments: argparse.Namespace) -> int:
    """Check cached data sets. Damage gives exit code 1, an unknown name is an error."""
    from steppe import data
    from steppe.errors import DataError

    rows = []
    for name in _known(arguments.names):
        check = data.verify_start if name in data.start_names() else data.verify
        try:
            rows.append({"name": name, "intact": True, "sha256": check(name)})
        except DataError as error:
            rows.append({"name": name, "intact": False, "reason": str(error)})
    if arguments.json:
        print_json({"data_sets": rows})
    else:
        for row in rows:
            say = (
                f"intact, SHA-256 {row['sha256']}"
                if row["intact"]
                else f"not intact: {row['reason']}"
            )
            print(f"{row['name']}: {say}")
    return 0 if all(row["intact"] for row in rows) else 1
