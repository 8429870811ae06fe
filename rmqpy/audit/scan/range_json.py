"""The result of a whole log file as plain values, to keep it and to use it again.

A result is kept only if it has no finding and the file is closed: then it depends on the bytes of
the file alone. Whether the consume queues and the DLedger index have the units of its messages is
not part of it; its sums say what those must contain (:mod:`rmqpy.codec.tally.derived_sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from rmqpy.audit.scan.blocks import Blocks, Load
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.range_merge import LogMerge, Rerun
from rmqpy.audit.scan.ranges import Ending, RangeResult, WorkRange
from rmqpy.codec.tally.kernel import QueueTally, Tally, TallyPlan
from rmqpy.store.files.framing import Framing

__all__ = ["copy_of", "counts_of", "decode_result", "encode_result", "whole_file"]

_TALLY: Final = (
    *("records", "frame_bytes", "body_bytes", "version_2", "min_store_ms", "max_store_ms"),
    *("largest_record", "longest_properties", "first_frame", "last_frame"),
    *("first_index", "first_term", "last_index", "last_term"),
    *("key_count", "key_sum", "entry_sum", "term_sum"),
)
_QUEUE: Final = (
    *("queue_id", "count", "unqueued", "first_queue_offset", "first_frame"),
    *("last_queue_offset", "last_frame", "next_queue_offset"),
    *("unit_count", "unit_sum", "tags_sum"),
)


def copy_of(result: RangeResult) -> RangeResult:
    """Return a copy that does not change when the original is merged."""
    tally = evolve(result.tally, queues=[_queue_copy(each) for each in result.tally.queues])
    return evolve(result, tally=tally)


def _queue_copy(queue: QueueTally) -> QueueTally:
    return evolve(queue, buckets={number: list(sums) for number, sums in queue.buckets.items()})


def whole_file(results: Sequence[RangeResult], rerun: Rerun) -> RangeResult | None:
    """Return the results of all ranges of one file as one, or None if it cannot be kept.

    ``results`` are copies (:func:`copy_of`), which are used up. ``rerun`` audits a range again.
    """
    work = _whole(results[0].work)
    found: list[Finding] = []
    proven: list[RangeResult] = []
    merge = LogMerge(work.log, rerun, found.extend)
    merge.proven = proven.append
    for each in results:
        merge.take(each)
    merged = merge.finish()
    file = merged.files[0]
    is_closed = file.ending is Ending.FILLER or (
        file.ending is Ending.CONTINUES and file.end == file.end_offset
    )
    if found or merged.stretches or not is_closed or not merged.tally.records:
        return None
    lengths = {at: length for each in proven for at, length in each.lengths.items()}
    firsts = {queue.first_frame for queue in merged.queues.values()} | {merged.tally.first_frame}
    dledger = work.framing is Framing.DLEDGER
    return RangeResult(
        work=work,
        begin=proven[0].begin,
        end=file.end,
        ending=file.ending,
        tally=evolve(
            merged.tally, plan=TallyPlan(dledger=dledger), queues=list(merged.queues.values())
        ),
        blocks=file.blocks,
        lengths={at: length for at, length in lengths.items() if at in firsts},
    )


def _whole(work: WorkRange) -> WorkRange:
    return evolve(work, start=work.first_offset, stop=work.first_offset + work.file_size)


def encode_result(result: RangeResult) -> dict[str, Any]:
    """Return the plain values of the result of a whole file; of its blocks, only the summary."""
    tally = result.tally
    return {
        "begin": result.begin,
        "end": result.end,
        "ending": result.ending.name,
        "tally": [getattr(tally, name) for name in _TALLY],
        "queues": [
            [
                each.topic.hex(),
                [getattr(each, name) for name in _QUEUE],
                [[number, *sums] for number, sums in each.buckets.items()],
            ]
            for each in tally.queues
        ],
        "blocks": result.blocks.summary(),
        "lengths": list(result.lengths.items()),
    }


def counts_of(tree: dict[str, Any]) -> dict[str, int]:
    """Return the counts of a whole file by the names of :class:`Tally`'s attributes."""
    return dict(zip(_TALLY, tree["tally"], strict=True))


def decode_result(tree: dict[str, Any], work: WorkRange, load: Load) -> RangeResult:
    """Return the result of the whole file of ``work``. Raise ValueError, KeyError, or TypeError if
    the values are not those of a result. ``load`` returns the packed bytes of the blocks.
    """
    tally = Tally(TallyPlan(dledger=work.framing is Framing.DLEDGER))
    for name, value in zip(_TALLY, tree["tally"], strict=True):
        setattr(tally, name, value)
    for topic, numbers, buckets in tree["queues"]:
        queue = QueueTally(bytes.fromhex(topic), 0)
        for name, value in zip(_QUEUE, numbers, strict=True):
            setattr(queue, name, value)
        queue.buckets = {number: sums for number, *sums in buckets}
        tally.queues.append(queue)
    return RangeResult(
        work=_whole(work),
        begin=tree["begin"],
        end=tree["end"],
        ending=Ending[tree["ending"]],
        tally=tally,
        blocks=Blocks.of_summary(tree["blocks"], load),
        lengths=dict(tree["lengths"]),
    )
