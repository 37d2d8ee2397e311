"""Lines of users' loops between the batch and the step, some of which let records meet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass
class Case:
    """What a loop computes from module, inputs and targets, and what is said about it."""

    loss: Loss
    message: str = ""
    reduction: str = "mean"
    steps: int = 2


def _each(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def mixup(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    order = torch.randperm(len(x))
    mixed = 0.7 * x + 0.3 * x[order]
    return F.cross_entropy(model(mixed), y)


def mixup_by_roll(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(0.5 * (x + x.roll(1, 0))), y)


def mixup_of_targets(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return 0.5 * F.cross_entropy(out, y) + 0.5 * F.cross_entropy(out, y.flip(0))


def cutmix(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x[:, :2] = x.flip(0)[:, :2]
    return F.cross_entropy(model(x), y)


def standardised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model((x - x.mean(0)) / (x.std(0) + 1e-3)), y)


def in_numpy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    values = x.numpy()
    return F.cross_entropy(model(torch.from_numpy(values - values.mean(0))), y)


def shuffled(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    order = torch.arange(len(x)).flip(0)
    return F.cross_entropy(model(x[order]), y[order])


def hardest(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _each(model, x, y).topk(2).values.mean()


def above_threshold(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = _each(model, x, y)
    return each[each > 0.1].mean()


def above_the_mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = _each(model, x, y)
    return torch.where(each >= each.mean(), each, 0 * each).mean()


def normalised_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    weights = x[:, 0].abs()
    return (_each(model, x, y) * weights).sum() / weights.sum()


def focal_over_the_batch(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = _each(model, x, y)
    return (each * each.detach().softmax(0)).sum()


def class_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, weight=torch.tensor([1.0, 3.0]))


def largest(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _each(model, x, y).max()


def log_mean_exp(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _each(model, x, y).exp().mean().log()


def capped(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y).clamp(max=5.0)


def nan_guard(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    return loss if torch.isfinite(loss) else 0 * loss


def nan_guard_by_item(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    return 0 * loss if torch.isnan(loss).item() else loss


def nan_to_num(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.nan_to_num(F.cross_entropy(model(x), y))


def divided_by_itself(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    return loss / loss.item()


def divided_by_a_count(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    count = (x > 0).sum().item()
    return _each(model, x, y).sum() / count


def divided_by_itself_detached(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    return loss / loss.detach()


def contrastive(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = F.normalize(model(x), dim=1)
    return F.cross_entropy(out @ out.T, torch.arange(len(x)))


def wrong_shapes(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, :1] - y.float()).square().mean()


def first_half(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _each(model, x, y)[: len(x) // 2].mean()


def by_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (_each(model, x, y) * torch.arange(len(x))).mean()


def times_the_number(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (_each(model, x, y) * len(x)).mean()


def targets_of_others(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), torch.tensor(y.tolist()[::-1]), reduction="none").mean()


def picked_of_others(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    classes = torch.from_numpy(y.numpy()[::-1].copy())
    return -model(x).log_softmax(1).gather(1, classes[:, None]).mean()


def data_of_others(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y.data.flip(0), reduction="none").mean()


def hooked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    out.register_hook(lambda g: g / g.norm())
    return F.cross_entropy(out, y)


def hooked_at_the_node(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    out.grad_fn.register_prehook(lambda gs: tuple(g / g.norm() for g in gs))  # type: ignore[union-attr]
    return F.cross_entropy(out, y)


def kept_in_the_module(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.mean = x.mean().item()  # type: ignore[assignment]
    return F.cross_entropy(model(x), y)


def written_to_a_weight(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model[0].bias.data.copy_(x.mean(0)[:4])  # type: ignore[index]
    return F.cross_entropy(model(x), y)


def centred_in_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x -= x.mean(0)
    return F.cross_entropy(model(x), y)


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad / grad.norm()


def own_function(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out: Tensor = Normalised.apply(model(x))  # type: ignore[no-untyped-call]
    return F.cross_entropy(out, y)


def relative_to_the_last() -> Loss:
    kept = SimpleNamespace(mean=None)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = F.cross_entropy(model(x), y)
        mean = found.detach() if kept.mean is None else 0.9 * kept.mean + 0.1 * found.detach()
        first, kept.mean = kept.mean is None, mean
        return found if first else found / mean

    return loss


def vmapped(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return torch.func.vmap(lambda o, t: F.cross_entropy(o[None], t[None]))(out, y).max()


MIX = {
    "mixup": Case(mixup, "before the module"),
    "mixup by roll": Case(mixup_by_roll, "before the module"),
    "mixup of targets": Case(mixup_of_targets, "loss="),
    "cutmix": Case(cutmix, "row i of what the module gets"),
    "standardised by the batch": Case(standardised, "before the module"),
    "statistics in NumPy": Case(in_numpy, "numbers that|place"),
    "another order": Case(shuffled, "argument=2 axes: row i"),
    "hardest examples": Case(hardest, "loss=mixes records"),
    "examples above a threshold": Case(above_threshold, "loss=mixes records"),
    "examples above the mean": Case(above_the_mean, "loss=mixes records"),
    "weights normalised over the batch": Case(normalised_weights, "normalised over the batch"),
    "softmax over the batch": Case(focal_over_the_batch, "loss=mixes records"),
    "class weights": Case(class_weights, "class weights"),
    "largest loss": Case(largest, "loss=mixes records"),
    "log of a mean": Case(log_mean_exp, "loss=mixes records"),
    "capped mean": Case(capped, "loss=mixes records"),
    "NaN guard": Case(nan_guard, "decides by a value"),
    "NaN guard by item()": Case(nan_guard_by_item, "decides by a value"),
    "nan_to_num of the mean": Case(nan_to_num, "loss=mixes records"),
    "divided by its value": Case(divided_by_itself, "read from records"),
    "divided by a count that was read": Case(divided_by_a_count, "read from records"),
    "divided by itself": Case(divided_by_itself_detached, "loss="),
    "computed targets": Case(
        lambda m, x, y: F.cross_entropy(m(x), (x[:, 0] > 0).long()), 'reduction="none"'
    ),
    "contrastive": Case(contrastive, "place among the others|loss=mixes"),
    "all pairs": Case(wrong_shapes, "loss=mixes records"),
    "first half": Case(first_half, "loss="),
    "weights by place": Case(by_place, "place among the others"),
    "the number of records": Case(times_the_number, "number of records=decides", steps=12),
    "targets of others from a list": Case(targets_of_others, "place among the others"),
    "classes of others from NumPy": Case(picked_of_others, "place among the others"),
    "targets of others as data": Case(data_of_others, "loss=mixes records"),
    "a hook in the loop": Case(hooked, "hooks on tensors of the loop"),
    "a hook at a node": Case(hooked_at_the_node, "loop=grad_fn"),
    "a number kept in the module": Case(kept_in_the_module, "read from records"),
    "written to a weight": Case(written_to_a_weight, "weights or buffers=written"),
    "centred in place": Case(centred_in_place, "before the module"),
    "a function of one's own": Case(own_function, "loss="),
    "relative to the last loss": Case(relative_to_the_last(), "an earlier batch"),
    "torch.func": Case(vmapped, "loss=not followed"),
    "a sum that is said to be a mean": Case(
        lambda m, x, y: _each(m, x, y).sum(), "must be a mean over the batch", steps=12
    ),
    "a mean that is said to be a sum": Case(
        lambda m, x, y: _each(m, x, y).mean(), "must be a sum over the batch", "sum", steps=12
    ),
}


def logged(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    loss = F.cross_entropy(out, y)
    predictions = out.detach().argmax(1).cpu().numpy()
    assert math.isfinite(loss.item() + (predictions == y.numpy()).mean())
    assert 0 <= float((out.argmax(1) == y).float().mean()) <= 1
    return loss


def printed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    assert f"{loss.detach():.3f}" == f"{loss.item():.3f}"
    assert repr(x).startswith("tensor(")
    return loss


def logged_before(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    (out.argmax(1) == y).float().mean().item()
    y.tolist()
    weights = torch.tensor([1.0, 2.0])
    return (-out.log_softmax(1)[torch.arange(len(x)), y] * weights[y.data]).mean()


def with_noise(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x + 0.1 * torch.randn(len(x), 5)), y)


def with_noise_like(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x + torch.randn_like(x)), y)


def picked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return -model(x).log_softmax(1)[torch.arange(len(x)), y].mean()


def own_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (_each(model, x, y) * torch.tensor([1.0, 3.0])[y]).mean()


def focal(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = _each(model, x, y)
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def two_terms(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return F.cross_entropy(out, y) + 0.1 * out.square().sum(1).mean() / 2


def normed_rows(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    rows = (x - x.mean(1, keepdim=True)) / x.norm(dim=1, keepdim=True)
    return F.cross_entropy(model(rows), y)


def guarded_rows(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = _each(model, x, y)
    return torch.where(each.isfinite(), each, 0 * each).mean()


def binary(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(x)[:, 0], (y > 0).float())


def divided_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return _each(model, x, y).sum() / len(x)


def running_log() -> Loss:
    total = torch.zeros(())

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal total
        found = F.cross_entropy(model(x), y)
        total += found.detach()
        return found

    return loss


def squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x).squeeze(), F.one_hot(y, 2).float())


def stacked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return torch.stack([F.cross_entropy(o[None], t[None]) for o, t in zip(out, y)]).mean()  # noqa: B905


def half_and_half(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    assert (torch.ones(len(x)) * (y >= 0)).mean().item() * 0.5 == 0.5
    half = float(torch.where(y >= 0, 0.5, 0.0).mean())
    assert half == 0.5
    return (
        0.5 * F.cross_entropy(out, y) + 0.5 * F.cross_entropy(out, 1 - y, reduction="none").mean()
    )


def evaluated(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        model(x).argmax(1).float().mean().item()
    model.train()
    return F.cross_entropy(model(x), y)


DO_NOT = {
    "cross-entropy": Case(lambda m, x, y: F.cross_entropy(m(x), y)),
    "nll": Case(lambda m, x, y: F.nll_loss(F.log_softmax(m(x), 1), y.long())),
    "moved": Case(lambda m, x, y: F.cross_entropy(m(x.to("cpu").float()), y.to("cpu"))),
    "label smoothing": Case(lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1)),
    "class probabilities": Case(lambda m, x, y: F.cross_entropy(m(x), F.one_hot(y, 2).float())),
    "sum": Case(lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"), reduction="sum"),
    "logged": Case(logged),
    "printed": Case(printed),
    "logged before the loss": Case(logged_before),
    "noise": Case(with_noise),
    "noise like the batch": Case(with_noise_like),
    "picked by arange": Case(picked),
    "own weights": Case(own_weights),
    "focal": Case(focal),
    "two terms": Case(two_terms),
    "rows normed": Case(normed_rows),
    "guard for each row": Case(guarded_rows),
    "binary": Case(binary),
    "divided by hand": Case(divided_by_hand),
    "a running log": Case(running_log()),
    "squared": Case(squared),
    "a list of losses": Case(stacked),
    "accuracy like a weight": Case(half_and_half),
    "evaluation in between": Case(evaluated),
    "accumulation": Case(lambda m, x, y: F.cross_entropy(m(x), y) / 4),
    "huber": Case(lambda m, x, y: F.smooth_l1_loss(m(x)[:, 0], y.float())),
    "a margin": Case(lambda m, x, y: F.relu(1 - (2 * y - 1) * m(x)[:, 0]).mean()),
    "two directions": Case(lambda m, x, y: -F.cosine_similarity(m(x), x[:, :2]).mean()),
    "divergence": Case(
        lambda m, x, y: F.kl_div(
            m(x).log_softmax(1), F.one_hot(y, 2).float() * 0.8 + 0.1, reduction="batchmean"
        )
    ),
}
