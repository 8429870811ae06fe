"""The response code and remark of each put status, in one table."""

from __future__ import annotations

from typing import Final

from rmqpy.model.codes import PutMessageStatus, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.values import define


@define(slots=True, frozen=True)
class PutResponse:
    """The response to a put. ``stored`` means that the message is in the log, and the reply
    contains its offset.
    """

    code: ResponseCode
    remark: str | None = None
    stored: bool = False


_ILLEGAL: Final = PutResponse(
    ResponseCode.MESSAGE_ILLEGAL,
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit %dB, msg properties length limit 32KB.",
)

_ANSWERS: Final[dict[PutMessageStatus, PutResponse]] = {
    PutMessageStatus.PUT_OK: PutResponse(ResponseCode.SUCCESS, stored=True),
    PutMessageStatus.FLUSH_DISK_TIMEOUT: PutResponse(ResponseCode.FLUSH_DISK_TIMEOUT, stored=True),
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: PutResponse(
        ResponseCode.FLUSH_SLAVE_TIMEOUT, stored=True
    ),
    PutMessageStatus.SLAVE_NOT_AVAILABLE: PutResponse(
        ResponseCode.SLAVE_NOT_AVAILABLE, stored=True
    ),
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: PutResponse(
        ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"
    ),
    PutMessageStatus.SERVICE_NOT_AVAILABLE: PutResponse(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now. It may be caused by one of the following reasons: "
        "the broker's disk is full, messages are put to the slave, message store has been "
        "shut down, etc.",
    ),
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: PutResponse(
        ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken."
    ),
    PutMessageStatus.MESSAGE_ILLEGAL: _ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: _ILLEGAL,
    PutMessageStatus.OS_PAGECACHE_BUSY: PutResponse(
        ResponseCode.SYSTEM_ERROR, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    ),
    PutMessageStatus.UNKNOWN_ERROR: PutResponse(ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"),
}


def response_for(status: PutMessageStatus) -> PutResponse:
    """Return the response to a put with this status."""
    return _ANSWERS[status]


def remark_of(status: PutMessageStatus, max_message_size: int) -> str | None:
    """Return the remark, which may contain the broker's ``max_message_size`` in bytes."""
    remark = _ANSWERS[status].remark
    return remark % max_message_size if remark is not None and "%d" in remark else remark


def refusal_of(status: PutMessageStatus, max_message_size: int) -> RequestRejectedError:
    """Return the error that answers a message which was not stored."""
    remark = remark_of(status, max_message_size)
    return RequestRejectedError(response_for(status).code, remark or status.value)
