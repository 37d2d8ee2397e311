"""The items of the paper on DPAdapter."""

from __future__ import annotations

from steppe.papers.coverage.item import Item

TITLE = "Wang et al.: noise-tolerant pre-training (DPAdapter)"
_PRETRAINING = (
    "1000 epochs of pre-training, 5·10⁹ gradients a model: weeks of two cores; the "
    "methods are in `steppe.pretraining`"
)

ITEMS = (
    Item(
        name="Table 1",
        says="DP-SGD at ε = 1, mean of three tasks: 56.8 % with standard pre-training, 61.4 % with "
        "DPAdapter",
        why_not=_PRETRAINING,
    ),
    Item(
        name="Table 2",
        says="gains on STL-10 with CIFAR-100 and Tiny ImageNet, ResNet20 and ViT-B",
        why_not=_PRETRAINING,
    ),
    Item(
        name="Table 3",
        says="the gain remains with mixed ghost clipping",
        why_not=_PRETRAINING + ". Mixed ghost clipping computes the same gradients",
    ),
    Item(
        name="Figure 1",
        says="robustness and private accuracy first rise and then fall with AMP's magnitude",
        why_not=_PRETRAINING,
    ),
    Item(
        name="Figure 2",
        says="robust weights stay robust when fine-tuned",
        why_not=_PRETRAINING,
    ),
    Item(
        name="Figure 3",
        says="one batch size serves either the perturbation or the update",
        why_not=_PRETRAINING,
    ),
    Item(name="Figure 4", says="the steps of the method", why_not="an illustration", result=False),
    Item(
        name="Figure 5",
        says="private accuracy follows robustness, not public accuracy",
        why_not=_PRETRAINING,
    ),
    Item(
        name="Figure 6",
        says="DPAdapter is more robust and more accurate than SAM at each magnitude",
        why_not=_PRETRAINING,
    ),
)
