"""Differential Privacy Meets Weight Decay (Guo, University of Hong Kong, 2024)."""

from steppe.papers.weight_decay.extreme import EXTREME
from steppe.papers.weight_decay.mnist import BASELINE, CLIP, DECAY
from steppe.papers.weight_decay.regression import REGRESSIONS

EXPERIMENTS = (EXTREME, *REGRESSIONS, BASELINE, DECAY, CLIP)
