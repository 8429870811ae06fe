"""Write the text of a ``group.toml``, with comments for the person who corrects it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rmqpy.upgrade.group.group_file import GROUP_KEYS, MEMBER_KEYS, GroupFile

__all__ = ["group_file_text"]

_COMMENTS: Final = {
    "broker": "brokerName",
    "cluster": "brokerClusterName",
    "dledger_group": "dLegerGroup",
    "host": "local, ssh://HOST, or the https:// address of rmqpy upgrade serve",
    "config": "broker.conf",
    "directory": "storePathRootDir",
    "address": "at which clients reach the broker",
    "id": "dLegerSelfId",
    "peer": "at which the other members reach it; written into dLegerPeers",
    "role": "after the way back to master and slaves",
}
_HEAD: Final = """\
# A group of brokers: what `rmqpy upgrade` needs to know about it. Written by `rmqpy upgrade
# init` from the brokers' own configuration; correct what is wrong.
# The verbs of `rmqpy upgrade` need no arguments in this directory. `rmqpy upgrade status`
# shows the state of the group and the next command.
"""
_HINT: Final = """\
# With these two commands in its table, `rmqpy upgrade run` also stops and starts a member. They
# run on the member's host; without them, starting and stopping is left to you.
# start = "systemctl start rocketmq-broker"
# stop = "systemctl stop rocketmq-broker"
"""


def group_file_text(group: GroupFile, remarks: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the commented text of the file; ``remarks`` are more comments, by member."""
    lines = [*_HEAD.splitlines(), "", "[group]"]
    lines += _pairs(GROUP_KEYS, group)
    for number, member in enumerate(group.members):
        lines += ["", f"[member.{_quoted_key(member.name)}]"]
        lines += [f"# {remark}" for remark in (remarks or {}).get(member.name, ())]
        lines += _pairs(MEMBER_KEYS, member)
        if not number:
            lines += _HINT.splitlines()
    return "\n".join(lines) + "\n"


def _pairs(keys: Iterable[str], values: object) -> Iterator[str]:
    rows = [(key, getattr(values, key)) for key in keys]
    texts = {key: f"{key} = {_quoted(value)}" for key, value in rows if value}
    width = max(map(len, texts.values()))
    for key, text in texts.items():
        comment = _COMMENTS.get(key)
        yield f"{text:<{width}}  # {comment}" if comment else text


def _quoted(text: str) -> str:
    """Return a TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    )


def _quoted_key(name: str) -> str:
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if plain else _quoted(name)
