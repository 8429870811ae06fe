"""Why a file of the log is not deleted: the rules of retention, applied to the files as they are.

========  ===================================================  ================================
trigger   condition                                            removed files
========  ===================================================  ================================
time      the hour is one of deleteWhen                        expired log files
space     disk use above diskMaxUsedSpaceRatio                 expired log files
manual    ``deleteExpiredCommitLog``                           expired log files
force     disk use above diskSpaceCleanForciblyRatio, and      log files of any age
          cleanFileForciblyEnable
========  ===================================================  ================================

A file expires fileReservedTime hours after it was last *modified*; a DLedger file one hour later.
The oldest file is removed first, the newest never. Java and rmqpy follow the same rules; the two
ratios after diskMaxUsedSpaceRatio are system properties in Java 4.9.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from rmqpy.model.text import format_bytes
from rmqpy.why.answer import (
    Answer,
    Cause,
    count_text,
    duration_text,
    possible,
    proven,
    ranked,
    time_text,
)
from rmqpy.why.questions.retention_facts import HOUR_MS, LogFileFacts, RetentionFacts

__all__ = ["explain_not_deleted"]

QUESTION = "why not-deleted"
TOUCHED_MS = HOUR_MS
"""A file that was modified so long after its last message was touched by something else."""
FUTURE_MS = 60_000
FILES_NAMED = 3


def explain_not_deleted(facts: RetentionFacts) -> Answer:
    causes = [*_stopped(facts), *_oldest(facts), *_divide(facts), *_held(facts)]
    return Answer(
        question=QUESTION,
        subject=facts.subject,
        facts=tuple(_facts(facts)),
        causes=ranked(causes),
        nothing="no file waits to be deleted",
        ruled_out=tuple(_ruled_out(facts)),
        not_examined=tuple(_not_examined(facts)),
    )


def _stopped(facts: RetentionFacts) -> Iterator[Cause]:
    if not facts.running and facts.files:
        yield proven(
            "no broker runs on the directory, and only a running broker deletes files",
            "no process holds the file lock",
            next=("start the broker; what keeps the files then follows",),
        )


def _oldest(facts: RetentionFacts) -> Iterator[Cause]:
    if not facts.files:
        return
    file = facts.files[0]
    if len(facts.files) == 1 and not facts.is_live:
        yield proven(
            f"{file.name} is the only file of the log: the file that is written is never deleted",
            facts.setting("mappedFileSizeCommitLog"),
        )
        return
    if file.mtime_ms > facts.now_ms + FUTURE_MS:
        yield proven(
            f"{file.name} was modified in the future, at {time_text(file.mtime_ms)}: the clock was"
            f" set back by {duration_text(file.mtime_ms - facts.now_ms)}, or the file was copied"
            " from a host whose clock is ahead",
            next=(_touch(facts),),
        )
        return
    expires_ms = facts.expires_ms(file)
    if expires_ms < 0:
        return
    if expires_ms > facts.now_ms:
        yield from _young(facts, file, expires_ms)
    else:
        yield from _expired(facts, file)


def _young(facts: RetentionFacts, file: LogFileFacts, expires_ms: int) -> Iterator[Cause]:
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
            next=(_touch(facts),),
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


def _touch(facts: RetentionFacts) -> str:
    return (
        "wait, or give each file the time of its last message: touch -d TIME FILE"
        " (rmqpy store inspect and dump show the times)"
    )


def _expired(facts: RetentionFacts, file: LogFileFacts) -> Iterator[Cause]:
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


def _divide(facts: RetentionFacts) -> Iterator[Cause]:
    if not (facts.classic and facts.ledger):
        return
    files = f"{len(facts.classic)} old files, the last of them {facts.classic[-1].name}"
    yield proven(
        "no file of the DLedger log is deleted while files of the old commit log exist: the name of"
        " its first file is the divided offset",
        files,
        next=(
            "the old files expire by the rules above, the last one when the DLedger log has an"
            " entry; then the rules apply to the DLedger log",
        ),
    )


def _held(facts: RetentionFacts) -> Iterator[Cause]:
    if not facts.held:
        return
    total = sum(file.bytes for file in facts.held)
    yield proven(
        f"{format_bytes(total)} are not free yet: the broker's process still has deleted files open"
        f" or mapped ({len(facts.held)}; df counts them, du does not)",
        *(f"{file.path}, {format_bytes(file.bytes)}" for file in facts.held[:FILES_NAMED]),
        next=("the space is free when readers finish; a restart frees it at once",),
    )


def _facts(facts: RetentionFacts) -> Iterator[tuple[str, str]]:
    if facts.files:
        total = sum(file.size for file in facts.files)
        oldest = facts.files[0]
        size = f", {format_bytes(total)}" if total else ""
        yield "log", f"{count_text(len(facts.files), 'file')}{size}, the oldest {oldest.name}"
    elif facts.first_ms >= 0:
        yield "log", f"first message stored {time_text(facts.first_ms)}"
    for disk in facts.disks:
        yield "disk", f"{disk.folder}: {disk.used:.0%} used"
    for key, default in (
        ("fileReservedTime", "72"),
        ("deleteWhen", "04"),
        ("diskMaxUsedSpaceRatio", "75"),
        ("diskSpaceCleanForciblyRatio", "85"),
        ("cleanFileForciblyEnable", "true"),
    ):
        yield "setting", facts.setting(key, default)
    yield "time", f"{time_text(facts.now_ms)} on this host"


def _ruled_out(facts: RetentionFacts) -> Iterator[str]:
    if not facts.is_due_by_space and facts.disks:
        yield (
            f"space: {facts.use:.0%} used is not above"
            f" {facts.number('diskMaxUsedSpaceRatio', 75)}%, so no file is deleted for space"
        )
    if facts.held == ():
        yield "deleted files that are still open: the broker's process has none"
    yield "consumers: files are deleted by age and space, whether their messages were consumed"


def _not_examined(facts: RetentionFacts) -> Iterator[str]:
    if facts.is_live:
        yield "the times of the files: a broker does not report them; run this on its directory"
        yield "the broker's clock and time zone, which decide about deleteWhen"
    elif facts.settings_from == "default":
        yield "the broker's settings: defaults are assumed; give -c broker.conf"
    if facts.running and facts.held is None and not facts.is_live:
        yield "deleted files that are still open: this user may not look at the broker's process"
