"""DPAdapter: noise-tolerant pre-training on public data (Wang et al., 2024)."""

from steppe.papers.dp_adapter.starts import BATCH, CAP, STARTS

EXPERIMENTS = (*STARTS, CAP, BATCH)
