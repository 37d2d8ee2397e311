"""One HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from steppe.report.comparison import comparison_sections
from steppe.report.markup import Child, Markup, joined, tag
from steppe.report.run import ReportedRun, read_run
from steppe.report.sections import Section, run_sections, tiles
from steppe.utils.files import write_atomically, writing
from steppe.utils.validation import fail


def write(runs: Sequence[Path], out: Path) -> Path:
    """Write the report of a run, or the comparison of several.

    Args:
        runs: run folders, finished or not.
        out: the page to write, or a folder for `report.html`.

    Returns:
        The page's path.

    Raises:
        ConfigurationError: no run is given, or a folder holds none.
        DataError: a file of a run is broken; the message names it.

    Guarantees:
        The page asks the network for nothing, and its content policy forbids it. Text from the
        runs cannot become markup. Measurements on data that is neither public nor accounted are
        left out, and so are folders of the machine that trained.
    """
    if isinstance(runs, str | Path) or not runs:
        raise fail("runs", runs, "must be a list of run folders", "give at least one")
    folders = [Path(run).resolve() for run in runs]
    if len(set(folders)) != len(folders):
        raise fail("runs", [str(run) for run in runs], "must be different", "give each once")
    read = _with_unique_names([read_run(folder) for folder in folders], folders)
    path = Path(out)
    if path.is_dir():
        path = path / "report.html"
    if not path.parent.is_dir():
        rule = "lies in a folder that does not exist"
        raise fail("out", out, rule, "make the folder first, or choose another")
    with writing("out", path):
        write_atomically(path, render(read).encode())
    return path


def _with_unique_names(runs: list[ReportedRun], folders: Sequence[Path]) -> list[ReportedRun]:
    """Runs whose folders have one name get that of the folder around it too, or a number."""
    seen = Counter(run.name for run in runs)
    longer = [
        replace(run, name=f"{folder.parent.name}/{run.name}") if seen[run.name] > 1 else run
        for run, folder in zip(runs, folders, strict=True)
    ]
    names = [run.name for run in longer]
    return [
        replace(run, name=f"{run.name} ({place + 1})") if names.count(run.name) > 1 else run
        for place, run in enumerate(longer)
    ]


def render(runs: Sequence[ReportedRun]) -> str:
    """The page as text.

    Args:
        runs: one for a page of its own, several for a comparison.
    """
    if len(runs) == 1:
        (run,) = runs
        kind = "Training run" if run.epsilon is None else "Private training run"
        return _page(run.name, kind, tiles(run), run_sections(run))
    return _page(
        f"{len(runs)} runs", "Comparison of private training runs", None, comparison_sections(runs)
    )


def _page(title: str, kind: str, lead: Child, sections: Sequence[Section]) -> str:
    style, script = text_of("figure.css") + text_of("page.css"), text_of("page.js")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} · {kind} · Steppe"),
        # Our own two files, the only text that is not escaped; their hashes are in the policy.
        tag("style", Markup(style)),
    )
    links = [tag("li", tag("a", part.title, href=f"#{part.key}")) for part in sections]
    body = tag(
        "body",
        tag("a", "Skip to the report", class_="skip", href="#report"),
        tag(
            "header",
            tag("div", tag("p", kind, class_="kind"), tag("h1", title)),
            tag("button", "Dark", type="button", id="theme", hidden=True),
        ),
        tag("nav", tag("ul", links), aria_label="Parts of the report"),
        tag("main", lead, [part.html() for part in sections], id="report", tabindex="-1"),
        tag("footer", tag("p", f"Written by Steppe {version('steppe')}. One file, no network.")),
        tag("div", id="tip", aria_hidden="true", hidden=True),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', joined((head, body)), lang='en')}\n"


def text_of(name: str) -> str:
    """One of the files that lie beside this one."""
    return files("steppe.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded, and only these two texts may act."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
