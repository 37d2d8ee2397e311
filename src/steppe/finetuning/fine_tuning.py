"""All of a fine-tuning in one object: the `[model]` table of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from steppe.finetuning.batch_norms import fold_batch_norm, freeze_batch_norm
from steppe.finetuning.freezing import freeze, train_head, train_norm_and_bias, train_only
from steppe.finetuning.lora import LoRA, add_lora
from steppe.finetuning.named_starts import find_start
from steppe.finetuning.patterns import as_patterns
from steppe.finetuning.start_weights import load_start, replace_head
from steppe.runs import build, check_keys
from steppe.utils import validation

HEAD, NORM_AND_BIAS, ALL = "head", "norm-and-bias", "all"
_STATISTICS = ("frozen", "folded")


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What a model begins with, and which part of it is trained.

    Args:
        start: the file of a start, or the name of one; None for none.
        head: the number of outputs of a new head; None keeps the head.
        train: "all"; "head", the last linear layer alone; "norm-and-bias" (BitFit), with the head;
            or patterns of weight names.
        freeze: patterns of weights that are not trained.
        lora: constants of `LoRA`, instead of `train`.
        batch_norm: "frozen" keeps the statistics of batch normalisation, "folded" folds them into
            the layer before; None leaves the layers alone.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        >>> tuned = FineTuning(head=10, train="head").applied(model)
        >>> [tuple(p.shape) for p in tuned.parameters() if p.requires_grad]
        [(10, 8), (10,)]
    """

    start: str | None = None
    head: int | None = None
    train: Any = ALL
    freeze: Any = ()
    lora: LoRA | None = None
    batch_norm: str | None = None

    def __post_init__(self) -> None:
        if self.head is not None:
            validation.positive_integer("head", self.head, "give the number of classes")
        as_patterns("train", self.train)
        as_patterns("freeze", self.freeze)
        if self.batch_norm is not None:
            validation.one_of("batch_norm", self.batch_norm, _STATISTICS)
        if self.lora is not None and self.train != ALL:
            rule = "cannot be given together with lora, which trains its factors and the head"
            raise validation.fail("train", self.train, rule, "leave out one of the two")

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> FineTuning:
        """From the keys of a configuration file; `lora` is a table."""
        options = dict(table)
        if "lora" in options:
            lora = options["lora"]
            if not isinstance(lora, Mapping):
                raise validation.fail(
                    "model.lora", lora, "must be a table", "write lora = { rank = 8 }"
                )
            check_keys("model.lora", lora, ("rank", "alpha", "layers"))
            options["lora"] = build("model.lora", {"LoRA": LoRA}, "LoRA", lora)
        return cls(**options)

    @property
    def is_head_alone(self) -> bool:
        """Whether the head alone is trained, so that what it sees can be computed once."""
        return self.train == HEAD and not self.freeze

    def applied(
        self, model: nn.Module, example: Tensor | None = None, *, with_weights: bool = True
    ) -> nn.Module:
        """The model, changed in place.

        Args:
            model: of the start's network.
            example: inputs on which folding is checked; None to check nothing.
            with_weights: whether the start is read. A stored model has its weights already.
        """
        if self.start is not None and with_weights:
            load_start(model, find_start(self.start), head=self.head)
        elif self.head is not None:
            replace_head(model, self.head)
        if self.batch_norm == _STATISTICS[0]:
            freeze_batch_norm(model)
        elif self.batch_norm == _STATISTICS[1]:
            fold_batch_norm(model, example)
        if self.lora is not None:
            add_lora(model, self.lora)
        elif self.train == HEAD:
            train_head(model)
        elif self.train == NORM_AND_BIAS:
            train_norm_and_bias(model)
        elif self.train != ALL:
            train_only(model, self.train)
        if self.freeze:
            freeze(model, self.freeze)
        return model
