"""The tables that a broker keeps in ``config/*.json``: read at the start, written when they change.

=======================  ======================================  ============================
file                     table                                   written
=======================  ======================================  ============================
topics.json              topics                                  at each change
subscriptionGroup.json   groups                                  at each change
consumerOffset.json      offsets of consumers                    flushConsumerOffsetInterval
delayOffset.json         offsets of delay levels                 flushDelayOffsetInterval
consumerFilter.json      filters of consumers                    each ten seconds
=======================  ======================================  ============================

All tables are written a last time when the broker stops. The answer to a request that changes
topics or groups waits for the write (:meth:`TableWriter.when_saved`): the change survives a kill.

Reading: a file that is missing, empty or unreadable falls back to its ``.bak``, and an unreadable
one is moved to ``rmqpy/quarantine/``. Without either, the table is empty. If files exist but
neither is readable, a StoreError stops the start. The exception is topics.json, because the consume
queues show which topics existed and with how many queues; the unreadable files are kept in
``rmqpy/quarantine/``.

Writing: the previous content becomes ``X.bak``, then ``X`` is replaced in one step. A table is
encoded on the loop, in slices, and written in a worker thread, one write per file at a time;
changes during a write lead to one more write, which is delayed for a large table (``Throttled``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, Self, TypeVar

from rmqpy.broker.base.scheduling import Sliced, Throttled
from rmqpy.broker.state.consumer_filters import ConsumerFilterTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.delay_levels import DelayOffsetTable
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError, StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.steps import Steps, finish
from rmqpy.model.values import define
from rmqpy.remoting.bodies import (
    ConsumerFilterWrapper,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.body import Body
from rmqpy.store.files.atomic import read_with_backup, write_atomically
from rmqpy.store.files.paths import BACKUP_SUFFIX, quarantine_folder
from rmqpy.store.queues.table import QueueName

TOPICS_FILE: Final = "topics.json"
FILTERS_PERIOD_MS: Final = 10_000
WAITING_MAX: Final = 1024
"""The maximum number of answers that wait for the write of one table."""

T = TypeVar("T")
W = TypeVar("W", bound=Body)
W_contra = TypeVar("W_contra", bound=Body, contravariant=True)

Saved = Callable[[BaseException | None], None]
"""Called when a change is durable, or with the error of the write that should have made it so."""

logger = logging.getLogger(__name__)


class PersistentTable(Protocol[W_contra]):
    """A table that can be saved as a whole."""

    def file_steps(self) -> Steps[Sequence[bytes]]:
        """Return the content of the file, in parts."""

    def restore(self, saved: W_contra) -> None: ...


@define(slots=True, frozen=True)
class TableFile:
    """The file of one table and its backup."""

    files: FileSystem
    path: str
    kept: str | None = None
    """Where the file is kept if it is damaged and its backup is used."""

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded table, or None if there never was one. Raises StoreError."""

        def decode_text(raw: bytes) -> T:
            raw.decode()  # Otherwise a damaged name would be taken for another name.
            return decode(raw)

        try:
            return read_with_backup(self.files, self.path, decode_text, kept=self.kept)
        except StoreError:  # Java writes the character set of its platform.
            return read_with_backup(self.files, self.path, decode)

    def save(self, content: Sequence[bytes]) -> None:
        """Replace the content, which is given in parts, keeping the previous one as backup. Blocks
        until it is durable.
        """
        write_atomically(self.files, self.path, *content)


class TableWriter:
    """The writer of one table, which writes after the table was marked as changed."""

    def __init__(
        self, file: TableFile, scheduler: Scheduler, encode: Callable[[], Steps[Sequence[bytes]]]
    ) -> None:
        self._file = file
        self._scheduler = scheduler
        self._encode = encode
        self._changed = False
        self._writing = False
        self._suspended = False
        self._closed: Callable[[], None] | None = None
        self._waiting: list[Saved] = []
        self._in_write: list[Saved] = []
        """Those in ``_waiting`` when the write in progress began."""
        self._pace = Throttled(scheduler, self._begin)

    def suspend(self) -> None:
        """Write nothing until :meth:`resume`."""
        self._suspended = True

    def resume(self) -> None:
        """Allow writes again, and write as soon as the writer is free."""
        self._suspended = False
        self.changed()

    def mark(self) -> None:
        """Mark the table as changed; the next :meth:`write` writes it."""
        self._changed = True

    def changed(self) -> None:
        """Mark the table as changed and write it as soon as the writer is free."""
        self._changed = True
        self.write()

    def check_not_full(self) -> None:
        """Raise RequestRejectedError if no further change can wait for its write."""
        if len(self._waiting) >= WAITING_MAX:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} changes are waiting for {self._file.path}"
            )

    def when_saved(self, done: Saved) -> None:
        """Call ``done`` once, after a write of the present content or a later one; at once if
        nothing has changed since the last write. All changes during a write share the next one.
        """
        if not self._changed:
            if not self._writing:
                done(None)
            else:
                self._in_write.append(done)
            return
        self._waiting.append(done)
        self.write()

    def write(self) -> None:
        """Start a write if there is something to write and no write is in progress."""
        if not self._writing and self._changed and self._closed is None:
            self._pace.request()

    def _begin(self) -> None:
        if self._writing or not self._changed or self._closed is not None or self._suspended:
            return
        self._changed = False
        self._writing = True
        self._in_write, self._waiting = self._waiting, []
        Sliced(self._scheduler, self._encode(), self._save).run()

    def _save(self, content: Sequence[bytes] | None, error: BaseException | None) -> None:
        if content is None:
            self._written(None, error)
        else:
            self._scheduler.run_blocking(lambda: self._file.save(content), self._written)

    def close(self, done: Callable[[], None]) -> None:
        """Write the last state after the write in progress, then call ``done``. Nothing is written
        after that.
        """
        self._closed = done
        self._pace.cancel()
        if not self._writing:
            self._write_last(done)

    def _write_last(self, done: Callable[[], None]) -> None:
        self._changed = False
        self._in_write, self._waiting = self._waiting, []
        failure: OSError | None = None
        try:
            if not self._suspended:
                self._file.save(finish(self._encode()))
        except OSError as error:
            failure = error
            logger.error("%s could not be written: %s", self._file.path, error)
        self._report(failure)
        done()

    def _report(self, error: BaseException | None) -> None:
        reported, self._in_write = self._in_write, []
        for done in reported:
            done(error)

    def _written(self, _result: None, error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._changed = True
            logger.error("%s could not be written: %s", self._file.path, error)
        self._report(error)
        if self._closed is not None:
            self._write_last(self._closed)
        elif error is None:
            self.write()


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class Tables:
    """The tables that are saved."""

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
        """Restore ``tables`` from ``<root>/config`` and return the writers of their changes.

        ``announce`` registers changed topics with the name servers. Without a readable topics.json,
        the topics of ``queues`` are created. Raises StoreError for another unreadable file.
        """
        folder = f"{root}/config"

        def load_table(
            name: str, table: PersistentTable[W], decode: Callable[[bytes], W]
        ) -> TableWriter:
            file = TableFile(files, f"{folder}/{name}", f"{quarantine_folder(root)}/{name}")
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
            return TableWriter(file, scheduler, table.file_steps)

        saved = cls(
            load_table(TOPICS_FILE, tables.topics, TopicConfigSerializeWrapper.decode),
            load_table("subscriptionGroup.json", tables.groups, SubscriptionGroupWrapper.decode),
            load_table(
                "consumerOffset.json", tables.offsets, ConsumerOffsetSerializeWrapper.decode
            ),
            load_table("delayOffset.json", tables.delays, DelayOffsetSerializeWrapper.decode),
            load_table("consumerFilter.json", tables.filters, ConsumerFilterWrapper.decode),
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
        """Write all tables a last time, one after the other, then call ``done``."""
        rest = done
        for writer in (self.filters, self.delays, self.offsets, self.groups):
            rest = partial(writer.close, rest)
        self.topics.close(rest)


def _set_aside(files: FileSystem, path: str, quarantine: str) -> None:
    """Keep a copy of an unreadable file and of its backup before they are replaced."""
    for name in (path, path + BACKUP_SUFFIX):
        if files.exists(name):
            kept = f"{quarantine}/{name.rpartition('/')[2]}"
            files.replace_bytes(kept, files.read_bytes(name))
            logger.warning("%s is kept as %s", name, kept)
