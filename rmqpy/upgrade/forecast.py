"""What ``rmqpy upgrade prepare`` would do: a forecast from the directories, without reading logs.

Nothing is written. What a member lacks is judged by the names of files: whether its own files are
equal to those of the longest log is known only when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import define, evolve, field

from rmqpy.audit.facts.learned import INDEX, MD5, TWIN, UNITS, WALK, Learned
from rmqpy.audit.scan.directory import LogFile, StoreDirectory, read_directory
from rmqpy.audit.scan.sealed import sealed_files
from rmqpy.store.files.mapped_files import file_name
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.node_context import data_bytes
from rmqpy.upgrade.plan.stage import LOG, TWINS, Stage

__all__ = ["Forecast", "forecast", "forecast_group"]


def _pairs(value: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((first, size) for first, size in value)


def _numbers(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


@define(slots=True, frozen=True, kw_only=True)
class Forecast:
    """What preparing one replica would do, in bytes, and what the forecast of a group needs.

    * ``known``: sealed files about which everything is known.
    * ``read``: sealed files that would be read; ``read_logs`` of them belong to logs.
    * ``staged``: log files that would be copied to the member.
    * ``twins``: DLedger files that would be converted.
    * ``derived``: queues and index that would be built on the stage, at most.
    * ``log_end``: the end of the last file of the old log; ``last`` is where that file begins, -1
      without one; ``sealed`` are (first offset, length) of its sealed files.
    * ``on_stage``: the first offsets of the files that are on the stage already.
    * ``own_derived``: the queues and the index of the member.
    """

    name: str
    known: int
    read: int
    read_logs: int
    free: int
    log_end: int
    last: int
    own_derived: int
    twins: int
    sealed: tuple[tuple[int, int], ...] = field(converter=_pairs)
    on_stage: tuple[int, ...] = field(converter=_numbers)
    staged: int = 0
    derived: int = 0

    @property
    def written(self) -> int:
        return self.staged + self.twins + self.derived

    @property
    def paced(self) -> int:
        """The work to which the rate applies. The log is read again to build queues and index."""
        copied = self.staged + self.twins
        return self.read_logs + copied + (2 * copied if self.derived else 0)

    def seconds(self, bytes_per_second: float) -> float:
        """Return how long it takes at a rate; 0 without a limit."""
        return self.paced / bytes_per_second if bytes_per_second else 0

    def beside(self, longest: Forecast) -> Forecast:
        """Return the forecast for a group in which another member has the longest log."""
        missing = [
            size
            for first, size in longest.sealed
            if longest.log_end > self.log_end and first > self.last and first not in self.on_stage
        ]
        if missing and self.last < 0:
            derived = longest.own_derived
        else:
            derived = self.own_derived if self.twins else 0
        return evolve(self, staged=sum(missing), derived=derived)


@define(slots=True, frozen=True)
class _Member:
    """A directory of this host, its files, and its sealed files."""

    replica: LocalReplica
    directory: StoreDirectory
    sealed: frozenset[str]

    @classmethod
    def of(cls, replica: LocalReplica) -> _Member:
        directory = read_directory(replica.files, replica.root, replica.plan.settings)
        return cls(replica, directory, sealed_files(replica.files, directory))

    @property
    def learned(self) -> Learned:
        plan = self.replica.plan
        return Learned(self.replica.files, self.replica.root, plan.now_ms, plan.full)

    def is_known(self, path: str, *parts: str) -> bool:
        return all(self.learned.known(path, part) is not None for part in parts)

    def size(self, paths: Iterable[str]) -> int:
        return sum(data_bytes(self.replica.files, path) for path in paths)


def forecast_group(members: Sequence[Forecast]) -> list[Forecast]:
    """Return the forecasts of a group from those of its members, each made on its own host."""
    longest = max(members, key=lambda each: each.log_end, default=None)
    return [each.beside(longest) for each in members if longest is not None]


def forecast(replica: LocalReplica, *, leave: bool = False) -> Forecast:
    """Return what ``prepare`` would do with a replica of this host, without the others."""
    member = _Member.of(replica)
    files, directory = replica.files, member.directory
    logs = {file.path for log in directory.logs for file in log.files}
    indexes = {file.path for file in directory.index_files}
    known: list[str] = []
    unread: list[str] = []
    for path in sorted(member.sealed):
        if path in logs:
            parts: tuple[str, ...] = (WALK, MD5)
        else:
            parts = (INDEX,) if path in indexes else (UNITS,)
        (known if member.is_known(path, *parts) else unread).append(path)
    classic, sealed = directory.classic.files, member.sealed
    queues = (file.path for queue in directory.queues for file in queue.segments.files)
    return Forecast(
        name=replica.name,
        known=member.size(known),
        read=member.size(unread),
        read_logs=member.size(path for path in unread if path in logs),
        free=files.disk_usage(replica.root)[1],
        log_end=max((file.end_offset for file in classic), default=0),
        last=max((file.first_offset for file in classic), default=-1),
        own_derived=member.size(queues) + member.size(indexes),
        twins=sum(file.size for file in _unconverted(member)) if leave else 0,
        sealed=_pairs((each.first_offset, each.size) for each in classic if each.path in sealed),
        on_stage=_numbers(_staged(member)),
    )


def _staged(member: _Member) -> Iterator[int]:
    stage = Stage(member.replica.files, member.replica.root, LOG)
    for name in stage.names:
        if name.isdigit() and member.is_known(stage.path(name), MD5):
            yield int(name)


def _unconverted(member: _Member) -> list[LogFile]:
    """Return the sealed DLedger files that have no twin."""
    ledger = member.directory.ledger
    stage = Stage(member.replica.files, member.replica.root, TWINS)
    found = [file for file in ledger.data.files if file.path in member.sealed] if ledger else []
    return [
        file
        for file in found
        if not (
            member.is_known(file.path, TWIN)
            and member.is_known(stage.path(file_name(file.first_offset)), MD5)
        )
    ]
