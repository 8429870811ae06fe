"""``rmqpy admin``: the commands of mqadmin with the same names, options and columns.

Exit codes: 0 done; 1 could not be done (bad usage, no answer, refused by a broker); 2 the answer is
no. ``--format json`` prints one line of JSON instead of columns.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Final

from rmqpy.admin.command import Command, CommandContext, Option, ParsedArguments
from rmqpy.admin.commands import COMMANDS
from rmqpy.cli.connecting import NO_NAME_SERVER, add_connection_options, client_settings
from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO, add_format_option, add_log_options
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.names import RETRY_PREFIX, is_retry_topic
from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from rmqpy.admin.api import Admin
    from rmqpy.admin.output import CommandResult
    from rmqpy.cli.parsing import Commands, Parser
    from rmqpy.client.core.instance import ClientSettings


NO_SUCH_NAME: Final = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.CONSUMER_NOT_ONLINE,
)
TOPIC_OPTIONS: Final = ("topic",)
GROUP_OPTIONS: Final = ("consumerGroup", "groupName", "group", "srcGroup")
"""The options of all commands that name a topic or a consumer group."""

FIRST_HEARTBEAT_MS = 1_000
"""The time of the first heartbeat, as in mqadmin: most commands are done before it."""


def add_commands(commands: Commands) -> None:
    admin = commands.add_parser("admin", help="administer name servers and brokers")
    names = admin.add_subparsers(required=True, metavar="NAME")
    for command in COMMANDS:
        parser = names.add_parser(command.name, aliases=list(command.aliases), help=command.help)
        add_connection_options(parser)
        for option in command.options:
            _add_option(parser, option)
        add_format_option(parser)
        add_log_options(parser)
        parser.set_defaults(command=_run, admin_command=command)


def _add_option(parser: Parser, option: Option) -> None:
    if option.flag:
        parser.add_argument(
            f"-{option.letter}",
            f"--{option.name}",
            dest=_dest(option),
            action="store_const",
            const="true",
            help=option.help,
        )
    else:
        parser.add_argument(
            f"-{option.letter}",
            f"--{option.name}",
            dest=_dest(option),
            required=option.required,
            metavar=option.name.upper(),
            help=option.help,
        )


def _dest(option: Option) -> str:
    return f"option_{option.name}"


def _run(options: argparse.Namespace) -> int:
    command: Command = options.admin_command
    values = {
        option.name: value
        for option in command.options
        if (value := getattr(options, _dest(option))) is not None
    }
    # A command for one broker may need no route. If it does, the broker refuses the question.
    name_servers = options.name_servers or values.get("brokerAddr")
    if not name_servers:
        raise RmqError(NO_NAME_SERVER)
    as_json = options.format == "json"
    settings = client_settings(options, name_servers, FIRST_HEARTBEAT_MS)
    try:
        outcome = asyncio.run(_call(command, ParsedArguments(values), settings, as_json))
    except RequestRejectedError as refusal:
        if options.name_servers or refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise RmqError(NO_NAME_SERVER) from None
    text = outcome.as_json() if as_json else outcome.text
    if text:
        print(text)
    return EXIT_NO if outcome.says_no else EXIT_DONE


async def _call(
    command: Command, arguments: ParsedArguments, settings: ClientSettings, as_json: bool
) -> CommandResult:
    from rmqpy.admin.api import Admin
    from rmqpy.client.core.instance import ClientInstance

    def show(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    instance = await ClientInstance.open(settings)
    try:
        admin = Admin(instance, settings.name_servers)
        return await command.run(CommandContext(admin, arguments, show))
    except RequestRejectedError as refusal:
        raise await _with_hint(admin, refusal, arguments) from None
    finally:
        await instance.close()


async def _with_hint(
    admin: Admin, refusal: RequestRejectedError, given: ParsedArguments
) -> RequestRejectedError:
    """Return the refusal, with the nearest topic or group if a given one does not exist."""
    if refusal.code not in NO_SUCH_NAME:
        return refusal
    try:
        topics = await admin.topics()
    except RmqError:
        return refusal
    # Every consumer group that has ever been online has a retry topic.
    groups = [each.removeprefix(RETRY_PREFIX) for each in topics if is_retry_topic(each)]
    for known, options in ((topics, TOPIC_OPTIONS), (groups, GROUP_OPTIONS)):
        names = (given.optional(each) for each in options)
        for name in (each for each in names if each is not None and each not in known):
            return RequestRejectedError(refusal.code, refusal.remark + did_you_mean(name, known))
    return refusal
