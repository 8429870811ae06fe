"""The locks with which brokers reserve queues for one member of a group, for ordered consumption.

A lock (``LOCK_BATCH_MQ``; Java: ``RebalanceLockManager``) expires a minute after it was last
requested; a client that keeps a queue renews it in time.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from attrs import define

from rmqpy.client.core.instance import ClientInstance
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
)

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class QueueLocks:
    """The locks of a group's queues. ``instance`` returns the open client, or raises NetworkError
    if there is none.
    """

    group: str
    instance: Callable[[], ClientInstance]

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Lock ``queues`` for this client, and return those whose lock was granted or renewed."""
        instance = self.instance()
        granted: set[MessageQueue] = set()
        for name, requested in _by_broker(queues).items():
            body = LockBatchRequestBody(self.group, instance.client_id, requested)
            try:
                address = await instance.address(requested[0].topic, name)
                response = await instance.invoke(
                    address, RequestCode.LOCK_BATCH_MQ, body=body.encode()
                )
            except NetworkError as fault:
                logger.warning("broker %s granted no queue locks; retrying: %s", name, fault)
                continue
            if response.code == ResponseCode.SUCCESS:
                granted.update(LockBatchResponseBody.decode(response.body).lock_ok_mq_set)
            else:
                logger.warning("broker %s refused queue locks: %s", name, response.remark)
        return granted.intersection(queues)

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Release the locks of ``queues``, so that another member can lock them at once."""
        instance = self.instance()
        for name, locked in _by_broker(queues).items():
            body = UnlockBatchRequestBody(self.group, instance.client_id, locked)
            try:
                address = await instance.address(locked[0].topic, name)
                await instance.invoke(address, RequestCode.UNLOCK_BATCH_MQ, body=body.encode())
            except NetworkError as fault:
                logger.warning(
                    "unlocking failed; broker %s keeps the queue locks for up to a minute: %s",
                    name,
                    fault,
                )


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        found[queue.broker_name].append(queue)
    return found
