"""How a slave learns at little cost whether a table of its master has changed.

==========================  ==============================================================
ext field                   says
==========================  ==============================================================
rmqpyKnownVersion (asked)   the version that the slave was told last; empty: it wants all
rmqpyVersion (answered)     the version of the table; no body follows when it is the known
==========================  ==============================================================

Java knows neither field: it gives the whole table, and the slave asks it no more often than Java
does. A version is compared as text, and only with what the same master has told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmqpy.remoting.bodies import DataVersion
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader

KNOWN_VERSION: Final = "rmqpyKnownVersion"
VERSION: Final = "rmqpyVersion"


def answer_with_table(
    request: RemotingCommand,
    version: DataVersion,
    table: Callable[[], bytes],
    header: CommandHeader | None = None,
) -> RemotingCommand:
    """The answer of who has the table."""
    response = RemotingCommand.response_to(request, header=header)
    known = request.ext_fields.get(KNOWN_VERSION)
    if known is not None:
        response.ext_fields[VERSION] = text = f"{version.timestamp}-{version.counter}"
        if known == text:
            return response
    response.body = table()
    return response
