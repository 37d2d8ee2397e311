"""What Opacus' examples import besides Opacus: small stand-ins with made-up data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Pictures(Dataset[tuple[Tensor, int]]):
    """In place of a data set of torchvision: the class is the place of a bright line."""

    channels, side, records, classes = 1, 28, (400, 50), 10

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Any = None,
        download: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(int(train))
        self.targets = torch.arange(self.records[0 if train else 1]) % self.classes
        shape = (len(self.targets), self.channels, self.side, self.side)
        self.data = torch.randn(shape, generator=generator) * 0.1
        self.data[torch.arange(len(self.targets)), 0, 2 * self.targets] += 2.0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.data[row], int(self.targets[row])


class SmallColour(Pictures):
    channels, side, records = 3, 32, (80, 20)


class SmallDigits(Pictures):
    """As many of one digit as the GAN example keeps, of the size that it resizes to."""

    side, records, classes = 64, (16, 4), 1


def torchvision(**kept: Any) -> dict[str, ModuleType]:
    """The names that the examples import from torchvision, which has no build to match torch.

    Args:
        kept: data sets and networks by name.
    """
    package, transforms = ModuleType("torchvision"), ModuleType("torchvision.transforms")
    parts = {name: ModuleType(f"torchvision.{name}") for name in ("datasets", "models", "utils")}
    for name in (
        "Compose",
        "Normalize",
        "RandomCrop",
        "RandomHorizontalFlip",
        "Resize",
        "ToTensor",
    ):
        setattr(transforms, name, lambda *_, **__: None)
    for name, value in kept.items():
        setattr(parts["datasets"], name, value)
        setattr(parts["models"], name, value)
    parts["utils"].save_image = _save_image  # type: ignore[attr-defined]
    for name, part in {"transforms": transforms, **parts}.items():
        setattr(package, name, part)
    modules = {f"torchvision.{name}": part for name, part in parts.items()}
    return {"torchvision": package, "torchvision.transforms": transforms, **modules}


def _save_image(pictures: Tensor, path: str, normalize: bool) -> None:
    assert pictures.ndim == 4
    Path(path).write_bytes(pictures.detach().numpy().tobytes()[:64])


def small_network(pretrained: bool, norm_layer: Callable[[int], nn.Module]) -> nn.Module:
    """In place of a network of torchvision."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), norm_layer(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 8)
    )


class Reviews(Dataset[dict[str, Tensor]]):
    """In place of a data set of the `datasets` package."""

    def __init__(self, records: int) -> None:
        self._rows: list[dict[str, Any]] = [
            {"text": "good bad fine "[: 4 + i % 10] * (1 + i % 3), "label": i % 2}
            for i in range(records)
        ]
        self._columns: list[str] = []

    def extend(self, function: Callable[[Any], Any]) -> None:
        made = function({"text": [row["text"] for row in self._rows]})
        for key, values in made.items():
            for row, value in zip(self._rows, values, strict=True):
                row[key] = value

    def select(self, columns: list[str]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: torch.tensor(self._rows[row][name]) for name in self._columns}


class Splits(dict[str, Reviews]):
    def map(self, function: Callable[[Any], Any], batched: bool) -> Splits:
        for part in self.values():
            part.extend(function)
        return self

    def set_format(self, type: str, columns: list[str]) -> None:
        for part in self.values():
            part.select(columns)


class Letters:
    """In place of a tokenizer: a token is a letter."""

    @classmethod
    def from_pretrained(cls, name: str) -> Letters:
        return cls()

    def __len__(self) -> int:
        return 128

    def __call__(self, texts: list[str], truncation: bool, max_length: int) -> dict[str, Any]:
        return {"input_ids": [[ord(c) for c in text][:max_length] for text in texts]}


def text_packages() -> dict[str, ModuleType]:
    """The names that the examples import from datasets, transformers, peft and Lightning."""
    names: dict[str, dict[str, Any]] = {
        "datasets": {
            "load_dataset": lambda *_, **__: Splits(train=Reviews(48), test=Reviews(12)),
        },
        "transformers": dict.fromkeys(
            (
                "AutoModelForSequenceClassification",
                "AutoTokenizer",
                "LlamaConfig",
                "LlamaForCausalLM",
            )
        )
        | {"BertTokenizerFast": Letters},
        "huggingface_hub": {"login": None},
        "peft": dict.fromkeys(("LoraConfig", "TaskType", "get_peft_model")),
        "pytorch_lightning": {},
        "torchmetrics": {},
    }
    made = {}
    for package, kept in names.items():
        made[package] = ModuleType(package)
        vars(made[package]).update(kept)
    return made
