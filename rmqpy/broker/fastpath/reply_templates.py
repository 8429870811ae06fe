"""Templates of the replies of the fast path, cut from encoded frames.

A reply is encoded once with marks in place of its numbers; the C core copies the pieces between the
marks. The order of the fields, the region and the trace flag are therefore those of the encoder, in
both serialize types.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.fastpath.tables import Cdata
from rmqpy.broker.processors.query import NOTHING_FOUND
from rmqpy.codec.native.binding import ffi, lib
from rmqpy.model.codes import GetMessageStatus, ResponseCode
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.values import define
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.frame import LENGTH_BYTES, WORD_BYTES, encode_command
from rmqpy.remoting.headers import (
    GetMaxOffsetResponseHeader,
    PullMessageResponseHeader,
    QueryMessageResponseHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetResponseHeader,
)

HEADER_START: Final = LENGTH_BYTES + WORD_BYTES
BINARY_OPAQUE: Final = 5
BINARY_REMARK_LENGTH: Final = 13
TEMPLATE_BYTES_MAX: Final = 1024
"""The limit on the text of a template, far below RMQ_REPLY_MAX, which includes the numbers."""

_MARK: Final = 1_987_600_000
"""The mark of a field is this plus the number of the field: ten digits that occur nowhere else."""


class ReplyField(IntEnum):
    """The fields that differ from reply to reply."""

    OPAQUE = 0
    MSG_ID = 1
    QUEUE_NUMBER = 2
    QUEUE_START = 3
    NEXT_OFFSET = 4
    LOW_OFFSET = 5
    HIGH_OFFSET = 6
    INDEX_TIME = 7
    INDEX_OFFSET = 8


for _field in ReplyField:
    assert getattr(lib, f"RMQ_{_field.name}") == _field, _field


@define(slots=True, frozen=True)
class ReplyTemplate:
    """The header of a reply: ``literals[0] fields[0] literals[1] ... literals[-1]``. In a ROCKETMQ
    header each field is preceded by its length, and the opaque is 4 bytes long.
    """

    literals: tuple[bytes, ...]
    fields: tuple[ReplyField, ...]
    binary: bool


def set_reply_templates(core: Cdata, identity: BrokerContext) -> list[Cdata] | None:
    """Fill ``core.replies`` and return the buffers that must be kept alive, or None if a setting is
    so long that the replies exceed C's buffers.
    """
    alive = []
    for kind, template in (
        (lib.RMQ_SEND_JSON, _send_template(identity, SERIALIZE_JSON)),
        (lib.RMQ_SEND_BINARY, _send_template(identity, SERIALIZE_ROCKETMQ)),
        *_plain_templates(lib.RMQ_COPY_JSON, None),
        *_plain_templates(
            lib.RMQ_OFFSET_JSON, GetMaxOffsetResponseHeader(offset=_mark(ReplyField.NEXT_OFFSET))
        ),
        *_plain_templates(lib.RMQ_COMMIT_JSON, UpdateConsumerOffsetResponseHeader()),
        *_pull_templates(lib.RMQ_PULL_JSON, ResponseCode.SUCCESS, GetMessageStatus.FOUND),
        *_pull_templates(
            lib.RMQ_MISS_JSON,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            GetMessageStatus.NO_MATCHED_MESSAGE,
        ),
        *_pull_templates(
            lib.RMQ_END_JSON, ResponseCode.PULL_NOT_FOUND, GetMessageStatus.OFFSET_OVERFLOW_ONE
        ),
        *_plain_templates(
            lib.RMQ_KEY_JSON,
            QueryMessageResponseHeader(
                index_last_update_timestamp=_mark(ReplyField.INDEX_TIME),
                index_last_update_phyoffset=_mark(ReplyField.INDEX_OFFSET),
            ),
        ),
        *_plain_templates(
            lib.RMQ_NO_KEY_JSON,
            QueryMessageResponseHeader(
                index_last_update_timestamp=0, index_last_update_phyoffset=0
            ),
            ResponseCode.QUERY_NOT_FOUND,
            NOTHING_FOUND,
        ),
    ):
        text = b"".join(template.literals)
        if len(text) > TEMPLATE_BYTES_MAX:
            return None
        alive.append(_fill(core.replies[kind], template, text))
    return alive


def _send_template(identity: BrokerContext, serialize_type: int) -> ReplyTemplate:
    """Return the template of the reply to a stored message."""
    header = SendMessageResponseHeader(
        msg_id=str(_mark(ReplyField.MSG_ID)),
        queue_id=_mark(ReplyField.QUEUE_NUMBER),
        queue_offset=_mark(ReplyField.QUEUE_START),
        trace_on=identity.broker_settings.trace_on,
        msg_region=identity.broker_settings.region_id,
    )
    return _cut(
        RemotingCommand.response_to(_request(serialize_type), ResponseCode.SUCCESS, header=header)
    )


def _plain_templates(
    json_kind: int,
    header: CommandHeader | None,
    code: ResponseCode = ResponseCode.SUCCESS,
    remark: str | None = None,
) -> tuple[tuple[int, ReplyTemplate], tuple[int, ReplyTemplate]]:
    """Return the templates of a reply, by their numbers in ``core.replies``."""
    json, binary = (
        _cut(RemotingCommand.response_to(_request(serialize_type), code, remark, header))
        for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ)
    )
    return (json_kind, json), (json_kind + 1, binary)


def _pull_templates(
    json_kind: int, code: ResponseCode, status: GetMessageStatus
) -> tuple[tuple[int, ReplyTemplate], tuple[int, ReplyTemplate]]:
    """Return the templates of a reply to a pull, by their numbers in ``core.replies``."""
    return (
        (json_kind, _pull_template(SERIALIZE_JSON, code, status)),
        (json_kind + 1, _pull_template(SERIALIZE_ROCKETMQ, code, status)),
    )


def _pull_template(
    serialize_type: int, code: ResponseCode, status: GetMessageStatus
) -> ReplyTemplate:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=MASTER_ID,
        next_begin_offset=_mark(ReplyField.NEXT_OFFSET),
        min_offset=_mark(ReplyField.LOW_OFFSET),
        max_offset=_mark(ReplyField.HIGH_OFFSET),
    )
    return _cut(RemotingCommand.response_to(_request(serialize_type), code, status.value, header))


def _request(serialize_type: int) -> RemotingCommand:
    return RemotingCommand(0, _mark(ReplyField.OPAQUE), serialize_type=serialize_type)


def _mark(field: int) -> int:
    return _MARK + field


def _cut(reply: RemotingCommand) -> ReplyTemplate:
    header = encode_command(reply)[HEADER_START:]
    binary = reply.serialize_type == SERIALIZE_ROCKETMQ
    marks = sorted(_find_marks(header, binary))
    literals = []
    end = 0
    for start, length, _ in marks:
        literals.append(header[end:start])
        end = start + length
    literals.append(header[end:])
    return ReplyTemplate(tuple(literals), tuple(field for _, _, field in marks), binary)


def _find_marks(header: bytes, binary: bool) -> list[tuple[int, int, ReplyField]]:
    """Return the position, length and field of each mark in an encoded header."""
    found: list[tuple[int, int, ReplyField]] = []
    for field in ReplyField:
        if binary and field is ReplyField.OPAQUE:
            found.append((BINARY_OPAQUE, 4, field))
            continue
        mark = str(_mark(field)).encode()
        position = header.find(mark)
        if position >= 0:
            prefix = 4 if binary else 0
            found.append((position - prefix, prefix + len(mark), field))
    return found


def _fill(reply: Cdata, template: ReplyTemplate, text: bytes) -> Cdata:
    end = 0
    for number, field in enumerate(template.fields):
        end += len(template.literals[number])
        reply.ends[number] = end
        reply.field[number] = field
    reply.field_count = len(template.fields)
    reply.text_length = len(text)
    reply.binary = template.binary
    if template.binary:
        # Up to the end of the remark, positions are those in the whole header minus the opaque.
        remark_at = BINARY_REMARK_LENGTH
        remark = int.from_bytes(text[remark_at - 4 : remark_at])
        reply.ext_length_at = remark_at + 4 + remark
    kept = ffi.from_buffer("uint8_t[]", text)
    reply.text = kept
    return kept
