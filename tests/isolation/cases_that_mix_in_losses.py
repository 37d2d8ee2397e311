"""User code in whose loss records meet: pairs, means and weights over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from isolation_case import Build, Mixing, Objective, replacing, without
from isolation_networks import between, classes, features, numbers, padded_text, pictures, using
from torch import Tensor, nn
from torch.nn import functional as F


class NextWord(nn.Module):
    """A language model: logits for the word after each."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(10, 6), nn.GRU(6, 6, batch_first=True)
        self.head = nn.Linear(6, 10)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.gru(self.words(words))[0])


class MarksPixels(nn.Module):
    """Segmentation: one logit for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(1)


def token_mean(model: nn.Module, batch: Any) -> Tensor:
    """What `model(**batch).loss` does: the mean over all words that count."""
    words, labels = batch
    losses = F.cross_entropy(model(words).mT, labels, ignore_index=-100, reduction="none")
    return losses.sum(1) / (labels != -100).sum()


def token_mean_of_torch(model: nn.Module, batch: Any) -> Tensor:
    """The same by torch's own mean, handed to each record."""
    words, labels = batch
    loss = F.cross_entropy(model(words).flatten(0, 1), labels.flatten(), ignore_index=-100)
    return loss.expand(len(words))


def mean_for_each(model: nn.Module, batch: Any) -> Tensor:
    """The mean over the batch, which every record gets."""
    x, y = batch
    return F.cross_entropy(model(x), y).repeat(len(x))


def two_views(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Two noisy views of each record, of length one."""
    first, second = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
    return first, second


def info_nce(model: nn.Module, batch: Any) -> Tensor:
    """SimCLR: find one's own second view among all."""
    first, second = two_views(model, batch[0])
    return F.cross_entropy(first @ second.T / 0.5, torch.arange(len(first)), reduction="none")


def supervised_contrast(model: nn.Module, batch: Any) -> Tensor:
    """Records of one class are to be alike."""
    x, y = batch
    z = F.normalize(model(x), dim=1)
    same = (y[:, None] == y[None]).to(z.dtype)
    return -(same * (z @ z.mT / 0.5).log_softmax(1)).sum(1) / same.sum(1)


def hardest_triplets(model: nn.Module, batch: Any) -> Tensor:
    """Far from the nearest of another class."""
    x, y = batch
    distances = torch.cdist(z := model(x), z)
    same = y[:, None] == y[None]
    positive = distances.masked_fill(~same, 0.0).amax(1)
    negative = distances.masked_fill(same, 1e3).amin(1)
    return F.softplus(positive - negative)


def barlow_twins(model: nn.Module, batch: Any) -> Tensor:
    """Features are to be independent over the batch."""
    first, second = two_views(model, batch[0])
    correlation = first.T @ second / len(first)
    penalty = (correlation - torch.eye(len(correlation))).square().sum()
    return penalty.expand(len(first))


def ranking(model: nn.Module, batch: Any) -> Tensor:
    """RankNet: every pair in the right order."""
    x, y = batch
    scores = model(x).squeeze(1)
    order = torch.sign(y[:, None] - y[None])
    return F.softplus(-order * (scores[:, None] - scores[None])).mean(1)


def cox(model: nn.Module, batch: Any) -> Tensor:
    """Survival: the risk among those who are still there."""
    x, time = batch
    order = time.argsort(descending=True)
    risk = model(x).squeeze(1)[order]
    losses = risk.logcumsumexp(0) - risk
    return losses[order.argsort()]


def prototypes(model: nn.Module, batch: Any) -> Tensor:
    """The distance from the mean of one's class in the batch."""
    x, y = batch
    z = model(x)
    sums = torch.zeros(3, z.shape[1], dtype=z.dtype).index_add(0, y, z)
    sizes = torch.zeros(3, dtype=z.dtype).index_add(0, y, torch.ones_like(y, dtype=z.dtype))
    means = sums / sizes.clamp(min=1)[:, None]
    return (z - means[y]).square().sum(1)


def rare_first(model: nn.Module, batch: Any) -> Tensor:
    """The rarer the class in the batch, the heavier."""
    _, place, sizes = batch[1].unique(return_inverse=True, return_counts=True)
    return classes(model, batch) / sizes[place]


def rare_first_by_bins(model: nn.Module, batch: Any) -> Tensor:
    """The same by a histogram."""
    x, y = batch
    weight = len(y) / torch.bincount(y, minlength=3).clamp(min=1).to(x.dtype)
    return F.cross_entropy(model(x), y, weight=weight, reduction="none")


def weights_of_one(model: nn.Module, batch: Any) -> Tensor:
    """Given weights, made to sum up to one."""
    x, y, weight = batch
    return classes(model, (x, y)) * weight / weight.sum()


def hard_half(model: nn.Module, batch: Any) -> Tensor:
    """Online hard example mining."""
    losses = classes(model, batch)
    hard = losses.topk(len(losses) // 2).indices
    return torch.zeros_like(losses).index_add(0, hard, losses[hard])


def easy_half(model: nn.Module, batch: Any) -> Tensor:
    """Learning at its own pace, from those below the middle."""
    losses = classes(model, batch)
    return losses * (losses <= losses.detach().median())


def relative_losses(model: nn.Module, batch: Any) -> Tensor:
    """Losses relative to their mean."""
    losses = classes(model, batch)
    return losses / losses.detach().mean()


def advantages(model: nn.Module, batch: Any) -> Tensor:
    """REINFORCE with rewards made standard over the batch."""
    x, rewards = batch
    better = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    return -model(x).log_softmax(1)[:, 0] * better


def diverse(model: nn.Module, batch: Any) -> Tensor:
    """All classes are to be used."""
    logits = model(batch[0])
    usage = logits.softmax(1).mean(0)
    reward = (usage * usage.log()).sum()
    return F.cross_entropy(logits, batch[1], reduction="none") + 0.5 * reward


def towards_the_usual(model: nn.Module, batch: Any) -> Tensor:
    """Labels smoothed by how often each occurs in the batch."""
    x, y = batch
    target = F.one_hot(y, 3).to(x.dtype)
    return F.cross_entropy(model(x), 0.9 * target + 0.1 * target.mean(0), reduction="none")


def dice(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the pixels beside the overlap over all pictures."""
    x, _ = batch
    target = (x[:, 0] > 0).to(x.dtype)
    logits = model(x)
    found = logits.sigmoid()
    overlap = 2 * (found * target).sum() / (found.sum() + target.sum() + 1.0)
    each_picture = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return each_picture.mean((1, 2)) + 1 - overlap


def balanced_clusters(model: nn.Module, batch: Any) -> Tensor:
    """SwAV: soft assignments that use every cluster alike, by Sinkhorn's steps."""
    first, second = two_views(model, batch[0])
    with torch.no_grad():
        shares = torch.exp(second / 0.2)
        for _ in range(3):
            shares = shares / shares.sum(0, keepdim=True)
            shares = shares / shares.sum(1, keepdim=True)
    return -(shares * (first / 0.5).log_softmax(1)).sum(1)


def mixed_up(model: nn.Module, batch: Any) -> Tensor:
    """mixup in the training loop."""
    x, y = batch
    order, share = torch.randperm(len(x)), torch.distributions.Beta(0.4, 0.4).sample()
    logits = model(share * x + (1 - share) * x[order])
    own, other = (F.cross_entropy(logits, to, reduction="none") for to in (y, y[order]))
    return share * own + (1 - share) * other


def in_order(model: nn.Module, batch: Any) -> Tensor:
    """Losses that come back sorted: each stands for another record's place."""
    return classes(model, batch).sort().values


def consistent(model: nn.Module, batch: Any) -> Tensor:
    """Targets that were sorted and outputs that were not."""
    x, y = batch
    return F.cross_entropy(model(x), y[x[:, 0].argsort()], reduction="none")


def load_balance(model: nn.Module, batch: Any) -> Tensor:
    """A mixture of experts whose experts are to be used alike."""
    logits = model(batch[0])
    share = F.one_hot(logits.argmax(1), 3).to(logits.dtype).mean(0)
    auxiliary = 3 * (share * logits.softmax(1).mean(0)).sum()
    return F.cross_entropy(logits, batch[1], reduction="none") + 0.1 * auxiliary


def valid_mean(model: nn.Module, batch: Any) -> Tensor:
    """The mean of those that have a label, laid back in their places."""
    x, y = batch
    valid = y != 0
    losses = torch.zeros(len(x), dtype=x.dtype)
    losses[valid] = F.cross_entropy(model(x)[valid], y[valid], reduction="none") / valid.sum()
    return losses


def weighted() -> Any:
    """A weight for each record beside what it weighs."""
    return *features(), torch.rand(6)


def _case(name: str, objective: Objective, says: str, **options: Any) -> Mixing:
    return Mixing(name, "loss", using(between(_same), objective=objective), says=says, **options)


def _on(name: str, build: Build, says: str, showing: Callable[[Any], Any] | None = None) -> Mixing:
    return Mixing(name, "loss", build, says=says, showing=showing)


def _same(h: Tensor) -> Tensor:
    return h


CASES = (
    _on("token mean", using(NextWord, padded_text, token_mean), "sum|token", without()),
    _on(
        "token mean of torch",
        using(NextWord, padded_text, token_mean_of_torch),
        "nll_loss|cross_entropy|token",
    ),
    _case("mean for each", mean_for_each, "nll_loss|cross_entropy|mean"),
    _case("contrast of all pairs", info_nce, "mm|matmul"),
    _case("contrast of classes", supervised_contrast, "mm|matmul|eq"),
    _case("hardest triplets", hardest_triplets, "cdist"),
    _case("independent features", barlow_twins, "mm|matmul"),
    _on("pairs in order", using(between(_same, 1), numbers, ranking), "sub|mean|pairs"),
    _on("survival", using(between(_same, 1), numbers, cox), "sort|index|logcumsumexp"),
    _case("prototypes of classes", prototypes, "index_add"),
    _case("rare classes by unique", rare_first, "unique", showing=without()),
    _case("rare classes by bincount", rare_first_by_bins, "bincount", showing=without()),
    _on("weights of sum one", using(between(_same), weighted, weights_of_one), "sum"),
    _case("hard half", hard_half, "topk", showing=replacing(2, 9.0)),
    _case("easy half", easy_half, "median", showing=without(1)),
    _case("losses relative to their mean", relative_losses, "mean"),
    _on("standard rewards", using(between(_same), numbers, advantages), "mean|std"),
    _case("all classes used", diverse, "mean"),
    _case("labels smoothed by the batch", towards_the_usual, "mean", showing=without()),
    _on("overlap of all pictures", using(MarksPixels, pictures, dice), "sum"),
    _case("balanced clusters", balanced_clusters, "sum"),
    _case("mixup in the objective", mixed_up, "randperm|index|add"),
    _case("losses in order", in_order, "sort"),
    _case("targets in another order", consistent, "sort|index", showing=replacing(0, 9.0)),
    _case("load of experts", load_balance, "mean"),
    _case("mean of the valid", valid_mean, "index|nonzero|sum", showing=without(1)),
)
