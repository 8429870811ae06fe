"""The digests of the blocks of one log file, packed.

They are 16 bytes for each 64 KiB of the log and 16 for each group of frames: what was learned about
a large log must not take much memory or time only because somebody might ask where it differs.
Whether two files are equal, the digest of all their blocks decides. The packed bytes are read when
a single block or group is asked for, which is the case only for a file that differs.

========  ====  ================================================================================
digests   16 B  BLAKE2b of each block from the start of the file (or of the range) on, the last
                one up to the end of the content
groups    16 B  for each block in which frames start: offset of the first (8 bytes), number of
                frames (4), CRC-32 of their bytes (4), big-endian
========  ====  ================================================================================
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from attrs import field

from rmqpy.codec.layout import BLOCK_DIGEST_BYTES
from rmqpy.model.errors import RmqError
from rmqpy.model.values import define

__all__ = ["Blocks", "FrameGroup", "Load", "digest_of"]

Load = Callable[[str], bytes]
"""Returns the packed bytes (:meth:`Blocks.to_bytes`) that have a checksum."""

_GROUP: Final = struct.Struct(">qII")


@define(slots=True, frozen=True)
class FrameGroup:
    """The frames that start in one block: offset of the first, count, and CRC-32 of their bytes."""

    offset: int
    count: int
    crc: int


@define(slots=True, frozen=True)
class _Packed:
    digests: bytes
    groups: bytes


@define(slots=True, eq=False)
class Blocks:
    """The digests of blocks in order, and the frames that start in them.

    ``digest`` is the BLAKE2b (hex) of all digests, ``checksum`` that of digests and groups, and
    ``frames`` the number of frames. Two of them are equal if digests and groups are.
    """

    count: int
    frames: int
    digest: str
    checksum: str
    _load: Load | None = field(default=None, repr=False)
    _packed: _Packed | None = field(default=None, repr=False)

    @classmethod
    def none(cls) -> Blocks:
        return cls.packed(b"", b"")

    @classmethod
    def of(cls, digests: Iterable[bytes], groups: Iterable[FrameGroup]) -> Blocks:
        units = (_GROUP.pack(each.offset, each.count, each.crc) for each in groups)
        return cls.packed(b"".join(digests), b"".join(units))

    @classmethod
    def packed(cls, digests: bytes, groups: bytes) -> Blocks:
        """Return the blocks of packed bytes. Raise ValueError unless their lengths fit."""
        if len(digests) % BLOCK_DIGEST_BYTES or len(groups) % _GROUP.size:
            raise ValueError(
                f"{len(digests)} bytes of digests and {len(groups)} of groups, expected multiples"
                f" of {BLOCK_DIGEST_BYTES} and {_GROUP.size}"
            )
        return cls(
            len(digests) // BLOCK_DIGEST_BYTES,
            sum(count for _, count, _ in _GROUP.iter_unpack(groups)),
            digest_of(digests),
            digest_of(digests + groups),
            packed=_Packed(digests, groups),
        )

    @classmethod
    def of_summary(cls, summary: dict[str, Any], load: Load | None) -> Blocks:
        """Return the blocks of :meth:`summary`. ``load`` is called when a single block or group is
        asked for; without it, only whole files can be compared.
        """
        return cls(
            summary["count"], summary["frames"], summary["digest"], summary["checksum"], load
        )

    def summary(self) -> dict[str, Any]:
        """Return what is known without the packed bytes, as JSON."""
        return {
            "count": self.count,
            "frames": self.frames,
            "digest": self.digest,
            "checksum": self.checksum,
        }

    @property
    def is_whole(self) -> bool:
        """Whether single blocks and groups are known, or can be loaded."""
        return self._packed is not None or self._load is not None

    def to_bytes(self) -> bytes:
        packed = self._loaded()
        return packed.digests + packed.groups

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        """Yield the digests in hex."""
        return (self[number] for number in range(self.count))

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < self.count:
            raise IndexError(number)
        start = number * BLOCK_DIGEST_BYTES
        return self._loaded().digests[start : start + BLOCK_DIGEST_BYTES].hex()

    @property
    def groups(self) -> Iterator[FrameGroup]:
        """Yield the groups in order."""
        return (FrameGroup(*each) for each in _GROUP.iter_unpack(self._loaded().groups))

    def __add__(self, other: Blocks) -> Blocks:
        if not self.count or not other.count:
            return self if self.count else other
        one, two = self._loaded(), other._loaded()
        return Blocks.packed(one.digests + two.digests, one.groups + two.groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and self.checksum == other.checksum

    def __hash__(self) -> int:
        return hash(self.checksum)

    def different(self, other: Blocks) -> Iterator[int]:
        """Yield the numbers of the blocks that are not in both with the same digest."""
        if self.count == other.count and self.digest == other.digest:
            return
        one, two = self._loaded().digests, other._loaded().digests
        for number in range(max(self.count, other.count)):
            place = slice(number * BLOCK_DIGEST_BYTES, (number + 1) * BLOCK_DIGEST_BYTES)
            if one[place] != two[place]:
                yield number

    def _loaded(self) -> _Packed:
        if self._packed is None:
            assert self._load is not None
            raw = self._load(self.checksum)
            found = digest_of(raw)
            if found != self.checksum:
                raise RmqError(
                    f"found block digests with the checksum {found}, expected {self.checksum}: the"
                    " log has changed since it was read; run the command again, with --full if"
                    " this repeats"
                )
            length = self.count * BLOCK_DIGEST_BYTES
            if len(raw) < length or (len(raw) - length) % _GROUP.size:
                raise RmqError(f"found {len(raw)} bytes of block digests for {self.count} blocks")
            self._packed = _Packed(raw[:length], raw[length:])
        return self._packed


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of a block, or of the digests of a file's blocks, in hex."""
    return hashlib.blake2b(data, digest_size=BLOCK_DIGEST_BYTES).hexdigest()
