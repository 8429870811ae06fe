"""Who is at fault, and what must happen. Programming errors are ``assert``s, never these."""

from __future__ import annotations

from rmqpy.model.deprecation import deprecated_names


class RmqError(Exception):
    """Root of every error that rmqpy raises on purpose."""


class RemoteProtocolError(RmqError):
    """The peer broke the protocol: count it, close the connection."""


class RequestRejectedError(RmqError):
    """A request that is answered with a response code instead of being done.

    ``code`` is a value of :class:`rmqpy.model.codes.ResponseCode`, ``remark`` the sentence that the
    client sees.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"[{self.code}] {self.remark}"


class StoreError(RmqError):
    """The store directory is not what it must be, or the disk failed.

    The text names the file, what was found, what was expected and what to do; it is shown as it is.
    """

    def __init__(self, path: str, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"{path}: found {found}, expected {expected}; {remedy}")
        self.path = path
        self.found = found
        self.expected = expected
        self.remedy = remedy


class ConfigError(RmqError):
    """A setting is wrong. The text names file, line, key and the allowed values."""


class NetworkError(RmqError):
    """A request to another process got no answer: not connected, closed, timed out."""


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
