"""Disabling of groups that read too slowly (``disableConsumeIfConsumerReadSlowly``).

Each ``PERIOD_MS`` a master checks the last read of every group in every queue since the previous
check. If the last message read was more than ``consumerFallbehindThreshold`` bytes before the end
of the log, ``consumeEnable`` of the group becomes false. The next pull is refused (code 16) until
an administrator enables the group again.

Queues that a group has read to the end do not count, nor do reads before the previous check. Java
keeps the last distance forever, and disables again a group that has just been enabled.

Invariant: at most ``QUEUES_MAX`` reads are recorded.
"""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, evolve, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable

PERIOD_MS: Final = 180_000
QUEUES_MAX: Final = 20_000

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class SlowConsumerGuard:
    """The check for groups that read too slowly. While it is enabled, the fast path leaves all
    pulls to Python.
    """

    identity: BrokerContext
    groups: SubscriptionGroupTable
    _behind: dict[tuple[str, str, int], int] = field(factory=dict, init=False)

    def record_lag(self, group: str, topic: str, queue_id: int, behind_bytes: int) -> None:
        """Record by how many bytes the last message of a read was before the end of the log."""
        place = (group, topic, queue_id)
        has_room = place in self._behind or len(self._behind) < QUEUES_MAX
        if self.identity.store.disk_fall_recorded and has_room:
            self._behind[place] = behind_bytes

    def check(self) -> None:
        """Disable the groups that are too slow."""
        behind, self._behind = self._behind, {}
        broker = self.identity.broker_settings
        if not broker.disable_consume_if_consumer_read_slowly or self.identity.is_slave:
            return
        for (name, topic, queue_id), behind_bytes in behind.items():
            group = self.groups.get(name)
            too_far = behind_bytes > broker.consumer_fallbehind_threshold
            if too_far and group is not None and group.consume_enable:
                logger.warning(
                    "group %s may no longer consume: in queue %d of %s it reads %d bytes before the"
                    " end of the log (consumerFallbehindThreshold); set consumeEnable to allow it",
                    name,
                    queue_id,
                    topic,
                    behind_bytes,
                )
                self.groups.put(evolve(group, consume_enable=False))
