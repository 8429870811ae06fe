"""Delivering dead letters again, to the group that could not consume them and to no other.

A dead letter is sent to the retry topic of its group, where redeliveries wait as well. It keeps the
topic, keys, and ids that it had, and its redeliveries are counted from 0. The dead letter itself
stays where it is until it expires.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.admin.api import Admin
from rmqpy.client.core.message import MessageExt, host_address
from rmqpy.codec import properties as names
from rmqpy.codec.properties import encode_properties
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError
from rmqpy.model.names import dlq_topic, retry_topic
from rmqpy.remoting.headers import SendMessageRequestHeaderV2

__all__ = ["Resent", "resend_dead_letter"]

PRODUCER_GROUP: Final = "ReSendMsgById"
"""The group of mqadmin's resent messages."""
DROPPED: Final = (
    names.PROPERTY_DELAY,
    names.PROPERTY_REAL_TOPIC,
    names.PROPERTY_REAL_QUEUE_ID,
    names.PROPERTY_RECONSUME_TIME,
    names.PROPERTY_MAX_RECONSUME_TIMES,
    names.PROPERTY_TRANSACTION_PREPARED,
)
"""Properties of the way to the dead letters, which do not belong to the message."""


@define(slots=True, frozen=True, kw_only=True)
class Resent:
    """A dead letter that was sent again, and the id of the copy."""

    offset_msg_id: str
    copy_id: str


async def resend_dead_letter(admin: Admin, group: str, message: MessageExt) -> Resent:
    """Send a dead letter of ``group`` again, through the broker that stores it.

    Raise RmqError if it is none of this group, and RequestRejectedError if the broker refuses it.
    """
    if message.topic != dlq_topic(group):
        raise RmqError(
            f"found a message of {message.topic}, expected a dead letter of {group}"
            f" ({dlq_topic(group)})"
        )
    properties = {key: value for key, value in message.properties.items() if key not in DROPPED}
    properties.setdefault(names.PROPERTY_ORIGIN_MESSAGE_ID, message.offset_msg_id)
    stored = message.stored
    header = SendMessageRequestHeaderV2(
        producer_group=PRODUCER_GROUP,
        topic=retry_topic(group),
        default_topic=retry_topic(group),
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=stored.sys_flag,
        born_timestamp=admin.instance.clock.now_ms(),
        flag=stored.flag,
        properties=encode_properties(properties).decode(),
        reconsume_times=0,
    )
    address = host_address(stored.store_host)
    answer = await admin.call(address, RequestCode.SEND_MESSAGE_V2, header, stored.body)
    return Resent(
        offset_msg_id=message.offset_msg_id, copy_id=(answer.ext_fields or {}).get("msgId", "")
    )
