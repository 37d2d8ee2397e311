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


@dataclass(frozen=True)
class Physical:
    """How an engine's row was measured.

    Attributes:
        model, batch, engine: the row.
        records: how many it took through the model at once.
        date, command: when and by which command; empty where an older file did not say.
    """

    model: str
    batch: int
    engine: str
    records: int
    date: str = ""
    command: str = ""


@dataclass
class Report:
    """What a run found, or several runs together."""

    command: str
    rows: list[Row] = field(default_factory=list)
    physical_batches: list[Physical] = field(default_factory=list)
    plain_ms: list[dict[str, str | int | float]] = field(default_factory=list)
    failures: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, command: str) -> Report:
        """What a file holds from earlier runs on this machine; nothing where there is none."""
        report = cls(command)
        if not path.exists():
            return report
        content = json.loads(path.read_text())
        if content["machine"] != machine():
            return report
        report.rows = content["rows"]
        report.physical_batches = [Physical(**p) for p in content.get("physical_batches", [])]
        report.plain_ms = content["plain_ms"]
        report.failures = [Remark(**remark) for remark in content["failures"]]
        report.notes = [Remark(**remark) for remark in content["notes"]]
        return report

    def take_over(self, newer: Report) -> None:
        """Put newer findings in place of what was known about the same engines and cases."""
        measured = {(row["model"], row["batch"], row["engine"]) for row in newer.rows}
        measured |= {(f.model, f.batch, f.engine) for f in newer.failures}
        cases = {(model, batch) for model, batch, _ in measured}
        known = {(row["model"], row["batch"], row["engine"]): row["peak_mb"] for row in self.rows}

        def stays(found: Remark | Physical) -> bool:
            return (found.model, found.batch, found.engine) not in measured

        for row in newer.rows:
            if row["peak_mb"] is None:  # a quick run does not weigh the peers
                row["peak_mb"] = known.get((row["model"], row["batch"], row["engine"]))
        self.rows = [
            row for row in self.rows if (row["model"], row["batch"], row["engine"]) not in measured
        ] + newer.rows
        self.plain_ms = [
            line for line in self.plain_ms if (line["model"], line["batch"]) not in cases
        ] + newer.plain_ms
        self.physical_batches = [p for p in self.physical_batches if stays(p)]
        self.physical_batches += newer.physical_batches
        self.failures = [f for f in self.failures if stays(f)] + newer.failures
        self.notes = [n for n in self.notes if stays(n)] + newer.notes
        self.bars = [b for b in self.bars if (b.model, b.batch) not in cases] + newer.bars

    def write(self, path: Path) -> None:
        """Write the report as JSON, with machine and date."""
        content = {
            "date": today(),
            "command": self.command,
            "machine": machine(),
            "rows": sorted(self.rows, key=lambda row: (row["model"], row["batch"])),
            "physical_batches": [asdict(physical) for physical in self.physical_batches],
            "plain_ms": self.plain_ms,
            "bars": [asdict(bar) | {"holds": bar.holds} for bar in self.bars],
            "failures": [asdict(remark) for remark in self.failures],
            "notes": [asdict(remark) for remark in self.notes],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")


def today() -> str:
    """The moment, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


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


def row_table(rows: Sequence[Row], physical_batches: Sequence[Physical] = ()) -> str:
    """The measurements as text.

    Examples:
        >>> row = Row(model="a", batch=256, engine="plain", ratio=1.0, peak_mb=None)
        >>> print(row_table([row], [Physical("a", 256, "plain", 256)]))
        model       batch  engine           at once   ratio  peak MB
        a             256  plain                256   1.000        –
    """
    at_once = {(p.model, p.batch, p.engine): str(p.records) for p in physical_batches}
    head = f"{'model':<10} {'batch':>6}  {'engine':<16} {'at once':>7} {'ratio':>7} {'peak MB':>8}"
    lines = [head]
    for row in rows:
        peak = "–" if row["peak_mb"] is None else f"{row['peak_mb']:.1f}"
        records = at_once.get((row["model"], row["batch"], row["engine"]), "–")
        lines.append(
            f"{row['model']:<10} {row['batch']:>6}  {row['engine']:<16} {records:>7} "
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
