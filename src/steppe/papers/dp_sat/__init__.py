"""Differentially Private Sharpness-Aware Training (Park et al., 2023)."""

from steppe.papers.dp_sat.accuracy import DPNAS, FASHION, MNIST, RADIUS
from steppe.papers.dp_sat.cosines import COSINES
from steppe.papers.dp_sat.flatness import FLATNESS
from steppe.papers.dp_sat.speed import SPEED
from steppe.papers.dp_sat.toy import TOY

EXPERIMENTS = (*FASHION, TOY, SPEED, COSINES, FLATNESS, *MNIST, RADIUS, DPNAS)
