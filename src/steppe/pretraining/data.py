"""The public records of pre-training, and what the card says about them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe import procedural
from steppe.data import Dataset, load, names, read
from steppe.starts import PublicRecords
from steppe.utils import validation

_HELD_OUT = 1000
_CHANNELS = (1, 3)


@dataclass(frozen=True, eq=False)
class PublicData:
    """Public records: their privacy is not protected.

    Args:
        inputs: (records, …).
        targets: labels, or numbers to predict; None for a contrastive loss.
        name: what the card calls them.
        test_inputs, test_targets: held-out public records for the scores, or None.
        classes: how many labels there are, or None.
        drawn: whether a program drew them without any data set.

    Examples:
        >>> data = PublicData(torch.rand(10, 4), torch.arange(10) % 2, "mine", classes=2)
        >>> data.facts.records, len(data.facts.sha256)
        (10, 64)
    """

    inputs: Tensor
    targets: Tensor | None
    name: str
    test_inputs: Tensor | None = None
    test_targets: Tensor | None = None
    classes: int | None = None
    drawn: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Tensor) or self.inputs.ndim < 2 or not len(self.inputs):
            shown = type(self.inputs).__name__
            if isinstance(self.inputs, Tensor):
                shown = str(tuple(self.inputs.shape))
            rule, remedy = "must be a tensor with one row per record", "give (inputs, targets)"
            raise validation.fail("data.inputs", shown, rule, remedy)
        if self.targets is not None and len(self.targets) != len(self.inputs):
            rule = f"must be as many as the inputs, {len(self.inputs)}"
            raise validation.fail("data.targets", len(self.targets), rule, "give one per record")

    @property
    def facts(self) -> PublicRecords:
        """What the card says: name, number and hash."""
        sha = hashlib.sha256()
        for tensor in (self.inputs, self.targets):
            if tensor is not None:
                plain = tensor.detach().to("cpu").contiguous()
                sha.update(f"{plain.dtype} {tuple(plain.shape)}\n".encode())
                sha.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        return PublicRecords(self.name, len(self.inputs), sha.hexdigest(), self.drawn)


def public_data(given: Any) -> PublicData:
    """Public records from what a user gives.

    Args:
        given: `PublicData`; the name of an included data set, or "procedural" for 20,000 pictures;
            or arrays or tensors (inputs, targets).
    """
    if isinstance(given, PublicData):
        return given
    if isinstance(given, str):
        return drawn_pictures() if given == "procedural" else _of_dataset(load(given))
    if isinstance(given, tuple | list) and len(given) == 2:
        inputs, targets = (None if one is None else torch.as_tensor(one) for one in given)
        if inputs is not None:
            classes = None
            if targets is not None and not targets.is_floating_point() and len(targets):
                targets, classes = targets.long(), int(targets.max()) + 1
            return PublicData(inputs, targets, "arrays", classes=classes)
    rule = "must be (inputs, targets), the name of a data set, or steppe.pretraining.PublicData"
    raise validation.fail("data", type(given).__name__, rule, f"the names are {_listed()}")


def drawn_pictures(
    count: int = 20_000, size: int = 32, channels: int = 3, seed: int = 0, progress: bool = False
) -> PublicData:
    """Procedural pictures, labelled by the process that drew them.

    Args:
        count: how many to train on; another 1,000 are held out for the scores.
        size: pixels along one side.
        channels: 1 for grey, 3 for colours.
        seed: of the pictures.
        progress: whether to show a progress bar in a terminal.
    """
    count = validation.positive_integer("count", count)
    if channels not in _CHANNELS:
        raise validation.fail("channels", channels, "must be 1 or 3")
    found = procedural.pictures_with_labels(
        count + _HELD_OUT, size, channels, seed, progress=progress
    )
    return PublicData(
        found.pictures[:count],
        found.process[:count],
        f"procedural pictures with seed {seed}",
        found.pictures[count:],
        found.process[count:],
        len(procedural.PROCESSES),
        drawn=True,
    )


def from_table(table: Mapping[str, Any], progress: bool) -> PublicData:
    """The `[data]` table of a configuration file: checked keys.

    Args:
        table: `name` of an included data set; or `name = "procedural"` with `count`, `size`,
            `channels` and `seed`; or `place` of your own files with the options of `steppe train`,
            and `called`.
        progress: whether to show a progress bar in a terminal.
    """
    options = {key: value for key, value in table.items() if key not in ("name", "place")}
    if table.get("name") == "procedural":
        return drawn_pictures(**options, progress=progress)
    if "name" in table:
        return _of_dataset(load(table["name"]))
    called = options.pop("called", None)
    found = read(table["place"], **options)
    if not isinstance(found, Dataset):
        rule = "must give arrays, but gives data sets that are read record by record"
        remedy = "return arrays (x, y), or call steppe.pretrain in Python"
        raise validation.fail("data.place", table["place"], rule, remedy)
    return _of_dataset(found, called)


def _of_dataset(found: Dataset, called: str | None = None) -> PublicData:
    inputs, targets = found.train.tensors()
    test_inputs, test_targets = found.test.tensors() if len(found.test) else (None, None)
    name = found.name if called is None else called
    return PublicData(inputs, targets, name, test_inputs, test_targets, found.classes)


def _listed() -> str:
    return ", ".join((*names(), "procedural"))
