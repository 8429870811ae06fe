"""The interface of what audits the ranges of a store: threads of this process, or workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from rmqpy.audit.facts.file_md5 import FilePart, FileSums
from rmqpy.audit.scan.ranges import RangeResult, WorkRange
from rmqpy.codec.tally.kernel import TallyPlan

__all__ = ["RangeRunner"]


class RangeRunner(Protocol):
    """Audits ranges, possibly many at once, and yields the results in the given order."""

    def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]: ...

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult: ...

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        """Yield the MD5 sums of ``parts``, in the given order."""

    def map(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield ``do(item)`` for all items, in the given order."""
