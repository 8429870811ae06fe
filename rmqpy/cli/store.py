"""``rmqpy store``: show the facts, the damage, and the messages of a store directory."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rmqpy.cli.known_topics import note_unknown_topics
from rmqpy.cli.parsing import (
    BEGINS_AGAIN,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NO,
    add_format_option,
    add_log_options,
    add_rate_option,
    output_path,
)
from rmqpy.cli.store_map import add_map
from rmqpy.cli.terminal import show
from rmqpy.config.loading import StoreSettings, load_store_settings
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.audit.checks.messages import MessageSelection
    from rmqpy.cli.parsing import Commands

BACKUP_RATE_MIB = 0.0


def add_commands(commands: Commands) -> None:
    store = commands.add_parser(
        "store", help="examine the store directory of a stopped or running broker"
    )
    verbs = store.add_subparsers(required=True, metavar="VERB")
    inspect = verbs.add_parser(
        "inspect",
        help="show mode, files, first and last record, divided offset, compatible programs",
    )
    _directory_options(inspect)
    add_format_option(inspect)
    add_log_options(inspect)
    inspect.set_defaults(command=_inspect)

    fsck = verbs.add_parser(
        "fsck", help="check every record, consume queue and key; exit code 2 if damage is found"
    )
    _directory_options(fsck)
    add_format_option(fsck)
    fsck.add_argument(
        "--workers", type=int, default=0, metavar="N", help="threads; default one per processor"
    )
    repair = fsck.add_mutually_exclusive_group()
    repair.add_argument(
        "--quarantine",
        action="store_true",
        help="keep damaged bytes in rmqpy/quarantine and replace them by empty messages",
    )
    repair.add_argument(
        "--force-truncate",
        action="store_true",
        help="end the log before the first damage; move the rest to rmqpy/quarantine",
    )
    fsck.add_argument(
        "--yes", action="store_true", help="carry out --quarantine or --force-truncate"
    )
    add_log_options(fsck)
    fsck.set_defaults(command=_fsck)

    add_map(verbs)

    backup = verbs.add_parser(
        "backup", help="copy the store of a classic broker, which may run meanwhile"
    )
    _directory_options(backup)
    backup.add_argument(
        "target", metavar="TO", type=output_path, help="the copy; it must not exist, or be empty"
    )
    add_rate_option(backup, "copy at most MIB MiB a second", BACKUP_RATE_MIB)
    add_format_option(backup)
    add_log_options(backup)
    backup.set_defaults(command=_backup, interrupted=BEGINS_AGAIN)

    dump = verbs.add_parser("dump", help="print messages as JSON lines, in the order of the log")
    _directory_options(dump)
    dump.add_argument("--topic", help="only this topic")
    dump.add_argument("--queue", type=int, metavar="ID", help="only this queue")
    dump.add_argument(
        "--from",
        dest="first",
        metavar="WHEN",
        help="from this queue offset or store time (2024-05-31T12:00:00Z) on",
    )
    dump.add_argument(
        "--to", dest="end", metavar="WHEN", help="end before this queue offset or store time"
    )
    dump.add_argument("--key", help="only this key (KEYS, UNIQ_KEY) or message id")
    dump.add_argument("--limit", type=int, metavar="N", help="maximum number of messages")
    dump.add_argument(
        "--body",
        default="auto",
        choices=["auto", "text", "base64", "none"],
        help="default auto: text if it is UTF-8",
    )
    add_log_options(dump)
    dump.set_defaults(command=_dump)


def _directory_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the broker's storePathRootDir")
    parser.add_argument(
        "-c",
        dest="config",
        metavar="FILE",
        help="broker.conf with which the store was written: file sizes, paths outside DIR",
    )


def _settings(options: argparse.Namespace) -> StoreSettings | None:
    if options.config is None:
        return None
    return load_store_settings(options.config)


def _root(options: argparse.Namespace) -> str:
    """Return the directory as an absolute path. Raise StoreError if it is not a store."""
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.model.local_paths import local_path
    from rmqpy.store.files.disk import OsFileSystem

    root = local_path(options.directory)
    check_store_root(OsFileSystem(), root, _settings(options))
    return root


def _inspect(options: argparse.Namespace) -> int:
    from rmqpy.audit.facts.reader import read_facts
    from rmqpy.cli.render_facts import facts_lines
    from rmqpy.store.files.disk import OsFileSystem

    facts = read_facts(OsFileSystem(), _root(options), _settings(options))
    if options.format == "json":
        json.dump(facts.as_json(), sys.stdout, indent=2)
        print()
    else:
        show(facts_lines(facts))
    return EXIT_DONE


def _backup(options: argparse.Namespace) -> int:
    from pathlib import Path

    from rmqpy.audit.backup import back_up
    from rmqpy.cli.progress import StatusLine
    from rmqpy.store.files.paths import StorePaths
    from rmqpy.upgrade.plan.pace import Pace

    root = _root(options)
    settings = _settings(options)
    log = f"{root}/commitlog" if settings is None else settings.store_path_commit_log
    line, pace = StatusLine(), Pace(options.rate * (1 << 20))
    copied = 0

    def advance(count: int) -> None:
        nonlocal copied
        copied += count
        line.show(f"copied {copied >> 20} MiB")
        pace.spend(count)

    with line:
        done = back_up(StorePaths(root, log), Path(options.target), advance)
        line.clear()
    found = {"copy": options.target, "files": done.files, "bytes": done.copied}
    if options.format == "json":
        print(json.dumps(found | {"running": done.was_running}))
    else:
        state = "running: the first start recovers the copy" if done.was_running else "stopped"
        print(f"{options.target}: {done.files} files, {done.copied} bytes; the broker was {state}")
    return EXIT_DONE


def _fsck(options: argparse.Namespace) -> int:
    if options.quarantine or options.force_truncate:
        return _repair(options)
    return _report(options)


def _repair(options: argparse.Namespace) -> int:
    """Carry out a repair, or without --yes only show its plan."""
    from rmqpy.audit.replicas.repair import Repair, execute_repair, plan_repair, unfinished_plan
    from rmqpy.audit.scan.directory import read_directory
    from rmqpy.store.files.disk import OsFileSystem

    files, root, settings = OsFileSystem(), _root(options), _settings(options)
    repair = Repair.QUARANTINE if options.quarantine else Repair.FORCE_TRUNCATE
    directory = read_directory(files, root, settings)
    plan = unfinished_plan(files, directory)
    if plan is not None:
        print(f"continuing an interrupted --{plan.repair.value}")
    else:
        plan = plan_repair(files, root, repair, settings)
    for line in (*plan.reasons, *map(str, plan.actions)):
        print(line)
    if not plan.actions:
        print("nothing to do")
        return EXIT_DONE
    if not options.yes:
        print("nothing was changed; repeat with --yes to carry this out")
        return EXIT_NO
    execute_repair(files, directory, plan)
    return _report(options)


def _report(options: argparse.Namespace) -> int:
    from rmqpy.audit.checks.engine import AuditOptions, audit_store
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.cli.render_findings import Report
    from rmqpy.store.files.disk import OsFileSystem

    root = _root(options)
    workers = {"workers": options.workers} if options.workers > 0 else {}
    with ProgressLine("checked") as progress:
        report = Report(as_json=options.format == "json", before=progress.clear)
        plan = AuditOptions(
            root=root,
            settings=_settings(options),
            sink=report.findings,
            progress=progress,
            pooled=True,
            **workers,
        )
        try:
            audit = audit_store(OsFileSystem(), plan)
        except (RmqError, OSError) as error:
            report.fail(error, EXIT_FAILED)
            return EXIT_FAILED
    report.end(audit)
    return EXIT_DONE if audit.is_clean else EXIT_NO


def _dump(options: argparse.Namespace) -> int:
    from rmqpy.audit.checks.messages import each_message, message_json
    from rmqpy.audit.facts.reader import read_facts
    from rmqpy.audit.scan.directory import read_directory
    from rmqpy.store.files.disk import OsFileSystem

    files, root, settings = OsFileSystem(), _root(options), _settings(options)
    skipped_count = 0

    def report(file: str, offset: int, size: int) -> None:
        nonlocal skipped_count
        skipped_count += 1
        print(f"{file} at offset {offset}: {size} bytes that are not a message", file=sys.stderr)

    limit = read_facts(files, root, settings).confirmed_end
    directory = read_directory(files, root, settings)
    is_empty = True
    for found in each_message(files, directory, _selection(options), report, limit):
        is_empty = False
        print(json.dumps(message_json(found, options.body), ensure_ascii=False))
    if is_empty and options.topic is not None:
        note_unknown_topics(files, directory, [options.topic])
    return EXIT_NO if skipped_count else EXIT_DONE


def _selection(options: argparse.Namespace) -> MessageSelection:
    from rmqpy.audit.checks.messages import MessageSelection

    first, end = _moment(options.first), _moment(options.end)
    return MessageSelection(
        topic=options.topic,
        queue_id=options.queue,
        first_offset=first[0],
        end_offset=end[0],
        first_ms=first[1],
        end_ms=end[1],
        key=options.key,
        limit=options.limit,
    )


def _moment(text: str | None) -> tuple[int | None, int | None]:
    """Return (queue offset, time in ms) for --from or --to; at most one of them is not None."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise RmqError(
            f"{text}: neither a queue offset nor a time such as 2024-05-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return None, round(moment.timestamp() * 1000)
