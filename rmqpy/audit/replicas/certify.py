"""Compute a certificate (:mod:`rmqpy.audit.replicas.certificate`) from manifests, and from the
stores whose files are available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import asdict, evolve

from rmqpy.audit.checks.key_check import KeyHole
from rmqpy.audit.replicas.certificate import Certificate, Comparison, Subject
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.replicas.message_comparison import MessageComparison, MessageSummer
from rmqpy.audit.replicas.table_comparison import (
    compare_tables,
    compare_with_earlier,
    impossible_offsets,
    queue_ends,
    unjudged_tables,
)
from rmqpy.model.text import count_text

__all__ = ["certify"]

NEVER_EXAMINED: Final = (
    "bytes after the last message of a file, and after its filler",
    "the numbers in the property __RMQPY_ENTRY, which leave adds",
    "broker.conf, and the files in rmqpy/",
    "extensions of consume queues",
    "markers of DLedger leaders, if one store has more of them",
)


def certify(
    manifests: Sequence[Manifest],
    now_ms: int,
    available: Mapping[str, MessageSummer] | None = None,
    *,
    earlier: int = 0,
) -> Certificate:
    """Compare the stores of these manifests, the first ``earlier`` of which are earlier states.

    ``available`` maps names of manifests to stores whose files can be read.
    """
    named = list(_distinctly_named(manifests))
    past, present = named[:earlier], named[earlier:]
    reference = max(present, key=lambda each: (each.end, -each.begin))
    pairs = [(before, after, present) for before in past for after in present]
    pairs += [(reference, other, []) for other in present if other is not reference]
    ends = queue_ends(present)
    return Certificate(
        made_ms=now_ms,
        subjects=(
            *(_subject(each, queue_ends([each])) for each in past),
            *(_subject(each, ends) for each in present),
        ),
        comparisons=tuple(
            _compare(one, other, available or {}, later) for one, other, later in pairs
        ),
        not_examined=tuple(_not_examined(named)),
    )


def _not_examined(manifests: Sequence[Manifest]) -> Iterator[str]:
    yield from NEVER_EXAMINED
    unjudged = unjudged_tables(manifests)
    if unjudged:
        yield f"the content of {', '.join(unjudged)}"
    old = [each.name for each in manifests if each.contents is None]
    if old:
        yield (
            f"tables, and offsets in messages that have moved, of {', '.join(old)}: its manifest"
            " has format 1"
        )
    for each in manifests:
        if each.uncommitted:
            count = len(each.uncommitted)
            yield f"{count_text(count, 'message')} of {each.name} not known to be committed"
    yield from _data_of_5x(manifests)


def _data_of_5x(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Yield what rmqpy does not read of the stores, each with the names of the stores."""
    found: dict[str, list[str]] = {}
    for manifest in manifests:
        root = manifest.facts.get("root", "")
        for each in manifest.facts.get("unread", ()):
            path = each["path"].removeprefix(f"{root}/")
            found.setdefault(f"{path} ({each['found']})", []).append(manifest.name)
    for text, names in found.items():
        yield f"{text} of {', '.join(names)}"


def _distinctly_named(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    for number, manifest in enumerate(manifests, 1):
        if manifest.name in {later.name for later in manifests[number:]}:
            manifest = evolve(manifest, name=f"{manifest.name} before")
        yield manifest


def _subject(manifest: Manifest, ends: Mapping[tuple[str, int], int]) -> Subject:
    messages = manifest.messages
    old_log = manifest.log("classic")
    files = () if old_log is None else old_log.files
    return Subject(
        name=manifest.name,
        digest=manifest.content_digest(),
        begin=manifest.begin,
        end=manifest.end,
        messages=messages,
        queued=sum(queue.count for queue in manifest.queues),
        by_queue=sum(queue.right_units for queue in manifest.queues),
        by_id=messages - manifest.findings.get("RECORD_PLACE", 0),
        keys=manifest.keys,
        keys_found=manifest.keys_found,
        divided_offset=files[-1].end_offset if files else -1,
        old_log_end=files[-1].end if files else -1,
        old_log_digest=",".join(
            file.blocks.digest for file in reversed(files) if file.blocks.count
        ),
        findings=manifest.findings,
        first_findings=manifest.first_findings,
        key_holes=manifest.key_holes,
        uncommitted=len(manifest.uncommitted),
        elsewhere=manifest.elsewhere,
        impossible_offsets=tuple(impossible_offsets(manifest, ends)),
        running=manifest.running,
        age=manifest.age,
    )


def _compare(
    reference: Manifest,
    other: Manifest,
    available: Mapping[str, MessageSummer],
    later: Sequence[Manifest],
) -> Comparison:
    """Compare two stores. ``later`` are all stores of the later time if the reference is an earlier
    state, and empty if both are of one time.
    """
    is_earlier = bool(later)
    compared = MessageComparison(reference, other, available)
    compared.run()
    mine = {table.name: table.digest for table in reference.tables}
    theirs = {table.name: table.digest for table in other.tables}
    names = sorted({*mine, *theirs})
    return Comparison(
        other=other.name,
        reference=reference.name,
        may_have_more=is_earlier,
        **asdict(compared.counts),
        tables=tuple(name for name in names if mine.get(name) != theirs.get(name)),
        table_differences=tuple(
            compare_with_earlier(reference, other, later)
            if is_earlier
            else compare_tables(reference, other)
        ),
        key_holes=tuple(_different_holes(reference, other, is_earlier=is_earlier)),
        groups=tuple(compared.groups.values()),
        differences=tuple(compared.differences),
    )


def _different_holes(
    reference: Manifest, other: Manifest, *, is_earlier: bool
) -> Iterator[KeyHole]:
    """Yield the holes of the key index that only one of two stores has, where both have messages.

    Holes of an earlier state may have been filled since.
    """
    if reference.contents is None or other.contents is None:
        return
    begin, end = max(reference.begin, other.begin), min(reference.end, other.end)
    mine, theirs = set(reference.key_holes), set(other.key_holes)
    yield from (
        hole
        for hole in sorted(theirs - mine if is_earlier else theirs ^ mine)
        if hole[1] >= begin and hole[0] < end
    )
