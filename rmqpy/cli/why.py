"""``rmqpy why`` and ``rmqpy where``: answers about a store directory or a running broker.

A target is a directory (a broker's storePathRootDir, which is only read) or an address HOST:PORT of
a running broker. Exit codes: 0 answered or found; 1 could not be examined; 2 no cause was proven,
or the message was not found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rmqpy.cli.connecting import client_settings
from rmqpy.cli.parsing import (
    EXIT_DONE,
    EXIT_NO,
    Parser,
    add_format_option,
    add_log_options,
)
from rmqpy.cli.terminal import show
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqpy.cli.parsing import Commands
    from rmqpy.client.core.instance import ClientSettings
    from rmqpy.config.loading import BrokerConfiguration
    from rmqpy.why.answer import Answer
    from rmqpy.why.message_id import MessageId
    from rmqpy.why.questions.message_copies import MessageCopy, WhereResult
    from rmqpy.why.sources.directory import StoreDirectorySource
    from rmqpy.why.sources.interface import MessageSource
    from rmqpy.why.sources.live import BrokerSource

TARGET_HELP = "a broker's storePathRootDir, or the HOST:PORT of a running broker"
COPIES_SHOWN = 8


def add_commands(commands: Commands) -> None:
    where = commands.add_parser(
        "where", help="find a message: log, consume queue, key index, group offsets, trace"
    )
    where.add_argument("message", metavar="MESSAGE-ID", help="offset id, unique id, or key")
    where.add_argument("target", nargs="*", metavar="DIR|HOST:PORT", help=TARGET_HELP)
    where.add_argument("-t", "--topic", help="search the key index for this topic only")
    where.add_argument("--details", action="store_true", help="show every copy")
    _scan_option(where)
    _common(where)
    where.set_defaults(command=_where)

    why = commands.add_parser("why", help="explain what a store or a broker does, with evidence")
    questions = why.add_subparsers(required=True, metavar="QUESTION", parser_class=Parser)
    missing = questions.add_parser(
        "no-message", help="why a group has not received a message, or receives nothing"
    )
    missing.add_argument("target", metavar="DIR|HOST:PORT", help=TARGET_HELP)
    missing.add_argument("-i", "--id", dest="message", metavar="ID", help="the message")
    missing.add_argument("-t", "--topic", help="the topic; not needed with --id")
    missing.add_argument("-g", "--group", help="the consumer group")
    _scan_option(missing)
    _common(missing)
    missing.set_defaults(command=_no_message)
    kept = questions.add_parser("not-deleted", help="why files of the log are not deleted")
    kept.add_argument("target", metavar="DIR|HOST:PORT", help=TARGET_HELP)
    _common(kept)
    kept.set_defaults(command=_not_deleted)
    slow = questions.add_parser("slow-start", help="what the next start has to read and rebuild")
    slow.add_argument("target", metavar="DIR|HOST:PORT", help=TARGET_HELP)
    _common(slow)
    slow.set_defaults(command=_slow_start)
    election = questions.add_parser(
        "election", help="why a DLedger group has held an election, or has no leader"
    )
    election.add_argument(
        "target", nargs="+", metavar="DIR|HOST:PORT", help=f"all members, each as {TARGET_HELP}"
    )
    _common(election, config=False)
    election.add_argument(
        "-c",
        dest="configs",
        action="append",
        default=[],
        metavar="FILE",
        help="the broker.conf of a directory, in the order of the directories",
    )
    election.set_defaults(command=_election)


def _scan_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-scan",
        dest="scan",
        action="store_false",
        help="do not read the whole log if the key index does not have the message",
    )


def _common(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    if config:
        parser.add_argument(
            "-c",
            dest="config",
            metavar="FILE",
            help="the broker.conf of a directory; default: that of the broker that runs on it, else"
            " Java's defaults",
        )
    parser.add_argument(
        "-n",
        "--namesrvAddr",
        dest="name_servers",
        default=os.environ.get("NAMESRV_ADDR"),
        metavar="HOST:PORT[;HOST:PORT]",
        help="name servers; default: environment variable NAMESRV_ADDR",
    )
    parser.add_argument("--credentials", metavar="FILE", help="as for rmqpy admin")
    parser.add_argument("--tls", action="store_true", help="use TLS, unverified")
    parser.add_argument("--tls-config", metavar="FILE", help="a Java tls.properties file")
    add_format_option(parser)
    add_log_options(parser)


# -- targets


def is_address(text: str) -> bool:
    """Return whether a target is an address and not a directory."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and not os.path.isdir(text)


@contextmanager
def opened(options: argparse.Namespace, target: str) -> Iterator[MessageSource]:
    """Open a target as a source of facts."""
    if is_address(target):
        with broker_source(options, target) as broker:
            yield broker
    else:
        yield directory_source(options, target)


def broker_source(options: argparse.Namespace, address: str) -> BrokerSource:
    from rmqpy.why.sources.live import BrokerSource

    return BrokerSource(address, _client_settings(options))


def directory_source(options: argparse.Namespace, path: str) -> StoreDirectorySource:
    """Return the source for a directory. Raise StoreError if it is not a store."""
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.model.local_paths import local_path
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.why.sources.directory import DEFAULT_SETTINGS, StoreDirectorySource

    root = local_path(path)
    configuration, settings_from = configuration_of(options, root)
    files = OsFileSystem()
    check_store_root(files, root, configuration.store if configuration is not None else None)
    return StoreDirectorySource(files, root, configuration, settings_from or DEFAULT_SETTINGS)


def configuration_of(
    options: argparse.Namespace, root: str
) -> tuple[BrokerConfiguration | None, str]:
    """Return the configuration of a directory's broker and where it is from.

    That is the file of ``-c``, or the file with which the broker that runs on the directory was
    started.
    """
    from pathlib import Path

    from rmqpy.audit.facts.lock_probe import find_lock_owner
    from rmqpy.config.loading import load_broker_configuration
    from rmqpy.why.sources.process import configuration_of_process

    if options.config is not None:
        return load_broker_configuration(options.config).configuration, options.config
    process = find_lock_owner(f"{root}/lock")
    path = configuration_of_process(process) if process is not None else None
    if path is None:
        return None, ""
    try:
        configuration = load_broker_configuration(path).configuration
    except (RmqError, OSError):
        return None, ""
    same = str(Path(configuration.store.store_path_root_dir).resolve()) == root
    return (configuration, path) if same else (None, "")


def _client_settings(options: argparse.Namespace) -> Callable[[str], ClientSettings]:
    from rmqpy.why.sources.connection import FIRST_HEARTBEAT_MS

    return lambda address: client_settings(
        options, options.name_servers or address, FIRST_HEARTBEAT_MS
    )


def _targets(options: argparse.Namespace, wanted: MessageId) -> list[str]:
    """Return the given targets; else the broker in an offset id, or all brokers of the name
    servers.
    """
    from rmqpy.client.core.message import host_address
    from rmqpy.why.sources.connection import masters_of

    if options.target:
        return list(options.target)
    if options.name_servers:
        return masters_of(_client_settings(options)(options.name_servers))
    if wanted.host is not None:
        return [host_address(wanted.host)]
    raise RmqError(
        "found no target, expected a directory, the HOST:PORT of a broker, or name servers; add one"
        " after the message id, or use -n HOST:PORT"
    )


# -- commands


def _where(options: argparse.Namespace) -> int:
    from rmqpy.why.message_id import parse_message_id
    from rmqpy.why.questions.where import find_message

    wanted = parse_message_id(options.message, _now_ms())
    results: list[tuple[MessageSource, WhereResult]] = []
    with ExitStack() as stack:
        for target in _targets(options, wanted):
            source = stack.enter_context(opened(options, target))
            _check_topic(source, options.topic)
            results.append((source, find_message(source, wanted, options.topic, scan=options.scan)))
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
            count = "1 store" if len(results) == 1 else f"{len(results)} stores"
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
            f" {len(known)} topics, or leave --topic out"
        )


def _where_lines(
    source: MessageSource, result: WhereResult, wanted: MessageId, *, details: bool
) -> Iterator[str]:
    from rmqpy.why.answer import time_text

    yield f"{result.source}:"
    copies = list(result.copies) if details else result.current_copies
    for copy in copies if details else copies[:COPIES_SHOWN]:
        yield from _copy_lines(copy)
    hidden = len(result.copies) - min(len(copies), COPIES_SHOWN if not details else len(copies))
    if hidden:
        yield f"  {hidden} more copies; --details shows all"
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


def _no_message(options: argparse.Namespace) -> int:
    from rmqpy.why.gathering.messages import no_message_facts
    from rmqpy.why.message_id import parse_message_id
    from rmqpy.why.questions.no_message import explain_no_message

    if not (options.message or options.topic):
        raise RmqError("found neither --id nor --topic; name the message, or the topic and group")
    wanted = parse_message_id(options.message, _now_ms()) if options.message else None
    with opened(options, options.target) as source:
        facts = no_message_facts(
            source, _now_ms(), wanted, options.topic, options.group, scan=options.scan
        )
        return show_answer(options, explain_no_message(facts))


def _not_deleted(options: argparse.Namespace) -> int:
    from rmqpy.why.gathering.retention import retention_of_broker, retention_of_directory
    from rmqpy.why.questions.not_deleted import explain_not_deleted

    if is_address(options.target):
        with broker_source(options, options.target) as broker:
            facts = retention_of_broker(broker, _now_ms())
    else:
        facts = retention_of_directory(directory_source(options, options.target), _now_ms())
    return show_answer(options, explain_not_deleted(facts))


def _slow_start(options: argparse.Namespace) -> int:
    from rmqpy.why.gathering.start import start_of_broker, start_of_directory
    from rmqpy.why.questions.slow_start import explain_slow_start

    if is_address(options.target):
        with broker_source(options, options.target) as broker:
            facts = start_of_broker(broker, _now_ms())
    else:
        facts = start_of_directory(directory_source(options, options.target), _now_ms())
    return show_answer(options, explain_slow_start(facts))


def _election(options: argparse.Namespace) -> int:
    from rmqpy.model.errors import NetworkError
    from rmqpy.why.gathering.election import member_of_broker, member_of_directory
    from rmqpy.why.questions.election import explain_election
    from rmqpy.why.questions.election_facts import ElectionFacts

    folders = [target for target in options.target if not is_address(target)]
    if len(options.configs) not in (0, len(folders)):
        raise RmqError(
            f"found {len(options.configs)} times -c for {len(folders)} directories, expected one"
            " for each or none; give them in the same order"
        )
    configs = dict(zip(folders, options.configs, strict=False))
    members, silent = [], []
    settings: Mapping[str, str] = {}
    settings_from = "default"
    for target in options.target:
        options.config = configs.get(target)
        try:
            if is_address(target):
                with broker_source(options, target) as broker:
                    members.append(member_of_broker(broker))
            else:
                source = directory_source(options, target)
                members.append(member_of_directory(source))
                settings, settings_from = source.settings()
        except NetworkError as error:
            silent.append((target, str(error)))
    facts = ElectionFacts(
        subject=", ".join(options.target),
        members=tuple(members),
        silent=tuple(silent),
        heartbeat_ms=int(settings.get("heartBeatTimeIntervalMs", "2000")),
        leaks=int(settings.get("maxHeartBeatLeak", "3")),
        settings_from=settings_from,
    )
    return show_answer(options, explain_election(facts))


def show_answer(options: argparse.Namespace, answer: Answer) -> int:
    if options.format == "json":
        print_json(answer.as_json())
    else:
        show(answer.lines())
    return EXIT_DONE if answer.is_proven else EXIT_NO


def print_json(value: dict[str, Any]) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=False)
    print()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
