"""The card of a start: which public records its weights saw, and how they were trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from steppe.errors import DataError
from steppe.utils import validation
from steppe.utils.formatting import finite

_FORMAT = 1
_SHOWN = 16  # digits of a SHA-256 in a sentence


@dataclass(frozen=True)
class PublicRecords:
    """The records that a start was trained on.

    Args:
        name: what people call them, such as "cifar100".
        records: how many; None if that is not known.
        sha256: of the arrays; None if that is not known.
        drawn: whether a program drew them without any data set.

    Examples:
        >>> PublicRecords("cifar100", 50_000).sentence
        'cifar100 (50,000 records)'
    """

    name: str
    records: int | None = None
    sha256: str | None = None
    drawn: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            remedy = "name the data set that the weights were trained on"
            raise validation.fail("data.name", self.name, "must be text", remedy)
        if self.records is not None:
            validation.positive_integer("data.records", self.records)

    @property
    def sentence(self) -> str:
        """The records in a few words."""
        facts = []
        if self.records is not None:
            kind = "pictures drawn by a program" if self.drawn else "records"
            facts.append(f"{self.records:,} {kind}")
        if self.sha256 is not None:
            facts.append(f"SHA-256 {self.sha256[:_SHOWN]}…")
        name = " ".join(self.name.split())
        return f"{name} ({', '.join(facts)})" if facts else name


@dataclass(frozen=True)
class Card:
    """What is known about a start.

    Args:
        data: the records that the weights were trained on.
        method: the name of the method, in `kind`, and its constants.
        constants: further constants of the training.
        model: the class and the weights of the network.
        scores: on held-out public records.
        earlier: the sentences of the starts that this training began with itself.

    Guarantees:
        The card is a declaration by whoever made the start. It is not checked against the weights;
        the hash in the file only shows that neither was changed afterwards.
    """

    data: PublicRecords
    method: Mapping[str, Any] = field(default_factory=lambda: {"kind": "Standard"})
    constants: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float | None] = field(default_factory=dict)
    earlier: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """What the privacy statement says about this start."""
        own = f"{self.data.sentence}, by {self.method.get('kind', 'an unknown method')} training"
        return "; before that on ".join((own, *self.earlier))

    def to_json(self) -> str:
        """The card as text that `from_json` reads."""
        facts = finite({"format": _FORMAT, **asdict(self)})
        return json.dumps(facts, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, file: str) -> Card:
        """The card that a file contains.

        Args:
            text: as `to_json` wrote it.
            file: for errors.
        """
        try:
            facts = dict(json.loads(text))
            if facts.pop("format") != _FORMAT:
                raise ValueError
            return cls(**{**facts, "data": PublicRecords(**facts["data"])})
        except (ValueError, KeyError, TypeError):
            rule = f"has a card that is not of format {_FORMAT}"
            raise DataError.about("start", file, rule, "make the start again") from None
