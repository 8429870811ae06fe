"""The form of a command of ``rmqpy admin``: name and options as in mqadmin, and its action.

Commands are values: the command line builds parsers from them, and the conformance list counts
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from attrs import define

from rmqpy.admin.api import Admin
from rmqpy.admin.output import CommandResult
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean


class UsageError(RmqError):
    """The options exclude each other, or one has an invalid value."""


@define(slots=True, frozen=True, kw_only=True)
class Option:
    """``-letter --name VALUE``; a ``flag`` has no value."""

    letter: str
    name: str
    help: str
    required: bool = False
    flag: bool = False


@define(slots=True, frozen=True)
class ParsedArguments:
    """The options of one call by their long names."""

    values: dict[str, str]

    def text(self, name: str) -> str:
        """Return the value of a required option."""
        return self.values[name].strip()

    def optional(self, name: str) -> str | None:
        value = self.values.get(name)
        return value.strip() if value is not None else None

    def has(self, name: str) -> bool:
        return name in self.values

    def number(self, name: str, default: int) -> int:
        value = self.optional(name)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"--{name} {value}: expected a number") from None

    def boolean(self, name: str, default: bool) -> bool:
        value = self.optional(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise UsageError(f"--{name} {value}: expected true or false")
        return value.lower() == "true"


Show: TypeAlias = Callable[[str], None]
"""A function that prints a line at once, for commands that run until they are interrupted."""


@define(slots=True, frozen=True)
class CommandContext:
    """One call of a command."""

    admin: Admin
    args: ParsedArguments
    show: Show


Run: TypeAlias = Callable[[CommandContext], Awaitable[CommandResult]]


@define(slots=True, frozen=True, kw_only=True)
class Command:
    """One command; ``ours`` marks commands that mqadmin does not have."""

    name: str
    help: str
    run: Run
    options: Sequence[Option] = ()
    aliases: Sequence[str] = ()
    ours: bool = False


def option(
    letter: str, name: str, text: str, *, required: bool = False, flag: bool = False
) -> Option:
    """Return an ``Option``, in a short form for tables."""
    return Option(letter=letter, name=name, help=text, required=required, flag=flag)


BROKER = option("b", "brokerAddr", "a broker, as host:port")
BROKERS = option("b", "brokerAddr", "one broker or several, as host:port[;host:port]")
CLUSTER = option("c", "clusterName", "all masters of this cluster")
TOPIC = option("t", "topic", "topic name", required=True)
GROUP = option("g", "consumerGroup", "consumer group name", required=True)


async def masters(call: CommandContext) -> list[str]:
    """Return the broker of ``-b`` or the masters of ``-c``; exactly one of them is required."""
    broker, cluster = call.args.optional("brokerAddr"), call.args.optional("clusterName")
    if (broker is None) == (cluster is None):
        raise UsageError("give either -b BROKER (host:port) or -c CLUSTER")
    if broker is not None:
        return [broker]
    assert cluster is not None
    return await call.admin.masters(cluster)


async def group_members(call: CommandContext) -> list[str]:
    """Return the brokers of ``-b`` or the members of ``-m``; exactly one of them is required."""
    brokers, name = call.args.optional("brokerAddr"), call.args.optional("brokerName")
    if (brokers is None) == (name is None):
        raise UsageError("give either -b BROKER[;BROKER] (host:port) or -m NAME (brokerName)")
    if brokers is not None:
        return [each.strip() for each in brokers.split(";") if each.strip()]
    assert name is not None
    return [address for _, address in sorted((await addresses_of(call, name)).items())]


async def addresses_of(call: CommandContext, name: str) -> dict[int, str]:
    """Return the addresses of the brokers ``name`` by id. Raises UsageError if there are none."""
    table = (await call.admin.cluster_info()).broker_addr_table
    if name not in table:
        known = ", ".join(sorted(table)) or "none"
        raise UsageError(
            f"the name server knows no broker {name}; it knows {known}{did_you_mean(name, table)}"
        )
    return dict(table[name].broker_addrs)


async def addresses_with(call: CommandContext, name: str, address: str) -> dict[int, str]:
    """Return the addresses of the brokers ``name``. Raises UsageError unless ``address`` is one of
    them.
    """
    addresses = await addresses_of(call, name)
    if address not in addresses.values():
        known = ", ".join(f"{each} (id {key})" for key, each in sorted(addresses.items()))
        raise UsageError(f"{address} is no registered broker of {name}, which has {known}")
    return addresses
