"""``rmqpy why``: answers to questions about a store directory or a running broker.

Exit codes: 0 answered; 1 could not be examined; 2 no cause was proven.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.terminal import show
from rmqpy.cli.why.targets import (
    TARGET_HELP,
    add_scan_option,
    add_target_options,
    broker_source,
    directory_source,
    is_address,
    now_ms,
    opened,
    print_json,
)
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.why.answer import Answer


def add_why(commands: Commands) -> None:
    why = commands.add_parser("why", help="explain what a store or a broker does, with evidence")
    questions = why.add_subparsers(required=True, metavar="QUESTION")
    missing = questions.add_parser(
        "no-message", help="why a group has not received a message, or receives nothing"
    )
    missing.add_argument("target", metavar="DIR|HOST:PORT", help=TARGET_HELP)
    missing.add_argument("-i", "--id", dest="message", metavar="ID", help="the message")
    missing.add_argument("-t", "--topic", help="the topic; not needed with --id")
    missing.add_argument("-g", "--group", help="the consumer group")
    add_scan_option(missing)
    add_target_options(missing)
    missing.set_defaults(command=_no_message)
    kept = questions.add_parser("not-deleted", help="why files of the log are not deleted")
    kept.add_argument("target", metavar="DIR|HOST:PORT", help=TARGET_HELP)
    add_target_options(kept)
    kept.set_defaults(command=_not_deleted)
    slow = questions.add_parser("slow-start", help="what the next start has to read and rebuild")
    slow.add_argument("target", metavar="DIR|HOST:PORT", help=TARGET_HELP)
    add_target_options(slow)
    slow.set_defaults(command=_slow_start)
    election = questions.add_parser(
        "election", help="why a DLedger group has held an election, or has no leader"
    )
    election.add_argument(
        "target", nargs="+", metavar="DIR|HOST:PORT", help=f"all members, each as {TARGET_HELP}"
    )
    add_target_options(election, config=False)
    election.add_argument(
        "-c",
        dest="configs",
        action="append",
        default=[],
        metavar="FILE",
        help="the broker.conf of a directory, in the order of the directories",
    )
    election.set_defaults(command=_election)


def _no_message(options: argparse.Namespace) -> int:
    from rmqpy.why.gathering.messages import no_message_facts
    from rmqpy.why.message_id import parse_message_id
    from rmqpy.why.questions.no_message import explain_no_message

    if not (options.message or options.topic):
        raise RmqError(
            "found neither --id nor --topic, expected one of them; name the message, or the topic"
            " and the group"
        )
    wanted = parse_message_id(options.message, now_ms()) if options.message else None
    with opened(options, options.target) as source:
        facts = no_message_facts(
            source, now_ms(), wanted, options.topic, options.group, scan=options.scan
        )
        return _show_answer(options, explain_no_message(facts))


def _not_deleted(options: argparse.Namespace) -> int:
    from rmqpy.why.gathering.retention import retention_of_broker, retention_of_directory
    from rmqpy.why.questions.not_deleted import explain_not_deleted

    if is_address(options.target):
        with broker_source(options, options.target) as broker:
            facts = retention_of_broker(broker, now_ms())
    else:
        facts = retention_of_directory(directory_source(options, options.target), now_ms())
    return _show_answer(options, explain_not_deleted(facts))


def _slow_start(options: argparse.Namespace) -> int:
    from rmqpy.why.gathering.start import start_of_broker, start_of_directory
    from rmqpy.why.questions.slow_start import explain_slow_start

    if is_address(options.target):
        with broker_source(options, options.target) as broker:
            facts = start_of_broker(broker, now_ms())
    else:
        facts = start_of_directory(directory_source(options, options.target), now_ms())
    return _show_answer(options, explain_slow_start(facts))


def _election(options: argparse.Namespace) -> int:
    from rmqpy.model.errors import NetworkError
    from rmqpy.why.gathering.election import member_of_broker, member_of_directory
    from rmqpy.why.questions.election import explain_election
    from rmqpy.why.questions.election_facts import ElectionFacts, OutsiderFacts

    folders = [target for target in options.target if not is_address(target)]
    if len(options.configs) not in (0, len(folders)):
        raise RmqError(
            f"found {count_text(len(options.configs), 'time')} -c for"
            f" {count_text(len(folders), 'directory')}, expected one"
            " for each or none; give them in the same order"
        )
    configs = dict(zip(folders, options.configs, strict=False))
    examined, silent = [], []
    settings: Mapping[str, str] = {}
    settings_from = "default"
    for target in options.target:
        options.config = configs.get(target)
        try:
            if is_address(target):
                with broker_source(options, target) as broker:
                    examined.append(member_of_broker(broker))
            else:
                source = directory_source(options, target)
                examined.append(member_of_directory(source))
                settings, settings_from = source.settings()
        except NetworkError as error:
            silent.append((target, str(error)))
    facts = ElectionFacts(
        subject=", ".join(options.target),
        members=tuple(each for each in examined if not isinstance(each, OutsiderFacts)),
        outsiders=tuple(each for each in examined if isinstance(each, OutsiderFacts)),
        silent=tuple(silent),
        heartbeat_ms=int(settings.get("heartBeatTimeIntervalMs", "2000")),
        leaks=int(settings.get("maxHeartBeatLeak", "3")),
        settings_from=settings_from,
    )
    return _show_answer(options, explain_election(facts))


def _show_answer(options: argparse.Namespace, answer: Answer) -> int:
    if options.format == "json":
        print_json(answer.as_json())
    else:
        show(answer.lines())
    return EXIT_DONE if answer.is_proven else EXIT_NO
