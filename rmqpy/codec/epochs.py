"""``epochFileCheckpoint`` of RocketMQ 5.x: which term of a controller wrote which part of a log.

======  ======================================================================================
line    content
======  ======================================================================================
1       the number of entries
2       CRC-32 of the entry lines with their line ends, as a positive 31-bit number; 0: not checked
others  ``epoch-startOffset``, ascending in both; an entry ends where the next one starts
======  ======================================================================================

Source: EpochFileCache and CheckpointFile of 5.3.3. Java takes a damaged file for an empty one and
says so in its log only, so this reader reports what Java passes over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final
from zlib import crc32

from rmqpy.codec.errors import InvalidRecordError
from rmqpy.model.values import define

EPOCH_BEFORE_CONTROLLERS: Final = 0
"""The epoch of messages that no controller has seen. The first epoch of a controller is 1."""

_CRC_MASK: Final = 0x7FFF_FFFF


@define(slots=True, frozen=True)
class Epoch:
    """A term of a master, and the physical offset at which its messages begin."""

    number: int
    start_offset: int

    def __str__(self) -> str:
        return f"{self.number}-{self.start_offset}"


def encode_epochs(epochs: Sequence[Epoch]) -> bytes:
    """Return the content of the file."""
    lines = _lines(str(each) for each in epochs)
    return _lines((str(len(epochs)), str(_crc_of(lines)))) + lines


def decode_epochs(data: bytes) -> tuple[Epoch, ...]:
    """Decode the content of the file. Raise InvalidRecordError if Java would ignore the file, or if
    its epochs do not ascend.
    """
    try:
        head, crc, *lines = data.decode("ascii").split("\n")
        count, expected = int(head), int(crc)
        epochs = tuple(Epoch(*map(int, line.split("-"))) for line in lines if line)
    except (ValueError, TypeError):
        wanted = "a number, a CRC, and lines of epoch-startOffset"
        raise InvalidRecordError(0, "epochs", repr(data[:60]), wanted) from None
    if len(epochs) != count:
        raise InvalidRecordError(0, "number of epochs", len(epochs), count)
    found = _crc_of(_lines(str(each) for each in epochs))
    if expected not in (0, found):
        raise InvalidRecordError(0, "CRC", found, expected)
    for one, two in pairwise(epochs):
        if two.number <= one.number or two.start_offset < one.start_offset:
            raise InvalidRecordError(0, "epoch", str(two), f"one after {one}")
    return epochs


def common_end(mine: Sequence[Epoch], my_end: int, theirs: Sequence[Epoch], their_end: int) -> int:
    """Return the offset up to which two logs agree by their epochs, or -1 if none is common.

    As in EpochFileCache.findConsistentPoint: the newest epoch that begins at the same offset in
    both decides, and what follows it in either log does not agree.
    """
    ends = {each: end for each, end in zip(theirs, _ends(theirs, their_end), strict=True)}
    for epoch, end in reversed([*zip(mine, _ends(mine, my_end), strict=True)]):
        if epoch in ends:
            return min(end, ends[epoch])
    return -1


def _ends(epochs: Sequence[Epoch], log_end: int) -> list[int]:
    return [*(each.start_offset for each in epochs[1:]), log_end][: len(epochs)]


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _crc_of(lines: bytes) -> int:
    return crc32(lines) & _CRC_MASK
