"""How far the logs of a group's replicas are known to be equal: what to compare next, and what has
been found. It owns no connection and no clock.

The part of the log that all replicas have is divided into at most ``UNITS_MAX`` units. Of each, the
first ``SPAN_MAX`` bytes are compared, by digests of the replicas: up to 1 GiB, a log is compared
completely, and a longer one in samples that are spread evenly::

    offset  0        1 MiB     2 MiB     3 MiB     4 MiB      4.2 MiB
            ├─────────┼─────────┼─────────┼─────────┼──────────┤
    order      5th       3rd       2nd       4th        1st

==========================  ======================================================================
a result is                 when
==========================  ======================================================================
renewed                     it is older than ``AGAIN_MS``, or the log has grown in its unit
forgotten                   a replica appears, leaves, or starts again, as its files may have been
                            changed; or the range is no longer in all logs
==========================  ======================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import define, field

from rmqpy.audit.picture.layout import BlockTable
from rmqpy.ha.compare import DIGEST_SIZE, SPAN_MAX, CompareRange

__all__ = ["ComparedRange", "DifferentBlock", "LogAgreement", "LogExtent"]

UNITS_MAX: Final = 1024
AGAIN_MS: Final = 3_600_000
TAIL_MS: Final = 30_000
REST_MS: Final = 30_000
"""The time for which a group is left alone after a comparison that failed."""


@define(slots=True, frozen=True)
class LogExtent:
    """The offsets that the log of a replica has; each start of its broker has another ``life``."""

    begin: int
    end: int
    life: str


@define(slots=True, frozen=True)
class ComparedRange:
    """One comparison. ``digests`` has the answer of each replica, unless all are the same."""

    span: CompareRange
    time_ms: int
    digests: Mapping[str, bytes]


@define(slots=True, frozen=True)
class DifferentBlock:
    """A block of ``size`` bytes that is not the same in all replicas. ``replicas`` are those that
    differ from more than half of all; empty if there is no such majority.
    """

    offset: int
    size: int
    replicas: frozenset[str]


@define(slots=True)
class LogAgreement:
    """The comparisons of one group, by the names of its replicas.

    Pass what the replicas have to :meth:`observe`, fetch the digests of :meth:`next`, and pass them
    to :meth:`take` or the reason why there are none to :meth:`fail`.
    """

    begin: int = field(default=0, init=False)
    end: int = field(default=0, init=False)
    fault: str = field(default="", init=False)
    _lives: dict[str, str] = field(factory=dict, init=False)
    _found: dict[int, ComparedRange] = field(factory=dict, init=False)
    _rest_until_ms: int = field(default=0, init=False)

    @property
    def replicas(self) -> frozenset[str]:
        return frozenset(self._lives)

    @property
    def compared(self) -> list[ComparedRange]:
        return list(self._found.values())

    @property
    def is_different(self) -> bool:
        return any(each.digests for each in self._found.values())

    def observe(self, extents: Mapping[str, LogExtent]) -> None:
        """Take what the replicas have now, and forget what is no longer known."""
        lives = {name: each.life for name, each in extents.items()}
        if lives != self._lives:
            self._lives = lives
            self._found.clear()
            self.fault, self._rest_until_ms = "", 0
        self.begin = max((each.begin for each in extents.values()), default=0)
        self.end = max(self.begin, min((each.end for each in extents.values()), default=0))
        ends = dict(self._ranges())
        self._found = {
            begin: each
            for begin, each in self._found.items()
            if begin in ends and each.span.end <= ends[begin]
        }

    def next(self, now_ms: int) -> CompareRange | None:
        """Return the range to compare now, or None if there is nothing to do."""
        if len(self._lives) < 2 or now_ms < self._rest_until_ms:
            return None
        ranges = list(self._ranges())
        last = len(ranges) - 1
        missing = [place for place, (begin, _) in enumerate(ranges) if begin not in self._found]
        if missing:
            return CompareRange.of(*ranges[min(missing, key=lambda place: _spread(last - place))])
        for begin, end in ranges:
            known = self._found[begin]
            age_ms = now_ms - known.time_ms
            if age_ms >= AGAIN_MS or (known.span.end < end and age_ms >= TAIL_MS):
                return CompareRange.of(begin, end)
        return None

    def take(self, span: CompareRange, answers: Mapping[str, bytes], now_ms: int) -> None:
        """Keep the digests of a range. Raise ValueError if a replica has not sent one per block."""
        size = len(span.blocks) * DIGEST_SIZE
        for name, answer in answers.items():
            if len(answer) != size:
                raise ValueError(
                    f"found {len(answer)} bytes of digests from {name}, expected {size}"
                )
        if answers.keys() != self._lives.keys():
            return  # The group has changed meanwhile.
        is_equal = len(set(answers.values())) == 1
        self._found[span.begin] = ComparedRange(span, now_ms, {} if is_equal else dict(answers))
        self.fault = ""

    def fail(self, fault: str, now_ms: int) -> None:
        """Keep the reason why a comparison failed, and compare nothing for a while."""
        self.fault, self._rest_until_ms = fault, now_ms + REST_MS

    def blocks_of(self, replica: str) -> BlockTable:
        """Return the compared blocks of a replica, as a map shows them."""
        return {
            ("log", begin): (digest, end - begin)
            for each in self._found.values()
            for begin, end, digest in _blocks(each, replica)
        }

    def differences(self) -> list[DifferentBlock]:
        """Return the blocks that differ, by offset."""
        found = []
        for each in self._found.values():
            tables = {name: list(_blocks(each, name)) for name in each.digests}
            for row in zip(*tables.values(), strict=True):
                digests = dict(zip(tables, (digest for _, _, digest in row), strict=True))
                if len(set(digests.values())) > 1:
                    begin, end, _ = row[0]
                    found.append(DifferentBlock(begin, end - begin, _minority(digests)))
        return sorted(found, key=lambda block: block.offset)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are compared, by offset."""
        step = SPAN_MAX
        while (self.end - self.begin) // step >= UNITS_MAX - 1:
            step *= 2
        for start in range(self.begin // step * step, self.end, step):
            begin, end = max(start, self.begin), min(start + SPAN_MAX, self.end)
            if begin < end:
                yield begin, end


def _spread(number: int) -> int:
    """Return the bits of a number in reverse: in this order, numbers halve the gaps."""
    return int(f"{number:010b}"[::-1], 2)


def _blocks(found: ComparedRange, replica: str) -> Iterator[tuple[int, int, str]]:
    if not found.digests:
        yield found.span.begin, found.span.end, ""
        return
    answer = found.digests[replica]
    for number, (begin, end) in enumerate(found.span.blocks):
        yield begin, end, answer[number * DIGEST_SIZE :][:DIGEST_SIZE].hex()


def _minority(digests: Mapping[str, str]) -> frozenset[str]:
    common, count = Counter(digests.values()).most_common(1)[0]
    if count * 2 <= len(digests):
        return frozenset()
    return frozenset(name for name, digest in digests.items() if digest != common)
