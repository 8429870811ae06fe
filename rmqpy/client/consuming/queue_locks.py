"""Queues that brokers reserve for one member of a group, so that it consumes them in order.

A reservation (``LOCK_BATCH_MQ``; Java: ``RebalanceLockManager``) ends by itself a minute after it
was last asked for; whoever keeps a queue asks again in time.
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
    """``instance`` gives the open client; it raises while there is none."""

    group: str
    instance: Callable[[], ClientInstance]

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Those of ``queues`` that their brokers reserve for this client, or go on to."""
        instance = self.instance()
        granted: set[MessageQueue] = set()
        for name, wanted in _by_broker(queues).items():
            wish = LockBatchRequestBody(self.group, instance.client_id, wanted)
            try:
                address = await instance.address(wanted[0].topic, name)
                response = await instance.invoke(
                    address, RequestCode.LOCK_BATCH_MQ, body=wish.encode()
                )
            except NetworkError as fault:
                logger.warning("no locks from %s: %s", name, fault)
                continue
            if response.code == ResponseCode.SUCCESS:
                granted.update(LockBatchResponseBody.decode(response.body).lock_ok_mq_set)
            else:
                logger.warning("no locks from %s: %s", name, response.remark)
        return granted.intersection(queues)

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Let another member have ``queues`` at once."""
        instance = self.instance()
        for name, held in _by_broker(queues).items():
            wish = UnlockBatchRequestBody(self.group, instance.client_id, held)
            try:
                address = await instance.address(held[0].topic, name)
                await instance.invoke(address, RequestCode.UNLOCK_BATCH_MQ, body=wish.encode())
            except NetworkError as fault:
                logger.warning("%s keeps locks for up to a minute: %s", name, fault)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        found[queue.broker_name].append(queue)
    return found
