"""The settings of a push consumer."""

from __future__ import annotations

from pathlib import Path

from attrs import define, field

from rmqpy.client.consuming.consume_service import ConsumeSettings
from rmqpy.client.consuming.rebalance import Strategy, allocate_averagely
from rmqpy.client.core.base_consumer import PullSettings
from rmqpy.model.errors import ConfigError
from rmqpy.remoting.bodies import (
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
)

FROM_WHERE = (CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_TIMESTAMP)


@define(frozen=True, kw_only=True)
class PushSettings:
    """The settings of a push consumer; the defaults are those of Java's DefaultMQPushConsumer.

    * ``ordered``: whether each queue is consumed in order, one batch at a time (Java:
      MessageListenerOrderly); otherwise ``parallel`` batches run at once.
    * ``broadcasting``: whether every member receives every message (Java:
      MessageModel.BROADCASTING).
    * ``from_where``: where a group without a committed offset starts: CONSUME_FROM_LAST_OFFSET,
      CONSUME_FROM_FIRST_OFFSET, or CONSUME_FROM_TIMESTAMP with ``from_timestamp_ms`` (ms since
      1970).
    * ``parallel``: listener calls that may run at once (Java: consumeThreadMax).
    * ``held_messages_max``, ``held_bytes_max``: how many messages, and bytes of bodies, all queues
      together hold in memory; beyond it only queues pull that hold none. None is no limit (Java:
      pullThresholdForTopic, pullThresholdSizeForTopic). ``consuming.limits`` are those of a queue.
    * ``max_reconsume_times``: deliveries after the first; None is 16, or no limit when ordered.
    * ``rebalance_ms``, ``persist_ms``, ``lock_ms``: the periods of the module's table.
    * ``strategy``: how queues are shared (:mod:`rmqpy.client.consuming.rebalance`; Java:
      AllocateMessageQueueStrategy).
    * ``trace_topic``: the topic that receives the message trace (:mod:`rmqpy.client.trace`); None
      writes no trace.
    * ``offset_directory``: where a broadcasting consumer keeps its offsets.
    * ``consuming``, ``pulling``: the settings of the delivery to the listener, and of pulls.
    """

    ordered: bool = False
    broadcasting: bool = False
    from_where: str = CONSUME_FROM_LAST_OFFSET
    from_timestamp_ms: int = 0
    parallel: int = 20
    held_messages_max: int | None = None
    held_bytes_max: int | None = None
    max_reconsume_times: int | None = None
    rebalance_ms: int = 20_000
    persist_ms: int = 5_000
    lock_ms: int = 20_000
    strategy: Strategy = allocate_averagely
    trace_topic: str | None = None
    offset_directory: Path = field(factory=lambda: Path.home() / ".rocketmq_offsets")
    consuming: ConsumeSettings = field(factory=ConsumeSettings)
    pulling: PullSettings = field(factory=PullSettings)

    def __attrs_post_init__(self) -> None:
        if self.from_where not in FROM_WHERE:
            expected = ", ".join(FROM_WHERE)
            raise ConfigError(f"from_where: found {self.from_where!r}, expected {expected}")
        if self.parallel < 1:
            raise ConfigError(f"parallel: found {self.parallel}, expected 1 or more")
