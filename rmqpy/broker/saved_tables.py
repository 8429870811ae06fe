"""The tables that a broker keeps in ``config/``: read at the start, written as they change.

=======================  ======================================  ============================
file                     table                                   written
=======================  ======================================  ============================
topics.json              topics                                  at each change
subscriptionGroup.json   groups                                  at each change
consumerOffset.json      offsets of consumers                    flushConsumerOffsetInterval
delayOffset.json         offsets of delay levels                 flushDelayOffsetInterval
consumerFilter.json      filters of consumers                    each ten seconds
=======================  ======================================  ============================

All are written a last time when the broker stops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, Self, TypeVar

from attrs import define

from rmqpy.broker.delays import DelayOffsets
from rmqpy.broker.filters import FilterTable
from rmqpy.broker.groups import GroupTable
from rmqpy.broker.offsets import ConsumerOffsets
from rmqpy.broker.persistence import TableFile, TableWriter
from rmqpy.broker.topics import TopicTable
from rmqpy.model.runtime import Scheduler
from rmqpy.remoting.bodies import (
    ConsumerFilterWrapper,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.body import Body
from rmqpy.store.files import FileLayer

FILTERS_PERIOD_MS: Final = 10_000

W = TypeVar("W", bound=Body)


class Table(Protocol[W]):
    """A table that can be saved whole."""

    def wrapper(self) -> W: ...

    def restore(self, saved: W) -> None: ...


@define(slots=True, frozen=True, kw_only=True)
class Tables:
    """What is saved."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    delays: DelayOffsets
    filters: FilterTable


@define(slots=True, frozen=True)
class SavedTables:
    """The writers of all tables."""

    topics: TableWriter
    groups: TableWriter
    offsets: TableWriter
    delays: TableWriter
    filters: TableWriter

    @classmethod
    def load(
        cls,
        tables: Tables,
        files: FileLayer,
        folder: str,
        scheduler: Scheduler,
        announce: Callable[[], None],
    ) -> Self:
        """Restore ``tables`` from ``folder`` and have their changes written there; ``announce``
        tells the name servers of topics. Raises StoreFault for a file that cannot be read.
        """

        def kept(name: str, table: Table[W], decode: Callable[[bytes], W]) -> TableWriter:
            file = TableFile(files, f"{folder}/{name}")
            saved = file.load(decode)
            if saved is not None:
                table.restore(saved)
            return TableWriter(file, scheduler, lambda: table.wrapper().encode(pretty=True))

        saved = cls(
            kept("topics.json", tables.topics, TopicConfigSerializeWrapper.decode),
            kept("subscriptionGroup.json", tables.groups, SubscriptionGroupWrapper.decode),
            kept("consumerOffset.json", tables.offsets, ConsumerOffsetSerializeWrapper.decode),
            kept("delayOffset.json", tables.delays, DelayOffsetSerializeWrapper.decode),
            kept("consumerFilter.json", tables.filters, ConsumerFilterWrapper.decode),
        )

        def topics_changed(_topic: TopicConfig | None) -> None:
            saved.topics.changed()
            announce()

        tables.topics.on_change = topics_changed
        tables.groups.on_change = saved.groups.changed
        tables.offsets.on_change = saved.offsets.mark
        tables.delays.on_change = saved.delays.mark
        tables.filters.on_change = saved.filters.mark
        return saved

    def close(self, done: Callable[[], None]) -> None:
        """Write all of them a last time, one after the other; then ``done``."""
        rest = done
        for writer in (self.filters, self.delays, self.offsets, self.groups):
            rest = partial(writer.close, rest)
        self.topics.close(rest)
