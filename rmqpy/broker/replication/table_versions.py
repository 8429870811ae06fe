"""A cheap way for a slave to learn whether a table of its master has changed.

============================  ==============================================================
ext field                     meaning
============================  ==============================================================
rmqpyKnownVersion (request)   the version that the slave received last; empty: it needs all
rmqpyVersion (response)       the version of the table; no body if it is the known one
============================  ==============================================================

Java knows neither field: it sends the whole table, and the slave requests it no more often than
Java does. A version is compared as text, and only with versions that the same master has sent.
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
    """Return the response of the broker that has the table."""
    response = RemotingCommand.response_to(request, header=header)
    known = request.ext_fields.get(KNOWN_VERSION)
    if known is not None:
        response.ext_fields[VERSION] = text = f"{version.timestamp}-{version.counter}"
        if known == text:
            return response
    response.body = table()
    return response
