"""Opacus' own example, from the package as it is installed, with its import changed."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset


class MadeUpDigits(TensorDataset):
    """In place of torchvision's MNIST, with its arguments: the class is the place of a line."""

    def __init__(self, root: str, train: bool, transform: Any, download: bool = False) -> None:
        generator = torch.Generator().manual_seed(int(train))
        labels = torch.arange(400 if train else 50) % 10
        pictures = torch.randn(len(labels), 1, 28, 28, generator=generator) * 0.1
        pictures[torch.arange(len(labels)), 0, 2 * labels] += 2.0
        super().__init__(pictures, labels)


def torchvision() -> dict[str, ModuleType]:
    """The names that the example imports from torchvision, which has no build to match torch."""
    package, transforms = ModuleType("torchvision"), ModuleType("torchvision.transforms")
    datasets = ModuleType("torchvision.datasets")
    datasets.MNIST = MadeUpDigits  # type: ignore[attr-defined]
    for name in ("Compose", "ToTensor", "Normalize"):
        setattr(transforms, name, lambda *_: None)
    package.datasets, package.transforms = datasets, transforms  # type: ignore[attr-defined]
    return {"torchvision": package}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_the_mnist_example_runs_after_changing_the_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a line but the import is ours: arguments, loop and evaluation are what Opacus ships."""
    path = Path(str(distribution("opacus").locate_file("examples/mnist.py")))
    theirs, ours = "from opacus import PrivacyEngine", "from steppe.compat import PrivacyEngine"
    text = path.read_text(encoding="utf-8")
    assert text.count(theirs) == 1
    for name, module in torchvision().items():
        monkeypatch.setitem(sys.modules, name, module)
    arguments = "--device cpu --batch-size 100 --epochs 6 --lr 0.5 --sigma 0.6 --delta 1e-3"
    monkeypatch.setattr(sys, "argv", [str(path), *arguments.split(), "--save-model"])
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    example: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(text.replace(theirs, ours), str(path), "exec"), example)  # noqa: S102

    assert example["PrivacyEngine"].__module__.startswith("steppe.")
    said = capsys.readouterr().out
    spent = [float(value) for value in re.findall(r"\(ε = ([\d.]+), δ = 0.001\)", said)]
    assert len(spent) == 6
    assert 0 < spent[0] < spent[-1] < 100
    (accuracy,) = re.findall(r"Accuracy: \d+/50 \(([\d.]+)%\)", said)
    assert float(accuracy) > 80
    saved = torch.load(next(tmp_path.glob("mnist_cnn_*.pt")), weights_only=True)
    assert list(saved) == list(example["SampleConvNet"]().state_dict())
