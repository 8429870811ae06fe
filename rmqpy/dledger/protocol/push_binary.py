"""Batch pushes and their answers between members of rmqpy, in binary: the entries as they are in
the files.

A member of version :data:`BINARY_VERSION` of the handshake reads them; others, and Java members,
receive the same push as text (:mod:`.push_text`). The request code is ``RMQPY_PUSH_RUN``; all
numbers are big-endian::

    push    0  magic "RDP1"
            4  bytes of the names, N
            8  term of the leader
           16  committed index, -1 if there is none
           24  index of the first entry
           32  number of entries, 1 to 8192
           36  bytes of the entries
           40  names: group, leader, and receiver, each with its length in one byte before it
         40+N  the entries: header of 48 bytes, then the record

    answer  0  magic "RDA1"
            4  DLedgerResponseCode
            8  term of the answering member
           16  index of the first entry that was pushed, -1 without one
           24  first index of its log
           32  last index of its log
           40  number of entries

Invariants: any bytes are decoded to a message or raise a RemoteProtocolError that names the field;
the lengths in a push add up to that of its body, and its entries are consecutive, in one file.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

from rmqpy.codec.backend import run_units
from rmqpy.codec.entry import ENTRY_HEADER
from rmqpy.codec.entry_batch import RUN_COUNT_MAX
from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.protocol.messages import (
    SUCCESS,
    PushEntryRequest,
    PushEntryResponse,
)
from rmqpy.dledger.state import PushGrant
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import Term

BINARY_VERSION: Final = 2
"""The version of the handshake from which on a member reads binary pushes."""

NAME_MAX: Final = 255
_PUSH: Final = Struct(">4siqqqii")
_ANSWER: Final = Struct(">4siqqqqi")
_PUSH_MAGIC: Final = b"RDP1"
ANSWER_MAGIC: Final = b"RDA1"


@lru_cache(64)
def member_names(group: str | None, leader_id: str | None, receiver: str | None) -> bytes:
    """Return the names of a push, or b"" if one is missing or too long for it."""
    names = [(name or "").encode("utf-8", "replace") for name in (group, leader_id, receiver)]
    if not all(0 < len(name) <= NAME_MAX for name in names):
        return b""
    return b"".join(bytes([len(name)]) + name for name in names)


def granted_names(grant: PushGrant) -> bytes:
    """Return the names of a granted push."""
    return member_names(grant.group, grant.leader_id, grant.self_id)


def write_run(push: PushEntryRequest) -> tuple[bytes, bytes] | None:
    """Return a batch push in two pieces, the second of which is the same for every follower; None
    if it can only be sent as text.
    """
    run = push.entries
    if not (isinstance(run, EntryRun) and push.batch and len(run) <= RUN_COUNT_MAX):
        return None
    names = member_names(push.group, push.leader_id, push.remote_id)
    if not names:
        return None
    numbers = push.term, push.commit_index, run.first_index, len(run), run.size
    return _PUSH.pack(_PUSH_MAGIC, len(names), *numbers) + names, run.data


def read_run(body: bytes) -> PushEntryRequest:
    """Return the push in ``body``. Raises RemoteProtocolError."""
    if len(body) < _PUSH.size:
        raise _invalid("length", len(body), f"at least {_PUSH.size} bytes")
    magic, names_size, term, commit_index, first_index, count, size = _PUSH.unpack_from(body)
    if magic != _PUSH_MAGIC:
        raise _invalid("magic", magic, _PUSH_MAGIC)
    start = _PUSH.size + names_size
    if names_size < 0 or size < ENTRY_HEADER_SIZE or start + size != len(body):
        raise _invalid("lengths", (names_size, size), f"{len(body) - _PUSH.size} bytes in all")
    group, leader_id, receiver = _names(body[_PUSH.size : start])
    with memoryview(body)[start:] as entries:
        position = ENTRY_HEADER.unpack_from(entries)[4]
        found = run_units(entries, first_index, position) if first_index >= 0 <= position else None
    if found is None or found[0].count != count:
        raise _invalid(
            "entries", (first_index, count), "consecutive entries of this index and number"
        )
    span, units = found
    return PushEntryRequest(
        group=group,
        remote_id=receiver,
        local_id=leader_id,
        leader_id=leader_id,
        term=Term(term),
        commit_index=commit_index,
        entries=EntryRun(span, body[start:], units),
        batch=True,
    )


def write_answer(answer: PushEntryResponse) -> bytes:
    """Return the body of the answer to a binary push."""
    index = -1 if answer.index is None else answer.index
    return _ANSWER.pack(
        ANSWER_MAGIC,
        answer.code,
        answer.term,
        index,
        answer.begin_index,
        answer.end_index,
        answer.count,
    )


def taken_answer(term: int, first: int, begin: int, last: int, count: int) -> bytes:
    """Return the answer to a granted push, whose entries are the last ones of the log."""
    return _ANSWER.pack(ANSWER_MAGIC, SUCCESS, term, first, begin, last, count)


def read_answer(body: bytes | memoryview) -> PushEntryResponse:
    """Return the answer in ``body``. Raises RemoteProtocolError."""
    if len(body) != _ANSWER.size:
        raise _invalid("length of an answer", len(body), f"{_ANSWER.size} bytes")
    _magic, code, term, index, begin_index, end_index, count = _ANSWER.unpack(body)
    return PushEntryResponse(
        code=code,
        term=Term(term),
        index=None if index < 0 else index,
        begin_index=begin_index,
        end_index=end_index,
        count=count,
    )


def _names(block: bytes) -> list[str]:
    names, place = [], 0
    for _ in range(3):
        end = place + 1 + (block[place] if place < len(block) else NAME_MAX + len(block))
        if end > len(block):
            raise _invalid("names", block[:64], "three names with their lengths")
        try:
            names.append(block[place + 1 : end].decode())
        except UnicodeDecodeError:
            raise _invalid("names", block[:64], "UTF-8") from None
        place = end
    if place != len(block):
        raise _invalid("names", block[:64], "three names and nothing after them")
    return names


def _invalid(field: str, found: object, expected: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"a binary push: {field}: found {found}, expected {expected}")
