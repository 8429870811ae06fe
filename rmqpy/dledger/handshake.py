"""The handshake of rmqpy members: an exchange of identity and file layout before the first vote or
push.

It is a request of rmqpy (``RMQPY_DLEDGER_HANDSHAKE``), answered with the same kind of body; a Java
member answers code 3 and is accepted unverified. The body is JSON with members in alphabetical
order::

    divided_offset     offset where the old commit log ends, -1 without one
    end_index          last entry that the member has, or knows that it had: a kill may come between
                       the removal of a log that is to start again and its first entry; -1 if there
                       is none
    file_size          mappedFileSizeCommitLog
    group, member      names
    least_version      lowest protocol version that the member still understands
    old_log_digest     one digest of the valid part of each old file read so far, last file first,
                       separated by commas; "" if unknown
    old_log_end        offset after the last old message, -1 if there is none
    peers              address by member id
    version            protocol version

Three more members, "" unless needed, tie the introduction to the connection that carries it::

    nonce              random number of the sender for this handshake
    challenge          nonce of the other side that ``proof`` answers; in a request without a proof
                       the question whether this handshake is really one of the receiver
    proof              HMAC-SHA256 by the secret of the group (:func:`proof_of`)

=====================================  =================================================
difference                             consequence
=====================================  =================================================
group, or a version not understood     refused
file size                              refused: positions would differ from then on
both have an old log, different ends   refused for the same reason
same divided offset, different logs    refused: acknowledged messages would be missing on one side
one has an old log, the other neither  refused: its readers would miss the old messages
that nor any entry
peers table                            a note that names the members
=====================================  =================================================

The digests of the last two old files are available before the first vote. A member repeats its
introduction when it has read more files.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final

from attrs import asdict, define, evolve, fields

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.remoting.fastjson import TOLERANT_REQUEST_MAX, FastjsonDecodeError, dumps, loads

VERSION: Final = 2
"""2: reads batch pushes in binary (``protocol.push_binary``)."""

LEAST_VERSION: Final = 1
_OPTIONAL: Final = ("nonce", "challenge", "proof")
_KINDS: Final = {
    "group": str,
    "member": str,
    "peers": dict,
    "old_log_digest": str,
    **dict.fromkeys(_OPTIONAL, str),
}


@define(slots=True, frozen=True, kw_only=True)
class PeerHello:
    """A member's introduction of itself."""

    group: str
    member: str
    file_size: int
    divided_offset: int
    old_log_end: int
    old_log_digest: str
    end_index: int
    peers: Mapping[str, str]
    version: int = VERSION
    least_version: int = LEAST_VERSION
    nonce: str = ""
    challenge: str = ""
    proof: str = ""

    def encode(self) -> bytes:
        values = asdict(self, recurse=False)
        absent = [name for name in _OPTIONAL if not values[name]]
        present = [name for name in sorted(values) if name not in absent]
        return dumps({name: values[name] for name in present} | {"peers": dict(self.peers)})


def decode_introduction(body: bytes) -> PeerHello:
    """Decode an introduction, ignoring fields of later versions. Raises RemoteProtocolError.

    Anyone may send one, so it must not be longer than ``TOLERANT_REQUEST_MAX``.
    """
    if len(body) > TOLERANT_REQUEST_MAX:
        raise RemoteProtocolError(
            f"a handshake has {len(body)} bytes, expected at most {TOLERANT_REQUEST_MAX}"
        )
    try:
        found = loads(body)
    except FastjsonDecodeError as fault:
        raise RemoteProtocolError(f"a handshake is not JSON: {str(fault)[:200]}") from None
    if not isinstance(found, dict):
        raise RemoteProtocolError("a handshake is not a JSON object")
    values: dict[str, Any] = {}
    for member in fields(PeerHello):
        kind = _KINDS.get(member.name, int)
        value = found.get(member.name, "" if member.name in _OPTIONAL else None)
        if type(value) is not kind:
            raise RemoteProtocolError(f"a handshake has an invalid {member.name}: {value!r:.64}")
        values[member.name] = value
    return PeerHello(**values)


def proof_of(secret: bytes, hello: PeerHello, receiver: str, *, answers: bool) -> str:
    """Return the proof that the sender of ``hello`` knows ``secret``: the HMAC of the introduction
    with both nonces, of the ``receiver``, and of the direction, so that it is of no use on another
    connection, to another member, or in the other direction.
    """
    direction = b"answer" if answers else b"request"
    text = b"\0".join((direction, receiver.encode(), evolve(hello, proof="").encode()))
    return hmac.digest(secret, text, "sha256").hex()


def proves(secret: bytes, hello: PeerHello, receiver: str, *, answers: bool) -> bool:
    """Return whether ``hello`` contains the proof of :func:`proof_of`, in a time that does not
    depend on it.
    """
    expected = proof_of(secret, hello, receiver, answers=answers)
    return hmac.compare_digest(expected.encode(), hello.proof.encode(errors="replace"))


@define(slots=True, frozen=True)
class PeerMismatch:
    """The differences between two members, as sentences. Members with a refusal do not
    communicate.
    """

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compare(own: PeerHello, other: PeerHello) -> PeerMismatch:
    """Return the differences that rule out a connection, and those that are only noted."""
    refusals: list[str] = []
    if other.group != own.group:
        refusals.append(f"it is a member of group {other.group}, this one of {own.group}")
    if other.version < own.least_version or own.version < other.least_version:
        refusals.append(
            f"its protocol version is {other.version} (at least {other.least_version}), ours"
            f" {own.version} (at least {own.least_version}): upgrade the older one"
        )
    if other.file_size != own.file_size:
        refusals.append(
            f"its mappedFileSizeCommitLog is {other.file_size}, ours {own.file_size}: set the size"
            " that the files of the group have"
        )
    refusals += compare_old_logs(own, other)
    return PeerMismatch(tuple(refusals), tuple(_peer_tables(own, other)))


def compare_old_logs(own: PeerHello, other: PeerHello) -> list[str]:
    """Return the reasons why the old logs differ; an empty list if they match."""
    if other.divided_offset == own.divided_offset:
        return _old_content(own, other)
    if min(other.divided_offset, own.divided_offset) >= 0:
        return [
            f"its old commit log ends at {other.divided_offset}, ours at {own.divided_offset}:"
            " align the stores before the switch (rmqpy upgrade check, plan, apply)"
        ]
    lacking = own if own.divided_offset < 0 else other
    if lacking.end_index >= 0:
        return []  # its old files have expired
    return [
        f"{lacking.member} has no old commit log, but the other member has one: stop"
        f" {lacking.member}, then run rmqpy upgrade join DIR --from NAME=DIR|URL with the store of"
        " a member that has it"
    ]


def _old_content(own: PeerHello, other: PeerHello) -> list[str]:
    """Compare the contents of two old logs that end at the same divided offset."""
    if "" in (own.old_log_digest, other.old_log_digest):
        return []
    remedy = (
        f"stop both, then run rmqpy upgrade plan {own.member}=DIR {other.member}=DIR and rmqpy"
        " upgrade apply"
    )
    if own.old_log_end != other.old_log_end:
        first = min(own.old_log_end, other.old_log_end)
        return [
            f"its old messages end at {other.old_log_end}, ours at {own.old_log_end}: the old logs"
            f" differ from offset {first} on; {remedy}"
        ]
    # Earlier files may have expired or not been read yet, so only common files are compared.
    files = zip(own.old_log_digest.split(","), other.old_log_digest.split(","), strict=False)
    differ = [number for number, (ours, theirs) in enumerate(files) if ours != theirs]
    if differ:
        first = own.divided_offset - (differ[-1] + 1) * own.file_size
        return [
            f"its old log ends at {own.old_log_end} like ours, but contains other messages, first"
            f" in the file that begins at {first}; rmqpy upgrade check shows the first differing"
            f" offset; {remedy}"
        ]
    return []


def _peer_tables(own: PeerHello, other: PeerHello) -> list[str]:
    notes = []
    for member in sorted({*own.peers, *other.peers}):
        here, there = own.peers.get(member), other.peers.get(member)
        if here != there:
            notes.append(f"dLegerPeers: {member} is {here or 'absent'} here, {there or 'absent'}"
                         " there")  # fmt: skip
    return notes
