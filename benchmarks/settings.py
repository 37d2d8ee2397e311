"""Constants that every engine shares, so that no one does less work than another."""

from __future__ import annotations

CLIP = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 1e-3  # small: the weights, and so the work, stay the same from round to round
THREADS = 2
