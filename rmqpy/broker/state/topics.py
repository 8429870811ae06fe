"""The topic table: which topics exist and which ones clients may create, ``config/topics.json``.

A topic exists if it has an entry here; its queues in the store are created by the first messages.
System topics are created at each start. An unknown topic of a send is created from a template that
the producer names (``TBW102``), if the template may be inherited; the topic of a consumer group
(``%RETRY%group``) is created with the number of queues that the group specifies.

Invariants: every name in the table obeys the rule of :mod:`rmqpy.model.names`; every change gives a
new data version and is passed to the listener; clients cannot create more than
``CREATED_TOPICS_LIMIT`` topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from attrs import evolve, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.encoded_rows import EncodedRows
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE
from rmqpy.model.recent_changes import RecentChanges
from rmqpy.model.steps import Steps, finish
from rmqpy.model.values import define
from rmqpy.remoting.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rmqpy.remoting.fastjson import dumps_member, dumps_with_rows

READ_WRITE: Final = PERM_READ | PERM_WRITE
INHERITED: Final = READ_WRITE | PERM_INHERIT

BENCHMARK_QUEUES: Final = 1024
CLUSTER_QUEUES: Final = 16
SCHEDULE_QUEUES: Final = 18
DLQ_QUEUES: Final = 1

CREATED_TOPICS_LIMIT: Final = 10_000
"""The limit on topics that sends and heartbeats create; an administrator may create more."""
QUEUES_LIMIT: Final = 65_536
"""The maximum number of queues of a topic."""

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True)
class NewTopic:
    """The fields of a send from which a topic that does not exist is created."""

    topic: str
    pattern: str
    queue_nums: int
    sys_flag: int = 0


@define(slots=True, eq=False, repr=False)
class TopicTable:
    """The topics by name."""

    identity: BrokerContext
    clock: Clock
    data_version: DataVersion = field(init=False)
    changes: RecentChanges = field(factory=RecentChanges, init=False)
    _topics: dict[str, TopicConfig] = field(factory=dict, init=False)
    _system: set[str] = field(factory=set, init=False)
    _rows: EncodedRows = field(init=False)
    _on_change: Callable[[TopicConfig | None], None] = field(
        default=lambda _topic: None, init=False
    )

    def subscribe(self, listener: Callable[[TopicConfig | None], None]) -> None:
        """Call ``listener`` with each changed topic, or with None when several changed."""
        self._on_change = listener

    def __attrs_post_init__(self) -> None:
        self.data_version = DataVersion(self.clock.now_ms())
        for topic in self._system_topics():
            self._system.add(topic.topic_name)
            self._topics[topic.topic_name] = topic
        self._rows = EncodedRows(self._row)
        self._rows.reset(self._topics)

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """All topics by name; not to be changed."""
        return self._topics

    @property
    def system_topics(self) -> Collection[str]:
        return self._system

    def is_system(self, topic: str) -> bool:
        return topic in self._system or names.is_system_topic(topic)

    def create_for_send(self, new: NewTopic) -> TopicConfig | None:
        """Return the topic created from its template, or None if that is not allowed."""
        pattern = self._topics.get(new.pattern)
        if pattern is None:
            logger.warning(
                "topic %s not created: template %s does not exist", new.topic, new.pattern
            )
            return None
        perm = pattern.perm
        if (
            new.pattern == names.AUTO_CREATE_TOPIC
            and not self.identity.broker_settings.auto_create_topic_enable
        ):
            perm = READ_WRITE
        if not perm & PERM_INHERIT:
            logger.warning(
                "topic %s not created: template %s is not inheritable", new.topic, new.pattern
            )
            return None
        queue_nums = max(0, min(new.queue_nums, pattern.write_queue_nums))
        return self._create(
            evolve(
                pattern,
                topic_name=new.topic,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                perm=perm & ~PERM_INHERIT,
                topic_sys_flag=new.sys_flag,
                order=False,
            )
        )

    def create_for_group(
        self, topic: str, queue_nums: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Return the retry or dead letter topic of a group, or a system topic that is created on
        demand; an existing topic is returned as it is.
        """
        return self._topics.get(topic) or self._create(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                perm=READ_WRITE,
                topic_sys_flag=sys_flag,
            )
        )

    def put(self, topic: TopicConfig) -> None:
        """Create or replace a topic for an administrator. Raises RequestRejectedError if its name
        is invalid.
        """
        names.check_topic(topic.topic_name)
        self._topics[topic.topic_name] = topic
        self._changed(topic.topic_name, topic)

    def delete(self, topic: str) -> bool:
        """Remove a topic and return whether it existed; the store removes its queues."""
        if self._topics.pop(topic, None) is None:
            return False
        self._changed(topic, None)
        return True

    def set_ordered(self, ordered: Collection[str]) -> None:
        """Set the topics that the name servers report as ordered; all others are not ordered."""
        changed = [
            topic for name, topic in self._topics.items() if topic.order != (name in ordered)
        ]
        for topic in changed:
            self._topics[topic.topic_name] = evolve(topic, order=not topic.order)
            self._note(topic.topic_name)
        if changed:
            self._new_version(None)

    def is_ordered(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.order

    def wrapper(self) -> TopicConfigSerializeWrapper:
        """Return the table as it is registered and sent to slaves."""
        return TopicConfigSerializeWrapper(
            data_version=self.data_version, topic_config_table=dict(self._topics)
        )

    def file_steps(self) -> Steps[list[bytes]]:
        """Return the table as it is saved, in parts: the ``pretty`` form of :meth:`wrapper`."""
        yield from self._rows.encode_steps()
        return self._parts(pretty=True)

    def encoded(self) -> list[bytes]:
        """Return the text of :meth:`wrapper`, in parts."""
        return self._parts(pretty=False)

    def _parts(self, *, pretty: bool) -> list[bytes]:
        value = {"dataVersion": self.data_version.to_json(), "topicConfigTable": {}}
        return dumps_with_rows(value, self._rows.parts(compact=not pretty), pretty=pretty)

    def _row(self, name: str) -> bytes:
        return dumps_member(name, self._topics[name].to_json(), 2)

    def restore(self, saved: TopicConfigSerializeWrapper) -> None:
        """Take over a saved table. A topic with an invalid name is skipped with an error in the
        log.
        """
        self._take_over(saved)
        self._note_all()
        finish(self._rows.encode_steps())  # Otherwise the first change waits for all rows.

    def _take_over(self, saved: TopicConfigSerializeWrapper) -> None:
        for name, topic in saved.topic_config_table.items():
            try:
                names.check_topic(name)
            except RequestRejectedError as refusal:
                logger.error("topic %r of the saved table skipped: %s", name, refusal)
                continue
            self._topics[name] = evolve(topic, topic_name=name)
        self.data_version = saved.data_version

    def add_known_queues(self, queues: Iterable[tuple[str, int]]) -> None:
        """Create a readable and writable topic for each of ``queues``, with as many queues as
        exist. This is done if no table was saved.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, count in counts.items():
            if topic not in self._topics:
                self._topics[topic] = TopicConfig(
                    topic, read_queue_nums=count, write_queue_nums=count
                )
                logger.warning("topic %s recovered from its %d consume queues only", topic, count)
        self._note_all()

    def replace(
        self,
        received: TopicConfigSerializeWrapper,
        kept: Collection[str],
        version: DataVersion,
    ) -> None:
        """Replace the table by the topics of a master and the ``kept`` topics of our own."""
        own = {name: self._topics[name] for name in kept}
        self._topics.clear()
        self._take_over(received)
        self._topics.update(own)
        self.data_version = version
        self._note_all()
        self._on_change(None)

    def _create(self, topic: TopicConfig) -> TopicConfig | None:
        try:
            names.check_topic(topic.topic_name)
        except RequestRejectedError as refusal:
            logger.warning("topic %r not created: %s", topic.topic_name, refusal)
            return None
        if len(self._topics) - len(self._system) >= CREATED_TOPICS_LIMIT:
            logger.warning(
                "topic %s not created: limit of %d reached", topic.topic_name, CREATED_TOPICS_LIMIT
            )
            return None
        self._topics[topic.topic_name] = topic
        self._changed(topic.topic_name, topic)
        return topic

    def _changed(self, name: str, topic: TopicConfig | None) -> None:
        self._note(name)
        self._new_version(topic)

    def _note(self, name: str) -> None:
        self.changes.note(name)
        if name in self._topics:
            self._rows.note(name)
        else:
            self._rows.discard(name)

    def _note_all(self) -> None:
        self.changes.note_all()
        self._rows.reset(self._topics)

    def _new_version(self, topic: TopicConfig | None) -> None:
        self.data_version = self.data_version.next(self.clock.now_ms())
        self._on_change(topic)

    def _system_topics(self) -> list[TopicConfig]:
        broker = self.identity.broker_settings
        topics = [_topic(names.SELF_TEST_TOPIC, 1)]
        if broker.auto_create_topic_enable:
            queue_nums = broker.default_topic_queue_nums
            topics.append(_topic(names.AUTO_CREATE_TOPIC, queue_nums, INHERITED))
        topics += [
            _topic(names.BENCHMARK_TOPIC, BENCHMARK_QUEUES),
            _topic(
                self.identity.cluster,
                CLUSTER_QUEUES,
                INHERITED if broker.cluster_topic_enable else PERM_INHERIT,
            ),
            _topic(
                self.identity.name, 1, INHERITED if broker.broker_topic_enable else PERM_INHERIT
            ),
            _topic(names.OFFSET_MOVED_EVENT_TOPIC, 1),
            _topic(names.SCHEDULE_TOPIC, SCHEDULE_QUEUES),
            _topic(names.reply_topic(self.identity.cluster), 1),
        ]
        if broker.trace_topic_enable:
            topics.append(_topic(broker.msg_trace_topic_name, 1))
        return topics


def _topic(name: str, queue_nums: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm
    )
