"""Differential Privacy Meets Weight Decay (Guo, University of Hong Kong, 2024)."""

from steppe.papers.weight_decay import cifar, mnist
from steppe.papers.weight_decay.extreme import EXTREME
from steppe.papers.weight_decay.regression import REGRESSIONS

EXPERIMENTS = (
    EXTREME,
    *REGRESSIONS,
    mnist.BASELINE,
    mnist.DECAY,
    mnist.CLIP,
    mnist.NOISE,
    cifar.BASELINE,
    cifar.DECAY,
    cifar.CLIP,
    cifar.NOISE,
)
