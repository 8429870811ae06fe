"""Inject random faults into healthy stores and count which command reports them."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TypeGuard

from campaign.faults import KINDS
from campaign.judges import COMMANDS
from campaign.runner import Alarm, Result, run_faults, run_healthy

ALL_FAULTS = 1_000
HEALTHY_STORES = 100
MISSED_SHOWN = 100


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    numbers = (
        [options.fault]
        if options.fault is not None
        else range(options.first, options.first + options.faults)
    )
    results: list[Result] = []
    alarms: list[Alarm] = []
    for found in run_faults(numbers, options.kinds or tuple(KINDS), options.jobs):
        if isinstance(found, Alarm):
            alarms.append(found)
        else:
            results.append(found)
            if options.fault is not None:
                _show(found)
    if options.fault is None:
        alarms += filter(_is_alarm, run_healthy(range(options.healthy)))
    missed = [result for result in results if result.missed or result.overlooked]
    missed.sort(key=lambda result: not result.missed)
    for result in missed[:MISSED_SHOWN]:
        _show(result)
    for alarm in alarms:
        print(f"false alarm: {alarm.store}: {alarm.command}", *alarm.lines, sep="\n    ")
    print(_table(results))
    matter = sum(result.fault.matters for result in results)
    limits = Counter(result.fault.limit for result in results if result.fault.limit)
    for limit, count in limits.most_common():
        print(f"cannot be detected: {count} x {limit}")
    print(
        f"{len(results)} faults, {matter} matter: {sum(result.missed for result in results)} not"
        f" reported, {sum(result.overlooked for result in results)} called equal;"
        f" {len(alarms)} false alarms on {options.healthy} random and all other stores"
    )
    return 1 if missed or alarms else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tox -e faults --", description=__doc__)
    parser.add_argument("--faults", type=int, default=ALL_FAULTS, help="how many (1000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first fault (0)")
    parser.add_argument("--fault", type=int, metavar="NUMBER", help="show one fault in detail")
    parser.add_argument("--kinds", nargs="*", choices=sorted(KINDS), help="only these kinds")
    parser.add_argument(
        "--healthy", type=int, default=HEALTHY_STORES, help="random healthy stores (100)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    return parser


def _is_alarm(found: Alarm | None) -> TypeGuard[Alarm]:
    return found is not None


def _show(result: Result) -> None:
    word = "NOT REPORTED" if result.missed else "reported" if result.reports else "harmless"
    print(f"{word}: {result.number}: {result.group} {result.node}: {result.fault}")
    for command, line in result.reports.items():
        print(f"    {command}: {line.strip()}")
    if result.called_equal:
        print(f"    EQUAL by {', '.join(result.called_equal)}")


def _table(results: Sequence[Result]) -> str:
    """Return a Markdown table: by kind of file, who reported the faults that matter."""
    titles = [
        "file",
        "faults",
        "harmless",
        "undetectable",
        *COMMANDS,
        "not reported",
        "called equal",
    ]
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    kinds = sorted({result.fault.file_kind for result in results}, key=lambda kind: kind.value)
    for kind in kinds:
        here = [result for result in results if result.fault.file_kind is kind]
        matter = [result for result in here if result.fault.matters]
        limits = sum(bool(result.fault.limit) for result in matter)
        by = Counter(command for result in matter for command in result.reports)
        cells = [
            kind.value,
            len(here),
            len(here) - len(matter),
            limits,
            *(by[name] for name in COMMANDS),
        ]
        cells += [sum(result.missed for result in here), sum(result.overlooked for result in here)]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
