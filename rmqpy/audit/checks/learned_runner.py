"""A runner that does not audit a log file again about which everything was learned earlier.

The learned result of a file says which units its queues and the DLedger index must have, as sums.
If their files have exactly these, the audit of the log file would find nothing, and the learned
result takes its place. Otherwise the file is audited again, so the findings are those of a complete
audit. Everything that concerns several log files (the steps of queue offsets, indexes and terms)
is checked where the results of the files are merged, as in any audit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attrs import define, evolve

from rmqpy.audit.checks.derived_files import EVERYWHERE, DerivedFiles
from rmqpy.audit.checks.key_check import open_index
from rmqpy.audit.checks.range_runner import RangeRunner
from rmqpy.audit.facts.file_md5 import FilePart, FileSums
from rmqpy.audit.facts.learned import MD5, WALK, Learned
from rmqpy.audit.scan.blocks import Blocks, digest_of
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.range_json import copy_of, decode_result, encode_result, whole_file
from rmqpy.audit.scan.ranges import RANGE_BYTES, RangeResult, WorkRange, audit_range
from rmqpy.audit.scan.sealed import sealed_files
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.model.files import FileIdentity, FileSystem

if TYPE_CHECKING:
    from rmqpy.config.loading import StoreSettings

__all__ = ["LearnedRunner", "learn_derived_files", "learn_log_file"]


@define(slots=True, eq=False)
class LearnedRunner:
    """Uses what was learned, and learns from what ``inner`` reads (implements RangeRunner)."""

    inner: RangeRunner
    learned: Learned
    derived: DerivedFiles

    def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        for path, works in groupby(ranges, key=lambda work: work.path):
            yield from self._file(path, list(works), plan)

    def _file(self, path: str, works: list[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        known = self._known(works[0], plan)
        if known is not None:
            self.learned.used(path, WALK)
            yield known
            return
        is_sealed = path in self.derived.sealed
        identity = self.learned.identity(path) if is_sealed else None
        plan = evolve(plan, sums=identity is not None)
        copies = []
        end = 0
        for result in self.inner.run(works, plan):
            copies.append(copy_of(result))
            end = max(end, result.end - works[0].first_offset)
            yield result
        self.learned.read(path, min(end, _data_bytes(self.derived.files, path)))
        if identity is None or (works[-1].limit is not None and not _is_whole(works[-1])):
            return
        whole = whole_file(copies, lambda work, begin: self.inner.rerun(work, plan, begin))
        if whole is not None:
            _keep(self.learned, whole, plan, identity)
            # Soon its pages are no longer in memory.
            deque(self.md5s([FilePart(path)]), maxlen=0)

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult:
        return self.inner.rerun(work, plan, begin)

    def map(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return self.inner.map(do, items)

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        for part in parts:
            known = self.learned.known(part.path, MD5)
            if known is not None and known["valid"] == part.valid:
                self.learned.used(part.path, MD5)
                yield FileSums(known["md5"], known["valid_md5"])
                continue
            is_sealed = part.path in self.derived.sealed
            identity = self.learned.identity(part.path) if is_sealed else None
            for sums in self.inner.md5s([part]):
                self.learned.read(part.path, _data_bytes(self.derived.files, part.path))
                value = {"valid": part.valid, "md5": sums.md5, "valid_md5": sums.valid_md5}
                self.learned.keep(part.path, MD5, value, identity)
                yield sums

    def _known(self, work: WorkRange, plan: TallyPlan) -> RangeResult | None:
        """Return the learned result of a file if an audit of it would find nothing."""
        if not plan.check_crc or not _is_whole(work):
            return None
        value = self.learned.known(work.path, WALK)
        if value is None or not _serves(value["parts"], work, plan):
            return None
        load = partial(_read_blocks, self.derived.files, self.learned, work)
        result = decode_result(value["result"], work, load)
        number, remainder = divmod(work.first_offset, work.file_size)
        if remainder or (plan.keys is not None and result.end > plan.keys[1]):
            return None
        tally = result.tally
        if plan.units_of is not None:
            for queue in tally.queues:
                if not self.derived.has_units(queue, number, work.file_size):
                    return None
                has_files = plan.units_of(queue.topic, queue.queue_id) is not None
                queue.right_units = queue.unit_count if has_files else 0
        if plan.entry_units is not None:
            if not self.derived.has_entry_units(tally, number, work.file_size):
                return None
            tally.right_entry_units = tally.records
        _leave_out(result, plan)
        return result


def _read_blocks(files: FileSystem, learned: Learned, work: WorkRange, checksum: str) -> bytes:
    """Return the packed digests of the blocks of a whole log file: those that were kept, or those
    of its bytes.
    """
    kept = learned.blocks(work.path)
    if kept is not None and digest_of(kept) == checksum:
        return kept
    learned.read(work.path, _data_bytes(files, work.path))
    plan = TallyPlan(dledger=False, digests=False, blocks=True, check_crc=False)
    whole = evolve(work, start=work.first_offset, stop=work.first_offset + work.file_size)
    return audit_range(map_log(files, work.path), whole, plan).blocks.to_bytes()


def _data_bytes(files: FileSystem, path: str) -> int:
    """Return the size of a file without the hole at its end, which is not read from the disk."""
    file = files.open_readonly(path)
    try:
        return file.data_end(0)
    finally:
        file.close()


def _is_whole(work: WorkRange) -> bool:
    """Return whether the file of a range may be read to its end."""
    return work.limit is None or work.limit >= work.first_offset + work.file_size


def _parts(result: RangeResult, plan: TallyPlan) -> dict[str, bool]:
    low, high = plan.keys or (0, 0)
    has_keys = plan.keys is not None and low <= result.work.first_offset and result.end <= high
    return {"digests": plan.digests, "blocks": plan.blocks, "keys": has_keys}


def _serves(parts: dict[str, Any], work: WorkRange, plan: TallyPlan) -> bool:
    """Return whether a learned result has everything that a plan asks for."""
    wanted = {
        "digests": plan.digests,
        "blocks": plan.blocks,
        "keys": plan.keys is not None,
    }
    low = plan.keys[0] if plan.keys is not None else 0
    return low <= work.first_offset and all(parts[name] for name in wanted if wanted[name])


def _leave_out(result: RangeResult, plan: TallyPlan) -> None:
    """Remove what the plan does not ask for."""
    if plan.keys is None:
        result.tally.key_count = result.tally.key_sum = 0
    if not plan.blocks:
        result.blocks = Blocks.none()
    if not plan.digests:
        for queue in result.tally.queues:
            queue.buckets = {}


def learn_log_file(files: FileSystem, learned: Learned, work: WorkRange) -> RangeResult | None:
    """Audit a complete log file that is not in its place yet, and keep the result.

    Return None, and keep nothing, if it has a finding or is not closed. ``work`` covers the file.
    """
    identity = learned.identity(work.path)
    plan = TallyPlan(dledger=False, digests=True, blocks=True, keys=(0, 1 << 62), sums=True)

    def rerun(again: WorkRange, begin: int) -> RangeResult:
        return audit_range(map_log(files, work.path), again, plan, begin)

    end = work.first_offset + work.file_size
    ranges = [
        evolve(work, start=start, stop=min(start + RANGE_BYTES, end))
        for start in range(work.first_offset, end, RANGE_BYTES)
    ]
    results = [audit_range(map_log(files, each.path), each, plan) for each in ranges]
    whole = whole_file(results, rerun)
    if whole is not None:
        _keep(learned, whole, plan, identity)
    return whole


def _keep(
    learned: Learned, whole: RangeResult, plan: TallyPlan, identity: FileIdentity | None
) -> None:
    value = {"parts": _parts(whole, plan), "result": encode_result(whole)}
    learned.keep_walk(whole.work.path, value, whole.blocks.to_bytes(), identity)


def learn_derived_files(
    files: FileSystem,
    learned: Learned,
    folder: str,
    settings: StoreSettings,
    sleep: Callable[[float], None],
) -> None:
    """Learn the sums of the sealed queue and index files in ``folder``, which this process has just
    written and which are not in their place yet. Nothing is added to any of the index files.
    """
    directory = read_directory(files, folder)
    indexes = {file.path for file in directory.index_files}
    derived = DerivedFiles(files, directory, learned, sealed_files(files, directory) | indexes)
    for path in derived.sealed:
        learned.settled(path, sleep)
    log_file_size = settings.mapped_file_size_commit_log
    derived.learn_queues(log_file_size)
    tables, _ = open_index(files, directory, settings)
    for table in tables:
        walk = table.slot_count, table.entry_end
        path = f"{directory.root}/{table.file}"
        derived.walk_index(path, walk, EVERYWHERE, log_file_size)
