"""Honest user code in losses: masks, weights and pairs inside of each record."""

from __future__ import annotations

from typing import Any

import torch
from isolation_case import Honest, Objective
from isolation_networks import B, between, classes, features, numbers, padded_text, using
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


class Coder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


def own_token_mean(model: nn.Module, batch: Any) -> Tensor:
    """The mean over the words that count, of each record."""
    words, labels = batch
    losses = F.cross_entropy(model(words).mT, labels, ignore_index=-100, reduction="none")
    return losses.sum(1) / (labels != -100).sum(1).clamp(min=1)


def token_sum(model: nn.Module, batch: Any) -> Tensor:
    """All words of all records in one list, added up where they belong."""
    words, labels = batch
    logits = model(words)
    losses = F.cross_entropy(logits.view(-1, 10), labels.reshape(-1), reduction="none")
    return losses.view(labels.shape).sum(-1) / labels.shape[1]


def shifted_words(model: nn.Module, batch: Any) -> Tensor:
    """The words themselves, one place on, with padding left out by a mask."""
    words = batch[0]
    logp = model(words)[:, :-1].log_softmax(-1)
    following = words[:, 1:]
    kept = (following != 0).to(logp.dtype)
    picked = logp.gather(-1, following.unsqueeze(-1)).squeeze(-1)
    return -(picked * kept).sum(1) / kept.sum(1).clamp(min=1.0)


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    """A tenth of every label is shared by all classes."""
    x, y = batch
    return F.cross_entropy(model(x), y, label_smoothing=0.1, reduction="none")


def class_weights(model: nn.Module, batch: Any) -> Tensor:
    """Weights of classes, fixed beforehand."""
    x, y = batch
    weight = torch.tensor([1.0, 2.0, 0.5])
    return F.cross_entropy(model(x), y, weight=weight, ignore_index=2, reduction="none")


def focal(model: nn.Module, batch: Any) -> Tensor:
    """Easy records count less, by their own certainty."""
    losses = classes(model, batch)
    return (1 - torch.exp(-losses)) ** 2 * losses


def capped(model: nn.Module, batch: Any) -> Tensor:
    """Each loss on its own side of 3."""
    losses = classes(model, batch)
    return torch.where(losses > 3, 3 + (losses - 2).clamp(min=1e-6).log(), losses)


def huber(model: nn.Module, batch: Any) -> Tensor:
    """Squares near by, lines far off."""
    x, y = batch
    return F.huber_loss(model(x)[:, 0], y, reduction="none", delta=0.5)


def quantiles(model: nn.Module, batch: Any) -> Tensor:
    """Three quantiles of each number: (B, 3) beside (B, 1)."""
    x, y = batch
    error = y[:, None] - model(x)
    level = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(level * error, (level - 1) * error).sum(1)


def given_weights(model: nn.Module, batch: Any) -> Tensor:
    """A weight for each record, given with it."""
    x, y, weight = batch
    return classes(model, (x, y)) * weight


def margin(model: nn.Module, batch: Any) -> Tensor:
    """The right class above the best of the others."""
    x, y = batch
    scores = model(x)
    right = scores.gather(1, y[:, None]).squeeze(1)
    others = scores.masked_fill(F.one_hot(y, 3).bool(), float("-inf"))
    return F.relu(1 + others.logsumexp(dim=1) - right)


def sharpened(model: nn.Module, batch: Any) -> Tensor:
    """Entropy of every record's prediction, beside its loss."""
    x, y = batch
    p = model(x).softmax(-1)
    return F.nll_loss(p.log(), y, reduction="none") - 0.1 * torch.xlogy(p, p).sum(-1)


def own_triplet(model: nn.Module, batch: Any) -> Tensor:
    """Three parts of one record: an anchor, one that is like it, one that is not."""
    x, _ = batch
    first, second, third = (model(part) for part in (x, x + 0.1, x.flip(1)))
    near, far = F.cosine_similarity(first, second), F.cosine_similarity(first, third)
    return F.relu(0.5 - near + far)


def contrast_of_words(model: nn.Module, batch: Any) -> Tensor:
    """All pairs of one record's words, and none of two records'."""
    z = F.normalize(model(batch[0]), dim=-1)
    pairs = z @ z.transpose(1, 2)
    target = torch.arange(z.shape[1]).expand(len(z), -1)
    return (
        F.cross_entropy(pairs.flatten(0, 1), target.flatten(), reduction="none")
        .view(len(z), -1)
        .mean(1)
    )


def own_dice(model: nn.Module, batch: Any) -> Tensor:
    """The overlap of each picture."""
    x, _ = batch
    target = (x[:, 0] > 0).to(x.dtype)
    found = model(x).sigmoid()
    overlap = 2 * (found * target).sum((1, 2)) / (found.sum((1, 2)) + target.sum((1, 2)) + 1)
    return 1 - overlap


def hard_pixels(model: nn.Module, batch: Any) -> Tensor:
    """The hardest tenth of each picture's own pixels."""
    x, _ = batch
    losses = F.binary_cross_entropy_with_logits(
        model(x), (x[:, 1] > 0).to(x.dtype), reduction="none"
    )
    return losses.flatten(1).topk(6, dim=1).values.mean(1)


def own_evidence(model: nn.Module, batch: Any) -> Tensor:
    """What a record can be rebuilt from, and how far that is from N(0, 1)."""
    x, _ = batch
    rebuilt, mean, log_variance = model(x)
    distance = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return (rebuilt - x).square().sum(1) + distance


def through_distributions(model: nn.Module, batch: Any) -> Tensor:
    """The same question asked of torch.distributions."""
    x, y = batch
    mean, spread = model(x)[:, 0], F.softplus(model(x)[:, 1]) + 0.1
    return -torch.distributions.Normal(mean, spread, validate_args=False).log_prob(y)


def views_averaged(model: nn.Module, batch: Any) -> Tensor:
    """Four views of each record, one after the other, averaged where they belong."""
    x, y = batch
    views = torch.cat([x + 0.1 * torch.randn_like(x) for _ in range(4)])
    return classes(model, (views, y.repeat(4))).view(4, len(x)).mean(0)


def gradient_penalty(model: nn.Module, batch: Any) -> Tensor:
    """WGAN-GP: the slope at every record."""
    x, y = batch
    x = x.detach().requires_grad_()
    scores = model(x)
    slope = torch.autograd.grad(scores.sum(), x, create_graph=True)[0]
    return F.cross_entropy(scores, y, reduction="none") + (slope.norm(dim=1) - 1).square()


def adversarial(model: nn.Module, batch: Any) -> Tensor:
    """One step of each record towards its own larger loss."""
    x, y = batch
    x = x.detach().requires_grad_()
    step = torch.autograd.grad(classes(model, (x, y)).sum(), x)[0]
    return classes(model, ((x + 0.1 * step.sign()).detach(), y))


def noised(model: nn.Module, batch: Any) -> Tensor:
    """Diffusion: every record at a time of its own, looked up in a constant table."""
    x, y = batch
    kept = torch.linspace(0.99, 0.1, 10).cumprod(0)
    time = torch.randint(10, (x.shape[0],))
    level = kept[time].sqrt().view(-1, 1)
    return classes(model, (level * x + (1 - level**2).sqrt() * torch.randn_like(x), y))


def rebuilt_where_hidden(model: nn.Module, batch: Any) -> Tensor:
    """Words hidden at random are to be found again, of each record."""
    words, _ = batch
    hidden = torch.rand(words.shape) < 0.3
    losses = F.cross_entropy(
        model(words.masked_fill(hidden, 0)).transpose(1, 2), words, reduction="none"
    )
    return (losses * hidden).sum(1) / hidden.sum(1).clamp(min=1)


def ordinal(model: nn.Module, batch: Any) -> Tensor:
    """Levels passed, one truth for each."""
    x, y = batch
    levels = (y[:, None] > torch.arange(3)).to(x.dtype)
    return F.binary_cross_entropy_with_logits(model(x), levels, reduction="none").mean(1)


def with_weight_decay(model: nn.Module, batch: Any) -> Tensor:
    """The size of the weights beside every loss."""
    return classes(model, batch) + 1e-2 * sum(w.square().sum() for w in model.parameters())


def distilled(model: nn.Module, batch: Any) -> Tensor:
    """What the model itself said without a gradient."""
    x, _ = batch
    with torch.no_grad():
        teacher = (model(x * 0.9) / 2).softmax(1)
    return F.kl_div((model(x) / 2).log_softmax(1), teacher, reduction="none").sum(1)


def weighted() -> Any:
    """A weight for each record beside what it weighs."""
    return *features(), torch.rand(B)


def small_pictures() -> Any:
    """Three channels of 8 × 8 pixels."""
    return torch.randn(B, 3, 8, 8), torch.randint(3, (B,))


def _case(name: str, objective: Objective, model: Any = None, batch: Any = features) -> Honest:
    return Honest(name, "loss", using(model or between(torch.sin), batch, objective))


CASES = (
    _case("mean of one's own words", own_token_mean, NextWord, padded_text),
    _case("sum of one's own words", token_sum, NextWord, padded_text),
    _case("following words", shifted_words, NextWord, padded_text),
    _case("hidden words", rebuilt_where_hidden, NextWord, padded_text),
    _case("pairs of one's own words", contrast_of_words, NextWord, padded_text),
    _case("smoothed labels", smoothed),
    _case("weights of classes", class_weights),
    _case("focal loss", focal),
    _case("each loss on its side of 3", capped),
    _case("Huber loss", huber, batch=numbers),
    _case("quantiles", quantiles, batch=numbers),
    _case("given weights", given_weights, batch=weighted),
    _case("margin", margin),
    _case("sharp predictions", sharpened),
    _case("triplet of one record", own_triplet),
    _case("overlap of each picture", own_dice, MarksPixels, small_pictures),
    _case("hard pixels of each picture", hard_pixels, MarksPixels, small_pictures),
    _case("evidence of each record", own_evidence, Coder),
    _case("distributions", through_distributions, batch=numbers),
    _case("views averaged", views_averaged),
    _case("gradient penalty", gradient_penalty),
    _case("adversarial step", adversarial),
    _case("diffusion", noised),
    _case("levels passed", ordinal),
    _case("size of the weights", with_weight_decay),
    _case("distilled from itself", distilled),
)
