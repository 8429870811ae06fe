"""The filters by message properties that consumer groups have registered,
``config/consumerFilter.json``.

Heartbeats register a filter for each subscription that is not a tag expression (only SQL92 is
known). A filter whose group or subscription has ended is *dead*; it is kept for
``filterDataCleanTimeSpan`` and is revived with the same version.

Invariants: a registered filter is compiled; it is replaced only by one with a larger client
version; an expression that cannot be compiled leaves its group without a filter, and its pulls are
refused; at most ``FILTERS_LIMIT`` filters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from attrs import evolve, field

from rmqpy.broker.filter.tags import FilterSyntaxError, is_tag_expression
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import record_properties
from rmqpy.codec.properties import PROPERTY_RETRY_TOPIC
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.recent_changes import RecentChanges
from rmqpy.model.steps import Steps
from rmqpy.model.values import define
from rmqpy.remoting.bodies import (
    ConsumerFilterData,
    ConsumerFilterWrapper,
    FilterDataMapByTopic,
    SubscriptionData,
)
from rmqpy.store.reader import RecordFilter

if TYPE_CHECKING:
    from rmqpy.broker.filter.sql_parser import Expression

SQL92: Final = "SQL92"
FILTERS_LIMIT: Final = 20_000

logger = logging.getLogger(__name__)


def filter_refusal(expression_type: str | None) -> str:
    """Return the remark for requests while ``enablePropertyFilter`` is off."""
    return f"The broker does not support consumer to filter message by {expression_type}"


def compile_filter(expression_type: str | None, expression: str | None) -> Expression:
    """Compile a filter. Raises FilterSyntaxError for an unknown type or a text that is not an
    expression.
    """
    if expression_type != SQL92:
        raise FilterSyntaxError(f"unknown expression type {expression_type}")
    # Most brokers never use SQL92, so its parser must not cost start time.
    from rmqpy.broker.filter.sql_parser import compile_expression

    return compile_expression(expression or "")


def record_filter(expression: Expression) -> RecordFilter:
    """Return a filter that applies the expression to the properties of a record. It
    does not select unreadable records.
    """

    def matches(record: memoryview) -> bool:
        try:
            return expression.matches(record_properties(record))
        except InvalidRecordError:
            return False

    return RecordFilter(matches, expression.units_max)


@define(slots=True, frozen=True)
class ConsumerFilter:
    """One entry of the table. Times are wall clock ms; ``dead_ms`` is 0 while
    the filter is alive.
    """

    group: str
    topic: str
    expression: Expression
    client_version: int
    born_ms: int
    dead_ms: int = 0


@define(slots=True, eq=False, repr=False)
class ConsumerFilterTable:
    """The filters of all groups, by group and topic."""

    clock: Clock
    changes: RecentChanges = field(factory=RecentChanges, init=False)
    """The groups whose filters have changed."""
    _filters: dict[tuple[str, str], ConsumerFilter] = field(factory=dict, init=False)
    _on_change: Callable[[], None] = field(default=lambda: None, init=False)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at each change."""
        self._on_change = listener

    def get(self, group: str, topic: str) -> ConsumerFilter | None:
        return self._filters.get((group, topic))

    def __len__(self) -> int:
        return len(self._filters)

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Register the filters that a heartbeat of ``group`` names, and mark those of the topics
        that it omits as dead.
        """
        named = list(subscriptions)
        for subscription in named:
            if not is_tag_expression(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription)
        topics = {subscription.topic for subscription in named}
        if self._filters:
            self._mark_dead(group, keeping=topics)

    def mark_dead(self, group: str) -> None:
        """Mark the filters of ``group`` as dead, because no member is online any more."""
        if self._filters:
            self._mark_dead(group, keeping=set())

    def expire(self, keep_ms: int) -> None:
        """Remove filters that have been dead for more than ``keep_ms``."""
        stale_ms = self.clock.now_ms() - keep_ms
        stale = [key for key, found in self._filters.items() if 0 < found.dead_ms < stale_ms]
        for key in stale:
            del self._filters[key]
            self._changed(key[0])

    def for_retries(self, group: str) -> RecordFilter:
        """Return the filter of a retry topic: each message is matched by the filter of its original
        topic.
        """

        def wanted(record: memoryview) -> bool:
            try:
                properties = record_properties(record)
            except InvalidRecordError:
                return False
            found = self.get(group, properties.get(PROPERTY_RETRY_TOPIC, ""))
            return found is None or found.expression.matches(properties)

        return RecordFilter(wanted)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        key = (group, subscription.topic)
        old = self._filters.get(key)
        version = subscription.sub_version
        if old is not None and version <= old.client_version:
            if version == old.client_version and old.dead_ms:
                self._put(key, evolve(old, dead_ms=0))
            return
        text = subscription.sub_string or ""
        if old is not None and old.expression.text == text:
            self._put(key, evolve(old, client_version=version, dead_ms=0))
            return
        try:
            expression = compile_filter(subscription.expression_type, text)
        except FilterSyntaxError as fault:
            logger.warning(
                "group %s, topic %s: the filter %r is ignored: %s",
                group,
                subscription.topic,
                text,
                fault,
            )
            if self._filters.pop(key, None) is not None:
                self._changed(group)
            return
        if old is None and len(self._filters) >= FILTERS_LIMIT:
            logger.warning(
                "dropped the filter of group %s: limit of %d reached", group, FILTERS_LIMIT
            )
            return
        now_ms = self.clock.now_ms()
        self._put(key, ConsumerFilter(group, subscription.topic, expression, version, now_ms))

    def _put(self, key: tuple[str, str], new: ConsumerFilter) -> None:
        self._filters[key] = new
        self._changed(key[0])

    def _changed(self, group: str) -> None:
        self.changes.note(group)
        self._on_change()

    def _mark_dead(self, group: str, keeping: set[str]) -> None:
        now_ms = self.clock.now_ms()
        for key, found in list(self._filters.items()):
            if found.group == group and found.topic not in keeping and not found.dead_ms:
                self._put(key, evolve(found, dead_ms=now_ms))

    # The saved table

    def wrapper(self) -> ConsumerFilterWrapper:
        by_topic: dict[str, FilterDataMapByTopic] = {}
        for found in self._filters.values():
            of_topic = by_topic.setdefault(found.topic, FilterDataMapByTopic(found.topic))
            of_topic.group_filter_data[found.group] = ConsumerFilterData(
                consumer_group=found.group,
                topic=found.topic,
                expression=found.expression.text,
                expression_type=SQL92,
                born_time=found.born_ms,
                dead_time=found.dead_ms,
                dead=found.dead_ms > 0,
                client_version=found.client_version,
            )
        return ConsumerFilterWrapper(filter_data_by_topic=by_topic)

    def file_steps(self) -> Steps[list[bytes]]:
        """Return the table as it is saved."""
        yield
        return [self.wrapper().encode(pretty=True)]

    def restore(self, saved: ConsumerFilterWrapper) -> None:
        """Take over a saved table. Its consumers are disconnected, so filters that were alive are
        dead from now on. An entry that cannot be used is skipped with an error in the log.
        """
        now_ms = self.clock.now_ms()
        for of_topic in saved.filter_data_by_topic.values():
            for entry in of_topic.group_filter_data.values():
                try:
                    names.check_topic(entry.topic)
                    names.check_group(entry.consumer_group)
                    expression = compile_filter(entry.expression_type, entry.expression)
                except (ValueError, RequestRejectedError) as fault:
                    logger.error("saved filter %s skipped: %s", entry, fault)
                    continue
                self._filters[entry.consumer_group, entry.topic] = ConsumerFilter(
                    entry.consumer_group,
                    entry.topic,
                    expression,
                    entry.client_version,
                    entry.born_time,
                    entry.dead_time or now_ms,
                )
        self.changes.note_all()
