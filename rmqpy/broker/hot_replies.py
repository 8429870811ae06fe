"""Templates of the replies that C writes, cut from frames that Python has encoded.

A reply is encoded once with marks where its numbers stand; the pieces between the marks are what C
copies. So the order of fields, region and trace flag are Python's, in both serialize types.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.broker.hot_tables import Cdata
from rmqpy.broker.identity import Identity
from rmqpy.codec.native import ffi, lib
from rmqpy.model.codes import GetMessageStatus, ResponseCode
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import PullMessageResponseHeader, SendMessageResponseHeader

HEADER_START: Final = 8
BINARY_OPAQUE: Final = 5
BINARY_REMARK_LENGTH: Final = 13
TEMPLATE_BYTES_MAX: Final = 1024
"""Far below RMQ_REPLY_MAX, which has to hold the numbers too."""

_MARK: Final = 1_987_600_000
"""Number of a field in a template: this and the field's own, ten digits that stand nowhere else."""


@define(slots=True, frozen=True)
class _Piece:
    position: int
    length: int
    field: int


def set_reply_templates(core: Cdata, identity: Identity) -> list[Cdata] | None:
    """Fill ``core.replies``; what is returned has to be kept alive. None: a setting is so long that
    C has no room for the replies.
    """
    alive = []
    for kind, serialize_type, command in (
        (lib.RMQ_SEND_JSON, SERIALIZE_JSON, _sent),
        (lib.RMQ_SEND_BINARY, SERIALIZE_ROCKETMQ, _sent),
        (lib.RMQ_PULL_JSON, SERIALIZE_JSON, _pulled),
        (lib.RMQ_PULL_BINARY, SERIALIZE_ROCKETMQ, _pulled),
    ):
        request = RemotingCommand(0, _mark(lib.RMQ_OPAQUE), serialize_type=serialize_type)
        text = _cut(core.replies[kind], encode_command(command(request, identity)))
        if len(text) > TEMPLATE_BYTES_MAX:
            return None
        alive.append(text)
    return alive


def _sent(request: RemotingCommand, identity: Identity) -> RemotingCommand:
    header = SendMessageResponseHeader(
        msg_id=str(_mark(lib.RMQ_MSG_ID)),
        queue_id=_mark(lib.RMQ_QUEUE_NUMBER),
        queue_offset=_mark(lib.RMQ_QUEUE_START),
        trace_on=identity.broker.trace_on,
        msg_region=identity.broker.region_id,
    )
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS, header=header)


def _pulled(request: RemotingCommand, identity: Identity) -> RemotingCommand:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=MASTER_ID,
        next_begin_offset=_mark(lib.RMQ_NEXT_OFFSET),
        min_offset=_mark(lib.RMQ_LOW_OFFSET),
        max_offset=_mark(lib.RMQ_HIGH_OFFSET),
    )
    remark = GetMessageStatus.FOUND.value
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS, remark, header)


def _mark(field: int) -> int:
    return _MARK + field


def _cut(reply: Cdata, frame: bytes) -> Cdata:
    binary = frame[4] == SERIALIZE_ROCKETMQ
    header = frame[HEADER_START:]
    pieces = sorted(_pieces(header, binary), key=lambda piece: piece.position)
    text = b""
    end = 0
    for number, piece in enumerate(pieces):
        text += header[end : piece.position]
        end = piece.position + piece.length
        reply.ends[number] = len(text)
        reply.field[number] = piece.field
    text += header[end:]
    reply.field_count = len(pieces)
    reply.text_length = len(text)
    reply.binary = binary
    if binary:
        remark = int.from_bytes(header[BINARY_REMARK_LENGTH : BINARY_REMARK_LENGTH + 4])
        reply.ext_length_at = BINARY_REMARK_LENGTH + 4 + remark
    kept = ffi.from_buffer("uint8_t[]", text)
    reply.text = kept
    return kept


def _pieces(header: bytes, binary: bool) -> list[_Piece]:
    found = []
    for field in range(lib.RMQ_HIGH_OFFSET + 1):
        if binary and field == lib.RMQ_OPAQUE:
            found.append(_Piece(BINARY_OPAQUE, 4, field))
            continue
        mark = str(_mark(field)).encode()
        position = header.find(mark)
        if position >= 0:
            prefix = 4 if binary else 0
            found.append(_Piece(position - prefix, prefix + len(mark), field))
    return found
