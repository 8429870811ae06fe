"""Cleaning in a broker: rounds on an interval, their steps one after the other, and the requests
that trigger it: 306, 316 and 329.

If a round is still in progress when the next one is due, the next one is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, StoreAdmin
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model import names
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.retention import CleaningPause, Round

logger = logging.getLogger(__name__)


class StoreCleaning:
    """The rounds of cleaning, and the requests that trigger it."""

    def __init__(
        self,
        identity: BrokerContext,
        store: StoreAdmin,
        topics: TopicTable,
        scheduler: Scheduler,
        flush_queues: Callable[[], None],
    ) -> None:
        """Store the parts that a round uses; ``flush_queues`` starts a flush of
        the consume queues.
        """
        self._identity = identity
        self._store = store
        self._topics = topics
        self._scheduler = scheduler
        self._flush_queues = flush_queues
        self._round: Round | None = None
        self._timer: Timer | None = None
        self._reported: str | None = None

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.delete_expired_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.delete_unused_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_files,
        }

    def begin(self) -> None:
        """Start a round, unless one is in progress."""
        if self._round is None:
            settings = self._identity.store
            self._round = self._store.retention.round(settings, self._scheduler.now_ms())
            self._continue(None)

    def stop(self) -> None:
        """Start no further step."""
        self._round = None
        if self._timer is not None:
            self._timer.cancel()

    def delete_expired_queues(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        count = self._store.delete_expired_queues()
        logger.info("deleted %d consume queues without a message in the log", count)
        return RemotingCommand.response_to(request)

    def delete_unused_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Delete the consume queues of topics that are not configured.

        Those of system topics stay, above all half messages: open transactions have no other copy.
        (Java spares two of them by name, and has the others in its topic table once it has checked
        transactions.) So do those of retry and dead letter topics that contain messages.
        """
        queues: dict[str, int] = {}
        for (topic, _), queue in self._store.queues.items():
            count = queue.max_offset - queue.min_offset
            queues[topic] = queues.get(topic, 0) + count
        for topic, count in queues.items():
            if self._topics.get(topic) is None and not self._is_kept(topic, count):
                self._store.delete_topic_queues(topic)
                logger.info(
                    "deleted the consume queues of topic %s, which is not configured", topic
                )
        return RemotingCommand.response_to(request)

    def _is_kept(self, topic: str, message_count: int) -> bool:
        of_group = names.is_retry_topic(topic) or names.is_dlq_topic(topic)
        return self._topics.is_system(topic) or (of_group and message_count > 0)

    def delete_expired_files(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self._store.retention.delete_manually()
        return RemotingCommand.response_to(request)

    def _continue(self, error: BaseException | None) -> None:
        """Run the next step of the round; ``error`` is the failure of the last one."""
        self._timer = None
        if self._round is None:
            return
        try:
            step = self._round.send(error)
        except StopIteration:
            self._round = None
            self._report()
            if self._store.retention.take_flush_request():
                self._flush_queues()
            return
        except BaseException:
            self._round = None
            raise
        if isinstance(step, CleaningPause):
            self._timer = self._scheduler.call_later(step.delay_ms, lambda: self._continue(None))
        else:
            self._scheduler.run_blocking(step.run, lambda _none, failed: self._continue(failed))

    def _report(self) -> None:
        failure = self._store.retention.failure
        if failure is not None and failure != self._reported:
            logger.error("cleaning makes no progress: %s", failure)
        self._reported = failure
