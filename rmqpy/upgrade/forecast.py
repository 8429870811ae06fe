"""What ``rmqpy upgrade prepare`` would do: a forecast from the directories, without reading logs.

Nothing is written. What a member lacks is judged by the names of files: whether its own files are
equal to those of the longest log is known only when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define

from rmqpy.audit.facts.learned import INDEX, MD5, TWIN, UNITS, WALK, Learned
from rmqpy.audit.scan.directory import LogFile, StoreDirectory, read_directory
from rmqpy.audit.scan.sealed import sealed_files
from rmqpy.store.files.mapped_files import file_name
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.node_context import data_bytes
from rmqpy.upgrade.plan.stage import LOG, TWINS, Stage

__all__ = ["Forecast", "forecast"]


@define(slots=True, frozen=True)
class Forecast:
    """What preparing one replica would do, in bytes.

    * ``known``: sealed files about which everything is known.
    * ``read``: sealed files that would be read; ``paced`` is the work to which the rate applies,
      which is more: the log is read again to build queues and index.
    * ``staged``: log files that would be copied to the member.
    * ``twins``: DLedger files that would be converted.
    * ``derived``: queues and index that would be built on the stage, at most.
    """

    name: str
    known: int
    read: int
    paced: int
    staged: int
    twins: int
    derived: int
    free: int

    @property
    def written(self) -> int:
        return self.staged + self.twins + self.derived

    def seconds(self, bytes_per_second: float) -> float:
        """Return how long it takes at a rate; 0 without a limit."""
        return self.paced / bytes_per_second if bytes_per_second else 0


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

    @property
    def log_end(self) -> int:
        return max((file.end_offset for file in self.directory.classic.files), default=0)

    @property
    def derived_bytes(self) -> int:
        queues = (file.path for q in self.directory.queues for file in q.segments.files)
        return self.size(queues) + self.size(file.path for file in self.directory.index_files)


def forecast(replicas: Sequence[LocalReplica], *, leave: bool = False) -> list[Forecast]:
    """Return what ``prepare`` would do with these replicas, which are all of this host."""
    members = [_Member.of(replica) for replica in replicas]
    longest = max(members, key=lambda each: each.log_end, default=None)
    return [_forecast(each, longest, leave=leave) for each in members]


def _forecast(member: _Member, longest: _Member | None, *, leave: bool) -> Forecast:
    files, root = member.replica.files, member.replica.root
    logs = {file.path for log in member.directory.logs for file in log.files}
    indexes = {file.path for file in member.directory.index_files}
    known: list[str] = []
    unread: list[str] = []
    for path in sorted(member.sealed):
        if path in logs:
            parts: tuple[str, ...] = (WALK, MD5)
        else:
            parts = (INDEX,) if path in indexes else (UNITS,)
        (known if member.is_known(path, *parts) else unread).append(path)
    missing = _missing(member, longest) if longest is not None else []
    staged = sum(file.size for file in missing)
    twins = sum(file.size for file in _unconverted(member)) if leave else 0
    derived = 0
    if missing and not member.directory.classic.files and longest is not None:
        derived = longest.derived_bytes
    elif twins:
        derived = member.derived_bytes
    read_logs = member.size(path for path in unread if path in logs)
    built = 2 * (staged + twins) if derived else 0
    return Forecast(
        name=member.replica.name,
        known=member.size(known),
        read=member.size(unread),
        paced=read_logs + staged + twins + built,
        staged=staged,
        twins=twins,
        derived=derived,
        free=files.disk_usage(root)[1],
    )


def _missing(member: _Member, longest: _Member) -> list[LogFile]:
    """Return the sealed files of the longest log after the member's own that are not staged."""
    if member is longest:
        return []
    own = max((file.first_offset for file in member.directory.classic.files), default=-1)
    stage = Stage(member.replica.files, member.replica.root, LOG)
    return [
        file
        for file in longest.directory.classic.files
        if file.path in longest.sealed
        and file.first_offset > own
        and not member.is_known(stage.path(file_name(file.first_offset)), MD5)
    ]


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
