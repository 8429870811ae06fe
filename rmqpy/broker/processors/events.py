"""Messages that the broker itself writes: OFFSET_MOVED_EVENT."""

from __future__ import annotations

import logging

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.message_copy import encode_java_properties
from rmqpy.broker.processors.pull import OffsetMoved
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.codec.properties import PROPERTY_DELAY, PROPERTY_KEYS, PROPERTY_TAGS
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.bodies import MessageQueue, OffsetMovedEvent

IPV6_BYTES = 16

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, eq=False, repr=False)
class OffsetMovedEvents:
    """Records that a consumer requested an offset which its queue does not have."""

    identity: BrokerContext
    messages: InternalMessageWriter
    clock: Clock

    def write(self, moved: OffsetMoved) -> None:
        body = OffsetMovedEvent(
            consumer_group=moved.group,
            message_queue=MessageQueue(moved.topic, self.identity.name, moved.queue_id),
            offset_request=moved.requested,
            offset_new=moved.new,
        ).encode()
        host = self.identity.store_host
        draft = OutgoingMessage(
            topic=names.OFFSET_MOVED_EVENT_TOPIC.encode(),
            queue_id=0,
            body=body,
            properties=encode_java_properties(
                {PROPERTY_TAGS: moved.group, PROPERTY_KEYS: moved.group, PROPERTY_DELAY: "0"}
            ),
            sys_flag=BORN_HOST_V6 | STORE_HOST_V6 if len(host[0]) == IPV6_BYTES else 0,
            born_timestamp_ms=self.clock.now_ms(),
            born_host=host,
            store_host=host,
            wait_store_ok=False,
        )

        def done(status: PutMessageStatus) -> None:
            if status is not PutMessageStatus.PUT_OK:
                logger.warning("the event %s was not stored: %s", moved, status.value)

        if self.messages.has_room:
            self.messages.submit([draft], done)
