"""Why the oldest file of the log is still there: it is not expired, or nothing deletes it.

The rules are those of :mod:`rmqpy.why.questions.not_deleted`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from rmqpy.model.text import count_text, time_text
from rmqpy.why.answer import Cause, duration_text, possible, proven
from rmqpy.why.questions.retention_facts import HOUR_MS, LogFileFacts, RetentionFacts

__all__ = ["expired_causes", "not_yet_expired_causes", "touch_text"]

TOUCHED_MS = HOUR_MS
"""A file that was modified so long after its last message was touched by something else."""


def not_yet_expired_causes(
    facts: RetentionFacts, file: LogFileFacts, expires_ms: int
) -> Iterator[Cause]:
    forced = facts.is_nearly_full and facts.may_force
    if not forced:
        yield from _not_expired(facts, file, expires_ms)
    if facts.is_nearly_full and not facts.may_force:
        yield proven(
            f"the disk is {facts.use:.0%} used, which would delete files of any age, but that is"
            " switched off",
            facts.setting("cleanFileForciblyEnable"),
            facts.setting("diskSpaceCleanForciblyRatio", 85),
            next=("rmqpy admin updateBrokerConfig -b BROKER -k cleanFileForciblyEnable -v true",),
        )
    elif forced and facts.running:
        yield from _due(facts, file, "the disk is nearly full")
    elif facts.is_due_by_space:
        yield proven(
            f"the disk is {facts.use:.0%} used, but above diskMaxUsedSpaceRatio only *expired*"
            " files are deleted (at any hour)",
            facts.setting("diskMaxUsedSpaceRatio", 75),
            facts.setting("diskSpaceCleanForciblyRatio", 85) + ": from there on, files of any age",
            next=(_shorten(facts),),
        )


def _not_expired(facts: RetentionFacts, file: LogFileFacts, expires_ms: int) -> Iterator[Cause]:
    left = duration_text(expires_ms - facts.now_ms)
    kept = facts.setting("fileReservedTime", 72)
    if facts.reserved_ms > facts.number("fileReservedTime", 72) * HOUR_MS:
        kept += ", and one hour more for a DLedger log"
    if file.mtime_ms < 0:
        yield proven(
            f"the oldest file is not expired before {time_text(expires_ms)}, in {left}",
            kept,
            f"its first message was stored at {time_text(facts.first_ms)}",
            next=(_shorten(facts),),
        )
        return
    late_ms = file.mtime_ms - file.last_ms if file.last_ms >= 0 else 0
    if late_ms > TOUCHED_MS:
        sealed = bool(facts.ledger) and file is facts.classic[-1] if facts.classic else False
        why = (
            "the switch to DLedger closed it"
            if sealed
            else "something touched it, such as a copy without its times (cp without -p)"
        )
        yield proven(
            f"{file.name} was modified {duration_text(late_ms)} after its last message: {why}."
            f" Retention counts from there: it expires at {time_text(expires_ms)}, in {left}",
            f"modified {time_text(file.mtime_ms)}, last message stored {time_text(file.last_ms)}",
            kept,
            next=(touch_text(),),
        )
    else:
        yield proven(
            f"{file.name} is not expired: it was modified at {time_text(file.mtime_ms)} and is kept"
            f" until {time_text(expires_ms)}, for another {left}",
            kept,
            next=(_shorten(facts),),
        )


def _shorten(facts: RetentionFacts) -> str:
    return (
        "wait, or keep files for a shorter time: rmqpy admin updateBrokerConfig -b BROKER -k"
        " fileReservedTime -v HOURS (messages that were not consumed are deleted too)"
    )


def touch_text() -> str:
    return (
        "wait, or give each file the time of its last message: touch -d TIME FILE"
        " (rmqpy store inspect and dump show the times)"
    )


def expired_causes(facts: RetentionFacts, file: LogFileFacts) -> Iterator[Cause]:
    why = _trigger(facts)
    if why:
        if facts.running:
            yield from _due(facts, file, why)
        return
    following = _next_hour(facts)
    when = f", next at {following}" if following else ""
    make = proven if file.mtime_ms >= 0 else possible
    expired = [each for each in facts.files if 0 <= facts.expires_ms(each) <= facts.now_ms]
    which = (
        f"{count_text(len(expired), 'file')} expired, {file.name} first"
        if file.mtime_ms >= 0
        else f"files may have expired: the first message was stored {time_text(facts.first_ms)}"
    )
    yield make(
        f"{which}, but expired files are deleted in the hours {_hours(facts)} only{when}, or when"
        f" the disk is more than {facts.number('diskMaxUsedSpaceRatio', 75)}% used",
        facts.setting("deleteWhen", "04"),
        facts.setting("diskMaxUsedSpaceRatio", 75),
        f"the disk is {facts.use:.0%} used",
        next=("rmqpy admin deleteExpiredCommitLog -b BROKER deletes them now",),
    )


def _trigger(facts: RetentionFacts) -> str:
    if facts.is_nearly_full and facts.may_force:
        return "the disk is nearly full"
    if facts.is_due_by_space:
        return "the disk is above diskMaxUsedSpaceRatio"
    return f"the hours {_hours(facts)} are those of deleteWhen" if facts.is_due_by_time else ""


def _due(facts: RetentionFacts, file: LogFileFacts, why: str) -> Iterator[Cause]:
    """Yield why a file is still there although it should be deleted now."""
    if facts.failure:
        yield proven(
            f"a removal failed: {facts.failure}; until it succeeds, no other file is removed",
            facts.setting("redeleteHangedFileInterval", 120_000),
            next=("correct the permissions or the disk; the broker tries again by itself",),
        )
        return
    if facts.queues_to is not None and facts.queues_to < file.end_offset:
        yield proven(
            f"the consume queues on disk cover the log up to {facts.queues_to} only, and"
            f" {file.name} ends at {file.end_offset}: rmqpy deletes no file whose queues could be"
            " lost",
            "rmqpy/recovery-point",
            facts.setting("flushConsumeQueueThoroughInterval", 60_000),
            next=("wait for the next flush of the consume queues; see storeFailure if it fails",),
        )
        return
    first = f"{file.name} is" if file.mtime_ms >= 0 else "the oldest file may be"
    yield possible(
        f"{first} due ({why}): a round removes at most 10 files, every"
        f" {facts.number('cleanResourceInterval', 10_000) // 1000} s",
        facts.setting("cleanResourceInterval", 10_000),
        next=("look again in a minute: is it still the oldest file?",),
    )
    yield possible(
        "a Java broker waits for readers of the file, such as a consumer or a slave that lags far"
        " behind, and unmaps it by force only after destroyMapedFileIntervalForcibly",
        facts.setting("destroyMapedFileIntervalForcibly", 120_000),
        facts.setting("redeleteHangedFileInterval", 120_000),
        next=("store.log of the broker says 'delete file failed' or names the file",),
    )
    yield possible(
        "the broker may not remove the file: its user needs write permission on the folder",
        next=(f"ls -ld {facts.target}; see the broker's log for the error",),
    )


def _hours(facts: RetentionFacts) -> str:
    return ", ".join(f"{hour:02d}" for hour in sorted(facts.hours)) or "none"


def _next_hour(facts: RetentionFacts) -> str:
    now = datetime.fromtimestamp(facts.now_ms / 1000)
    for ahead in range(1, 25):
        moment = (now + timedelta(hours=ahead)).replace(minute=0, second=0, microsecond=0)
        if moment.hour in facts.hours:
            return time_text(round(moment.timestamp() * 1000))
    return ""
