"""The items of Shejwalkar et al., on recycling checkpoints."""

from __future__ import annotations

from steppe.papers.coverage.item import Item

TITLE = "Shejwalkar et al.: recycling checkpoints"
_PLAIN = "recycling.md#without-periods-tables-1-and-9-figure-1"
_PERIODIC = "recycling.md#periodic-sampling-of-even-and-odd-classes-table-2-figure-3"
_FASHION = "Fashion-MNIST and a CNN of 26k weights instead of CIFAR-10 and WRN-16-4"
_CIFAR = "640 steps of 1024, a CNN of 28k weights instead of WRN-16-4, no augmentation"
_STACK = "StackOverflow with an LSTM of 4 million weights: weeks of two cores"
_CIFAR100 = "needs WRN-28-10 pre-trained on ImageNet, which is not available"


def _gains(setting: str) -> str:
    names = ("EMA", "UPA", "OPA", "OMV")
    return ", ".join(f"{name} {{{setting}|{name} gain}}" for name in names)


_BOTH = f"points at ε = 1: {_gains('ε = 1')}; at ε = 8: {_gains('ε = 8')}"
_GAINS = tuple(
    (setting, f"{name} gain")
    for setting in ("ε = 1", "ε = 8")
    for name in ("EMA", "UPA", "OPA", "OMV")
)
ITEMS = (
    Item(
        name="Table 1, CIFAR-10",
        says="EMA, UPA, OPA, OMV gain 3.6 to 3.9 points over 52.8 % at ε = 1, 2.2 over 77.2 % at 8",
        experiment="recycling-cifar",
        link=_PLAIN,
        shortened=_CIFAR,
        claims=_GAINS,
        came=_BOTH,
    ),
    Item(
        name="Table 1 on Fashion-MNIST",
        says="as above",
        experiment="recycling-fashion",
        link=_PLAIN,
        shortened=_FASHION,
        claims=_GAINS,
        came=_BOTH,
    ),
    Item(
        name="Figure 1, CIFAR-10",
        says="averages vary far less from step to step",
        experiment="recycling-fashion",
        link=_PLAIN,
        shortened=_FASHION,
        claims=(("ε = 1", "baseline sd − UPA sd"), ("ε = 8", "baseline sd − UPA sd")),
        came="standard deviation over steps at ε = 1 {ε = 1|baseline sd} of the last weights, "
        "{ε = 1|UPA sd} of UPA",
    ),
    Item(
        name="Figure 2",
        says="the probabilities of the two groups over time",
        why_not="an illustration of [periodic sampling](../methods/periodic.md)",
        result=False,
    ),
    Item(
        name="Table 2, CIFAR-10",
        says="6.9 to 7.5 points over 47.1 % at ε = 1, 17.2 to 17.5 over 60.7 % at ε = 8",
        experiment="recycling-cifar-periodic",
        link=_PERIODIC,
        shortened=_CIFAR,
        claims=_GAINS,
        came=_BOTH,
    ),
    Item(
        name="Table 2 on Fashion-MNIST",
        says="as above",
        experiment="recycling-periodic",
        link=_PERIODIC,
        shortened=_FASHION,
        claims=_GAINS,
        came=_BOTH,
    ),
    Item(
        name="Figure 3, CIFAR-10",
        says="the last weights swing, averages hardly",
        experiment="recycling-periodic",
        link=_PERIODIC,
        shortened=_FASHION,
        claims=(("ε = 1", "baseline sd − UPA sd"), ("ε = 8", "baseline sd − UPA sd")),
        came="standard deviation over steps at ε = 8 {ε = 8|baseline sd} of the last weights, "
        "{ε = 8|UPA sd} of UPA",
    ),
    Item(
        name="Table 3",
        says="on StackOverflow the best checkpoints by public data gain 0.1 to 0.2 points more",
        experiment="recycling-fashion",
        link=_PLAIN,
        shortened=_FASHION.replace("CIFAR-10 and WRN-16-4", "StackOverflow and an LSTM"),
        claims=(("ε = 1", "best UPA − UPA"), ("ε = 8", "best UPA − UPA")),
        came="at ε = 1 UPA {ε = 1|UPA gain} of the last, {ε = 1|best UPA gain} of the best; at "
        "ε = 8 {ε = 8|UPA gain} and {ε = 8|best UPA gain}",
    ),
    Item(
        name="Table 4",
        says="the layers of the LSTM",
        why_not="a list of layers",
        result=False,
    ),
    Item(
        name="StackOverflow: Tables 1, 2, 5 and 6, Figures 1, 3, 4 and 5",
        says="private gains of 0.4 to 0.5 points, with periods and without",
        why_not=_STACK,
    ),
    Item(
        name="Tables 7 and 8",
        says="CIFAR-100, fine-tuned: 0.1 points; with periods 3.4 and 5.0 points",
        why_not=_CIFAR100,
    ),
    Item(
        name="Table 9",
        says="β of 0.95 is best at ε = 1, 0.6 points above 0.999; 0.9 and 0.99 at ε = 8",
        experiment="recycling-decays",
        link=_PLAIN,
        shortened=_FASHION,
        claims=(("Fashion-MNIST, ε = 1", "β = 0.95 − β = 0.999"),),
        came="ε = 1: {Fashion-MNIST, ε = 1|β = 0.9} with 0.9, {Fashion-MNIST, ε = 1|β = 0.95} with "
        "0.95, {Fashion-MNIST, ε = 1|β = 0.99} with 0.99, {Fashion-MNIST, ε = 1|β = 0.999} with "
        "0.999, {Fashion-MNIST, ε = 1|last} without",
    ),
    Item(
        name="Figure 4, CIFAR-10",
        says="the width from checkpoints is a lower bound of that from independent runs",
        experiment="recycling-intervals",
        link="recycling.md#intervals-figure-4",
        shortened="logistic regression on Fashion-MNIST, 20 independent runs",
        claims=(("ε = 1", "independent − last"), ("ε = 8", "independent − last")),
        came="checkpoints over independent runs: {ε = 1|last over independent} at ε = 1, "
        "{ε = 8|last over independent} at ε = 8",
    ),
    Item(
        name="Theorem 2.1",
        says="averages have the risk √p/(n√ρ), the last iterate log n times as much",
        experiment="recycling-theorem-2-1",
        link="recycling.md#theorem-21",
        claims=(
            ("n = 50, slopes −0.25 and 1", "last − UPA"),
            ("n = 400, slopes −0.25 and 1", "last − UPA"),
        ),
        came="last over UPA {n = 50, slopes −0.25 and 1|last over UPA} at n = 50, "
        "{n = 400, slopes −0.25 and 1|last over UPA} at n = 400",
    ),
    Item(
        name="Theorem 3.1",
        says="the bias of the variance over checkpoints falls exponentially with their distance",
        experiment="recycling-theorem-3-1",
        link="recycling.md#theorem-31",
        came="sample variance over true variance {t₁ = 8, γ = 0.1|relative} at a distance of 0.1, "
        "{t₁ = 8, γ = 4|relative} at 4",
    ),
    Item(
        name="Appendix A.1",
        says="with T fixed, k = T/(c₁ + c₂ ln(3T/c₂)) checkpoints have the smallest error",
        experiment="recycling-count",
        link="recycling.md#the-number-of-checkpoints-appendix-a1",
        came="more never has a larger error; within 10 % of the smallest from k = {T = 5|enough} "
        "on at T = 5, {T = 20|enough} at 20, {T = 80|enough} at 80",
    ),
)
