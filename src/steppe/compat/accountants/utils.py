"""The noise for a budget, where Opacus has it."""

from steppe.compat.noise_multiplier import get_noise_multiplier as get_noise_multiplier
