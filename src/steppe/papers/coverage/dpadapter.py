"""The items of the paper on DPAdapter."""

from __future__ import annotations

from steppe.papers.coverage.item import Item

TITLE = "Wang et al.: noise-tolerant pre-training (DPAdapter)"
_SCALE = (
    "1000 epochs of pre-training, 5·10⁹ gradients a model: weeks of two cores; the methods are in "
    "`steppe.pretraining`"
)
_SHORT = (
    "a CNN of 26k weights, on half of Fashion-MNIST's classes, then privately on the other half"
)
_PAGE = "dpadapter.md"


def _starts(epsilon: int, says: str) -> Item:
    return Item(
        name=f"Table 1, ε = {epsilon}",
        says=f"DP-SGD, mean of three tasks: {says}",
        experiment=f"dpadapter-starts-{epsilon}",
        link=_PAGE,
        shortened=_SHORT,
        claims=(("DPAdapter − standard", "accuracy"), ("DPAdapter − SAM", "accuracy")),
        came="standard {standard|accuracy}; SAM {SAM|accuracy}; DPAdapter {DPAdapter|accuracy}",
    )


ITEMS = (
    _starts(1, "standard pre-training 56.8 %, SAM 59.6 %, DPAdapter 61.4 %"),
    _starts(4, "standard pre-training 72.9 %, SAM 76.3 %, DPAdapter 77.1 %"),
    Item(
        name="Table 2",
        says="gains on STL-10 with CIFAR-100 and Tiny ImageNet, ResNet20 and ViT-B",
        why_not=_SCALE,
    ),
    Item(
        name="Table 3",
        says="the gain remains with mixed ghost clipping",
        why_not=f"{_SCALE}. Mixed ghost clipping computes the same gradients",
    ),
    Item(
        name="Figure 1",
        says="robustness and private accuracy first rise and then fall with AMP's magnitude",
        why_not=_SCALE,
    ),
    Item(
        name="Figure 2",
        says="robust weights stay robust when fine-tuned",
        why_not=_SCALE,
    ),
    Item(
        name="Figure 3",
        says="a larger batch for the perturbation gives a better start",
        experiment="dpadapter-batch",
        link=_PAGE,
        shortened=_SHORT,
        claims=(("m₁ = 1000 − m₁ = 50", "accuracy"),),
        came="{m₁ = 50|accuracy} with m₁ = 50, {m₁ = 1000|accuracy} with 1000, "
        "{m₁ = 2500|accuracy} with 2500",
    ),
    Item(name="Figure 4", says="the steps of the method", why_not="an illustration", result=False),
    Item(
        name="Figure 5",
        says="private accuracy follows robustness in γ, and falls for large γ",
        experiment="dpadapter-cap",
        link=_PAGE,
        shortened=_SHORT,
        came="{γ = 0.1|accuracy} at γ = 0.1, {γ = 0.5|accuracy} at 0.5, {γ = 1|accuracy} at 1, "
        "{γ = 2|accuracy} at 2, {γ = 4|accuracy} at 4",
    ),
    Item(
        name="Figure 6",
        says="DPAdapter is more robust and more accurate than SAM at each magnitude",
        why_not=_SCALE,
    ),
)
