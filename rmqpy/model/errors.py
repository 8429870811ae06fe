"""The errors that rmqpy raises on purpose: each class says which side is at fault.

A programming error is a failed ``assert``, never one of these.
"""

from __future__ import annotations

from rmqpy.model.codes import ResponseCode
from rmqpy.model.deprecation import deprecated_names

RETRIABLE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.CONSUMER_NOT_ONLINE,
    }
)
"""The codes of refusals that may end by themselves: of a broker that is busy, starting, or has not
heard of a topic or a group yet.
"""


class RmqError(Exception):
    """The base of every error that rmqpy raises on purpose.

    ``retriable`` is True if the same call may succeed later.
    """

    retriable: bool = False


class RemoteProtocolError(RmqError):
    """The peer broke the protocol. The receiver counts the error and closes the connection."""


class RequestRejectedError(RmqError):
    """A request is refused: the response has ``code`` and ``remark``.

    ``code`` is a value of :class:`rmqpy.model.codes.ResponseCode`, ``remark`` the sentence that the
    client sees.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark
        self.retriable = code in RETRIABLE_CODES

    @property
    def response_code(self) -> ResponseCode | None:
        """``code`` as an enum, or None if it is not one of Java's."""
        try:
            return ResponseCode(self.code)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"[{self.code}] {self.remark}"


class StoreError(RmqError):
    """The store directory is invalid, or the disk failed.

    The message names the file, what was found, what was expected, and the remedy; it is shown to
    the operator unchanged.
    """

    def __init__(self, path: str, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"{path}: found {found}, expected {expected}; {remedy}")
        self.path = path
        self.found = found
        self.expected = expected
        self.remedy = remedy


class ConfigError(RmqError):
    """A setting is wrong. The message names file, line, key, and the allowed values."""


class NetworkError(RmqError):
    """A request to another process got no response: it could not connect, the connection was
    closed, or the request timed out.
    """

    retriable = True


class ConnectFailedError(NetworkError):
    """There is no connection, so nothing was sent."""


class ConnectionLostError(NetworkError):
    """The connection ended before the answer came; the request may have been carried out."""


class RequestTimeoutError(NetworkError):
    """The answer did not come in time; the request may have been carried out."""


__getattr__ = deprecated_names(
    __name__,
    {
        "RemoteFault": "RemoteProtocolError",
        "Refusal": "RequestRejectedError",
        "StoreFault": "StoreError",
        "ConfigFault": "ConfigError",
        "NetworkFault": "NetworkError",
    },
)
