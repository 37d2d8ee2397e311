"""The JSON file and the printed table of a run."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.bars import Bar, Row

CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Remark:
    """Something about one engine on one case that its row cannot say, such as why it failed."""

    model: str
    batch: int
    engine: str
    text: str


@dataclass
class Report:
    """Everything a run found."""

    command: str
    rows: list[Row] = field(default_factory=list)
    plain_ms: list[dict[str, str | int | float]] = field(default_factory=list)
    failures: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the report as JSON, with machine and date."""
        content = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": self.command,
            "machine": machine(),
            "rows": self.rows,
            "plain_ms": self.plain_ms,
            "bars": [asdict(bar) | {"holds": bar.holds} for bar in self.bars],
            "failures": [asdict(remark) for remark in self.failures],
            "notes": [asdict(remark) for remark in self.notes],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")


def machine() -> dict[str, str | int]:
    """What the numbers were measured on."""
    models = [
        line.split(":", 1)[1].strip()
        for line in (CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else [])
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def row_table(rows: Sequence[Row]) -> str:
    """The measurements as text.

    Examples:
        >>> print(row_table([Row(model="a", batch=256, engine="plain", ratio=1.0, peak_mb=None)]))
        model       batch  engine             ratio  peak MB
        a             256  plain              1.000        –
    """
    lines = [f"{'model':<10} {'batch':>6}  {'engine':<16} {'ratio':>7} {'peak MB':>8}"]
    for row in rows:
        peak = "–" if row["peak_mb"] is None else f"{row['peak_mb']:.1f}"
        lines.append(
            f"{row['model']:<10} {row['batch']:>6}  {row['engine']:<16} "
            f"{row['ratio']:>7.3f} {peak:>8}"
        )
    return "\n".join(lines)


def bar_table(bars: Sequence[Bar]) -> str:
    """The promises as text, each with its verdict.

    Examples:
        >>> print(bar_table([Bar("a", 256, "speed of plain", 0.8, 0.85)]))
        model       batch  promise                         value   target
        a             256  speed of plain                   0.80  ≥  0.85  MISSED
    """
    lines = [f"{'model':<10} {'batch':>6}  {'promise':<30} {'value':>6}   {'target':>6}"]
    for bar in bars:
        lines.append(
            f"{bar.model:<10} {bar.batch:>6}  {bar.promise:<30} {bar.value:>6.2f}  "
            f"{'≥' if bar.at_least else '≤'} {bar.target:>5.2f}  {'ok' if bar.holds else 'MISSED'}"
        )
    return "\n".join(lines)
