"""The items of Park et al., on sharpness-aware training."""

from __future__ import annotations

from steppe.papers.coverage.item import Item

TITLE = "Park et al.: sharpness-aware training (DP-SAT)"
_SMALL = "a CNN of 26k weights instead of DPNASNet with 213k"
_FASHION_FOR_CIFAR = "Fashion-MNIST and a CNN of 26k weights instead of CIFAR-10 and DPNASNet"
_SCALE = "days of two cores"
_TRANSFORMERS = "needs vision transformers pre-trained on ImageNet, which are not available"
_RESNET = f"GNResNet-10 of 4.9 million weights: {_SCALE}"
_GAIN = ("DP-SAT − DP-SGD", "accuracy")
_LOSS = ("DP-SGD − DP-SAM, the paper's steps", "accuracy")
_FASHION, _MNIST = "dp-sat.md#fashion-mnist", "dp-sat.md#mnist"
_FLAT = "dp-sat.md#flat-and-sharp-minima"
_CURVES = "dp-sat.md#convergence-figures-2-14-and-15"
_COLOUR = "dp-sat.md#cifar-10"


def _accuracies(data: str, title: str, link: str, epsilon: int, says: str) -> Item:
    return Item(
        name=f"Tables 2, 9 and 10, {title}, ε = {epsilon}",
        says=f"DPNASNet, DP-SGD, DP-SAM, DP-SAT, DP-SAT-Momentum: {says}",
        experiment=f"dp-sat-{data}-{epsilon}",
        link=link,
        shortened=_SMALL,
        claims=(_GAIN, _LOSS),
        came="DP-SGD {DP-SGD|accuracy}; DP-SAM with the paper's steps "
        "{DP-SAM, the paper's steps|accuracy}; DP-SAT {DP-SAT|accuracy}; DP-SAT-Momentum "
        "{DP-SAT-Momentum|accuracy}; DP-SAT − DP-SGD {DP-SAT − DP-SGD|accuracy}",
    )


_RADIUS = (
    "{DP-SAT, ρ = 0.01|accuracy} at ρ = 0.01, {DP-SAT, ρ = 0.03|accuracy} at 0.03, "
    "{DP-SAT, ρ = 0.1|accuracy} at 0.1, {DP-SAT, ρ = 0.3|accuracy} at 0.3, "
    "{DP-SAT, ρ = 1.0|accuracy} at 1"
)
_PAIR = "DP-SGD and DP-SAT"
ITEMS = (
    Item(name="Figure 1", says="flat and sharp minima", why_not="an illustration", result=False),
    Item(
        name="Figure 2",
        says="DP-SGD keeps a training loss above zero, also without noise",
        experiment="dp-sat-convergence",
        link=_CURVES,
        shortened=_FASHION_FOR_CIFAR,
        came="training loss {DP-SGD, ε = 1|loss} at ε = 1, {DP-SGD, ε = 8|loss} at ε = 8, "
        "{SGD with clip|loss} with the clip alone, {SGD, learning rate 0.1|loss} without",
    ),
    Item(
        name="Figure 3",
        says="the share of clipped gradients is high at first, then falls",
        experiment="dp-sat-flatness",
        link=_FLAT,
        shortened=f"Fashion-MNIST, {_SMALL}",
        came=f"DP-SGD {{{_PAIR}|DP-SGD, norms > epoch 1 > clipped share}} of the records after "
        f"epoch 1, {{{_PAIR}|DP-SGD, norms > epoch 10 > clipped share}} after 10, "
        f"{{{_PAIR}|DP-SGD, norms > epoch 40 > clipped share}} after 40",
    ),
    Item(
        name="Figure 4",
        says="gradients change more by noise in the sharp minimum",
        experiment="dp-sat-toy",
        link=_FLAT,
        claims=(("sharp − flat", "gradient change"),),
        came="change {flat|gradient change} in the flat one, {sharp|gradient change} in the sharp "
        "one (formula corrected)",
    ),
    Item(
        name="Figures 5 and 11",
        says="around DP-SAM and DP-SAT the loss rises less than around DP-SGD",
        experiment="dp-sat-landscape",
        link=_FLAT,
        shortened="Fashion-MNIST and a CNN of 26k weights",
        claims=(("DP-SGD − DP-SAM", "rise"), ("DP-SGD − DP-SAT", "rise")),
        came="rise {DP-SGD|rise} around DP-SGD, {DP-SAM|rise} around DP-SAM, {DP-SAT|rise} around "
        "DP-SAT",
    ),
    Item(name="Figures 6 and 10", says="a step of DP-SAT", why_not="an illustration", result=False),
    Item(
        name="Table 1",
        says="DP-SAM costs (2ε, 2δ)",
        experiment="dp-sat-fashion-1",
        link="dp-sat.md#what-dp-sam-really-costs",
        came="with the noise of half the budget DP-SAM spends ε = "
        "{DP-SAM, noise of half the budget|epsilon} of 1, with the paper's steps "
        "{DP-SAM, the paper's steps|epsilon}",
    ),
    _accuracies("mnist", "MNIST", _MNIST, 1, "97.77, 97.21, 97.96, 98.00 %"),
    _accuracies("mnist", "MNIST", _MNIST, 2, "98.60, 97.94, 98.71, 98.83 %"),
    _accuracies("mnist", "MNIST", _MNIST, 3, "98.70, 98.11, 98.93, 98.91 %"),
    _accuracies("fashion", "Fashion-MNIST", _FASHION, 1, "84.62, 82.13, 85.92, 85.47 %"),
    _accuracies("fashion", "Fashion-MNIST", _FASHION, 2, "86.99, 84.21, 87.75, 87.55 %"),
    _accuracies("fashion", "Fashion-MNIST", _FASHION, 3, "87.97, 84.58, 88.60, 88.56 %"),
    Item(
        name="Table 2, MNIST, DPNASNet",
        says="98.70 and 98.93 % with DP-SAT at ε = 3",
        experiment="dp-sat-dpnas",
        link=_MNIST,
        shortened="3 of the 40 epochs",
        claims=(_GAIN,),
        came="DP-SGD {DP-SGD|accuracy}; DP-SAT {DP-SAT|accuracy}",
    ),
    Item(name="Table 2, GNResNet-10", says="DP-SAT gains 0.5 to 1.8 points", why_not=_RESNET),
    Item(
        name="Table 2, CIFAR-10, CNN",
        says="61.84, 51.81 and 63.51 % at ε = 3",
        experiment="dp-sat-cifar",
        link=_COLOUR,
        shortened="ε = 3, without DP-SAM",
        claims=(_GAIN,),
        came="DP-SGD {DP-SGD|accuracy}; DP-SAT {DP-SAT|accuracy}",
    ),
    Item(
        name="Table 2, CIFAR-10 and SVHN, DPNASNet",
        says="DP-SAT gains 0.6 to 1.4 points",
        why_not=f"DPNASNet of 529k weights: {_SCALE}",
    ),
    Item(
        name="Table 3",
        says="fine-tuned transformers: DP-SAT gains −0.1 to 2.4 points",
        why_not=_TRANSFORMERS,
    ),
    Item(
        name="Figures 7 and 16",
        says="DP-SAT above DP-SGD from ε = 1 to ∞; DP-SAM nearer for large ε",
        experiment="dp-sat-budgets",
        link="dp-sat.md#budgets-figures-7-and-16",
        shortened=f"Fashion-MNIST alone, {_SMALL}",
        claims=tuple((f"DP-SAT, ε = {e} − DP-SGD, ε = {e}", "accuracy") for e in "12358∞"),
        came="DP-SAT − DP-SGD {DP-SAT, ε = 1 − DP-SGD, ε = 1|accuracy} at ε = 1, "
        "{DP-SAT, ε = 8 − DP-SGD, ε = 8|accuracy} at 8, {DP-SAT, ε = ∞ − DP-SGD, ε = ∞|accuracy} "
        "at ∞",
    ),
    Item(
        name="Figure 8",
        says="the largest eigenvalue is smaller after DP-SAT (130)",
        experiment="dp-sat-flatness",
        link=_FLAT,
        shortened=_FASHION_FOR_CIFAR,
        claims=((_PAIR, "DP-SGD, sharpness − DP-SAT, sharpness"),),
        came=f"{{{_PAIR}|DP-SGD, sharpness}} after DP-SGD, {{{_PAIR}|DP-SAT, sharpness}} after "
        "DP-SAT",
    ),
    Item(
        name="Figure 9",
        says="between the solutions train and test loss are alike, and lower at DP-SAT",
        experiment="dp-sat-flatness",
        link=_FLAT,
        shortened=_FASHION_FOR_CIFAR,
        claims=((_PAIR, "path > losses > test > 5 − path > losses > test > 15"),),
        came=f"test loss {{{_PAIR}|path > losses > test > 5}} at DP-SGD, "
        f"{{{_PAIR}|path > losses > test > 15}} at DP-SAT",
    ),
    Item(
        name="Table 4",
        says="a step of DP-SAM takes 1.62 to 1.82 times as long as one of DP-SGD, DP-SAT 1.00",
        experiment="dp-sat-speed",
        link="dp-sat.md#what-a-step-costs",
        came="DP-SAM {26k tanh CNN, batch 2000|DP-SAM}, DP-SAT {26k tanh CNN, batch 2000|DP-SAT}",
    ),
    Item(
        name="Table 5",
        says="the constants of Table 2",
        why_not="constants; the experiments use them, with the radius of Table 10",
        result=False,
    ),
    Item(name="Tables 6 and 7", says="the radii of Table 3", why_not="constants", result=False),
    Item(
        name="Table 8",
        says="cosine 0.26 with C = 0.1 and batch 2048, 0.23 with batch 512; lower for large C",
        experiment="dp-sat-cosines",
        link=_FLAT,
        shortened=f"3 epochs, {_FASHION_FOR_CIFAR}",
        claims=(
            ("C = 0.1, batch 2000 − C = 10, batch 2000", "clean"),
            ("C = 0.1, batch 2000 − C = 0.1, batch 500", "clean"),
        ),
        came="{C = 0.1, batch 2000|clean} at C = 0.1, {C = 10, batch 2000|clean} at C = 10, "
        "{C = 0.1, batch 500|clean} with batch 500",
    ),
    Item(
        name="Table 9, CIFAR-10",
        says="DPNASNet: 69.86 and 69.63 % at ε = 3",
        experiment="dp-sat-cifar",
        link=_COLOUR,
        shortened="a CNN of 550k weights instead of DPNASNet",
        came="{DP-SAT|accuracy} and {DP-SAT-Momentum|accuracy}",
    ),
    Item(
        name="Table 11",
        says="Fashion-MNIST at ε = 3: 82.03 % without momentum, 87.97 with, Adam 87.84, DP-SAT "
        "88.60 and with Adam 88.26",
        experiment="dp-sat-optimizers",
        link="dp-sat.md#other-optimizers-table-11",
        shortened=_SMALL,
        claims=(
            _GAIN,
            ("DP-SGD − DP-SGD, no momentum", "accuracy"),
            ("DP-SAT, Adam − DP-Adam", "accuracy"),
        ),
        came="{DP-SGD, no momentum|accuracy}, {DP-SGD|accuracy}, {DP-Adam|accuracy}, "
        "{DP-SAT|accuracy}, {DP-SAT, Adam|accuracy}",
    ),
    Item(
        name="Table 12",
        says="DP-SAM loses 4.8 to 14.3 points on CIFAR-10 with 0.24 of the steps",
        experiment="dp-sat-fashion-3",
        link=_FASHION,
        shortened=_FASHION_FOR_CIFAR,
        claims=(_LOSS,),
        came="{DP-SAM, the paper's steps − DP-SGD|accuracy} with 0.24 of the steps, "
        "{DP-SAM, tight account − DP-SGD|accuracy} with √2 times the noise",
    ),
    Item(
        name="Figure 12",
        says="cosines rise in the first epochs",
        experiment="dp-sat-cosines",
        link=_FLAT,
        shortened=f"3 epochs, {_FASHION_FOR_CIFAR}",
        came="C = 0.1, batch 2000: {C = 0.1, batch 2000|over the run > 0} in the first twentieth, "
        "{C = 0.1, batch 2000|over the run > 19} in the last",
    ),
    Item(
        name="Figure 13",
        says="too small or too large a radius does not help",
        experiment="dp-sat-radius",
        link="dp-sat.md#the-radius",
        shortened=_FASHION_FOR_CIFAR,
        came=_RADIUS,
    ),
    Item(
        name="Figure 14",
        says="DP-SAT converges a little more slowly, and to a lower training loss",
        experiment="dp-sat-convergence",
        link=_CURVES,
        shortened=_FASHION_FOR_CIFAR,
        claims=(("DP-SGD, ε = 3 − DP-SAT, ε = 3", "loss"),),
        came="training loss at ε = 3 {DP-SGD, ε = 3|loss} with DP-SGD, {DP-SAT, ε = 3|loss} with "
        "DP-SAT",
    ),
    Item(
        name="Figure 15",
        says="the same on MNIST",
        experiment="dp-sat-convergence-mnist",
        link=_CURVES,
        shortened=_SMALL,
        claims=(("DP-SGD, ε = 3 − DP-SAT, ε = 3", "loss"),),
        came="training loss at ε = 3 {DP-SGD, ε = 3|loss} with DP-SGD, {DP-SAT, ε = 3|loss} with "
        "DP-SAT",
    ),
)
