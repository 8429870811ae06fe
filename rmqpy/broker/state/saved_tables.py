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

A file that is cut or damaged falls back to its ``.bak``. Where topics.json has none that can be
read, the consume queues tell which topics there were, and with how many queues; what was unreadable
is kept in ``rmqpy/quarantine/``. The other tables cannot be told from anything: the start stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, Self, TypeVar

from attrs import define

from rmqpy.broker.state.consumer_filters import ConsumerFilterTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.delay_levels import DelayOffsetTable
from rmqpy.broker.state.persistence import TableFile, TableWriter
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model.clock import Scheduler
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.remoting.bodies import (
    ConsumerFilterWrapper,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.body import Body
from rmqpy.store.files.atomic import BACKUP_SUFFIX
from rmqpy.store.files.paths import quarantine_folder
from rmqpy.store.queues.table import QueueName

TOPICS_FILE: Final = "topics.json"
FILTERS_PERIOD_MS: Final = 10_000

logger = logging.getLogger(__name__)

W = TypeVar("W", bound=Body)


class PersistentTable(Protocol[W]):
    """A table that can be saved whole."""

    def wrapper(self) -> W: ...

    def restore(self, saved: W) -> None: ...


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class Tables:
    """What is saved."""

    topics: TopicTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    delays: DelayOffsetTable
    filters: ConsumerFilterTable


@define(slots=True, frozen=True, eq=False, repr=False)
class PersistentTables:
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
        files: FileSystem,
        root: str,
        scheduler: Scheduler,
        announce: Callable[[], None],
        queues: Iterable[QueueName] = (),
    ) -> Self:
        """Restore ``tables`` from below ``root`` and have their changes written there; ``announce``
        tells the name servers of topics. Raises StoreError for a file that cannot be read.
        """
        folder = f"{root}/config"

        def kept(name: str, table: PersistentTable[W], decode: Callable[[bytes], W]) -> TableWriter:
            file = TableFile(files, f"{folder}/{name}")
            try:
                saved = file.load(decode)
            except StoreError as fault:
                if name != TOPICS_FILE:
                    raise
                logger.error("%s", fault)
                _set_aside(files, file.path, quarantine_folder(root))
                saved = None
            if saved is not None:
                table.restore(saved)
            elif name == TOPICS_FILE:
                tables.topics.add_known_queues(queues)
            return TableWriter(file, scheduler, lambda: table.wrapper().encode(pretty=True))

        saved = cls(
            kept(TOPICS_FILE, tables.topics, TopicConfigSerializeWrapper.decode),
            kept("subscriptionGroup.json", tables.groups, SubscriptionGroupWrapper.decode),
            kept("consumerOffset.json", tables.offsets, ConsumerOffsetSerializeWrapper.decode),
            kept("delayOffset.json", tables.delays, DelayOffsetSerializeWrapper.decode),
            kept("consumerFilter.json", tables.filters, ConsumerFilterWrapper.decode),
        )

        def topics_changed(_topic: TopicConfig | None) -> None:
            saved.topics.changed()
            announce()

        tables.topics.subscribe(topics_changed)
        tables.groups.subscribe(saved.groups.changed)
        tables.offsets.subscribe(saved.offsets.mark)
        tables.delays.subscribe(saved.delays.mark)
        tables.filters.subscribe(saved.filters.mark)
        return saved

    def close(self, done: Callable[[], None]) -> None:
        """Write all of them a last time, one after the other; then ``done``."""
        rest = done
        for writer in (self.filters, self.delays, self.offsets, self.groups):
            rest = partial(writer.close, rest)
        self.topics.close(rest)


def _set_aside(files: FileSystem, path: str, quarantine: str) -> None:
    """Keep what cannot be read, and its backup, before they are replaced."""
    for name in (path, path + BACKUP_SUFFIX):
        if files.exists(name):
            kept = f"{quarantine}/{name.rpartition('/')[2]}"
            files.replace_bytes(kept, files.read_bytes(name))
            logger.warning("%s is kept as %s", name, kept)
