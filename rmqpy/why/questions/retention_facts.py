"""The facts about the files of a log, for :mod:`rmqpy.why.questions.not_deleted`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from attrs import define

from rmqpy.why.sources.interface import DeletedFile

__all__ = ["HOUR_MS", "DiskFacts", "LogFileFacts", "RetentionFacts"]

HOUR_MS = 3_600_000


@define(slots=True, frozen=True, kw_only=True)
class LogFileFacts:
    """One log file. ``mtime_ms`` is -1 if it is not known (a broker does not report it).

    ``last_ms`` is the store time of its last message or, in a file that is followed by another, at
    most that of the first message there; -1 if it is not known.
    """

    name: str
    size: int
    end_offset: int
    mtime_ms: int = -1
    last_ms: int = -1


@define(slots=True, frozen=True)
class DiskFacts:
    """The disk of a folder: its used fraction."""

    folder: str
    used: float


@define(slots=True, frozen=True, kw_only=True)
class RetentionFacts:
    """The facts of one store. ``classic`` and ``ledger`` are the files of both logs, oldest first.

    ``first_ms`` is the store time of the first message. ``queues_to`` is the offset up to which the
    consume queues on disk cover the log (None if unknown). ``held`` are deleted files that the
    process of the broker has open (None if that cannot be seen). ``failure`` is what the broker
    reports about its last removal.
    """

    subject: str
    target: str
    is_live: bool
    running: bool
    now_ms: int
    settings: Mapping[str, str]
    settings_from: str
    classic: tuple[LogFileFacts, ...] = ()
    ledger: tuple[LogFileFacts, ...] = ()
    disks: tuple[DiskFacts, ...] = ()
    first_ms: int = -1
    queues_to: int | None = None
    held: tuple[DeletedFile, ...] | None = None
    failure: str | None = None

    def number(self, key: str, default: int) -> int:
        text = self.settings.get(key, "")
        return int(text) if text.isascii() and text.isdigit() else default

    def setting(self, key: str, default: object = "") -> str:
        value = self.settings.get(key)
        if value is None:
            return f"{key}={default} (default; a system property in Java 4.9)"
        return f"{key}={value} ({self.settings_from})"

    @property
    def use(self) -> float:
        return max((disk.used for disk in self.disks), default=0.0)

    @property
    def reserved_ms(self) -> int:
        """The time for which the oldest file is kept after its last modification."""
        hours = self.number("fileReservedTime", 72)
        return (hours if self.classic else hours + 1) * HOUR_MS

    @property
    def files(self) -> tuple[LogFileFacts, ...]:
        return (*self.classic, *self.ledger)

    @property
    def hours(self) -> set[int]:
        texts = self.settings.get("deleteWhen", "04").split(";")
        return {int(text) for text in texts if text.strip().isdigit()}

    @property
    def is_due_by_time(self) -> bool:
        return datetime.fromtimestamp(self.now_ms / 1000).hour in self.hours

    @property
    def is_due_by_space(self) -> bool:
        return self.use > self.number("diskMaxUsedSpaceRatio", 75) / 100

    @property
    def is_nearly_full(self) -> bool:
        return self.use > self.number("diskSpaceCleanForciblyRatio", 85) / 100

    @property
    def may_force(self) -> bool:
        return self.settings.get("cleanFileForciblyEnable", "true") == "true"

    def expires_ms(self, file: LogFileFacts) -> int:
        """Return the earliest time at which a file expires, or -1 if nothing is known."""
        known = file.mtime_ms if file.mtime_ms >= 0 else self.first_ms
        return known + self.reserved_ms if known >= 0 else -1
