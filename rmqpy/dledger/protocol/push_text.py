"""Pushes of entries and their answers in the form that rmqpy writes, read and written directly as
text.

They are nearly all of the traffic in a busy group, so the detour through JSON values is avoided.
Writing produces the same bytes as :mod:`rmqpy.dledger.protocol.json_bodies`. Reading accepts only
this form; that module reads all others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rmqpy.codec.backend import decode_run
from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
)
from rmqpy.dledger.state import PushGrant
from rmqpy.model.ids import Term
from rmqpy.remoting.fastjson import quote

_NUMBER: Final = rb"(-?(?:0|[1-9][0-9]{0,17}))"
_SHORT: Final = rb"(-?(?:0|[1-9][0-9]{0,8}))"
_NAME: Final = rb'"([\w.:-]{0,255})"'
BATCH_HEAD: Final = b'{"batch":true,"batchEntry":['
_PUSH_REST: Final = re.compile(
    rb',"code":%b,"commitIndex":%b,"count":[0-9]+,"firstEntryIndex":[0-9]+,"group":%b,'
    rb'"lastEntryIndex":[0-9]+,"leaderId":%b,"localId":%b,"remoteId":%b,"term":%b,'
    rb'"totalSize":[0-9]+,"type":"APPEND"\}' % (_SHORT, _NUMBER, *(_NAME,) * 4, _NUMBER)
)
_ANSWER: Final = re.compile(
    rb'\{"beginIndex":%b,"code":%b,"count":%b,"endIndex":%b,"group":%b,"index":%b,"term":%b\}'
    % (_NUMBER, _SHORT, _SHORT, _NUMBER, _NAME, _NUMBER, _NUMBER)
)


def write_push(push: PushEntryRequest, entries: bytes, total_size: int) -> bytes:
    """Return the body of a push. ``entries`` is the text of its entries, ``total_size`` their size
    in bytes in a batch.
    """
    last = push.first_index + len(push.entries) - 1 if push.entries else -1
    single = b"" if push.batch or not push.entries else b'"entry":%b,' % entries
    return b"".join(
        (
            BATCH_HEAD if push.batch else b'{"batch":false,"batchEntry":[',
            entries if push.batch else b"",
            b'],"code":%d,"commitIndex":%d,"count":%d,%b"firstEntryIndex":%d,%b"lastEntryIndex":%d,'
            % (
                push.code,
                push.commit_index,
                len(push.entries),
                single,
                push.first_index,
                _named(b"group", push.group),
                last,
            ),
            _named(b"leaderId", push.leader_id),
            _named(b"localId", push.local_id),
            _named(b"remoteId", push.remote_id),
            b'"term":%d,"totalSize":%d,"type":"%b"}'
            % (push.term, total_size, push.type.value.encode()),
        )
    )


def write_run(push: PushEntryRequest, run: EntryRun) -> tuple[bytes, bytes, bytes]:
    """Return the body of a batch push in pieces. The second piece, nearly all of the body, is the
    text of ``run``, which is the same for every follower.
    """
    rest = _rest_of(push.group, push.leader_id, push.local_id, push.remote_id)
    span = run.span
    first, count = span.first_index, span.count
    last = first + count - 1
    numbers = (push.code, push.commit_index, count, first, last, push.term, span.size)
    return BATCH_HEAD, run.text, rest % numbers


@lru_cache(64)
def _rest_of(
    group: str | None, leader_id: str | None, local_id: str | None, remote_id: str | None
) -> bytes:
    """Return the text after the entries of a batch push, with placeholders for its numbers."""
    return b"".join(
        (
            b'],"code":%d,"commitIndex":%d,"count":%d,"firstEntryIndex":%d',
            _before_last_index(group).replace(b"%", b"%%"),
            b"%d",
            _before_term(leader_id, local_id, remote_id).replace(b"%", b"%%"),
            b'%d,"totalSize":%d,"type":"APPEND"}',
        )
    )


def granted_texts(grant: PushGrant) -> tuple[bytes, bytes]:
    """Return two texts of a granted push: the text between its first and last index, and the text
    between its last index and its size.
    """
    leader_id = grant.leader_id
    names = _before_term(leader_id, leader_id, grant.self_id)
    return _before_last_index(grant.group), b'%b%d,"totalSize":' % (names, grant.term)


def _before_last_index(group: str | None) -> bytes:
    return b',%b"lastEntryIndex":' % _named(b"group", group)


def _before_term(leader_id: str | None, local_id: str | None, remote_id: str | None) -> bytes:
    return b',%b%b%b"term":' % (
        _named(b"leaderId", leader_id),
        _named(b"localId", local_id),
        _named(b"remoteId", remote_id),
    )


def write_answer(answer: PushEntryResponse) -> bytes:
    """Return the body of the answer to a push."""
    index = b"" if answer.index is None else b'"index":%d,' % answer.index
    return b'{"beginIndex":%d,"code":%d,"count":%d,"endIndex":%d,%b%b%b%b%b"term":%d}' % (
        answer.begin_index,
        answer.code,
        answer.count,
        answer.end_index,
        _named(b"group", answer.group),
        index,
        _named(b"leaderId", answer.leader_id),
        _named(b"localId", answer.local_id),
        _named(b"remoteId", answer.remote_id),
        answer.term,
    )


def taken_answer(group: str, term: int) -> bytes:
    """Return the answer to a granted push of the group and term, as a ``%`` template whose values
    are the begin index of the log, the count, the end index of the log, and the first index.
    """
    name = _named(b"group", group).replace(b"%", b"%%")
    return b'{"beginIndex":%%d,"code":%d,"count":%%d,"endIndex":%%d,%b"index":%%d,"term":%d}' % (
        DLedgerResponseCode.SUCCESS,
        name,
        term,
    )


def take_run(body: bytes) -> tuple[EntryRun, int] | None:
    """Return the entries of a batch push as a run, and the position after them in ``body``.

    None means that they are not in the usual place or form.
    """
    found = decode_run(body, len(BATCH_HEAD) - 1) if body.startswith(BATCH_HEAD) else None
    if found is None:
        return None
    span, data, units, end = found
    return EntryRun(span, data, units), end


def read_push(body: bytes, run: EntryRun, end: int) -> PushEntryRequest | None:
    """Return the batch push whose entries are ``run`` and whose other members begin at ``end`` of
    ``body``; None if they are not in the usual form.
    """
    match = _PUSH_REST.fullmatch(body, end)
    if match is None:
        return None
    code, commit_index, group, leader_id, local_id, remote_id, term = match.groups()
    return PushEntryRequest(
        group=group.decode(),
        remote_id=remote_id.decode(),
        local_id=local_id.decode(),
        code=int(code),
        leader_id=leader_id.decode(),
        term=Term(int(term)),
        type=PushType.APPEND,
        commit_index=int(commit_index),
        entries=run,
        batch=True,
    )


def read_answer(body: bytes | memoryview) -> PushEntryResponse | None:
    """Return the answer to a push; None if it is not in the usual form."""
    match = _ANSWER.fullmatch(body)
    if match is None:
        return None
    begin_index, code, count, end_index, group, index, term = match.groups()
    return PushEntryResponse(
        group=group.decode(),
        code=int(code),
        term=Term(int(term)),
        index=int(index),
        count=int(count),
        begin_index=int(begin_index),
        end_index=int(end_index),
    )


def _named(name: bytes, value: str | None) -> bytes:
    return b"" if value is None else b'"%b":%b,' % (name, quote(value).encode("utf-8", "replace"))
