"""``rmqpy upgrade prepare``: read sealed files while the brokers run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import CAN_BE_REPEATED, EXIT_DONE, add_rate_option
from rmqpy.cli.upgrade.base.contexts import plan_context_of
from rmqpy.cli.upgrade.base.options import add_verb, full_option, replica_options
from rmqpy.cli.upgrade.base.replicas import local_replicas
from rmqpy.cli.upgrade.group.outcome import member_rows, print_outcome
from rmqpy.cli.upgrade.group.preparing import clear_there, prepare_alone, stage_there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmqpy.cli.parsing import Commands
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.upgrade.forecast import Forecast
    from rmqpy.upgrade.prepare import Prepared

RATE_MIB = 50.0


def add_verbs(verbs: Commands) -> None:
    prepare = add_verb(
        verbs,
        "prepare",
        "read sealed files while the brokers run, so that the commands of the stop need not",
        _prepare,
    )
    replica_options(prepare, may_be_empty=True, of_group=True)
    full_option(prepare)
    add_rate_option(prepare, "read at most MIB MiB a second on each replica", RATE_MIB)
    prepare.add_argument(
        "--leave",
        action="store_true",
        help="also convert sealed DLedger files for the way back; takes their size on the disk",
    )
    prepare.add_argument(
        "--clear", action="store_true", help="remove what was learned from the directories"
    )
    prepare.add_argument(
        "--dry-run",
        action="store_true",
        help="only say what would be read and written, and how long it would take",
    )
    prepare.set_defaults(interrupted=CAN_BE_REPEATED)


def _prepare(options: argparse.Namespace) -> int:
    from attrs import asdict

    from rmqpy.upgrade.plan.pace import Pace
    from rmqpy.upgrade.prepare import Prepared, prepare_all

    if options.clear:
        return _clear(options)
    rate = options.rate * (1 << 20)
    if options.dry_run:
        return _forecast(options, rate)
    group = _group_of_hosts(options)
    alone = prepare_alone(options, group) if group is not None else {}
    context = plan_context_of(options)
    found = {
        each.name: each for each in prepare_all(context, lambda: Pace(rate), leave=options.leave)
    }
    if group is not None:
        there = stage_there(options, group, alone)
        found |= {name: Prepared(**value) for name, value in there.items()}
        found = {each.name: found[each.name] for each in group.file.members}
    value = {"members": member_rows({name: asdict(each) for name, each in found.items()})}
    print_outcome(options, value, [line for each in found.values() for line in _lines(each)])
    return EXIT_DONE


def _group_of_hosts(options: argparse.Namespace) -> GivenGroup | None:
    """Return the group if members of it are on other hosts."""
    group: GivenGroup | None = options.given_group
    return None if group is None or group.file.is_local else group


def _lines(found: Prepared) -> Iterator[str]:
    from rmqpy.model.text import format_bytes

    yield (
        f"{found.name}: {format_bytes(found.learned_bytes)} are known,"
        f" {format_bytes(found.read_bytes)} were read now; in the stop, each command reads"
        f" {format_bytes(found.left_bytes)} ({found.left_s:.1f} s)"
    )
    if found.staged_bytes:
        yield (
            f"{found.name}: {format_bytes(found.staged_bytes)} of files that it lacks are ready"
            " on its stage; apply moves them"
        )
    if found.twin_bytes:
        yield (
            f"{found.name}: {format_bytes(found.twin_bytes)} of DLedger files are ready in"
            " their classic form; leave moves them"
        )


def _clear(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.prepare import forget

    group = _group_of_hosts(options)
    names = clear_there(options, group) if group is not None else []
    for replica in local_replicas(options):
        forget(replica)
        names.append(replica.name)
    print_outcome(options, {"cleared": names}, [f"{name}: nothing is known" for name in names])
    return EXIT_DONE


def _forecast(options: argparse.Namespace, rate: float) -> int:
    from attrs import asdict, fields

    from rmqpy.upgrade.forecast import Forecast, forecast, forecast_group

    group = _group_of_hosts(options)
    members = [forecast(each, leave=options.leave) for each in local_replicas(options)]
    if group is not None:
        more = ["--dry-run", *(["--leave"] if options.leave else [])]
        there = prepare_alone(options, group, more, empty_too=True)
        names = {each.name for each in fields(Forecast)}
        members += [
            Forecast(**{name: tree[name] for name in tree if name in names})
            for tree in there.values()
        ]
    value: dict[str, dict[str, object]] = {}
    lines: list[str] = []
    for found in forecast_group(members):
        seconds = found.seconds(rate)
        value[found.name] = asdict(found) | {
            "written": found.written,
            "paced": found.paced,
            "seconds": seconds,
        }
        lines += _forecast_lines(found, seconds)
    print_outcome(options, {"members": member_rows(value)}, lines)
    return EXIT_DONE


def _forecast_lines(found: Forecast, seconds: float) -> Iterator[str]:
    from rmqpy.model.text import format_bytes, format_duration

    pace = f", at least {format_duration(seconds)} at this rate" if found.paced and seconds else ""
    yield (
        f"{found.name}: {format_bytes(found.known)} are known; would read"
        f" {format_bytes(found.read)}{pace}"
    )
    for count, what in (
        (found.staged, "of files that it lacks to its stage"),
        (found.twins, "of DLedger files in their classic form to its stage"),
        (found.derived, "of queues and index to its stage, at most"),
    ):
        if count:
            yield f"{found.name}: would write {format_bytes(count)} {what}"
    if found.written > found.free:
        short = format_bytes(found.written - found.free)
        yield (
            f"{found.name}: found {format_bytes(found.free)} of free space, expected"
            f" {format_bytes(found.written)}; free {short}, or leave the files to apply or leave"
        )
