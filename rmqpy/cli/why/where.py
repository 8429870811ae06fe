"""``rmqpy where``: find a message in store directories or running brokers.

Exit codes: 0 found; 1 could not be examined; 2 not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.terminal import show
from rmqpy.cli.why.targets import (
    TARGET_HELP,
    add_scan_option,
    add_target_options,
    now_ms,
    opened,
    print_json,
    targets_of,
)
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text, time_text

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.why.message_id import MessageId
    from rmqpy.why.questions.message_copies import MessageCopy, WhereResult
    from rmqpy.why.sources.interface import MessageSource

COPIES_SHOWN = 8


def add_where(commands: Commands) -> None:
    where = commands.add_parser(
        "where", help="find a message: log, consume queue, key index, group offsets, trace"
    )
    where.add_argument("message", metavar="MESSAGE-ID", help="offset id, unique id, or key")
    where.add_argument("target", nargs="*", default=[], metavar="DIR|HOST:PORT", help=TARGET_HELP)
    where.add_argument("-t", "--topic", help="search the key index for this topic only")
    where.add_argument("--details", action="store_true", help="show every copy")
    add_scan_option(where)
    add_target_options(where)
    where.set_defaults(command=_where)


def _where(options: argparse.Namespace) -> int:
    from rmqpy.why.message_id import parse_message_id
    from rmqpy.why.questions.where import find_message

    wanted = parse_message_id(options.message, now_ms())
    results: list[tuple[MessageSource, WhereResult]] = []
    with ExitStack() as stack:
        for target in targets_of(options, wanted):
            source = stack.enter_context(opened(options, target))
            _check_topic(source, options.topic)
            within = (options.topic,) if options.topic else ()
            results.append((source, find_message(source, wanted, within, scan=options.scan)))
        found = [result for _, result in results if result.copies]
        if options.format == "json":
            value = {
                "id": wanted.text,
                "kind": wanted.kind.value,
                "created_ms": wanted.sent_ms if wanted.sent_ms >= 0 else None,
                "stores": [result.as_json() for _, result in results],
            }
            print_json(value)
        else:
            count = count_text(len(results), "store")
            show([f"{wanted.text} ({wanted.kind.value}): found in {len(found)} of {count}"])
            for source, result in results:
                show(_where_lines(source, result, wanted, details=options.details))
    return EXIT_DONE if found else EXIT_NO


def _check_topic(source: MessageSource, topic: str | None) -> None:
    from rmqpy.model.near_names import did_you_mean

    known = source.topics()
    if topic is not None and known is not None and topic not in known:
        raise RmqError(
            f"{source.name}: found no topic {topic}{did_you_mean(topic, known)}; give one of its"
            f" {count_text(len(known), 'topic')}, or leave --topic out"
        )


def _where_lines(
    source: MessageSource, result: WhereResult, wanted: MessageId, *, details: bool
) -> Iterator[str]:

    yield f"{result.source}:"
    copies = list(result.copies) if details else result.current_copies
    for copy in copies if details else copies[:COPIES_SHOWN]:
        yield from _copy_lines(copy)
    hidden = len(result.copies) - min(len(copies), COPIES_SHOWN if not details else len(copies))
    if hidden:
        yield f"  {count_text(hidden, 'more copy')}; --details shows all"
    for trace in result.traces:
        ended = "" if trace.success else ", failed"
        verb = "sent" if trace.kind == "Pub" else "consumed"
        when = f" {time_text(trace.time_ms)}" if trace.time_ms else ""
        yield f"  trace: {verb} by {trace.group} at {trace.client_host}{when}{ended}"
    if not result.copies:
        kept = source.range()
        if wanted.sent_ms >= 0:
            yield f"  the id was created {time_text(wanted.sent_ms)}"
        if kept is not None:
            first = f", stored from {time_text(kept.first_ms)} on" if kept.first_ms >= 0 else ""
            yield f"  not found; the log has the offsets {kept.begin} to {kept.end}{first}"
        for each in result.searched:
            yield f"  searched: {each}"
        yield f"  next: rmqpy why no-message {result.source} --id {wanted.text}"
    for each in result.incomplete:
        yield f"  not examined: {each}"


def _copy_lines(copy: MessageCopy) -> Iterator[str]:
    for number, (name, value) in enumerate(copy.lines()):
        yield f"  {name}: {value}" if number == 0 else f"    {name:<13} {value}"
