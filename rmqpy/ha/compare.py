"""The search for the offset at which two logs diverge, by digests of a few blocks of the other log.

A log only grows, so two copies agree up to some offset and differ from there to the end of the
shorter one. The search requests the digests of a span in equal blocks (:class:`CompareRange`) and
narrows it with each answer::

    tail ──same──► agree
     └──differs at its first byte──► halves (the last agreeing place below it)
                └──differs further on──► narrow ──one byte──► parted

The search does not detect logs that differ somewhere but are identical again in the whole tail.
That cannot happen in normal operation.

Invariants: a span has at most ``SPAN_MAX`` bytes in at most ``BLOCKS_MAX`` blocks; the search ends
after about 60 answers, regardless of their contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from attrs import field

from rmqpy.model.values import define

SPAN_MAX: Final = 1 << 20
BLOCKS_MAX: Final = 64
DIGEST_SIZE: Final = 16
PROBE_BYTES: Final = 4 << 10


@define(slots=True, frozen=True)
class CompareRange:
    """The bytes ``[begin, end)`` of a log in blocks of ``block`` bytes. The last may be shorter."""

    begin: int
    end: int
    block: int

    def __attrs_post_init__(self) -> None:
        if not (0 <= self.begin < self.end and self.end - self.begin <= SPAN_MAX):
            raise ValueError(f"{self.begin}..{self.end} is not a span of at most {SPAN_MAX} bytes")
        if self.block < 1 or -(-(self.end - self.begin) // self.block) > BLOCKS_MAX:
            raise ValueError(f"more than {BLOCKS_MAX} blocks of {self.block} bytes")

    @classmethod
    def of(cls, begin: int, end: int) -> CompareRange:
        """Return the range ``[begin, end)``, split into as many blocks as allowed."""
        return cls(begin, end, max(1, -(-(end - begin) // BLOCKS_MAX)))

    @property
    def blocks(self) -> list[tuple[int, int]]:
        return [
            (start, min(start + self.block, self.end))
            for start in range(self.begin, self.end, self.block)
        ]


ReadBytes = Callable[[int, int], bytes]
"""A function of offset and size that reads bytes of a log, across files. It raises KeyError if some
are missing.
"""


def digests(span: CompareRange, read: ReadBytes) -> bytes:
    """Return the concatenated digests of the blocks."""
    return b"".join(
        hashlib.blake2b(read(start, end - start), digest_size=DIGEST_SIZE).digest()
        for start, end in span.blocks
    )


@define(slots=True, eq=False, repr=False)
class DivergenceSearch:
    """A comparison of ``[begin, end)``, which both logs contain.

    Fetch the digests of ``requested`` and pass them to :meth:`take` until ``requested`` is None.
    Then ``parted`` is the first differing offset, or None if the logs agree.
    """

    begin: int
    end: int
    read: ReadBytes
    requested: CompareRange | None = field(default=None, init=False)
    parted: int | None = field(default=None, init=False)
    _agreed: int = field(init=False)
    """The offset below which the logs agree, as far as the probes show."""
    _differs: tuple[int, int] | None = field(default=None, init=False)
    """A block in which the logs differ. They may also differ before it."""

    def __attrs_post_init__(self) -> None:
        self._agreed = self.begin
        if self.begin < self.end:
            self.requested = CompareRange.of(max(self.begin, self.end - SPAN_MAX), self.end)

    def take(self, theirs: bytes) -> None:
        """Process the digests of ``requested``. Raises ValueError if their size is impossible."""
        span = self.requested
        assert span is not None
        blocks = span.blocks
        if len(theirs) != len(blocks) * DIGEST_SIZE:
            raise ValueError(f"{len(theirs)} bytes for {len(blocks)} digests")
        first = self._first_difference(digests(span, self.read), theirs, blocks)
        if first is None:
            self._same(span)
        elif first[1] - first[0] == 1:
            self.parted, self.requested = first[0], None
        elif first[0] == span.begin and span.begin > self._agreed:
            self._differs = first
            self._probe()
        else:
            self._agreed = max(self._agreed, first[0])  # the blocks before it are equal
            self.requested = CompareRange.of(*first)

    def _same(self, span: CompareRange) -> None:
        if self._differs is None:
            self.requested = None  # the tails are equal
        else:
            self._agreed = span.end
            self._probe()

    def _probe(self) -> None:
        """Request the middle between the agreeing and the differing part."""
        assert self._differs is not None
        low, (high, end) = self._agreed, self._differs
        if end - low <= SPAN_MAX:
            # One span covers the remainder, including the differing block.
            self.requested = CompareRange.of(low, end)
            return
        middle = low + (high - low) // 2
        self.requested = CompareRange(middle, middle + PROBE_BYTES, PROBE_BYTES)

    @staticmethod
    def _first_difference(
        ours: bytes, theirs: bytes, blocks: Sequence[tuple[int, int]]
    ) -> tuple[int, int] | None:
        for number, block in enumerate(blocks):
            place = number * DIGEST_SIZE
            if ours[place : place + DIGEST_SIZE] != theirs[place : place + DIGEST_SIZE]:
                return block
        return None
