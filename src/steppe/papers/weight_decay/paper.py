"""The paper, in the words that all its experiments share."""

PAPER = "Guo, Differential Privacy Meets Weight Decay, University of Hong Kong, 2024"
