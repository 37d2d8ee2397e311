"""Collate functions and random views in which records meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from isolation_case import Mixing, Pair, batch_of, holding, like, records_of, without
from isolation_networks import B, Between, between, pictures, using, within
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

Records = list[Any]


def rows_alone() -> Records:
    """Records as a data set gives them: eight numbers and a class."""
    return [(torch.randn(8), torch.randint(3, ())) for _ in range(B)]


def steps_alone() -> Records:
    """Records of four to seven steps of eight numbers."""
    return [(torch.randn(4 + i % 4, 8), torch.randint(3, ())) for i in range(B)]


def named_rows() -> Records:
    """Records with a text."""
    return [(torch.randn(8), torch.randint(3, ()), name) for name in ("a", "b", "c", "b", "a", "d")]


def gaps_filled(records: Records) -> Any:
    """Gaps become the mean of the batch."""
    x, y = default_collate(records)
    return torch.where(x.isnan(), x.nanmean(0).nan_to_num(), x), y


def bytes_or_not(records: Records) -> Any:
    """Pixels in bytes are told by the largest of the batch."""
    x, y = default_collate(records)
    return (x / 255 if x.max() > 100 else x), y


def to_longest(records: Records) -> Any:
    """The usual one for text: padded to the longest."""
    steps, labels = zip(*records, strict=True)
    return pad_sequence(steps, batch_first=True), torch.stack(labels)


def longest_first(records: Records) -> Any:
    """Sorted for packing, and padded to a length of the data set."""
    steps, labels = zip(*sorted(records, key=lambda record: -len(record[0])), strict=True)
    padded = pad_sequence([*steps, steps[0].new_zeros(9, 8)], batch_first=True)[:-1]
    return padded, torch.stack(labels)


def standardised(records: Records) -> Any:
    """Standard scores of the batch, in NumPy."""
    x = np.stack([record[0].numpy() for record in records])
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return torch.as_tensor(x), torch.stack([record[1] for record in records])


def clipped_by_percentile(records: Records) -> Any:
    """Outliers by the percentiles of the batch."""
    x = np.stack([record[0].numpy() for record in records])
    x = np.clip(x, *np.percentile(x, [5, 95]).astype(x.dtype))
    return torch.as_tensor(x), torch.stack([record[1] for record in records])


def mixed_up(records: Records) -> Any:
    """mixup where the batch is made."""
    x, y = default_collate(records)
    order = torch.randperm(len(x))
    return 0.7 * x + 0.3 * x[order], y


def weights_beside(records: Records) -> Any:
    """A weight for each record: the rarer its class in the batch, the heavier."""
    x, y = default_collate(records)
    return x / torch.bincount(y, minlength=3)[y][:, None], y


def words_by_order(records: Records) -> Any:
    """A vocabulary that grows as texts appear."""
    vocabulary: dict[str, int] = {}
    numbers = [vocabulary.setdefault(record[2], len(vocabulary)) for record in records]
    x = torch.stack([record[0] for record in records])
    return x + torch.tensor(numbers)[:, None], torch.stack([record[1] for record in records])


# Random views --------------------------------------------------------------------------------


def pictures_mixed(x: Tensor) -> Tensor:
    """mixup of pictures."""
    share = torch.distributions.Beta(1.0, 1.0).sample()
    return share * x + (1 - share) * x[torch.randperm(len(x))]


def cut_and_mixed(x: Tensor) -> Tensor:
    """CutMix in one view of twenty."""
    if torch.rand(()) < 0.05:
        x = x.clone()
        x[:, :, 2:7, 2:7] = x.roll(1, 0)[:, :, 2:7, 2:7]
    return x


def paired(x: Tensor) -> Tensor:
    """Every picture averaged with that at the other end."""
    return (x + x.flip(0)) / 2


def noise_of_the_batch(x: Tensor) -> Tensor:
    """Noise as wide as the batch."""
    return x + 0.3 * x.std() * torch.randn_like(x)


def erased(x: Tensor) -> Tensor:
    """A square is filled with the mean of the batch."""
    x = x.clone()
    x[:, :, 2:6, 2:6] = x.mean((0, 2, 3))[:, None, None]
    return x


def styles_mixed(x: Tensor) -> Tensor:
    """MixStyle: the brightness of one picture and the content of another."""
    mean, std = x.mean((2, 3), keepdim=True), x.std((2, 3), keepdim=True) + 1e-6
    order = torch.randperm(len(x))
    return (x - mean) / std * std[order] + mean[order]


def brightened(x: Tensor) -> Tensor:
    """A dark batch is brightened, where the darkest pixel tells."""
    return torch.where(x.amin() < -50, x - x.amin() / 2, x)


class Steps(Between):
    """A recurrent network that ends where the batch does."""

    def __init__(self) -> None:
        super().__init__(lambda h: h)
        self.gru = nn.GRU(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gru(torch.tanh(self.first(x)))[0][:, -1])


def gap(batch: Any) -> Pair:
    """Two records with gaps, one of which is then replaced."""
    one = holding(float("nan"))(batch)[1]
    found = records_of(one)
    found[0] = (found[0][0].clone().index_fill_(0, torch.tensor(2), float("nan")), found[0][1])
    other = [*found[:3], like(found, 3.0), *found[4:]]
    return batch_of(batch, found), batch_of(batch, other)


def _collated(name: str, collate: Callable[[Records], Any], says: str, **options: Any) -> Mixing:
    model, batch = options.pop("model", between(torch.tanh)), options.pop("batch", rows_alone)
    return Mixing(name, "collate", using(model, batch), collate, says=says, **options)


def _augmented(name: str, augment: Callable[[Tensor], Tensor], says: str, **options: Any) -> Mixing:
    build = using(within(torch.tanh), pictures)
    return Mixing(name, "augment", build, augment=augment, says=says, **options)


CASES = (
    _collated(
        "gaps filled in the batch", gaps_filled, "nanmean|mean|sum", showing=gap, hidden=True
    ),
    _collated(
        "bytes or not in the batch",
        bytes_or_not,
        "max|item|local_scalar",
        showing=holding(1e3),
        hidden=True,
    ),
    _collated(
        "padded to the longest",
        to_longest,
        "pad|length|longest",
        model=Steps,
        batch=steps_alone,
        showing=without(3),
    ),
    _collated(
        "longest first",
        longest_first,
        "sort|order|place",
        model=Steps,
        batch=steps_alone,
    ),
    _collated("standard scores in NumPy", standardised, "numpy|NumPy|collate"),
    _collated("percentiles in NumPy", clipped_by_percentile, "numpy|NumPy|collate"),
    _collated("mixup in the batch", mixed_up, "randperm|index"),
    _collated("weights of rare classes", weights_beside, "bincount", showing=without()),
    _collated(
        "vocabulary by order",
        words_by_order,
        "collate|str|text",
        batch=named_rows,
        showing=without(0),
    ),
    _augmented("mixup of pictures", pictures_mixed, "randperm|index|add"),
    _augmented(
        "CutMix by chance", cut_and_mixed, "roll|item|local_scalar|convolution", seed=3, hidden=True
    ),
    _augmented("averaged with the other end", paired, "flip|add"),
    _augmented("noise of the batch", noise_of_the_batch, "std|var"),
    _augmented("erased with the mean", erased, "mean"),
    _augmented("styles mixed", styles_mixed, "randperm|index|mul"),
    _augmented("brightened if dark", brightened, "min", showing=holding(-99.0), hidden=True),
)
