"""LoRA: linear layers whose change has a low rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.errors import UnsupportedModelError
from steppe.finetuning.patterns import as_patterns, chosen, listed
from steppe.models import head_name, set_module
from steppe.utils import validation


class LoRALinear(nn.Linear):
    """A frozen linear layer W, and a trained change of low rank: x ↦ W·x + (α/r)·B·A·x.

    `lora_a` has r rows and begins random, `lora_b` has r columns and begins at zero, so that the
    first output is that of the frozen layer. The names of its weights stay the same.

    Args:
        base: the layer; its weights are taken over and frozen.
        rank: r.
        alpha: α, the size of the change.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.requires_grad_(False)
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The layer and its change."""
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain linear layer that computes the same."""
        whole = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device=self.weight.device
        ).to(self.weight.dtype)
        whole.weight.copy_(self.weight + self.scale * self.lora_b @ self.lora_a)
        if self.bias is not None:
            whole.bias.copy_(self.bias)
        return whole


@dataclass(frozen=True)
class LoRA:
    """Which layers get a change of low rank, and of which rank.

    Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022. All other weights but the
    head's are frozen.

    Args:
        rank: r.
        alpha: α; None for r, so that the change is B·A itself.
        layers: patterns of layer names; None for all `nn.Linear` but the head.
    """

    rank: int = 8
    alpha: float | None = None
    layers: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        validation.positive_integer("rank", self.rank)
        if self.alpha is not None:
            validation.positive("alpha", self.alpha, "r to 2·r is common")
        if self.layers is not None:
            as_patterns("layers", self.layers)


def add_lora(model: nn.Module, lora: LoRA) -> nn.Module:
    """Give linear layers a trained change of low rank, and freeze all other weights but the head.

    Args:
        model: changed in place. Make the optimizer afterwards.
        lora: the constants.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> found = add_lora(model, LoRA(rank=2)).named_parameters()
        >>> [name for name, weight in found if weight.requires_grad]
        ['0.lora_a', '0.lora_b', '2.weight', '2.bias']
    """
    head = head_name(model)
    modules = dict(model.named_modules())
    plain = [n for n, m in modules.items() if type(m) is nn.Linear and n != head]
    if lora.layers is None:
        names = plain
    else:
        # A pattern names layers; those inside a named one count too, and only the linear ones.
        covered = chosen("layers", lora.layers, modules)
        names = [name for name in covered if name in plain]
        _require_linear(lora.layers, modules, names)
    if not names:
        rule = "must name a torch.nn.Linear besides the head, and there is none"
        raise validation.fail("layers", lora.layers, rule, "train norms and biases, or the head")
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith(f"{head}."))
    alpha = float(lora.rank) if lora.alpha is None else lora.alpha
    for name in names:
        base = modules[name]
        assert isinstance(base, nn.Linear)  # noqa: S101 - its exact type was compared
        set_module(model, name, LoRALinear(base, lora.rank, alpha))
    return model


def merge_lora(model: nn.Module) -> nn.Module:
    """Replace every `LoRALinear` by the plain layer that computes the same.

    Args:
        model: changed in place; a model that is a `LoRALinear` itself is not.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear) and name:
            set_module(model, name, module.merged())
    return model


def require_live_lora(model: nn.Module) -> None:
    """Refuse changes of low rank that cannot learn: of which a factor's gradient is always zero.

    The gradient of a factor is a product with the other one. It stays zero if the other one is zero
    and does not learn, or if both are zero.
    """
    dead: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, LoRALinear):
            continue
        a, b = module.lora_a, module.lora_b
        nothing = not (bool(a.any()) or bool(b.any()))
        for own, one, other in (("lora_a", a, b), ("lora_b", b, a)):
            stuck = not bool(other.any()) and not other.requires_grad
            if one.requires_grad and (nothing or stuck):
                dead.append(f"{name}.{own}" if name else own)
    if dead:
        raise UnsupportedModelError.about(
            "parameters",
            dead[:3],
            "must be able to learn, but their gradient is zero at every step, because the other "
            "factor of the change of low rank is zero and does not move",
            "let lora_a begin random, as add_lora does, and train both factors",
        )


def _require_linear(patterns: Any, modules: dict[str, nn.Module], names: list[str]) -> None:
    for pattern in as_patterns("layers", patterns):
        covered = chosen("layers", pattern, modules)
        if not set(covered) & set(names):
            kinds = listed(sorted({type(modules[name]).__name__ for name in covered}))
            rule = f"must name a torch.nn.Linear besides the head, but names {kinds}"
            raise validation.fail("layers", pattern, rule, "name linear layers")
