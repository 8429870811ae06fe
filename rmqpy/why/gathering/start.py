"""Collect what the next start of a broker finds in a directory."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from pathlib import Path

from rmqpy.audit.facts.facts import LogFacts, StoreFacts, TailKind
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import LogSegments
from rmqpy.codec import layout
from rmqpy.store.files.checkpoint import SAFETY_MARGIN_MS
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.log_recovery import CLEAN_START_FILES
from rmqpy.store.files.recovery_point import RecoveryPoint
from rmqpy.store.queues.rebuilds import QueueRebuilds
from rmqpy.store.upgrade_guard import APPLYING, ROLLING_BACK, read_copies, upgrade_work
from rmqpy.why.questions.slow_start import StartFacts
from rmqpy.why.sources.directory import StoreDirectorySource
from rmqpy.why.sources.live import BrokerSource

__all__ = ["start_of_broker", "start_of_directory"]

MAP_LIMIT = Path("/proc/sys/vm/max_map_count")


SAMPLE_BYTES = 32 << 20
"""The number of bytes before the end of the log of which the reading is timed."""
SAMPLE_BYTES_MIN = 4 << 20


def start_of_directory(
    source: StoreDirectorySource, now_ms: int, now_s: Callable[[], float] = time.perf_counter
) -> StartFacts:
    """Read a directory; ``now_s`` times how fast the end of its log can be read."""
    directory, files = source.directory, source.files
    settings, settings_from = source.settings()
    store = source.configuration.store if source.configuration is not None else None
    facts = read_facts(files, source.root, store)
    point = RecoveryPoint.load(files, directory.paths.recovery_point)
    log = directory.logs[-1] if directory.logs else None
    safe_ms = facts.checkpoint.safe_timestamp_ms if facts.checkpoint is not None else 0
    end = facts.end
    clean_begin = log.files[max(0, len(log.files) - CLEAN_START_FILES)].first_offset if log else 0
    java_begin = clean_begin
    if not facts.clean_stop and log is not None:
        java_begin = _safe_file(source, log, safe_ms)
    ours_begin = java_begin
    if not facts.clean_stop and point is not None and log is not None:
        if log.first_offset <= point.offset <= end:
            ours_begin = point.offset
    queued = max((queue.end_physical for queue in facts.queues), default=facts.begin)
    behind = max(0, end - queued) if facts.queues else end - facts.begin
    lost = [
        each
        for each in facts.index
        if not facts.clean_stop
        and facts.checkpoint is not None
        and each.end_timestamp_ms > facts.checkpoint.index_timestamp_ms - SAFETY_MARGIN_MS
    ]
    started = log.file_at(java_begin) if log is not None else None
    faults = (each.found for each in facts.findings if each.file == "checkpoint")
    return StartFacts(
        subject=source.name,
        target=source.name,
        running=facts.running,
        settings=settings,
        settings_from=settings_from,
        mode=facts.mode.value,
        clean=facts.clean_stop,
        log_bytes=end - facts.begin,
        scan_java=max(0, end - java_begin),
        scan_java_file=directory.relative(started.path) if started is not None else "",
        scan_rmqpy=max(0, end - ours_begin),
        dispatch_java=behind if facts.clean_stop else max(0, end - java_begin),
        dispatch_rmqpy=behind if facts.clean_stop else max(0, end - ours_begin),
        checkpoint_ms=safe_ms,
        checkpoint_fault=next(faults, ""),
        recovery_point=point.offset if point is not None else -1,
        log_end=end,
        queue_files=sum(len(queue.segments.files) for queue in directory.queues),
        queue_count=len(directory.queues),
        missing_queues=tuple(_missing(facts, point)),
        rebuilds=len(QueueRebuilds(files, directory.paths.queue_rebuilds)),
        index_files=len(directory.index_files),
        index_bytes=sum(file.size for file in directory.index_files),
        lost_index_files=len(lost),
        lost_index_bytes=sum(each.bytes for each in lost),
        tail="" if facts.running else _tail(facts.ledger or facts.classic),
        unfinished=_unfinished(source),
        map_limit=_map_limit(),
        now_ms=now_ms,
        bytes_per_second=_reading_rate(source, log, end, now_s) if log is not None else 0,
    )


def _reading_rate(
    source: StoreDirectorySource, log: LogSegments, end: int, now_s: Callable[[], float]
) -> float:
    """Return the bytes per second at which the last file with messages can be read and checked, or
    0 if it has too few bytes.
    """
    found = log.file_at(end - 1)
    if found is None or end - found.first_offset < SAMPLE_BYTES_MIN:
        return 0
    stop = end - found.first_offset
    file = source.files.open_readonly(found.path)
    try:
        begin_s = now_s()
        zlib.crc32(file.view[max(0, stop - SAMPLE_BYTES) : stop])
        return min(stop, SAMPLE_BYTES) / max(now_s() - begin_s, 1e-9)
    finally:
        file.close()


def _safe_file(source: StoreDirectorySource, log: LogSegments, safe_ms: int) -> int:
    """Return the offset of the last file whose first message is older than the checkpoint."""
    shift = layout.ENTRY_HEADER_SIZE if log.framing is Framing.DLEDGER else 0
    for file in reversed(log.files):
        first = source.message(file.first_offset + shift)
        if first is not None and 0 < first.store_timestamp_ms <= safe_ms:
            return file.first_offset
    return log.first_offset


def _missing(facts: StoreFacts, point: RecoveryPoint | None) -> list[str]:
    present = {queue.topic for queue in facts.queues}
    return sorted(set(point.queues) - present) if point is not None else []


def _tail(log: LogFacts | None) -> str:
    if log is None or log.tail not in (TailKind.PARTIAL, TailKind.JUNK):
        return ""
    kind = "a truncated record" if log.tail is TailKind.PARTIAL else "bytes that are no record"
    return f"{log.tail_bytes} bytes after offset {log.end} are {kind}"


def _unfinished(source: StoreDirectorySource) -> str:
    copies = read_copies(source.files, upgrade_work(source.root))
    if not copies:
        return ""
    newest = copies[0]
    state = "unreadable" if newest.content is None else str(newest.content["state"])
    return state if state in (APPLYING, ROLLING_BACK, "unreadable") else ""


def _map_limit() -> int:
    try:
        return int(MAP_LIMIT.read_text())
    except (OSError, ValueError):
        return -1


def start_of_broker(source: BrokerSource, now_ms: int) -> StartFacts:
    settings, settings_from = source.settings()
    info = source.runtime_info()

    def number(key: str) -> int:
        text = info.get(key, "")
        return int(text) if text.isdigit() else -1

    return StartFacts(
        subject=source.name,
        target=source.name,
        running=True,
        is_live=True,
        settings=settings,
        settings_from=settings_from,
        behind_bytes=number("dispatchBehindBytes"),
        booted_ms=number("bootTimestamp"),
        now_ms=now_ms,
    )
