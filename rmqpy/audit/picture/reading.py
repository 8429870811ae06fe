"""Read a directory for its store map: a whole audit, with the digests of all blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from rmqpy.audit.checks.engine import AuditOptions, StoreAudit, audit_store
from rmqpy.audit.facts.proof_age import ProofAge, age_sentences
from rmqpy.audit.picture.layout import BlockTable, DamagePlace, FileOnMap, LogPart, ReplicaMap
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.queue_units import map_units
from rmqpy.codec.layout import INDEX_UNIT_SIZE
from rmqpy.codec.tally.kernel import BLOCK_SIZE
from rmqpy.config.loading import StoreSettings
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, ProgressSink
from rmqpy.store.files.paths import own_folder
from rmqpy.store.files.recovery_point import RECOVERY_POINT_NAME

__all__ = ["NOT_CLEAN", "PLACES_MAX", "finding_sentences", "read_replica_map", "replica_of_audit"]

PLACES_MAX = 20_000
NOT_CLEAN: Final = "the broker did not stop cleanly"


def read_replica_map(
    files: FileSystem,
    root: str,
    settings: StoreSettings | None = None,
    progress: ProgressSink | None = None,
    name: str = "",
) -> ReplicaMap:
    """Return what a map shows of the store below ``root``, after reading all of its log."""
    found: list[Finding] = []

    def keep(findings: list[Finding]) -> None:
        found.extend(findings[: PLACES_MAX - len(found)])

    options = AuditOptions(
        root=root,
        settings=settings,
        blocks=True,
        sink=keep,
        progress=progress or NoProgress(),
    )
    audit = audit_store(files, options)
    return replica_of_audit(
        name or root,
        audit,
        found,
        committed=_committed_offset(files, root, settings, audit),
        flushed=_flushed_offset(files, root, audit),
    )


def replica_of_audit(
    name: str,
    audit: StoreAudit,
    findings: list[Finding],
    *,
    committed: int | None = None,
    flushed: int | None = None,
    now_ms: int = 0,
) -> ReplicaMap:
    """Return what a map shows of an audited store."""
    return ReplicaMap(
        name=name,
        files=list(_files(audit)),
        divided_offset=audit.facts.divided_offset,
        committed_offset=committed,
        flushed_offset=flushed,
        damage=[
            DamagePlace(each.offset, each.code.severity, each.code.text)
            for each in findings
            if each.offset >= 0
        ],
        blocks=_blocks(audit),
        facts=list(_sentences(audit, now_ms)),
    )


def _files(audit: StoreAudit) -> Iterator[FileOnMap]:
    for part, log in ((LogPart.CLASSIC, audit.classic), (LogPart.LEDGER, audit.ledger)):
        for file in log.files if log is not None else ():
            end = file.end_offset if file.is_sealed else file.end
            yield FileOnMap(file.file, part, file.first_offset, end, file.end_offset)


def _blocks(audit: StoreAudit) -> BlockTable:
    table = {}
    for part, log in ((LogPart.CLASSIC, audit.classic), (LogPart.LEDGER, audit.ledger)):
        for file in log.files if log is not None else ():
            for number, digest in enumerate(file.blocks):
                offset = file.first_offset + number * BLOCK_SIZE
                length = BLOCK_SIZE if file.is_sealed else min(file.end - offset, BLOCK_SIZE)
                table[part.value, offset] = digest, length
    return table


def _sentences(audit: StoreAudit, now_ms: int) -> Iterator[str]:
    facts = audit.facts
    yield f"{facts.mode.value} store, {audit.records:,} records, {audit.queue_count:,} queues"
    if facts.running:
        yield "a broker is running on it: shown up to the last message in a consume queue"
    elif not facts.clean_stop:
        yield NOT_CLEAN
    counts = {code.name: count for code, count in audit.counts.items()}
    yield from finding_sentences(counts, audit.age, now_ms)


def finding_sentences(
    counts: Mapping[str, int], age: ProofAge | None, now_ms: int
) -> Iterator[str]:
    """Yield what was found, as counts by the name of the finding, and how old that is."""
    if counts:
        yield f"findings: {', '.join(f'{count:,} {name}' for name, count in counts.items())}"
    else:
        yield "no findings"
    yield from age_sentences(age, now_ms) or ["the whole log was read for this map"]


def _committed_offset(
    files: FileSystem, root: str, settings: StoreSettings | None, audit: StoreAudit
) -> int | None:
    """Return the end of the last entry that the member knows to be committed, or None."""
    state, ledger = audit.facts.ledger_state, audit.facts.ledger
    folder = read_directory(files, root, settings).ledger
    if state is None or ledger is None or folder is None or state.committed_index < 0:
        return None
    if ledger.last is not None and state.committed_index >= ledger.last.index:
        return ledger.end
    units = map_units(files, folder.index, scattered=True)
    start = (state.committed_index + 1) * INDEX_UNIT_SIZE
    raw = units.read(start, INDEX_UNIT_SIZE) if units is not None else None
    return int.from_bytes(raw[4:12], signed=True) if raw is not None else None


def _flushed_offset(files: FileSystem, root: str, audit: StoreAudit) -> int | None:
    """Return the offset of rmqpy's recovery point, or None in a store without one, as Java's."""
    path = f"{own_folder(root)}/{RECOVERY_POINT_NAME}"
    if not files.exists(path):
        return None
    try:
        value = json.loads(files.read_bytes(path))
        offset = value["offset"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    inside = isinstance(offset, int) and audit.facts.begin <= offset <= audit.facts.end
    return offset if inside else None
