"""The errors of the client. All are :class:`RmqError`; ``retriable`` says whether the same call may
succeed later.

=========================  =========  ==========================================================
class                      retriable  raised when
=========================  =========  ==========================================================
``RmqError``               no         the base of all
``NetworkError``           yes        a request got no response; the base of the next three
``ConnectFailedError``     yes        no connection: nothing was sent
``ConnectionLostError``    yes        the connection ended: the request may have been carried out
``RequestTimeoutError``    yes        no answer in time: the request may have been carried out
``RequestRejectedError``   by code    the broker refuses; ``response_code`` is the reason
``InvalidMessageError``    no         the message is refused before it is sent (MESSAGE_ILLEGAL)
``ConfigError``            no         a setting or an argument is wrong
``ClientStateError``       no         the base of the next two
``NotStartedError``        no         a member is used before ``start()``
``ClosedError``            no         a member is used after ``close()``
``RemoteProtocolError``    no         the peer broke the protocol
=========================  =========  ==========================================================

A refusal is retriable if its code is in ``RETRIABLE_CODES``.
"""

from __future__ import annotations

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import (
    RETRIABLE_CODES,
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    NetworkError,
    RemoteProtocolError,
    RequestRejectedError,
    RequestTimeoutError,
    RmqError,
)

__all__ = [
    "RETRIABLE_CODES",
    "ClientStateError",
    "ClosedError",
    "ConfigError",
    "ConnectFailedError",
    "ConnectionLostError",
    "InvalidMessageError",
    "NetworkError",
    "NotStartedError",
    "RemoteProtocolError",
    "RequestRejectedError",
    "RequestTimeoutError",
    "ResponseCode",
    "RmqError",
]


class InvalidMessageError(RequestRejectedError, ValueError):
    """A message cannot be sent as it is. Nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(ResponseCode.MESSAGE_ILLEGAL, reason)

    def __reduce__(self) -> tuple[type[InvalidMessageError], tuple[str]]:
        return type(self), (self.remark,)


class ClientStateError(RmqError):
    """A producer or consumer is used outside of its lifetime."""


class NotStartedError(ClientStateError):
    """A producer or consumer is used before ``start()``."""


class ClosedError(ClientStateError):
    """A producer or consumer is used after ``close()``."""
