"""Collect the facts of retention from a directory or a running broker."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.facts.log_facts import read_log_facts
from rmqpy.audit.scan.directory import LogSegments
from rmqpy.codec import layout
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.recovery_point import RecoveryPoint
from rmqpy.why.questions.retention_facts import DiskFacts, LogFileFacts, RetentionFacts
from rmqpy.why.sources.directory import StoreDirectorySource
from rmqpy.why.sources.live import BrokerSource
from rmqpy.why.sources.process import deleted_files

__all__ = ["retention_of_broker", "retention_of_directory"]


def retention_of_directory(source: StoreDirectorySource, now_ms: int) -> RetentionFacts:
    directory, files = source.directory, source.files
    process = find_lock_owner(directory.paths.lock)
    settings, settings_from = source.settings()
    ledger = directory.ledger
    point = RecoveryPoint.load(files, directory.paths.recovery_point)
    held = deleted_files(process, source.root) if process is not None else ()
    folders = {source.root: None, directory.paths.commit_log.split(",")[0]: None}
    disks, devices = [], set()
    for folder in folders:
        if files.is_dir(folder) and files.device_of(folder) not in devices:
            devices.add(files.device_of(folder))
            total, free = files.disk_usage(folder)
            disks.append(DiskFacts(folder, 1 - free / total if total else 0.0))
    kept = source.range()
    return RetentionFacts(
        subject=source.name,
        target=source.name,
        is_live=False,
        running=process is not None,
        now_ms=now_ms,
        settings=settings,
        settings_from=settings_from,
        classic=tuple(_log_files(source, directory.classic)),
        ledger=tuple(_log_files(source, ledger.data)) if ledger else (),
        disks=tuple(disks),
        first_ms=kept.first_ms if kept is not None else -1,
        queues_to=point.offset if point is not None and process is not None else None,
        held=tuple(held) if held is not None else None,
    )


def _log_files(source: StoreDirectorySource, log: LogSegments) -> Iterator[LogFileFacts]:
    shift = layout.ENTRY_HEADER_SIZE if log.framing is Framing.DLEDGER else 0
    for number, file in enumerate(log.files):
        if number + 1 < len(log.files):
            following = source.message(log.files[number + 1].first_offset + shift)
            last_ms = following.store_timestamp_ms if following is not None else -1
        else:
            facts, _ = read_log_facts(source.files, source.directory, log, None)
            last_ms = facts.last.store_timestamp_ms if facts.last is not None else -1
        yield LogFileFacts(
            name=source.directory.relative(file.path),
            size=file.size,
            end_offset=file.end_offset,
            mtime_ms=file.mtime_ms,
            last_ms=last_ms,
        )


def retention_of_broker(source: BrokerSource, now_ms: int) -> RetentionFacts:
    settings, settings_from = source.settings()
    info = source.runtime_info()
    kept = source.range()
    size = int(settings.get("mappedFileSizeCommitLog", StoreSettings().mapped_file_size_commit_log))
    disks = tuple(
        DiskFacts(name, float(info[key]))
        for name, key in (
            ("log", "commitLogDiskRatio"),
            ("consume queues", "consumeQueueDiskRatio"),
        )
        if key in info
    )
    files = []
    if kept is not None and kept.end > kept.begin:
        begin = kept.begin // size * size
        ends = range(begin + size, kept.end + size, size)
        names = (f"the file at offset {end - size}" for end in ends)
        files = [
            LogFileFacts(name=name, size=0, end_offset=end)
            for name, end in zip(names, ends, strict=True)
        ]
    is_ledger = settings.get("enableDLegerCommitLog") == "true"
    divide = info.get("dividedCommitlogOffset", "")
    joined = int(divide) if divide.isdigit() else (0 if is_ledger else 1 << 63)
    return RetentionFacts(
        subject=source.name,
        target=source.name,
        is_live=True,
        running=True,
        now_ms=now_ms,
        settings=settings,
        settings_from=settings_from,
        classic=tuple(each for each in files if each.end_offset <= joined),
        ledger=tuple(each for each in files if each.end_offset > joined),
        disks=disks,
        first_ms=kept.first_ms if kept is not None else -1,
        failure=info.get("cleaningFailure"),
    )
