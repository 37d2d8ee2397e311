"""Speed and memory of clipped training, relative to plain training.

`python -m benchmarks.clipping` measures everything and `--quick` three families in about a minute.
Both write the rows to a JSON file and exit with status 1 when a promise is missed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import engines, memory, settings, timing
from benchmarks.bars import Bar, Row, evaluate
from benchmarks.cases import Case, select
from benchmarks.report import Remark, Report, bar_table, row_table
from steppe._validate import positive_integer

RESULTS = Path(__file__).parent / "results" / "clipping.json"
DEFAULT_CHUNK = 32
# None of these is the best peer of a family that a quick run measures.
NOT_IN_QUICK = ("opacus-functorch", "opacus-ew")


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Args:
        quick: leave out what does not decide a bar.
        rounds: interleaved rounds.
        slow_rounds: rounds of engines that are far slower than plain.
        memory_of_peers: whether peers' peak memory is taken.
        memory_processes: how many processes take peaks at the same time; with more than one, an
            engine that times its kernels may choose others than it would alone.
    """

    quick: bool
    rounds: int
    slow_rounds: int
    memory_of_peers: bool
    memory_processes: int


FULL = Effort(quick=False, rounds=7, slow_rounds=2, memory_of_peers=True, memory_processes=1)
QUICK = Effort(quick=True, rounds=5, slow_rounds=1, memory_of_peers=False, memory_processes=2)


def measure_case(case: Case, names: Sequence[str], effort: Effort, report: Report) -> None:
    """Time every engine on one case, then take its peak memory, and add both to the report."""

    def remark(engine: str, text: str) -> Remark:
        return Remark(case.model, case.batch, engine, text)

    batch = case.new_batch()
    chunk = engines.fastest_vmap_chunk(case) if "vmap" in names else DEFAULT_CHUNK
    steps: dict[str, timing.Step] = {}
    for name in names:
        try:
            step = engines.setup(name, case, batch, chunk)
            step()  # warm-up; also the moment when an engine finds that it cannot run the model
        except Exception as error:  # a peer may fail in any way, and the table says how
            reason = str(error).splitlines() or [""]
            report.failures.append(remark(name, f"{type(error).__name__}: {reason[0]}"))
        else:
            steps[name] = step
    if "vmap" in steps:
        report.notes.append(remark("vmap", f"fastest in chunks of {chunk}"))

    timings = timing.interleave(steps, effort.rounds, effort.slow_rounds)
    milliseconds = round(timings["plain"].seconds * 1e3, 3)
    report.plain_ms.append({"model": case.model, "batch": case.batch, "ms": milliseconds})
    for name, measured in timings.items():
        if measured.rounds < effort.rounds:
            report.notes.append(remark(name, f"far slower; rounds: {measured.rounds}"))

    def peak(name: str) -> float | Remark | None:
        if _is_peer(name) and not effort.memory_of_peers:
            return None
        try:
            return memory.measure(case.model, case.batch, name, chunk)
        except memory.PeakMemoryUnavailable as error:
            return remark(name, f"peak memory: {error}")

    with ThreadPoolExecutor(effort.memory_processes) as pool:
        peaks = dict(zip(timings, pool.map(peak, timings), strict=True))
    report.failures += [found for found in peaks.values() if isinstance(found, Remark)]
    report.rows += [
        Row(
            model=case.model,
            batch=case.batch,
            engine=name,
            ratio=round(measured.ratio, 4),
            peak_mb=None if isinstance(found := peaks[name], Remark) else found,
        )
        for name, measured in timings.items()
    ]


def run(cases: Sequence[Case], names: Sequence[str], effort: Effort, command: str) -> Report:
    """Measure the cases one after the other and judge the bars."""
    torch.set_num_threads(settings.THREADS)
    report = Report(command)
    for case in cases:
        applying = [name for name in names if engines.applies(name, case)]
        if effort.quick:
            applying = [name for name in applying if _in_quick(name, case)]
        first_row, first_failure = len(report.rows), len(report.failures)
        measure_case(case, applying, effort, report)
        print(row_table(report.rows[first_row:]))
        for failure in report.failures[first_failure:]:
            print(f"{'':<19}{failure.engine:<16} {failure.text}")
        print(flush=True)
    report.bars = evaluate(cases, report.rows)
    report.bars += [
        Bar(failure.model, failure.batch, f"{failure.engine} runs", 0.0, 1.0)
        for failure in report.failures
        if not _is_peer(failure.engine)
    ]
    return report


def _in_quick(engine: str, case: Case) -> bool:
    return not _is_peer(engine) or (case.peers_in_quick and engine not in NOT_IN_QUICK)


def _is_peer(engine: str) -> bool:
    return not engine.startswith(("plain", "steppe"))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, measure, print, write.

    Returns:
        1 when a bar is missed, else 0.
    """
    arguments = _parse(argv)
    chosen = sys.argv[1:] if argv is None else argv
    effort = QUICK if arguments.quick else FULL
    if arguments.rounds is not None:
        effort = replace(effort, rounds=positive_integer("rounds", arguments.rounds))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn about their own hooks, once a layer
        report = run(
            select(arguments.models, arguments.quick),
            engines.select(arguments.engines),
            effort,
            shlex.join(["python", "-m", "benchmarks.clipping", *chosen]),
        )
    report.write(arguments.output)
    print(bar_table(report.bars))
    missed = [bar for bar in report.bars if not bar.holds]
    print(f"{len(report.bars) - len(missed)} of {len(report.bars)} bars hold; {arguments.output}")
    return 1 if missed else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.clipping", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="models a, e and f in about a minute")
    parser.add_argument("--models", type=names, metavar="a,b,…", help="default: all")
    parser.add_argument(
        "--engines",
        type=names,
        metavar="steppe,vmap,…",
        help=f"default: {', '.join(engines.NAMES)}",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"default: {FULL.rounds}")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
