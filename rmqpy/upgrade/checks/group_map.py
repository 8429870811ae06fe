"""The store map of a group from the surveys of its members, which may be on other hosts.

A file that is equal in all members is one block of the map: the digests of single blocks of another
host are requested only for files that differ. A file of which some member's single blocks are not
known is one block, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rmqpy.audit.picture.layout import (
    DamagePlace,
    FileOnMap,
    LogPart,
    MapLayout,
    ReplicaMap,
    lay_out,
)
from rmqpy.audit.picture.reading import NOT_CLEAN, finding_sentences
from rmqpy.audit.replicas.manifest import LogFileDigest
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.codec.tally.kernel import BLOCK_SIZE
from rmqpy.upgrade.plan.survey import Survey

__all__ = ["map_of_surveys"]

PARTS: Final = (("classic", LogPart.CLASSIC), ("dledger", LogPart.LEDGER))
Files = dict[tuple[str, int], LogFileDigest]


def map_of_surveys(surveys: Sequence[Survey], now_ms: int) -> MapLayout:
    """Return the map of the members; ``now_ms`` is the time from which proofs have their age."""
    tables = [_files(each) for each in surveys]
    as_one = {place for table in tables for place in table if _is_one_block(place, tables)}
    return lay_out(
        [_replica(each, table, as_one, now_ms) for each, table in zip(surveys, tables, strict=True)]
    )


def _files(survey: Survey) -> Files:
    """Return the files by part and first offset."""
    return {
        (part.value, file.first_offset): file
        for kind, part in PARTS
        if (log := survey.manifest.log(kind)) is not None
        for file in log.files
    }


def _is_one_block(place: tuple[str, int], tables: Sequence[Files]) -> bool:
    """Return whether a file is equal in all members, or cannot be compared block by block."""
    found = [table.get(place) for table in tables]
    if any(each is not None and not each.blocks.is_whole for each in found):
        return True
    return len({(each.end, each.blocks.digest) if each else None for each in found}) == 1


def _replica(survey: Survey, files: Files, as_one: set[tuple[str, int]], now_ms: int) -> ReplicaMap:
    manifest = survey.manifest
    return ReplicaMap(
        name=survey.name,
        files=[
            FileOnMap(
                file.path,
                LogPart(part),
                file.first_offset,
                file.end_offset if file.sealed else file.end,
                file.end_offset,
            )
            for (part, _), file in sorted(files.items(), key=lambda each: each[1].first_offset)
        ],
        divided_offset=manifest.divided_offset,
        damage=list(_damage(survey)),
        blocks=dict(_blocks(files, as_one)),
        facts=list(_sentences(survey, now_ms)),
    )


def _blocks(
    files: Files, as_one: set[tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    for (part, first), file in files.items():
        if (part, first) in as_one:
            yield (part, first), (file.blocks.digest, file.end - first)
            continue
        for number, digest in enumerate(file.blocks):
            start = first + number * BLOCK_SIZE
            length = BLOCK_SIZE if file.sealed else min(file.end - start, BLOCK_SIZE)
            yield (part, start), (digest, length)


def _damage(survey: Survey) -> Iterator[DamagePlace]:
    for each in survey.found:
        code, offset = FindingCode.__members__.get(str(each.get("code"))), each.get("offset", -1)
        if code is not None and isinstance(offset, int) and offset >= 0:
            yield DamagePlace(offset, code.severity, code.text)


def _sentences(survey: Survey, now_ms: int) -> Iterator[str]:
    manifest = survey.manifest
    if not survey.manifest.logs:
        yield "empty"
        return
    yield f"{manifest.mode.value} store, {len(manifest.queues):,} queues"
    if manifest.running:
        yield "a broker is running on it"
    elif not manifest.clean_stop:
        yield NOT_CLEAN
    yield from finding_sentences(manifest.findings, manifest.age, now_ms)
