"""The small table that comes with the package, for a first run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class ExampleTable:
    """A public table.

    Args:
        content: the CSV file.
        about: what it is and where it comes from, on one line.
        options: of `steppe train`, to predict its target.
    """

    content: bytes
    about: str
    options: str


def example_table() -> ExampleTable:
    """944 answers to the American National Election Study of 1996, in the public domain.

    Examples:
        >>> example_table().content.splitlines()[0].decode()
        'town_size,tv_news,own_view,view_of_clinton,view_of_dole,party,age,education,income,vote'
    """
    content = (files("steppe.data") / "tables" / "votes.csv").read_bytes()
    about = (
        "944 answers to the American National Election Study of 1996: the vote, and nine facts "
        "about a person. Public domain, taken from statsmodels 0.15.0."
    )
    return ExampleTable(content, about, "--target vote --classes Clinton,Dole")
