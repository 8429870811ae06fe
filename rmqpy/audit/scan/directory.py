"""The files of a store directory: names, lengths, and times. No file is opened.

The segments of a log are the files of one folder (or of several, for ``storePathCommitLog`` with
commas), each named by the offset of its first byte in 20 digits. Any other file in such a folder is
a stray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import field

from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.mapped_files import NAME_DIGITS
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.rocksdb import is_rocksdb, rocksdb_queues

if TYPE_CHECKING:
    from rmqpy.config.loading import StoreSettings

__all__ = [
    "LedgerFolder",
    "LogFile",
    "LogSegments",
    "QueueFolder",
    "StoreDirectory",
    "paths_below",
    "read_directory",
    "read_logs",
]

LEDGER_PREFIX = "dledger-"
PATH_SEPARATOR = ","


@define(slots=True, frozen=True)
class LogFile:
    """One segment, or another file of the store."""

    path: str
    first_offset: int
    size: int
    mtime_ms: int

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.size


@define(slots=True, frozen=True)
class LogSegments:
    """The segments of a log or queue, in order of offsets.

    ``name`` is the path below the root ("commitlog", "dledger-n0/data"). Files of length 0 are in
    ``empty``, not in ``files``. ``file_size`` is the length that most files have, or 0 without
    files; it is asked for once a file, so it is counted only once.
    """

    name: str
    framing: Framing
    files: tuple[LogFile, ...] = ()
    strays: tuple[str, ...] = ()
    empty: tuple[LogFile, ...] = ()
    file_size: int = field(init=False)

    @file_size.default
    def _most_common_size(self) -> int:
        if len(self.files) == 1:  # as of most queues, of which there may be 100,000
            return self.files[0].size
        sizes = Counter(file.size for file in self.files)
        return max(sizes, key=sizes.__getitem__, default=0)

    def __bool__(self) -> bool:
        return bool(self.files)

    @property
    def first_offset(self) -> int:
        return self.files[0].first_offset

    @property
    def end_offset(self) -> int:
        return self.files[-1].end_offset

    def gaps(self) -> list[tuple[int, int]]:
        """Return (end of one file, start of the next) wherever the two differ."""
        return [
            (before.end_offset, after.first_offset)
            for before, after in pairwise(self.files)
            if before.end_offset != after.first_offset
        ]

    def file_at(self, offset: int) -> LogFile | None:
        """Return the file that contains byte ``offset``, or None."""
        for file in self.files:
            if file.first_offset <= offset < file.end_offset:
                return file
        return None


@define(slots=True, frozen=True)
class LedgerFolder:
    """The folder ``dledger-<self id>``: data files, index files, and the paths of two small
    files.
    """

    self_id: str
    folder: str
    data: LogSegments
    index: LogSegments

    @property
    def checkpoint(self) -> str:
        return f"{self.folder}/checkpoint"

    @property
    def current_term(self) -> str:
        return f"{self.folder}/currterm"


@define(slots=True, frozen=True)
class QueueFolder:
    """The segments of one consume queue."""

    topic: str
    queue_id: int
    segments: LogSegments


@define(slots=True, frozen=True, kw_only=True)
class StoreDirectory:
    """The files of a store directory; ``strays`` belong to no part of the store."""

    root: str
    paths: StorePaths
    classic: LogSegments
    ledgers: tuple[LedgerFolder, ...] = ()
    queues: tuple[QueueFolder, ...] = ()
    index_files: tuple[LogFile, ...] = ()
    config_files: tuple[LogFile, ...] = ()
    queue_extensions: tuple[LogFile, ...] = ()
    """The files of ``consumequeue_ext``, which Java writes with enableConsumeQueueExt=true."""
    rocksdb_queues: tuple[str, ...] = ()
    """The folders in which 5.x keeps consume queues in RocksDB: then there may be none in files."""
    batch_topics: frozenset[str] = frozenset()
    """The topics of 5.x whose queues are in ``batchconsumequeue``, and not in files like others."""
    strays: tuple[str, ...] = ()
    own_self_id: str | None = field(default=None)
    queue_file_size: int = field()
    """The length of the files of consume queues; 0 without files."""

    @queue_file_size.default
    def _largest_size(self) -> int:
        return max((queue.segments.file_size for queue in self.queues), default=0)

    @property
    def ledger(self) -> LedgerFolder | None:
        """The DLedger log in use: that of the self id in the settings, else the one with data."""
        for ledger in self.ledgers:
            if ledger.self_id == self.own_self_id:
                return ledger
        with_data = [ledger for ledger in self.ledgers if ledger.data]
        return next(iter(with_data or self.ledgers), None)

    @property
    def logs(self) -> tuple[LogSegments, ...]:
        """The segments of the classic log, then of the DLedger log, without logs that have none."""
        ledger = self.ledger
        logs = (self.classic, ledger.data) if ledger else (self.classic,)
        return tuple(segments for segments in logs if segments)

    def needs_queue_files(self, topic: str) -> bool:
        """Return whether messages of a topic must have units in the files of a consume queue."""
        return not self.rocksdb_queues and topic not in self.batch_topics

    def relative(self, path: str) -> str:
        """Return ``path`` as reports show it: relative to the root if it is below the root."""
        return path.removeprefix(f"{self.root}/")

    def every_file(self) -> Iterator[str]:
        """Yield the paths of the files of logs, tables, queues, and indexes."""
        yield from self.own_files()
        for segments in (
            *(ledger.index for ledger in self.ledgers),
            *(q.segments for q in self.queues),
        ):
            yield from (file.path for file in (*segments.files, *segments.empty))
        yield from (file.path for file in self.index_files)

    def own_files(self) -> Iterator[str]:
        """Yield the paths of files that cannot be rebuilt from others: logs and tables."""
        for segments in (self.classic, *(ledger.data for ledger in self.ledgers)):
            yield from (file.path for file in (*segments.files, *segments.empty))
        yield from (file.path for file in self.config_files)


def read_logs(
    files: FileSystem, root: str, settings: StoreSettings | None = None
) -> tuple[LogSegments, ...]:
    """List the segments of the logs only: a store may have 100,000 queues."""
    return read_directory(files, root, settings, queues=False).logs


def read_directory(
    files: FileSystem, root: str, settings: StoreSettings | None = None, *, queues: bool = True
) -> StoreDirectory:
    """List the files of the store below ``root``, those of the consume queues if ``queues`` is set.

    ``settings`` has the paths that are outside the root; its own root is not used.
    """
    root = root.rstrip("/") or "/"
    return _Reader(files, root, settings).read(queues=queues)


def paths_below(root: str, settings: StoreSettings | None) -> StorePaths:
    """Return the paths of the store in ``root``, which may be a copy of the directory in
    ``settings``: a log that they place outside of the root stays there.
    """
    default = f"{root}/commitlog"
    if settings is None:
        return StorePaths(root, default)
    configured = StorePaths.from_settings(settings)
    is_below = configured.commit_log == f"{configured.root}/commitlog"

    def here(path: str | None) -> str | None:
        below = f"{configured.root}/"
        return f"{root}/{path.removeprefix(below)}" if path and path.startswith(below) else path

    return StorePaths(
        root,
        default if is_below else configured.commit_log,
        here(configured.epochs_elsewhere),
        here(configured.identity_elsewhere),
    )


@define(slots=True)
class _Reader:
    files: FileSystem
    root: str
    settings: StoreSettings | None
    strays: list[str] = field(factory=list)

    def read(self, *, queues: bool) -> StoreDirectory:
        paths = paths_below(self.root, self.settings)
        classic = self._segments(
            "commitlog", paths.commit_log.split(PATH_SEPARATOR), Framing.CLASSIC
        )
        ledgers = tuple(self._ledgers())
        folders = tuple(self._queues(paths.consume_queue)) if queues else ()
        index_files = tuple(self._plain(paths.index, int))
        config_files = tuple(self._plain(paths.config, str))
        return StoreDirectory(
            root=self.root,
            paths=paths,
            classic=classic,
            ledgers=ledgers,
            queues=folders,
            index_files=index_files,
            config_files=config_files,
            queue_extensions=tuple(self._extensions()),
            rocksdb_queues=tuple(rocksdb_queues(self.files, self.root)),
            batch_topics=frozenset(self.files.list_dir(f"{self.root}/batchconsumequeue")),
            strays=tuple(self.strays),
            own_self_id=self.settings.dledger_self_id if self.settings else None,
        )

    def _segments(self, name: str, folders: list[str], framing: Framing) -> LogSegments:
        found: list[LogFile] = []
        strays: list[str] = []
        empty: list[LogFile] = []
        for folder in folders:
            for entry, is_dir, size, mtime_ms in self.files.list_entries(folder):
                path = f"{folder}/{entry}"
                regular = len(entry) == NAME_DIGITS and entry.isascii() and entry.isdigit()
                if not regular or is_dir:
                    strays.append(path)
                    continue
                file = LogFile(path, int(entry), size, mtime_ms)
                (found if size else empty).append(file)
        found.sort(key=lambda file: file.first_offset)
        return LogSegments(name, framing, tuple(found), tuple(strays), tuple(empty))

    def _ledgers(self) -> Iterator[LedgerFolder]:
        for name in self.files.list_dir(self.root):
            folder = f"{self.root}/{name}"
            if not name.startswith(LEDGER_PREFIX) or not self.files.is_dir(folder):
                continue
            self_id = name.removeprefix(LEDGER_PREFIX)
            elsewhere = self.settings and self.settings.store_path_dledger_commit_log
            data = (elsewhere or f"{folder}/data").split(PATH_SEPARATOR)
            yield LedgerFolder(
                self_id,
                folder,
                self._segments(f"{name}/data", data, Framing.DLEDGER),
                self._segments(f"{name}/index", [f"{folder}/index"], Framing.DLEDGER),
            )

    def _queues(self, folder: str) -> Iterator[QueueFolder]:
        in_rocksdb = is_rocksdb(self.files, folder)
        for topic, is_topic, _, _ in self.files.list_entries(folder):
            if not is_topic:
                if not in_rocksdb:
                    self.strays.append(f"{folder}/{topic}")
                continue
            for name, is_dir, _, _ in self.files.list_entries(f"{folder}/{topic}"):
                path = f"{folder}/{topic}/{name}"
                if not name.isdigit() or not is_dir:
                    self.strays.append(path)
                    continue
                segments = self._segments(f"consumequeue/{topic}/{name}", [path], Framing.CLASSIC)
                yield QueueFolder(topic, int(name), segments)

    def _extensions(self) -> Iterator[LogFile]:
        folder = f"{self.root}/consumequeue_ext"
        for topic in self.files.list_dir(folder):
            for name in self.files.list_dir(f"{folder}/{topic}"):
                segments = self._segments(
                    "consumequeue_ext", [f"{folder}/{topic}/{name}"], Framing.CLASSIC
                )
                yield from (*segments.files, *segments.empty)

    def _plain(self, folder: str, kind: type[int] | type[str]) -> Iterator[LogFile]:
        for name, is_dir, size, mtime_ms in self.files.list_entries(folder):
            path = f"{folder}/{name}"
            if kind is str and is_dir and is_rocksdb(self.files, path):
                continue  # A table of 5.x: the list of unread data names it.
            if is_dir or (kind is int and not name.isdigit()):
                self.strays.append(path)
            else:
                yield LogFile(path, 0, size, mtime_ms)
