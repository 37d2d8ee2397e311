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
from pathlib import Path

import torch

from benchmarks import bars, cases, engines, memory, settings, timing
from benchmarks.bars import Bar, Row
from benchmarks.cases import Case
from benchmarks.report import Remark, Report, bar_table, row_table
from steppe._validate import positive_integer

RESULTS = Path(__file__).parent / "results" / "clipping.json"
ROUNDS = 7
QUICK_ROUNDS = 5
# What a quick run leaves out: none of these is the best peer of a family that it measures.
NOT_IN_QUICK = ("opacus-functorch", "opacus-ew")
DEFAULT_CHUNK = 32


def measure_case(
    case: Case, names: Sequence[str], rounds: int, memory_of: Sequence[str], report: Report
) -> None:
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

    timings = timing.interleave(steps, rounds)
    milliseconds = round(timings["plain"].seconds * 1e3, 3)
    report.plain_ms.append({"model": case.model, "batch": case.batch, "ms": milliseconds})
    for name, measured in timings.items():
        if measured.rounds < rounds:
            report.notes.append(remark(name, f"far slower: median of {measured.rounds} rounds"))
        peak = None
        if name in memory_of:
            try:
                peak = memory.measure(case.model, case.batch, name, chunk)
            except memory.PeakMemoryUnavailable as error:
                report.failures.append(remark(name, f"peak memory: {error}"))
        report.rows.append(
            Row(
                model=case.model,
                batch=case.batch,
                engine=name,
                ratio=round(measured.ratio, 4),
                peak_mb=peak,
            )
        )


def run(
    chosen: Sequence[Case], names: Sequence[str], rounds: int, quick: bool, command: str
) -> Report:
    """Measure the cases one after the other and judge the bars."""
    torch.set_num_threads(settings.THREADS)
    report = Report(command)
    for case in chosen:
        applying = [name for name in names if engines.applies(name, case)]
        if quick:
            applying = [name for name in applying if name not in NOT_IN_QUICK]
            applying = [name for name in applying if case.peers_in_quick or not _is_peer(name)]
        memory_of = [name for name in applying if not (quick and _is_peer(name))]
        first_row, first_failure = len(report.rows), len(report.failures)
        measure_case(case, applying, rounds, memory_of, report)
        print(row_table(report.rows[first_row:]))
        for failure in report.failures[first_failure:]:
            print(f"{'':<19}{failure.engine:<16} {failure.text}")
        print(flush=True)
    report.bars = bars.evaluate(chosen, report.rows)
    report.bars += [
        Bar(failure.model, failure.batch, f"{failure.engine} runs", 0.0, 1.0)
        for failure in report.failures
        if not _is_peer(failure.engine)
    ]
    return report


def _is_peer(engine: str) -> bool:
    return not engine.startswith(("plain", "steppe"))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, measure, print, write.

    Returns:
        1 when a bar is missed, else 0.
    """
    arguments = _parse(argv)
    command = shlex.join(["python", "-m", "benchmarks.clipping", *(argv or sys.argv[1:])])
    default_rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    rounds = positive_integer("rounds", arguments.rounds or default_rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn about their own hooks, once a layer
        report = run(
            cases.select(arguments.models, arguments.quick),
            engines.select(arguments.engines),
            rounds,
            arguments.quick,
            command,
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
        "--engines", type=names, metavar="steppe,vmap,…", help=f"default: {', '.join(engines.NAMES)}"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"default: {ROUNDS}")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
