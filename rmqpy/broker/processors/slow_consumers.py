"""Groups that read too slowly lose the right to consume (``disableConsumeIfConsumerReadSlowly``).

Each ``PERIOD_MS`` a master looks at the last read of every group in every queue since it looked
before: where the message that was read last stood more than ``consumerFallbehindThreshold`` bytes
in front of the end of the log, ``consumeEnable`` of the group becomes false. The next pull is
refused (code 16) until an administrator enables the group again.

What a group has read to the end counts for nothing, nor do old reads: where Java keeps the last
distance for good, and takes the right away again from a group that was just given it back.

Invariant: at most ``QUEUES_MAX`` reads are remembered.
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
    """See the module's text. The hot path leaves all pulls to Python while the setting is on."""

    identity: BrokerContext
    groups: SubscriptionGroupTable
    _behind: dict[tuple[str, str, int], int] = field(factory=dict, init=False)

    def record_lag(self, group: str, topic: str, queue_id: int, behind_bytes: int) -> None:
        """The last message of a read stood so far in front of the end of the log."""
        identity = self.identity
        if not identity.broker_settings.disable_consume_if_consumer_read_slowly:
            return
        place = (group, topic, queue_id)
        has_room = place in self._behind or len(self._behind) < QUEUES_MAX
        if identity.store.disk_fall_recorded and has_room:
            self._behind[place] = behind_bytes

    def check(self) -> None:
        """Take the right from who is too slow."""
        behind, self._behind = self._behind, {}
        broker = self.identity.broker_settings
        if not broker.disable_consume_if_consumer_read_slowly or self.identity.is_slave:
            return
        for (name, topic, queue_id), behind_bytes in behind.items():
            group = self.groups.get(name)
            too_far = behind_bytes > broker.consumer_fallbehind_threshold
            if too_far and group is not None and group.consume_enable:
                logger.warning(
                    "group %s may not consume any more: in queue %d of %s it reads %d bytes"
                    " behind the end of the log (consumerFallbehindThreshold)",
                    name,
                    queue_id,
                    topic,
                    behind_bytes,
                )
                self.groups.put(evolve(group, consume_enable=False))
