"""Templates of replies to sends and pulls, cut from frames that the encoder has made.

A reply is encoded once with marks where its numbers stand; the pieces between the marks are what
the hot path copies. So the order of fields, region and trace flag are the encoder's, in both
serialize types.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.model.codes import GetMessageStatus, ResponseCode
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.command import SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, WORD_BYTES, encode_command
from rmqpy.remoting.headers import PullMessageResponseHeader, SendMessageResponseHeader

HEADER_START: Final = LENGTH_BYTES + WORD_BYTES
BINARY_OPAQUE: Final = 5
BINARY_REMARK_LENGTH: Final = 13

_MARK: Final = 1_987_600_000
"""Number of a field in a template: this and the field's own, ten digits that stand nowhere else."""


class ReplyField(IntEnum):
    """What differs from reply to reply."""

    OPAQUE = 0
    MSG_ID = 1
    QUEUE_NUMBER = 2
    QUEUE_START = 3
    NEXT_OFFSET = 4
    LOW_OFFSET = 5
    HIGH_OFFSET = 6


@define(slots=True, frozen=True)
class ReplyTemplate:
    """The header of a reply: ``literals[0] fields[0] literals[1] ... literals[-1]``. In a ROCKETMQ
    header a field's length stands in front of it; the opaque is 4 bytes.
    """

    literals: tuple[bytes, ...]
    fields: tuple[ReplyField, ...]
    binary: bool


def send_template(identity: BrokerContext, serialize_type: int) -> ReplyTemplate:
    """The reply to a stored message."""
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


def pull_template(serialize_type: int) -> ReplyTemplate:
    """The reply to a pull that found messages."""
    header = PullMessageResponseHeader(
        suggest_which_broker_id=MASTER_ID,
        next_begin_offset=_mark(ReplyField.NEXT_OFFSET),
        min_offset=_mark(ReplyField.LOW_OFFSET),
        max_offset=_mark(ReplyField.HIGH_OFFSET),
    )
    remark = GetMessageStatus.FOUND.value
    return _cut(
        RemotingCommand.response_to(_request(serialize_type), ResponseCode.SUCCESS, remark, header)
    )


def _request(serialize_type: int) -> RemotingCommand:
    return RemotingCommand(0, _mark(ReplyField.OPAQUE), serialize_type=serialize_type)


def _mark(field: int) -> int:
    return _MARK + field


def _cut(reply: RemotingCommand) -> ReplyTemplate:
    header = encode_command(reply)[HEADER_START:]
    binary = reply.serialize_type == SERIALIZE_ROCKETMQ
    places = sorted(_places(header, binary))
    literals = []
    end = 0
    for start, length, _ in places:
        literals.append(header[end:start])
        end = start + length
    literals.append(header[end:])
    return ReplyTemplate(tuple(literals), tuple(field for _, _, field in places), binary)


def _places(header: bytes, binary: bool) -> list[tuple[int, int, ReplyField]]:
    """Position, length and field of each mark."""
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
