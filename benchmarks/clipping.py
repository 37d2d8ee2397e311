"""Speed and memory of clipped training, relative to plain training.

`python -m benchmarks.clipping` measures everything and `--quick` three families in about a minute.
Both exit with status 1 when a promise is missed. Every finished case goes to the JSON file at once,
in place of what the file said about the same engines, so a full run can be cut up (`--models a,c`).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import engines, memory, settings, timing
from benchmarks.bars import Bar, Row, evaluate
from benchmarks.cases import CASES, Case, select
from benchmarks.report import Physical, Remark, Report, bar_table, row_table, today
from steppe.utils.validation import positive_integer

RESULTS = Path(__file__).parent / "results" / "clipping.json"
DEFAULT_CHUNK = 32


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Args:
        quick: leave out what does not decide a bar.
        rounds: interleaved rounds.
        slow_rounds: rounds of engines that are far slower than plain or decide no bar.
        memory_of_peers: whether peers' peak memory is taken.
    """

    quick: bool
    rounds: int
    slow_rounds: int
    memory_of_peers: bool


FULL = Effort(quick=False, rounds=7, slow_rounds=2, memory_of_peers=True)
QUICK = Effort(quick=True, rounds=5, slow_rounds=2, memory_of_peers=False)


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
    for name in steps:
        at_once = engines.physical_batch(name, case, chunk)
        report.physical_batches.append(
            Physical(case.model, case.batch, name, at_once, today(), report.command)
        )
    if any(name.startswith("opacus") for name in steps):
        for text in engines.opacus_replacements(case):
            report.notes += [remark(n, text) for n in steps if n.startswith("opacus")]

    # Only the way that users get has bars on its speed.
    beside = ("steppe-micro",) if effort.quick else ()
    timings = timing.interleave(steps, effort.rounds, effort.slow_rounds, beside=beside)
    milliseconds = round(timings["plain"].seconds * 1e3, 3)
    report.plain_ms.append({"model": case.model, "batch": case.batch, "ms": milliseconds})
    for name, measured in timings.items():
        if measured.rounds < effort.rounds:
            report.notes.append(remark(name, f"rounds: {measured.rounds}"))

    def peak(name: str) -> memory.Peak | Remark | None:
        if _is_peer(name) and not effort.memory_of_peers:
            return None
        try:
            ways = getattr(steps[name], "kernels", None)
            return memory.measure(case, name, chunk, ways)
        except memory.PeakMemoryUnavailable as error:
            return remark(name, f"peak memory: {error}")

    # One after the other: the threads of two at once would wait for each other's cores.
    peaks = {name: peak(name) for name in timings}
    report.failures += [found for found in peaks.values() if isinstance(found, Remark)]
    for name, measured in timings.items():
        found = peaks[name]
        if isinstance(found, memory.Peak):
            report.notes.append(remark(name, f"start and first step: {found.start_mb} MB"))
        report.rows.append(
            Row(
                model=case.model,
                batch=case.batch,
                engine=name,
                ratio=round(measured.ratio, 4),
                peak_mb=found.peak_mb if isinstance(found, memory.Peak) else None,
            )
        )


def run(
    cases: Sequence[Case], names: Sequence[str], effort: Effort, command: str, output: Path
) -> Report:
    """Measure the cases one after the other, judge the bars and store what is known so far."""
    torch.set_num_threads(settings.THREADS)
    whole = Report(command)
    for case in cases:
        report = Report(command)
        applying = [name for name in names if engines.applies(name, case)]
        if effort.quick:
            nearest = ("plain", "steppe", "steppe-micro", *case.rivals)
            applying = [name for name in applying if name in nearest]
        measure_case(case, applying, effort, report)
        report.bars = _judged([case], report)
        print(row_table(report.rows, report.physical_batches))
        for failure in report.failures:
            print(f"{'':<19}{failure.engine:<16} {failure.text}")
        print(flush=True)
        whole.take_over(report)
        stored = Report.read(output, command)
        stored.take_over(report)
        stored.bars = _judged(CASES, stored)
        stored.write(output)
    return whole


def _judged(cases: Sequence[Case], report: Report) -> list[Bar]:
    return evaluate(cases, report.rows) + [
        Bar(failure.model, failure.batch, f"{failure.engine} runs", 0.0, 1.0)
        for failure in report.failures
        if not _is_peer(failure.engine)
    ]


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
            arguments.output,
        )
    print(bar_table(report.bars))
    missed = [bar for bar in report.bars if not bar.holds]
    print(f"{len(report.bars) - len(missed)} of {len(report.bars)} bars hold; {arguments.output}")
    return 1 if missed else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.clipping", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="models a, e and f, in less time")
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
