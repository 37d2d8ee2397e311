"""Frozen parts, BitFit, LoRA, groups and batch statistics: what is trained, and what moves."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning_cases import network, privately, records, started, statistics
from torch import nn
from torch.nn import functional as F

import steppe
from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.errors import ConfigurationError, IsolationError, UnsupportedModelError
from steppe.finetuning import (
    FineTuning,
    FrozenBatchNorm,
    LoRA,
    add_lora,
    fold_batch_norm,
    freeze,
    freeze_batch_norm,
    head_on_features,
    load_start,
    merge_lora,
    parameter_groups,
    train_head,
    train_norm_and_bias,
    train_only,
)
from steppe.models import create
from steppe.private.setup_checks import refuse_drawn_as_public
from steppe.starts import starts_of


def trained(model: nn.Module) -> list[str]:
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


def ready(tmp_path: Path) -> nn.Module:
    return freeze_batch_norm(load_start(network(), started(tmp_path)[1], head=3))


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "head": train_head,
    "norm and bias": train_norm_and_bias,
    "pattern": lambda model: train_only(model, ["3", "*.bias"]),
    "frozen": lambda model: freeze(model, "0"),
    "lora": lambda model: add_lora(model, LoRA(rank=2, layers="8")),
}


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("head", "10.weight 10.bias"),
        ("norm and bias", "1.weight 1.bias 3.bias 4.weight 4.bias 8.bias 10.weight 10.bias"),
        ("pattern", "1.bias 3.weight 3.bias 4.bias 8.bias 10.bias"),
        ("lora", "8.lora_a 8.lora_b 10.weight 10.bias"),
    ],
)
def test_a_way_trains_these_weights(way: str, names: str, tmp_path: Path) -> None:
    assert trained(WAYS[way](ready(tmp_path))) == names.split()


@pytest.mark.parametrize("way", WAYS)
def test_private_steps_move_what_is_trained_and_nothing_else(way: str, tmp_path: Path) -> None:
    model = WAYS[way](ready(tmp_path)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    private = privately(model)
    for batch in private:
        private.step(batch)
    moved = [name for name, t in model.state_dict().items() if not torch.equal(before[name], t)]
    assert moved == trained(model)


@pytest.mark.parametrize("way", WAYS)
def test_the_clipped_sum_is_that_of_one_record_at_a_time(way: str, tmp_path: Path) -> None:
    model = WAYS[way](ready(tmp_path))
    if way == "lora":
        nn.init.normal_(model[8].lora_b)  # type: ignore[index]
    weights: dict[str, Any] = {n: p for n, p in model.named_parameters() if p.requires_grad}

    def objective(batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    batch = records(12)
    engine = ClippedSum(weights, objective, Flat(0.5))
    out = torch.zeros(engine.numel)
    engine.add_(out, batch)
    wanted = clipped_sum(objective, weights, batch, Flat(0.5)).float()
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


def test_a_vision_transformer_takes_low_rank_changes_and_merges_them() -> None:
    torch.manual_seed(0)
    model = create("vit", size=8, patch=4, channels=1, width=16, depth=1, heads=2, classes=3)
    x, _ = records(6)
    before = model(x)
    add_lora(model, LoRA(rank=2, alpha=4.0))
    assert any("lora_a" in name for name in trained(model))
    assert torch.equal(model(x), before)  # it begins at no change
    private = privately(model)
    for batch in private:
        private.step(batch)
    after = model(x)
    assert not torch.allclose(after, before)
    merge_lora(model)
    torch.testing.assert_close(model(x), after, rtol=1e-4, atol=1e-5)
    fresh = create("vit", size=8, patch=4, channels=1, width=16, depth=1, heads=2, classes=3)
    fresh.load_state_dict(model.state_dict())  # the names are those of the network


def test_a_dead_low_rank_change_is_an_error_that_names_it() -> None:
    def changed() -> nn.Module:
        torch.manual_seed(0)
        return add_lora(freeze_batch_norm(network()), LoRA(rank=2))

    both = changed()
    nn.init.zeros_(both[8].lora_a)  # type: ignore[index]
    with pytest.raises(UnsupportedModelError, match=r"parameters=\['8.lora_a', '8.lora_b'\]: must"):
        privately(both)
    one = freeze(changed(), "*.lora_b")
    with pytest.raises(UnsupportedModelError, match=r"parameters=\['8\.lora_a'\]: must be able"):
        privately(one)
    privately(freeze(changed(), "*.lora_a"))  # the other factor learns, since this one is not zero


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: freeze(m, "11"),
            r"freeze='11': matches no name of the model; the names are",
        ),
        (lambda m: freeze(m, ["0", "*.gamma"]), r"freeze='\*\.gamma': matches no name"),
        (lambda m: freeze(m, "*"), r"`model` has no weight left to train; leave some weights out"),
        (lambda m: train_only(m, 3), r"train=3: must be patterns of names"),
        (lambda m: add_lora(m, LoRA(layers="0")), r"layers='0': must name a torch.nn.Linear besid"),
        (lambda m: add_lora(m, LoRA(layers="body")), r"layers='body': matches no name"),
        (lambda m: LoRA(rank=0), r"rank=0: must be a whole number"),
        (lambda m: LoRA(alpha=0.0), r"alpha=0\.0: must be finite and above 0"),
        (
            lambda m: parameter_groups(m, {"hed": {"lr": 1.0}}),
            r"groups='hed': matches no name of the model",
        ),
        (
            lambda m: parameter_groups(m, {"10.bias": {"lr": 1.0}, "10": {"lr": 2.0}}),
            r"groups='10\.bias': covers only weights that a later pattern covers too",
        ),
        (
            lambda m: parameter_groups(m, {"10": 1.0}),
            r"groups\.10=1\.0: must be a table of",
        ),
        (
            lambda m: FineTuning(batch_norm="train"),
            r"batch_norm='train': must be one of 'frozen'",
        ),
        (
            lambda m: FineTuning(train="head", lora=LoRA()),
            r"train='head': cannot be given together with lora",
        ),
    ],
)
def test_bad_input_is_refused(change: Callable[[nn.Module], Any], message: str) -> None:
    with pytest.raises((ConfigurationError, UnsupportedModelError), match=message):
        change(network())


def test_statistics_stay_in_every_mode(tmp_path: Path) -> None:
    origin, path = started(tmp_path)
    x, _ = records(10)
    model = freeze_batch_norm(load_start(network(), path)).train()
    torch.testing.assert_close(model(x), origin(x))
    assert list(model.state_dict()) == list(origin.state_dict())
    before = statistics(model)
    private = privately(model)
    for batch in private:
        private.step(batch)
    assert all(map(torch.equal, before, statistics(model)))
    with pytest.raises(UnsupportedModelError, match=r"layer='0': has no statistics of its own"):
        freeze_batch_norm(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)))


def test_folding_leaves_the_outputs_and_no_normalisation(tmp_path: Path) -> None:
    origin, path = started(tmp_path)
    x, _ = records(10)
    model = fold_batch_norm(load_start(network(), path), x).train()
    assert not any(isinstance(m, nn.BatchNorm2d | FrozenBatchNorm) for m in model.modules())
    torch.testing.assert_close(model(x), origin(x), rtol=1e-4, atol=1e-5)
    assert len(starts_of(model)) == 1
    private = privately(model)
    for batch in private:
        private.step(batch)


def test_folding_in_another_order_than_that_of_the_pass_is_refused() -> None:
    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)
            self.second = nn.Conv2d(4, 4, 1)
            self.norm.running_mean.fill_(0.7)  # type: ignore[union-attr]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.second(torch.relu(self.first(x))))

    torch.manual_seed(0)
    with pytest.raises(UnsupportedModelError, match="computes something else after folding"):
        fold_batch_norm(Crossed(), torch.rand(2, 1, 4, 4))


def test_a_norm_without_a_layer_before_it_keeps_its_statistics() -> None:
    model = fold_batch_norm(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2)))
    assert [type(layer).__name__ for layer in model] == ["FrozenBatchNorm", "Linear", "Identity"]


def test_groups_have_learning_rates_of_their_own_and_strengths_too(tmp_path: Path) -> None:
    model = train_only(ready(tmp_path), ["8", "10"])
    optimizer = torch.optim.SGD(parameter_groups(model, {"10": {"lr": 0.5}}), lr=1e-3)
    assert [(len(g["params"]), g["lr"]) for g in optimizer.param_groups] == [(2, 1e-3), (2, 0.5)]
    private = privately(model, optimizer=optimizer, l2={"8": 0.1, "10": 0.0})
    before = [model[8].weight.detach().clone(), model[10].weight.detach().clone()]  # type: ignore[index]
    private.step(next(iter(private)))
    moved = [
        float((now.detach() - was).norm() / was.numel() ** 0.5)
        for was, now in zip(before, (model[8].weight, model[10].weight), strict=True)  # type: ignore[index]
    ]
    assert moved[1] / moved[0] == pytest.approx(500, rel=0.5)


def test_features_of_a_frozen_network_are_computed_once(tmp_path: Path) -> None:
    whole = head_on_features(ready(tmp_path), (1, 8, 8))
    x, y = records()
    torch.testing.assert_close(whole(x), whole.head(whole.features(x)))
    whole.train()
    torch.testing.assert_close(whole(x), whole.head(whole.features(x)))
    private = privately(whole.head, (whole.features(x), y))
    assert private.statement().starts == ("shapes (320 records), by DPAdapter training",)
    fresh = head_on_features(ready(tmp_path), (1, 8, 8), new_head=True)
    assert not fresh.head.weight.any()  # type: ignore[operator, union-attr]
    torch.testing.assert_close(fresh.features(x).norm(dim=1), torch.ones(len(x)), rtol=1e-3, atol=0)


def test_the_drawn_batch_is_known_in_any_mapping() -> None:
    class Batch(UserDict[str, torch.Tensor]):
        """As collators of other libraries make."""

    rows = torch.randn(4, 3)
    with pytest.raises(ConfigurationError, match="batch='the private batch'"):
        refuse_drawn_as_public(Batch(x=rows), Batch(x=rows[1:]))
    refuse_drawn_as_public(Batch(x=rows), Batch(x=rows.clone()))
    refuse_drawn_as_public(None, Batch(x=rows))


class Centred(nn.Module):
    """Takes the mean over the batch off: features of a record depend on the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize("new_head", [False, True])
def test_features_that_mix_records_are_rejected(new_head: bool) -> None:
    batch_norm = nn.BatchNorm1d(8, track_running_stats=False)  # mixes in evaluation mode too
    for layer in (Centred(), batch_norm):
        network = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 2))
        with pytest.raises(IsolationError):
            head_on_features(network, (4,), new_head=new_head)
    alone = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    assert head_on_features(alone, (4,), new_head=new_head).head.in_features == 8


def test_public_and_private_batches_in_one_loop() -> None:
    def weights(public: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        private = privately(model, optimizer=optimizer, noise_multiplier=50.0)
        x, y = records(30)
        for batch in private:
            if public:
                before = model[1].weight.detach().clone()
                loss = F.cross_entropy(model(x), y)
                (plain,) = torch.autograd.grad(loss, [model[1].weight])
                private.public_step((x, y))
                torch.testing.assert_close(model[1].weight.detach(), before - 0.5 * plain)
            private.step(batch)
        statement = private.statement()
        assert statement.public_steps is public
        assert ("handed over as public" in statement.items["data accesses"]) is public
        assert private.epsilon() == pytest.approx(private.plan.epsilon_spent())
        return model[1].weight.detach()

    assert not torch.equal(weights(True), weights(False))


def test_private_records_and_other_optimizers_take_no_public_step() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    data = records()
    private = privately(model, data)
    with pytest.raises(ConfigurationError, match="public='tuple': are the private records"):
        private.public_step((data[0][:5], data[1][:5]))
    with pytest.raises(ConfigurationError, match="batch='no records': must hold public records"):
        private.public_step((data[0][:0].clone(), data[1][:0].clone()))
    plan = private.plan
    adam = steppe.DPAdam.for_plan(model.parameters(), plan=plan, lr=0.1)
    noisy = steppe.make_private(model, adam, records(), plan, loss=F.cross_entropy)
    with pytest.raises(ConfigurationError, match="optimizer='DPAdam': subtracts the noise"):
        noisy.public_step(records(4))


def test_the_drawn_batch_takes_no_public_step() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    private = privately(model, records())
    weights = model[1].weight.detach().clone()
    for batch in private:
        for given in (batch, (batch[0][1:], batch[1][1:])):
            if len(given[0]):
                with pytest.raises(ConfigurationError, match="batch='the private batch'"):
                    private.public_step(given)
        assert torch.equal(model[1].weight, weights)  # nothing was learnt from it
        private.step(batch)
        if len(batch[0]):
            with pytest.raises(ConfigurationError, match="pass it to step"):
                private.public_step(batch)
        break


def test_features_on_the_disk_are_those_of_the_network(tmp_path: Path) -> None:
    x, _ = records(20)
    whole = head_on_features(ready(tmp_path), (1, 8, 8), new_head=True)
    folder = tmp_path / "features"
    first = whole.features(x, cache=folder)
    assert torch.equal(first, whole.features(x))
    (file,) = folder.iterdir()
    kept = file.stat().st_mtime_ns
    assert torch.equal(whole.features(x, cache=folder), first)
    assert file.stat().st_mtime_ns == kept
    with torch.no_grad():
        next(whole.front.parameters()).add_(1.0)
    assert not torch.equal(whole.features(x, cache=folder), first)
    assert len(list(folder.iterdir())) == 2
