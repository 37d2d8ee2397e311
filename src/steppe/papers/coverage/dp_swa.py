"""The items of Indri et al., on stochastic weight averaging."""

from __future__ import annotations

from steppe.papers.coverage.item import Item

TITLE = "Indri et al.: stochastic weight averaging (DP-SWA)"
_LINEAR = "dp-swa.md#linear-regression-table-1-figures-1-left-and-2"
_LOGISTIC = "dp-swa.md#logistic-regression-on-fashion-mnist-table-2-figure-3"
_NETWORKS = "dp-swa.md#networks-table-3-figures-1-right-and-4"
_SMALL = "a CNN of 26k weights instead of ResNet-18 and WRN-16-4, on Fashion-MNIST"

ITEMS = (
    Item(
        name="Table 1",
        says="squared distance 22 and 7.4 with DP-SWA at ε = 1, 2.6 and 0.52 at ε = 8",
        experiment="dp-swa-linear",
        link=_LINEAR,
        claims=(("ε = 1", "SGD − SWA"), ("ε = 8", "SGD − SWA")),
        came="{ε = 1|SGD} and {ε = 1|SWA}; {ε = 8|SGD} and {ε = 8|SWA}, at a learning rate of "
        "1.5·10⁻³; with the printed 10⁻⁴ {ε = 8, rate as printed|SGD} and "
        "{ε = 8, rate as printed|SWA} at ε = 8",
    ),
    Item(
        name="Theorem 1",
        says="the squared distance of the average is below a bound that falls like c/T",
        experiment="dp-swa-theorem",
        link="dp-swa.md#theorem-1",
        claims=(
            ("cycle 1", "corrected bound − measured"),
            ("cycle 64", "corrected bound − measured"),
        ),
        came="bound over measured, with four corrections of the bound: "
        "{cycle 1|bound over measured} at c = 1, {cycle 64|bound over measured} at c = 64",
    ),
    Item(
        name="Figure 1 (left)",
        says="the distance of DP-SWA falls like 1/T or faster",
        experiment="dp-swa-linear",
        link=_LINEAR,
        came="at ε = 8 {ε = 8|curve > SWA > 2} after 104,960 of 409,600 steps, {ε = 8|SWA} at the "
        "end",
    ),
    Item(
        name="Figure 2",
        says="faster than 1/T; long cycles lose",
        experiment="dp-swa-linear",
        link=_LINEAR,
        claims=(("ε = 8", "by cycle > 16384 − by cycle > 1"),),
        came="at ε = 8 {ε = 8|by cycle > 1} with c = 1, {ε = 8|by cycle > 4096} with an epoch, "
        "{ε = 8|by cycle > 16384} with four epochs",
    ),
    Item(
        name="Appendix C.1",
        says="the squared distance falls like 1/ε²",
        experiment="dp-swa-epsilon",
        link=_LINEAR,
        came="{ε = 1|SWA} at ε = 1, {ε = 2|SWA} at 2, {ε = 8|SWA} at 8: more slowly",
    ),
    Item(
        name="Table 2",
        says="68.4 and 74.7 % with DP-SWA at ε = 1, 75.3 and 78.9 % at ε = 8",
        experiment="dp-swa-logistic",
        link=_LOGISTIC,
        claims=(("ε = 1", "gain"), ("ε = 8", "gain")),
        came="{ε = 1|SGD} and {ε = 1|SWA} %; {ε = 8|SGD} and {ε = 8|SWA} %; gains {ε = 1|gain} "
        "and {ε = 8|gain}",
    ),
    Item(
        name="Figure 3 (left)",
        says="DP-SWA is more accurate and varies less over the last epochs",
        experiment="dp-swa-logistic",
        link=_LOGISTIC,
        claims=(("ε = 1", "variance SGD − variance SWA"), ("ε = 8", "variance SGD − variance SWA")),
        came="variance at ε = 1 {ε = 1|variance SGD} of DP-SGD, {ε = 1|variance SWA} of DP-SWA",
    ),
    Item(
        name="Figure 3 (right)",
        says="long cycles lose accuracy at ε = 1",
        experiment="dp-swa-logistic",
        link=_LOGISTIC,
        claims=(("ε = 1", "by cycle > 1 − by cycle > 7500"),),
        came="{ε = 1|by cycle > 1} % with c = 1, {ε = 1|by cycle > 7500} % with an epoch",
    ),
    Item(
        name="Table 3, Fashion-MNIST",
        says="ResNet-18: 79.1 and 79.9 % at ε = 1, 84.9 and 85.6 % at 8; wider by 2.4 and 4.6 %",
        experiment="dp-swa-fashion",
        link=_NETWORKS,
        shortened=_SMALL,
        claims=(
            ("ε = 1", "gain"),
            ("ε = 8", "gain"),
            ("ε = 1", "wider by %"),
            ("ε = 8", "wider by %"),
        ),
        came="{ε = 1|SGD} and {ε = 1|SWA} %; {ε = 8|SGD} and {ε = 8|SWA} %; wider by "
        "{ε = 1|wider by %} and {ε = 8|wider by %} %",
    ),
    Item(
        name="Table 3, CIFAR-10",
        says="ResNet-18: 38.8 and 41.0 % at ε = 1, 60.8 and 62.1 % at ε = 8",
        experiment="dp-swa-cifar",
        link=_NETWORKS,
        shortened="a CNN of 28k weights, 20 epochs of batch 1024 instead of 100 and 300 of 4096",
        claims=(("ε = 1", "gain"), ("ε = 8", "gain")),
        came="{ε = 1|SGD} and {ε = 1|SWA} %; {ε = 8|SGD} and {ε = 8|SWA} %",
    ),
    Item(
        name="Figure 1 (right)",
        says="on the line from DP-SGD to DP-SWA the loss is lowest at DP-SWA",
        experiment="dp-swa-fashion",
        link=_NETWORKS,
        shortened=_SMALL,
        claims=(("ε = 8", "line > loss > 2 − line > loss > 6"),),
        came="test loss at ε = 8 {ε = 8|line > loss > 2} at DP-SGD, {ε = 8|line > loss > 6} at "
        "DP-SWA",
    ),
    Item(
        name="Figure 4 (left)",
        says="along random rays DP-SWA stays more accurate",
        experiment="dp-swa-fashion",
        link=_NETWORKS,
        shortened=_SMALL,
        claims=(("ε = 1", "wider by %"), ("ε = 8", "wider by %")),
        came="wider by {ε = 1|wider by %} % at ε = 1 and {ε = 8|wider by %} % at ε = 8",
    ),
    Item(
        name="Figure 4 (right)",
        says="five runs of DP-SWA lie nearer to each other than five of DP-SGD",
        experiment="dp-swa-spread",
        link=_NETWORKS,
        shortened=_SMALL,
        claims=(("ε = 8", "gain"),),
        came="DP-SGD {ε = 8|SGD} %, DP-SWA {ε = 8|SWA} % at ε = 8",
    ),
    Item(
        name="Table 4",
        says="pre-trained on ImageNet: averages change less than 0.1 points",
        why_not="needs ResNet-18 and ResNet-50 pre-trained on ImageNet, which are not available",
    ),
)
