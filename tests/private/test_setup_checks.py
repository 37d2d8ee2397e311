"""What a private loop may be made from."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import steppe
from steppe.compat import PrivacyEngine
from steppe.errors import ConfigurationError, UnsupportedModelError
from steppe.private.setup_checks import warn_of_unused
from steppe.training import Trainer


def natively(model: nn.Module) -> None:
    data = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-5, population=8, batch_size=2, steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


def by_opacus_names(model: nn.Module) -> None:
    data = TensorDataset(torch.zeros(8, 3), torch.zeros(8, dtype=torch.long))
    PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=2),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )


def inspected(model: nn.Module) -> None:
    steppe.inspect(model, torch.zeros(1, 3))


ENTRIES = pytest.mark.parametrize("entry", [natively, by_opacus_names])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sharded(model: nn.Module) -> nn.Module:
    """As by FSDP's `fully_shard`, which gives a module another class and leaves the object."""
    from torch.distributed.fsdp import FSDPModule

    model.__class__ = type("FSDPLinear", (FSDPModule, type(model)), {})
    return model


def refusals(place: str, rank: int) -> list[str]:
    """What both entries say in one of two processes."""
    store = torch.distributed.FileStore(place, 2)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(minutes=1)
    )
    said = []
    try:
        for entry in (natively, by_opacus_names):
            with pytest.raises(ConfigurationError) as caught:
                entry(nn.Linear(3, 2))
            said.append(str(caught.value))
    finally:
        torch.distributed.destroy_process_group()
    return said


@ENTRIES
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "inside another"])
@pytest.mark.parametrize("spread", [DataParallel, DistributedDataParallel, sharded])
def test_a_model_over_several_devices_is_refused(
    alone: None, entry: Callable[[nn.Module], None], inside: bool, spread: Any
) -> None:
    model: nn.Module = spread(nn.Linear(3, 2))
    kind = type(model).__name__
    model = nn.Sequential(model) if inside else model
    name = "module '0'" if inside else "model"
    text = (
        f"{name}={kind!r}: must not be distributed over devices or processes, which the account "
        "does not cover; pass the module that it wraps, and train in one process on one device."
    )
    with pytest.raises(ConfigurationError, match=f"^{re.escape(text)}$"):
        entry(model)


def compiled_in_place() -> nn.Module:
    model = nn.Linear(3, 2)
    model.compile()
    return model


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("entry", [natively, by_opacus_names, inspected])
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: torch.compile(nn.Linear(3, 2)), "model='OptimizedModule, compiled'"),
        (compiled_in_place, "model='Linear, compiled'"),
        (
            lambda: nn.Sequential(torch.compile(nn.Linear(3, 2))),
            "module '0'='OptimizedModule, compiled'",
        ),
        (lambda: torch.jit.script(nn.Linear(3, 2)), "model='RecursiveScriptModule, compiled'"),
    ],
)
def test_a_compiled_model_is_refused(
    make: Callable[[], nn.Module], named: str, entry: Callable[[nn.Module], None]
) -> None:
    text = (
        f"{named}: must be plain, since its gradients are followed operation by operation; give "
        "the module as it is before torch.compile or torch.jit, and compile it after training."
    )
    with pytest.raises(ConfigurationError, match=f"^{re.escape(text)}$"):
        entry(make())


@ENTRIES
def test_a_process_group_of_one_is_no_reason(
    alone: None, entry: Callable[[nn.Module], None]
) -> None:
    entry(nn.Linear(3, 2))


@pytest.mark.slow
def test_several_processes_are_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    code = f"""
        from {Path(__file__).stem} import refusals

        print(*refusals({place!r}, rank=1), sep="\\n")
    """
    text = (
        "torch.distributed='2 processes': must be one, because each would sample all records "
        "and report its own ε; train in one process, without torchrun or init_process_group."
    )
    command = [sys.executable, "-c", textwrap.dedent(code)]
    where = Path(__file__).parent
    with subprocess.Popen(command, cwd=where, stdout=subprocess.PIPE, text=True) as other:
        assert refusals(place, rank=0) == [text, text]
        assert other.communicate(timeout=60)[0].splitlines() == [text, text]


class Adapted(nn.Module):
    """A frozen layer and an adapter that may be switched off."""

    def __init__(self, adapter: str) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(3, 2), nn.Linear(3, 2)
        self.way = adapter

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "on":
            return self.base(x) + self.adapter(x)
        if self.way == "detached":
            return self.base(x) + self.adapter(x).detach()
        return self.base(x)


@pytest.mark.parametrize("way", ["off", "detached"])
def test_weights_of_which_none_reaches_the_loss_are_refused(way: str) -> None:
    model = Adapted(way)
    model.base.requires_grad_(False)
    text = (
        "parameters=['adapter.weight', 'adapter.bias']: some trained weight must reach the loss, "
        "and none does, so that noise alone would move them; use them in the forward pass without "
        "detach() or no_grad(), switch on adapters such as LoRA, or train other weights."
    )
    with pytest.raises(UnsupportedModelError, match=f"^{re.escape(text)}$"):
        natively(model)


def test_some_weights_that_no_record_uses_are_named_once() -> None:
    with pytest.warns(UserWarning, match="only noise") as caught:
        natively(Adapted("off"))
    assert [str(warning.message) for warning in caught] == [
        "parameters=['adapter.weight', 'adapter.bias']: should be used by the model, but are not, "
        "so only noise moves them; freeze them with requires_grad_(False) before you create the "
        "optimizer, or use them in the forward pass."
    ]
    assert caught[0].filename == __file__, "it points to the line of make_private"
    natively(Adapted("on"))  # where a warning would be an error


def test_weights_that_no_gradient_comes_back_to_are_named_beside_others() -> None:
    with pytest.warns(UserWarning, match="only noise") as caught:
        natively(Adapted("detached"))
    assert [str(warning.message) for warning in caught] == [
        "parameters=['adapter.weight', 'adapter.bias']: should get a gradient, but get none, so "
        "only noise moves them; freeze them with requires_grad_(False) before you create the "
        "optimizer, or remove detach() or no_grad() from the forward pass."
    ]
    report = steppe.inspect(Adapted("detached"), torch.zeros(1, 3))
    assert report.detached == ("adapter.weight", "adapter.bias")
    assert "no gradient returns" in str(report)
    assert steppe.inspect(Adapted("on"), torch.zeros(1, 3)).detached == ()


def loop_of_opacus(way: str, passes: int = 2) -> list[str]:
    """The warnings of a whole loop, and that they point into this file."""
    model = Adapted(way)
    data = TensorDataset(torch.randn(8, 3), torch.zeros(8).long())
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(passes):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("way", "rule"),
    [("off", "should be used by the model, but"), ("detached", "should get a gradient, but")],
)
def test_a_loop_of_opacus_names_weights_that_noise_alone_moves_once(way: str, rule: str) -> None:
    (text,) = loop_of_opacus(way)
    assert text.startswith(f"parameters=['adapter.weight', 'adapter.bias']: {rule} ")
    assert loop_of_opacus("on") == []


def test_many_weights_that_no_record_uses_are_counted() -> None:
    with pytest.warns(UserWarning, match=r"^parameters=\['a', 'b', 'c'\] and 2 more: should"):
        warn_of_unused("abcde")


RECORDS = TensorDataset(torch.zeros(8, 3), torch.zeros(8).long())


def with_loader(batch: float = 4, data: Any = RECORDS, **options: Any) -> None:
    model = nn.Linear(3, 2)
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-2, population=8, batch_size=batch, steps=1)
    optimizer, loader = torch.optim.SGD(model.parameters()), DataLoader(data, **options)
    steppe.make_private(model, optimizer, loader, plan, loss=F.cross_entropy)


def test_a_loaders_own_batch_size_is_named_where_the_plan_overrules_it() -> None:
    with pytest.warns(UserWarning, match="batch_size") as caught:
        with_loader(batch_size=2, shuffle=True)
    assert [str(warning.message) for warning in caught] == [
        "DataLoader.batch_size=2: is ignored; the plan's batch size, 4, is the expected number of "
        "records in a step; use the same, or leave it out of the loader."
    ]
    assert caught[0].filename == __file__, "it points to the line of make_private"


def test_a_batch_samplers_size_is_named_too() -> None:
    with pytest.warns(UserWarning, match=r"^DataLoader\.batch_sampler\.batch_size=2: is ignored"):
        with_loader(batch_sampler=BatchSampler(SequentialSampler(RECORDS), 2, False))


def test_from_the_trainer_a_warning_points_at_the_users_line(tmp_path: Path) -> None:
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-2, population=8, batch_size=4, steps=1)
    with pytest.warns(UserWarning, match=r"^DataLoader\.batch_size=2") as caught:
        Trainer(nn.Linear(3, 2), DataLoader(RECORDS, batch_size=2), plan, run=tmp_path / "run")
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"batch_size": 4},
        {"batch": 3.6, "batch_size": 4},
        {"batch_sampler": BatchSampler(SequentialSampler(RECORDS), 4, False)},
    ],
)
def test_a_loader_that_says_nothing_else_than_the_plan_passes(options: dict[str, Any]) -> None:
    with_loader(**options)  # where a warning would be an error
