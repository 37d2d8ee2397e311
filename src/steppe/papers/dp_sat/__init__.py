"""Differentially Private Sharpness-Aware Training (Park et al., 2023)."""

from steppe.papers.dp_sat import convergence
from steppe.papers.dp_sat.accuracy import DPNAS, FASHION, MNIST, OPTIMIZERS, RADIUS
from steppe.papers.dp_sat.budgets import BUDGETS
from steppe.papers.dp_sat.cifar import CIFAR
from steppe.papers.dp_sat.cosines import COSINES
from steppe.papers.dp_sat.flatness import FLATNESS
from steppe.papers.dp_sat.landscape import LANDSCAPE
from steppe.papers.dp_sat.speed import SPEED
from steppe.papers.dp_sat.toy import TOY

EXPERIMENTS = (
    *FASHION,
    TOY,
    SPEED,
    COSINES,
    FLATNESS,
    *MNIST,
    RADIUS,
    OPTIMIZERS,
    BUDGETS,
    convergence.FASHION,
    convergence.MNIST,
    LANDSCAPE,
    DPNAS,
    CIFAR,
)
