"""The rules for names of topics, brokers, clusters, addresses and settings that peers send.

The Java name server does not check names. There are topics named after brokers and clusters, and
these may be host names with dots, so the rule is wider than the one for topics that users create:
any printable characters except blanks and path separators, and no name that is a path.
"""

from __future__ import annotations

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError

NAME_LENGTH_MAX = 262
"""The maximum length of a name: ``%RETRY%`` and a group of 255 characters."""

VALUE_LENGTH_MAX = 64 * 1024

_PATHS = (".", "..")


def is_name(name: str) -> bool:
    """Return whether a topic, broker or cluster may have this name."""
    return (
        0 < len(name) <= NAME_LENGTH_MAX
        and name.isprintable()
        and " " not in name
        and "/" not in name
        and "\\" not in name
        and name not in _PATHS
    )


def check_name(field: str, name: str) -> None:
    if not is_name(name):
        raise _refused(
            f"{field} {_shown(name)} is not a name: expected 1 to {NAME_LENGTH_MAX} visible "
            "characters without blanks and slashes"
        )


def check_address(field: str, address: str) -> None:
    """Raise RequestRejectedError unless ``address`` is ``host:port``."""
    host, colon, port = address.rpartition(":")
    if not (colon and is_name(host) and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise _refused(f"{field} {_shown(address)} is not host:port")


def check_text(field: str, text: str, longest: int = NAME_LENGTH_MAX) -> None:
    """Raise RequestRejectedError if ``text``, such as the value of a setting, is too long or has
    control characters.
    """
    if len(text) > longest or any(ord(each) < 0x20 or ord(each) == 0x7F for each in text):
        raise _refused(
            f"{field} {_shown(text)} is longer than {longest} or contains control characters"
        )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 64 else text[:64] + "...")


def _refused(remark: str) -> RequestRejectedError:
    return RequestRejectedError(ResponseCode.SYSTEM_ERROR, remark)
