"""Opacus' own examples, from the package as it is installed, with their imports changed.

Those that Opacus runs on a CPU run to the end, or stop with an error that names the line to change.
Lines that were changed for it are in the tests, with nothing else.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from opacus_stand_ins import (
    Pictures,
    SmallColour,
    SmallDigits,
    small_network,
    text_packages,
    torchvision,
)
from torch import Tensor

from steppe.errors import ConfigurationError, DataError, UnsupportedModelError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True:UserWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


class Example:
    """Runs an example in an empty folder.

    Attributes:
        folder: where it runs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        monkeypatch.chdir(folder)

    def run(
        self,
        name: str,
        arguments: str = "",
        modules: dict[str, ModuleType] | None = None,
        changed: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run an example.

        Args:
            name: of the file.
            arguments: of its command line.
            modules: stand-ins of packages.
            changed: parts of lines beside the imports, by what was there.
        """
        path = Path(str(distribution("opacus").locate_file(f"examples/{name}")))
        text, imports = re.subn(
            r"^from opacus\b", "from steppe.compat", path.read_text(encoding="utf-8"), flags=re.M
        )
        assert imports
        for old, new in (changed or {}).items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        for package, module in (modules or {}).items():
            self._monkeypatch.setitem(sys.modules, package, module)
        self._monkeypatch.setattr(sys, "argv", [str(path), *arguments.split()])
        torch.manual_seed(0)
        example: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
        exec(compile(text, str(path), "exec"), example)  # noqa: S102
        return example


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Example:
    return Example(monkeypatch, tmp_path)


def spent(said: str) -> list[float]:
    return [float(value) for value in re.findall(r"\(ε = ([\d.]+), δ = ", said)]


def test_mnist_runs(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--device cpu --batch-size 100 --epochs 6 --lr 0.5 --sigma 0.6 --delta 1e-3"
    ran = example.run("mnist.py", f"{arguments} --save-model", torchvision(MNIST=Pictures))
    assert ran["PrivacyEngine"].__module__.startswith("steppe.")
    said = capsys.readouterr().out
    epsilons = spent(said)
    assert len(epsilons) == 6
    assert 0 < epsilons[0] < epsilons[-1] < 100
    (accuracy,) = re.findall(r"Accuracy: \d+/50 \(([\d.]+)%\)", said)
    assert float(accuracy) > 80
    saved = torch.load(next(example.folder.glob("mnist_cnn_*.pt")), weights_only=True)
    assert list(saved) == list(ran["SampleConvNet"]().state_dict())


CIFAR = "--epochs 2 --batch-size 40 --workers 0 --sigma 1.0 --delta 1e-3 --print-freq 1"


def test_a_mode_of_the_cifar10_example_that_is_not_offered_is_named(example: Example) -> None:
    with pytest.raises(ConfigurationError, match=r"grad_sample_mode='no_op'.*'hooks'"):
        example.run(
            "cifar10.py", f"{CIFAR} --grad_sample_mode no_op", torchvision(CIFAR10=SmallColour)
        )


@pytest.mark.parametrize("more", ["", pytest.param("--clip_per_layer", marks=pytest.mark.slow)])
def test_cifar10_runs(more: str, example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    packages = torchvision(CIFAR10=SmallColour)
    example.run("cifar10.py", f"{CIFAR} {more}", packages)
    epsilons = spent(capsys.readouterr().out)
    assert len(epsilons) == 4
    assert epsilons == sorted(epsilons)
    saved = torch.load(example.folder / "checkpoint.tar", weights_only=False)
    assert "0.weight" in saved["state_dict"]


def test_dcgan_runs(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    """The discriminator runs twice on each batch, on real rows and on made-up ones."""
    arguments = "--data-root . --device cpu --ndf 4 --ngf 4 --nz 8 --batch-size 8 --workers 0"
    ran = example.run(
        "dcgan.py",
        f"{arguments} --epochs 2 --delta 0.01 --target-digit 0",
        torchvision(MNIST=SmallDigits),
    )
    assert len(ran["privacy_engine"].accountant) == 4
    assert "(ε = " in capsys.readouterr().err
    saved = torch.load(example.folder / "netD_epoch_1.pth", weights_only=True)
    assert list(saved) == list(ran["netD"].state_dict())


def _names(folder: Path) -> None:
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for place, language in enumerate(("Irish", "Dutch")):
        letters = torch.randint(97 + 8 * place, 105 + 8 * place, (40, 9), generator=generator)
        names = ["".join(map(chr, row[: 3 + i % 6])) for i, row in enumerate(letters.tolist())]
        (folder / f"{language}.txt").write_text("\n".join(names))


NAMES = "--data-root names --device cpu -b 32 --epochs 2 --hidden-size 16 --embedding-size 8"


@pytest.mark.parametrize(
    "mode", ["lstm", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("gru", "rnn"))]
)
def test_char_lstm_runs_with_a_declared_length(
    mode: str, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    _names(example.folder / "names")
    if mode == "lstm":  # as it is, it pads to the longest name of the batch
        with pytest.raises(DataError, match=r"give pad_to= and pad_value= to make_private"):
            example.run("char-lstm-classification.py", f"{NAMES} --mode {mode}")
    line = "noise_multiplier=args.sigma,"
    example.run(
        "char-lstm-classification.py",
        f"{NAMES} --mode {mode}",
        changed={line: f"{line} pad_to=10, pad_value=0,"},
    )
    epsilons = spent(capsys.readouterr().out)
    assert len(epsilons) == 3
    assert 0 < epsilons[0] < epsilons[1] == epsilons[2]


IMDB = "--device cpu -b 16 -n 2 --workers 0 --sigma 1.0 --max-sequence-length 24 --delta 1e-3"


def test_imdb_runs_with_poisson_sampling_a_declared_length_and_a_named_axis(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = text_packages()
    with pytest.raises(ConfigurationError, match=r"poisson_sampling=False: .* leave it out"):
        example.run("imdb.py", IMDB, packages)
    line = "poisson_sampling=False,"
    with pytest.raises(DataError, match=r"give pad_to= and pad_value= to make_private"):
        example.run("imdb.py", IMDB, packages, {line: ""})
    declared = {line: "pad_to=24, pad_value=0,"}
    with pytest.raises(UnsupportedModelError, match=r"batch of one record: .* squeeze\(-1\)"):
        example.run("imdb.py", IMDB, packages, declared)
    squeezed = {"self.pool(x).squeeze()": "self.pool(x).squeeze(-1)"}
    example.run("imdb.py", IMDB, packages, declared | squeezed)
    epsilons = spent(capsys.readouterr().out)
    assert len(epsilons) == 2
    assert 0 < epsilons[0] < epsilons[1]


def test_the_vision_benchmark_runs_with_poisson_sampling(
    example: Example, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs an accelerator, also with Opacus: those calls do nothing here."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Tensor, "cuda", lambda tensor, non_blocking=False: tensor)
    size = "-b 8 --steps 3 --height 8 --width 8 --gn-groups 4 --workers 0"
    arguments = f"{size} --architecture small_network --benchmark-data-loader"
    packages = torchvision(small_network=small_network)
    line = "poisson_sampling=False,"
    with pytest.raises(ConfigurationError, match=r"poisson_sampling=False: .* leave it out"):
        example.run("vision_benchmark.py", arguments, packages)
    example.run("vision_benchmark.py", arguments, packages, {line: ""})
    assert "Speed: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fsdp_example.py", "compat.utils.fsdp_utils.FSDP2Wrapper: .* one process; leave the wra"),
        ("fsdp_llama3.py", "compat.utils.fsdp_utils.FSDP2Wrapper: .* one process; leave the wra"),
        ("tensor_parallelism_toy.py", "compat.grad_sample.*ClippingTP: .* in one process"),
        ("tensor_parallelism_llama.py", "compat.grad_sample.*ClippingTP: .* in one process"),
        ("mnist_lightning.py", "compat.lightning.DPLightningDataModule: .* steppe.Trainer"),
    ],
)
def test_examples_for_several_accelerators_and_old_packages_say_what_to_change(
    name: str, message: str, example: Example
) -> None:
    """None of them runs on a CPU with Opacus 1.6."""
    with pytest.raises(ImportError, match=message):
        example.run(name, modules=torchvision(MNIST=Pictures) | text_packages())
