"""All commands: the commands of mqadmin 4.9.7 with its names and options, and our own."""

from __future__ import annotations

from rmqpy.admin.command import Command
from rmqpy.admin.commands import (
    access,
    brokers,
    clients,
    dledger,
    export,
    fence,
    groups,
    latency,
    leave,
    messages,
    monitoring,
    namesrv,
    offsets,
    promote,
    stats,
    switch,
    topics,
    trace,
)

_MODULES = (
    topics,
    groups,
    clients,
    brokers,
    namesrv,
    messages,
    trace,
    offsets,
    stats,
    latency,
    access,
    export,
    monitoring,
    dledger,
    fence,
    promote,
    switch,
    leave,
)

COMMANDS: tuple[Command, ...] = tuple(command for module in _MODULES for command in module.COMMANDS)
