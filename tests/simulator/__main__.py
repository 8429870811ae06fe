"""Simulate whole clusters in virtual time: many seeds, one seed in detail, or planted bugs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

from simulator.invariants import InvariantViolationError
from simulator.mutation_engine import planted
from simulator.mutations import MUTATIONS
from simulator.plan import SimulationPlan
from simulator.replay import RunRecorder
from simulator.runner import FAMILIES, Result, cluster_of, find_mutations, run_seeds, silence_logs
from simulator.seed_log import SeedLog, code_version

ALL_SEEDS = 10_000
MUTATION_SEEDS = 1_000
FAILURES_SHOWN = 20
NEW_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.html is not None and options.replay is None:
        print("found --html without --replay SEED, expected both", file=sys.stderr)
        return 2
    if options.replay is not None:
        return _replay(options)
    if options.mutations is not None:
        return _find_mutations(options)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tox -e sim --", description=__doc__)
    parser.add_argument("--seeds", type=int, help="number of seeds (10000; with --mutations 1000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="group")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="append the result of each seed to FILE; skip the seeds that it has of this commit",
    )
    parser.add_argument(
        "--replay",
        type=int,
        metavar="SEED",
        help="show one seed in detail; with --mutations NAME, with that bug planted",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="with --replay: also as a page in FILE"
    )
    parser.add_argument(
        "--mutations",
        nargs="*",
        metavar="NAME",
        help=f"search for planted bugs, all of them or those named: {', '.join(MUTATIONS)}",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    seeds = range(options.first, options.first + (options.seeds or ALL_SEEDS))
    start, version = perf_counter(), code_version()
    results = _Totals()
    log = SeedLog(options.log, version) if options.log is not None else None
    done = {result.seed: result for result in log.known(options.family, seeds)} if log else {}
    for result in done.values():
        results.add(result)
    for result in run_seeds(
        options.family, [seed for seed in seeds if seed not in done], options.jobs
    ):
        results.add(result)
        if log is not None:
            log.add(result)
    print(results.summary(options.family, perf_counter() - start))
    for line in results.coverage():
        print(line)
    print(f"seeds {seeds.start} to {seeds.stop - 1} at {version}, {len(done)} of them from the log")
    return 1 if results.failed else 0


class _Totals:
    """Sums over all seeds; failures are printed as they occur."""

    def __init__(self) -> None:
        self.seeds = self.failed = self.operations = self.elections = self.crashes = 0
        self.fewest_operations = 1 << 60
        self.seconds = 0.0
        self.simulated_ms = 0
        self.decided: int | None = None
        self.covered: dict[str, int] = {}
        """The situations that faults have met, with the first seed of each."""

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.seconds += result.seconds
        self.simulated_ms += result.simulated_ms
        if result.outcome is None:
            self.failed += 1
            if self.failed <= FAILURES_SHOWN:
                print(f"seed {result.seed} at {result.simulated_ms} ms: {result.failure}")
                print(f"    {result.replay}", flush=True)
            return
        outcome = result.outcome
        self.operations += outcome.operations
        self.fewest_operations = min(self.fewest_operations, outcome.operations)
        self.elections += outcome.elections
        self.crashes += outcome.crashes
        if outcome.decided is not None:
            self.decided = (self.decided or 0) + outcome.decided
        for situation in outcome.covered:
            first = self.covered.get(situation, result.seed)
            self.covered[situation] = min(first, result.seed)

    def summary(self, family: str, elapsed: float) -> str:
        decided = "" if self.decided is None else f" {self.decided} decided,"
        return (
            f"{family}: {self.seeds} seeds,{decided} {self.failed} failed;"
            f" {self.operations} operations (at least {self.fewest_operations} per seed),"
            f" {self.elections} elections,"
            f" {self.crashes} crashes; {self.simulated_ms / 1000:.0f} simulated seconds in"
            f" {self.seconds:.0f} s of one process ({elapsed:.0f} s in all):"
            f" {self.simulated_ms / 1000 / max(self.seconds, 1e-9):.0f} x real time"
        )

    def coverage(self) -> Iterator[str]:
        """Yield how many situations of a change the faults have met, and which came last."""
        if self.covered:
            latest = sorted(self.covered, key=lambda each: self.covered[each])[-NEW_SHOWN:]
            yield f"{len(self.covered)} situations (phase, record, part, fault); the last new ones:"
            yield from (f"    seed {self.covered[each]}: {each}" for each in latest)


def _replay(options: argparse.Namespace) -> int:
    family, seed, bugs = options.family, options.replay, options.mutations or []
    if len(bugs) > 1 or any(name not in MUTATIONS for name in bugs):
        print(f"found {' '.join(bugs)}, expected one planted bug", file=sys.stderr)
        return 2
    plan = FAMILIES[family](seed)
    with ExitStack() as stack:
        for name in bugs:
            plan = MUTATIONS[name].plan(plan)
            stack.enter_context(planted(MUTATIONS[name]))
        return _replay_plan(plan, " with ".join([f"{family}, seed {seed}", *bugs]), options.html)


def _replay_plan(plan: SimulationPlan, title: str, page: Path | None) -> int:
    cluster = cluster_of(plan, trace=[])
    recorder = RunRecorder(cluster) if page is not None else None
    print(cluster.plan)
    failure: Exception | None = None
    try:
        outcome = cluster.run()
    except Exception as error:  # noqa: BLE001 - shown, then raised
        failure = error
    print(*(cluster.trace or ()), sep="\n")
    if recorder is not None and page is not None:
        violation = f"{type(failure).__name__}: {failure}" if failure is not None else ""
        page.write_text(recorder.page(title, violation), encoding="utf-8")
    if failure is None:
        print(outcome)
        return 0
    if isinstance(failure, InvariantViolationError):
        print(f"{cluster.timeline.now_ms} violation: {failure}")
        return 1
    raise failure


def _find_mutations(options: argparse.Namespace) -> int:
    family = options.family
    known = [name for name, mutation in MUTATIONS.items() if family in mutation.families]
    names = options.mutations or known
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such mutation of {family}: {', '.join(unknown)}", file=sys.stderr)
        return 2
    missed = 0
    seeds = range(options.first, options.first + (options.seeds or MUTATION_SEEDS))
    for found in find_mutations(family, names, seeds, options.jobs):
        if found.seed < 0:
            missed += 1
            others = f"{found.others} other exceptions"
            print(f"{found.mutation}: NOT FOUND in {len(seeds)} seeds ({others})")
        else:
            print(f"{found.mutation}: seed {found.seed}: {found.violation}", flush=True)
    print(f"mutations: {len(names)} planted, {len(names) - missed} found")
    return 1 if missed else 0


if __name__ == "__main__":
    silence_logs()  # Of this process only: tests call main.
    sys.exit(main())
