"""What holds for every test, wherever it lies."""

from __future__ import annotations

import os

# Some virtual machines announce AMX and do not have it: torch's products in bfloat16 end there with
# an illegal instruction. oneDNN reads this when it is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
