"""The items of Guo's report on weight decay."""

from __future__ import annotations

from steppe.papers.coverage.item import Item

TITLE = "Guo: weight decay before the clip"
_RECORDS = "weight-decay.md#linear-regression-each-record-clipped-by-itself"
_MNIST = "weight-decay.md#mnist"
_CIFAR = "weight-decay.md#cifar-10"
_EPOCHS = "8 of the 50 epochs"
_COLOUR_EPOCHS = "6 of the 90 epochs"
_AFTER, _BEFORE = "decay after the clip", "L2 before the clip"


def _regression(name: str, experiment: str, case: str, says: str) -> Item:
    return Item(
        name=name,
        says=says,
        experiment=experiment,
        link=_RECORDS,
        claims=((f"{case}, {_AFTER} − {case}, {_BEFORE}", "mse"),),
        came=f"held-out error {{{case}, {_AFTER}|mse}} after the clip, "
        f"{{{case}, {_BEFORE}|mse}} before it, {{{case}, no decay|mse}} without decay",
    )


def _before_after(setting: str) -> tuple[str, str]:
    return f"{setting}, {_BEFORE} − {setting}, {_AFTER}", "accuracy"


def _pair(setting: str) -> str:
    before = f"{setting}, {_BEFORE}"
    return f"{{{setting}, {_AFTER}|accuracy}} and {{{before}|accuracy}}"


ITEMS = (
    Item(
        name="Figure 3.1",
        says="decay after the clip rests at R/λ = 2, far from θ* = 3.8",
        experiment="weight-decay-extreme",
        link="weight-decay.md#one-weight",
        came="{decay after the clip|final}; L2 before the clip {L2 before the clip|final}",
    ),
    _regression(
        "Figure 5.2", "weight-decay-simple", "baseline", "5.93 after the clip, 0.51 before it"
    ),
    _regression("Figure 5.3", "weight-decay-simple", "R = 0.01", "84.81 and 0.51"),
    _regression("Figure 5.4", "weight-decay-simple", "λ = 0.1", "79.74 and 4.81"),
    _regression("Figure 5.5", "weight-decay-multiple", "baseline", "13.26 and 0.63"),
    _regression("Figure 5.6", "weight-decay-multiple", "R = 0.01", "101.66 and 0.63"),
    _regression("Figure 5.7", "weight-decay-multiple", "λ = 0.1", "95.47 and 5.96"),
    *(
        Item(
            name=f"Figures {first} to {last}, as the listing computes them",
            says="as above",
            experiment=f"weight-decay-{kind}-listing",
            link="weight-decay.md#the-same-with-the-reports-listing",
            claims=tuple(
                (f"{case}, {_AFTER} − {case}, {_BEFORE}", "mse")
                for case in ("baseline", "R = 0.01", "λ = 0.1")
            ),
            came=f"{first}: {{baseline, {_AFTER}|mse}} after the clip, before it with the penalty "
            f"{{baseline, {_BEFORE}|penalised}}; {last}: {{λ = 0.1, {_AFTER}|mse}} and "
            f"{{λ = 0.1, {_BEFORE}|penalised}}",
        )
        for kind, first, last in (("simple", "5.2", "5.4"), ("multiple", "5.5", "5.7"))
    ),
    Item(
        name="Figure 5.9",
        says="97.01 % after the clip, 96.89 % before it",
        experiment="weight-decay-mnist-baseline",
        link=_MNIST,
        came="{decay after the clip|accuracy} and {L2 before the clip|accuracy}",
    ),
    Item(
        name="Figure 5.10",
        says="both lose as R falls, decay before the clip less",
        experiment="weight-decay-mnist-clip",
        link=_MNIST,
        shortened=_EPOCHS,
        claims=(_before_after("R = 0.03"), _before_after("R = 0.15")),
        came=f"R = 3: {_pair('R = 3')}; R = 0.03: {_pair('R = 0.03')}",
    ),
    Item(
        name="Figure 5.11",
        says="after the clip accuracy falls from λ = 0.01 on; before it, it stays near 97 %",
        experiment="weight-decay-mnist-decay",
        link=_MNIST,
        shortened=_EPOCHS,
        claims=(_before_after("λ = 0.1"), _before_after("λ = 1")),
        came=f"λ = 0.01: {_pair('λ = 0.01')}; λ = 0.1: {_pair('λ = 0.1')}; λ = 1: {_pair('λ = 1')}",
    ),
    Item(
        name="Figure 5.12",
        says="best at λ = 5 before the clip (97.39 %), at λ = 1e-6 after it (97.26 %)",
        experiment="weight-decay-mnist-decay",
        link=_MNIST,
        shortened=_EPOCHS,
        claims=((f"λ = 5, {_BEFORE} − λ = 0.01, {_BEFORE}", "accuracy"),),
        came=f"λ = 5: {_pair('λ = 5')}; λ = 0.01: {_pair('λ = 0.01')}",
    ),
    Item(
        name="Figures 5.1, 5.8 and 5.13",
        says="the data of the regression, and the two networks",
        why_not="illustrations",
        result=False,
    ),
    Item(
        name="Figure 5.14",
        says="65.75 % after the clip, 67.37 % before it",
        experiment="weight-decay-cifar-baseline",
        link=_CIFAR,
        shortened=_COLOUR_EPOCHS,
        came="{decay after the clip|accuracy} and {L2 before the clip|accuracy}",
    ),
    Item(
        name="Figure 5.15",
        says="both lose as R falls, decay before the clip slightly less",
        experiment="weight-decay-cifar-clip",
        link=_CIFAR,
        shortened=_COLOUR_EPOCHS,
        claims=(_before_after("R = 0.2"),),
        came=f"R = 10: {_pair('R = 10')}; R = 0.2: {_pair('R = 0.2')}",
    ),
    Item(
        name="Figures 5.16 and 5.17",
        says="after the clip accuracy falls from λ = 0.001 on; before it, it stays near 67.4 %",
        experiment="weight-decay-cifar-decay",
        link=_CIFAR,
        shortened=_COLOUR_EPOCHS,
        claims=(_before_after("λ = 0.01"), _before_after("λ = 0.1")),
        came=f"λ = 1e-4: {_pair('λ = 0.0001')}; λ = 0.01: {_pair('λ = 0.01')}",
    ),
    Item(
        name="Figure A.1",
        says="both lose as σ grows, and do not differ",
        experiment="weight-decay-mnist-noise",
        link=_MNIST,
        shortened=_EPOCHS,
        came=f"σ = 1.3: {_pair('σ = 1.3')}; σ = 13: {_pair('σ = 13')}",
    ),
    Item(
        name="Figure A.2",
        says="the same on CIFAR-10",
        experiment="weight-decay-cifar-noise",
        link=_CIFAR,
        shortened=_COLOUR_EPOCHS,
        came=f"σ = 1.5: {_pair('σ = 1.5')}; σ = 15: {_pair('σ = 15')}",
    ),
)
