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

from rmqpy.model.text import count_text, format_bytes, time_text
from rmqpy.why.answer import (
    Answer,
    Cause,
    duration_text,
    proven,
    ranked,
)
from rmqpy.why.questions.oldest_file import expired_causes, not_yet_expired_causes, touch_text
from rmqpy.why.questions.retention_facts import RetentionFacts

__all__ = ["explain_not_deleted"]

QUESTION = "why not-deleted"
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
            next=(touch_text(),),
        )
        return
    expires_ms = facts.expires_ms(file)
    if expires_ms < 0:
        return
    if expires_ms > facts.now_ms:
        yield from not_yet_expired_causes(facts, file, expires_ms)
    else:
        yield from expired_causes(facts, file)


def _divide(facts: RetentionFacts) -> Iterator[Cause]:
    if not (facts.classic and facts.ledger):
        return
    files = (
        f"{count_text(len(facts.classic), 'old file')}, the last of them {facts.classic[-1].name}"
    )
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
