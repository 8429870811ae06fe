"""The limits of the system that a broker may reach, and how near to them it is.

==============  ================================  ==================================================
limit           set by                            beyond it
==============  ================================  ==================================================
mappings        vm.max_map_count                  no further log file can be used: sends are
                                                  refused with code 14; queues do without
                                                  mappings before
                                                  (:mod:`rmqpy.store.queues.touched`)
descriptors     RLIMIT_NOFILE (``ulimit -n``)     no connection is accepted, no log file opened
memory          the cgroup, or the machine        the kernel ends the process
address_space   RLIMIT_AS (``ulimit -v``)         files cannot be mapped: as for mappings
disk            the free bytes of the disks       sends are refused with code 14
==============  ================================  ==================================================

The use is measured each minute in a worker thread. A limit is named in the log when
``NEAR_PERCENT`` of it are used, again after each further tenth, and at a start if the files and the
settings may need more of it than there is. The metrics have both numbers (``rmqpy_limit_used``,
``rmqpy_limit``).
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Iterator
from typing import Final

from attrs import field

from rmqpy.broker.services.pull_hold import HELD_BYTES
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.clock import Scheduler
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.net.connection import ConnectionLimits
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.files.paths import StorePaths

NEAR_PERCENT: Final = 80
CHECK_PERIOD_MS: Final = 60_000
CONNECTIONS_EXPECTED: Final = 1_000
"""The number of connections for which there must be descriptors at a start."""
NEXT_FILES: Final = 2
"""The number of log files for which there should be space on the disk."""
OTHER_DESCRIPTORS: Final = 64
"""Ports, locks, tables, name servers."""

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class Limit:
    """One limit. ``needed`` is what files and settings may lead to; 0 if that is unknown."""

    name: str
    set_by: str
    used: int
    maximum: int
    needed: int
    remedy: str

    @property
    def is_near(self) -> bool:
        return self.used * 100 >= self.maximum * NEAR_PERCENT

    def __str__(self) -> str:
        """Return found, expected, and remedy."""
        needed = f", {self.needed} may be needed" if self.needed > self.used else ""
        return (
            f"{self.name}: {self.used} of {self.maximum} in use{needed} (limit: {self.set_by});"
            f" expected: less than {NEAR_PERCENT} %; {self.remedy}"
        )


@define(slots=True, frozen=True)
class SystemLimits:
    """The limits of this process; None if there is none, or if it is unknown."""

    mappings: int | None = None
    descriptors: int | None = None
    memory: int | None = None
    address_space: int | None = None

    @classmethod
    def read(cls, root: str = "") -> SystemLimits:
        """Return the limits. ``root`` is the folder of /proc and /sys."""
        return cls(
            mappings=_number(f"{root}/proc/sys/vm/max_map_count"),
            descriptors=_resource(resource.RLIMIT_NOFILE),
            memory=min(_memory_limits(root), default=None),
            address_space=_resource(resource.RLIMIT_AS),
        )


@define(slots=True, frozen=True)
class Usage:
    """What this process uses; 0 if it is unknown. ``memory`` is anonymous, without files."""

    mappings: int = 0
    descriptors: int = 0
    memory: int = 0
    address_space: int = 0

    @classmethod
    def read(cls, root: str = "") -> Usage:
        """Measure the use. Takes milliseconds with many mappings: not for the loop."""
        folder = f"{root}/proc/self"
        try:
            with open(f"{folder}/maps", "rb") as file:
                mappings = sum(1 for _ in file)
            with open(f"{folder}/status", encoding="ascii", errors="replace") as text:
                status = dict(line.split(":", 1) for line in text if ":" in line)
            descriptors = len(os.listdir(f"{folder}/fd"))
        except OSError:
            return cls()  # not Linux
        sizes = [int(status.get(name, "0 kB").split()[0]) << 10 for name in ("RssAnon", "VmSize")]
        return cls(mappings, descriptors, *sizes)


@define(slots=True, frozen=True, kw_only=True)
class Demand:
    """What the files of a store and the settings of a broker may need."""

    log_files: int
    log_bytes: int
    connections: int
    """The maximum number of connections."""
    buffered_bytes: int
    """The bytes that may wait in memory for clients."""
    next_bytes: int
    """The sizes of the next files of the log."""
    free_bytes: int
    """The free bytes of the disk for the log."""

    @classmethod
    def of(cls, configuration: BrokerConfiguration, log: CommitLog, files: FileSystem) -> Demand:
        """Return the demand of a broker and its log as of now."""
        rows = log.rows
        _, free = files.disk_usage(StorePaths.from_settings(configuration.store).commit_log)
        return cls(
            log_files=sum(map(len, rows)),
            log_bytes=sum(len(row) * row.file_size for row in rows),
            connections=configuration.remoting.max_connections,
            buffered_bytes=ConnectionLimits().pending_bytes_all + HELD_BYTES,
            next_bytes=NEXT_FILES * rows[-1].file_size,
            free_bytes=free,
        )


def limits_of(limits: SystemLimits, usage: Usage, demand: Demand) -> list[Limit]:
    """Return the known limits."""
    files = "or delete topics"
    named = [
        (
            *("mappings", "vm.max_map_count", usage.mappings, limits.mappings),
            *(usage.mappings + demand.log_files, f"raise it with sysctl, {files}"),
        ),
        (
            *("descriptors", "RLIMIT_NOFILE", usage.descriptors, limits.descriptors),
            demand.log_files + OTHER_DESCRIPTORS + min(demand.connections, CONNECTIONS_EXPECTED),
            "raise the hard limit (ulimit -Hn, LimitNOFILE of systemd) and restart",
        ),
        (
            *("memory", "cgroup or machine", usage.memory, limits.memory),
            usage.memory + demand.buffered_bytes,
            "give the process more memory",
        ),
        (
            *("address_space", "RLIMIT_AS", usage.address_space, limits.address_space),
            usage.address_space + demand.log_bytes,
            "remove the limit (ulimit -v unlimited): files are mapped, and take no memory by that",
        ),
        (
            *("disk", "free bytes for the next files", demand.next_bytes, demand.free_bytes),
            *(0, "free disk space, or lower fileReservedTime or diskMaxUsedSpaceRatio"),
        ),
    ]
    return [
        Limit(name, set_by, used, maximum, needed, remedy)
        for name, set_by, used, maximum, needed, remedy in named
        if maximum is not None
    ]


@define(slots=True, eq=False, repr=False)
class ResourceLimits:
    """The limits of one broker, measured repeatedly."""

    _scheduler: Scheduler
    _demand: Callable[[], Demand]
    found: list[Limit] = field(factory=list, init=False)
    """The last measurement."""
    _warned: dict[str, int] = field(factory=dict, init=False)
    """The use at the last warning, by name."""
    _is_first: bool = field(default=True, init=False)

    def check(self) -> None:
        """Measure, and name the limits that are near."""
        demand = self._demand()
        self._scheduler.run_blocking(
            lambda: limits_of(SystemLimits.read(), Usage.read(), demand), self._measured
        )

    def _measured(self, found: list[Limit] | None, error: BaseException | None) -> None:
        if found is None:
            logger.error("measuring the limits of the system failed", exc_info=error)
            return
        self.found = found
        for limit in found:
            is_short = self._is_first and limit.needed > limit.maximum
            if not (limit.is_near or is_short):
                self._warned.pop(limit.name, None)
            elif limit.used * 10 >= self._warned.get(limit.name, 0) * 11:
                self._warned[limit.name] = max(1, limit.used)
                logger.warning("near a limit of the system: %s", limit)
        self._is_first = False


def _resource(number: int) -> int | None:
    soft, _ = resource.getrlimit(number)
    return soft if soft != resource.RLIM_INFINITY else None


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # there is none, or "max"
        return None


def _memory_limits(root: str) -> Iterator[int]:
    """Yield the size of the memory and the limits of the cgroups of this process, 1 and 2."""
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open(f"{root}/proc/self/cgroup", encoding="ascii", errors="replace") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for group in groups:
        if len(group) != 3:
            continue
        _, controllers, path = group
        if not controllers:
            mount, name = f"{root}/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = f"{root}/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        while True:
            limit = _number(f"{mount}{path.rstrip('/')}/{name}")
            if limit is not None:
                yield limit
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]
