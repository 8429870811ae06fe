"""Who is at fault, and what has to happen. Programming errors are ``assert``s, never these."""

from __future__ import annotations


class RmqError(Exception):
    """Root of every error that rmqpy raises on purpose."""


class RemoteFault(RmqError):
    """The peer broke the protocol: count it, close the connection."""


class Refusal(RmqError):
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


class StoreFault(RmqError):
    """The store directory is not what it must be, or the disk failed.

    The text names the file, what was found, what was expected and what to do; it is shown as it is.
    """

    def __init__(self, path: str, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"{path}: found {found}, expected {expected}; {remedy}")
        self.path = path
        self.found = found
        self.expected = expected
        self.remedy = remedy


class ConfigFault(RmqError):
    """A setting is wrong. The text names file, line, key and the allowed values."""


class NetworkFault(RmqError):
    """A request to another process got no answer: not connected, closed, timed out."""
