"""The options that several verbs of ``rmqpy upgrade`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqpy.cli.parsing import Parser, add_format_option, add_log_options
from rmqpy.cli.upgrade.base.output import guarded

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.cli.upgrade.base.output import Verb


def add_verb(verbs: Commands, name: str, text: str, run: Verb) -> Parser:
    parser: Parser = verbs.add_parser(name, help=text, description=text)
    add_format_option(parser)
    add_log_options(parser)
    parser.set_defaults(command=guarded(run), of_group=False)
    return parser


def replica_options(
    parser: Parser, at_least: str = "+", *, may_be_empty: bool = False, of_group: bool = False
) -> None:
    """Add the replicas; ``may_be_empty`` if one of them may be a member to be filled.

    With ``of_group`` they may be left out in the directory of a ``group.toml``.
    """
    parser.add_argument(
        "replica",
        nargs="*" if of_group else at_least,
        metavar="[NAME=]DIR|NAME=URL",
        help="a replica: a broker's storePathRootDir, NAME=ssh://HOST/DIR, or NAME= and the address"
        f" of rmqpy upgrade serve{'; default: those of group.toml' if of_group else ''}",
    )
    parser.set_defaults(may_be_empty=may_be_empty, of_group=of_group)
    input_options(parser)


def input_options(parser: Parser) -> None:
    parser.add_argument(
        "-c",
        dest="config",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="the broker.conf of a replica",
    )
    parser.add_argument("--token-file", metavar="FILE", help="token for replicas on other hosts")
    parser.add_argument("--authority", metavar="FILE", help="certificates to trust, PEM")


def full_option(parser: Parser) -> None:
    parser.add_argument(
        "--full", action="store_true", help="read everything, also what prepare has read"
    )


def give_up_option(parser: Parser) -> None:
    parser.add_argument(
        "--give-up", type=int, metavar="N", help="confirm that N messages are discarded"
    )


def out_option(parser: Parser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write the result to FILE, as JSON")


def details_option(parser: Parser) -> None:
    parser.add_argument("--details", action="store_true", help="list every operation of the plan")


def key_option(parser: Parser) -> None:
    parser.add_argument("--key", metavar="FILE", help="sign with the secret in FILE")


def runbook_option(parser: Parser) -> None:
    parser.add_argument(
        "--runbook", choices=["java", "rmqpy"], help="only print the commands for these brokers"
    )
