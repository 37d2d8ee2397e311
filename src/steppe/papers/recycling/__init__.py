"""Recycling Scraps: Improving Private Learning by Leveraging Checkpoints (Shejwalkar et al.)"""

from steppe.papers.recycling.accuracy import CIFAR, CIFAR_PERIODIC, FASHION, PERIODIC
from steppe.papers.recycling.count import COUNT
from steppe.papers.recycling.decays import DECAY_TABLE
from steppe.papers.recycling.intervals import INTERVALS
from steppe.papers.recycling.theorems import RISK, VARIANCE

EXPERIMENTS = (
    PERIODIC,
    FASHION,
    DECAY_TABLE,
    INTERVALS,
    RISK,
    VARIANCE,
    COUNT,
    CIFAR_PERIODIC,
    CIFAR,
)
