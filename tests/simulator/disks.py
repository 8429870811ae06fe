"""The disk of one machine, which may lose power, fail, or fill up.

A killed process leaves everything that it wrote. A power failure leaves what was synced and some of
the changes since: either a prefix of them, as a journal would (writes, names created, names
removed), the last of which may be torn, so that any subset of its sectors is new; or, with the
probability ``scattered``, a prefix of the names and any subset of the sectors written, in any
order, so that whole records may follow a hole. Files that are written in place through a mapping
(consume queues, key index) always get any mixture of old and new sectors.

Durable bits may flip (``flip``). Until the broker writes these bytes again, checkers see them as
they were (``content_of``), and the broker sees the flipped ones.

A sync takes time, from ``begin`` to ``end`` of ``virtual_time.Syncs``. It covers what was written
before it started, and takes effect when it ends.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from attrs import define, field

from rmqpy.store.files.mapped_files import NAME_DIGITS
from rmqpy.testing.memory_files import MemoryFile, MemoryFiles, MemoryNode
from simulator.virtual_time import MachineCrashError

SECTOR_BYTES = 512
LEDGER_DATA, CLASSIC_DATA = "/data/", "/commitlog/"


@define(slots=True, frozen=True, eq=False, repr=False)
class _Name:
    """A name that was created, or removed (no node)."""

    number: int
    path: str
    node: MemoryNode | None


@define(slots=True, frozen=True, eq=False, repr=False)
class _Write:
    number: int
    node: MemoryNode
    position: int
    data: bytes


@define(slots=True, frozen=True, eq=False, repr=False)
class Flip:
    """A flipped bit in entry ``index``, or in its index unit."""

    node: MemoryNode
    position: int
    mask: int
    index: int
    wrong: int
    """The byte with that bit."""

    @property
    def is_present(self) -> bool:
        return self.node.data[self.position] == self.wrong


@define(slots=True, eq=False, repr=False)
class SimulatedDisk(MemoryFiles):
    """Memory files with faults.

    ``crash_after`` is the number of changes until the machine crashes; negative for never.
    """

    crash_after: int = -1
    full: bool = False
    failing: bool = False
    syncs_fail: bool = False
    """Whether syncs fail, and nothing else does."""

    scattered: float = 0.0
    """The probability that a power failure keeps sectors in any order."""

    ledger_from: int | None = None
    """The lowest offset in ``data`` of a ledger that was written since the last check."""

    ledger_removed: bool = False
    removals: list[tuple[str, int]] = field(factory=list)
    """The files of a log that were removed since the last check, with their ages in ms."""

    flips: dict[tuple[str, int], Flip] = field(factory=dict)
    """The flipped bits by path and position."""

    flipped: set[int] = field(factory=set)
    """The indexes of all entries in which a bit has ever flipped."""

    hard_state_changed: bool = False
    sync_count: int = 0
    _collecting: list[Callable[[], None]] | None = None
    _running: dict[int, list[Callable[[], None]]] = field(factory=dict)
    _last_sync: dict[int, int] = field(factory=dict)
    """The number of the newest sync that has ended, by identity of the node."""

    synced_to: dict[str, int] = field(factory=dict)
    """The number of bytes that were synced when the power failed, by path.

    Bytes after them may have survived, but were not acknowledged to clients that wait for syncs.
    """

    _overwritten_flips: list[tuple[str, Flip]] = field(factory=list)
    """The flips that were overwritten, perhaps not durably."""

    _number: int = 0
    _names: list[_Name] = field(factory=list)
    """The changes of names that are not synced, in order."""

    _writes: dict[MemoryNode, list[_Write]] = field(factory=dict)
    """The writes that are not synced, by file, in order."""

    # Operations of the machine

    def touched(self, operation: str, path: str) -> None:
        if self.crash_after >= 0:
            self.crash_after -= 1
            if self.crash_after < 0:
                raise MachineCrashError
        if self.failing and operation != "remove":
            raise OSError(errno.EIO, "the disk fails", path)
        if self.syncs_fail and operation == "sync":
            raise OSError(errno.EIO, "the sync fails", path)
        if self.full and operation == "write" and path not in self.nodes:
            raise OSError(errno.ENOSPC, "the disk is full", path)

    def synced(self, node: MemoryNode) -> None:
        self.sync_count += 1
        number, content = self._next_number(), node.content()
        if self._collecting is None:
            self._make_durable(node, content, number)
        else:
            self._collecting.append(lambda: self._make_durable(node, content, number))

    def wrote(self, path: str, position: int, length: int) -> None:
        node = self.nodes[path]
        data = bytes(memoryview(node.data)[position : position + length])
        write = _Write(self._next_number(), node, position, data)
        self._writes.setdefault(node, []).append(write)
        if self.flips:
            for place in [at for at in self.flips if at[0] == path]:
                if position <= place[1] < position + length:
                    self._overwritten_flips.append((path, self.flips.pop(place)))
        if LEDGER_DATA in path:
            offset = int(path[-NAME_DIGITS:]) + position
            if self.ledger_from is None or offset < self.ledger_from:
                self.ledger_from = offset

    def content_of(self, path: str) -> memoryview:
        """Return the bytes of a file as written, without flips; none where there is no file."""
        node = self.nodes.get(path)
        if node is None:
            return memoryview(b"")
        if not self.flips:
            return memoryview(node.data)
        flips = [flip for (name, _), flip in self.flips.items() if name == path]
        if not flips:
            return memoryview(node.data)
        data = bytearray(node.content())
        for flip in flips:
            data[flip.position] ^= flip.mask
        return memoryview(bytes(data.ljust(len(node.data), b"\0")))

    def durable_content(self, path: str) -> bytes:
        """Return the content of a file that is certain to survive a power failure."""
        node = self._durable_names.get(path)
        return node.durable if node is not None else b""

    def flip(self, path: str, position: int, mask: int, index: int) -> None:
        """Flip the bits of ``mask`` in a durable byte of entry ``index``."""
        node = self.nodes[path]
        durable = bytearray(node.durable)
        assert durable[position] == node.data[position] and (path, position) not in self.flips
        durable[position] ^= mask
        node.durable = bytes(durable)
        node.data[position] ^= mask
        self.flips[path, position] = Flip(node, position, mask, index, durable[position])
        self.flipped.add(index)

    def spoil(self, path: str, position: int) -> None:
        """Flip the highest bit of a byte of a small text file, which can then not be decoded."""
        node = self.nodes[path]
        for content in (bytearray(node.durable), node.data):
            if position < len(content):
                content[position] ^= 0x80
                if content is not node.data:
                    node.durable = bytes(content)

    def restore(self, path: str) -> bool:
        """Undo all flips in a file, as replacing it by a copy does. Return False if it had none."""
        wrong = [flip for (name, _), flip in self.flips.items() if name == path]
        for flip in wrong:
            durable = bytearray(flip.node.durable)
            durable[flip.position] ^= flip.mask
            flip.node.durable = bytes(durable)
            flip.node.data[flip.position] ^= flip.mask
            del self.flips[path, flip.position]
        return bool(wrong)

    def replace_bytes(self, path: str, *parts: bytes) -> None:
        before = self._durable_names.get(path)
        MemoryFiles.replace_bytes(self, path, *parts)
        self._names = [change for change in self._names if change.path != path]
        if path.endswith("/currterm"):
            self.hard_state_changed = True
        if self._collecting is not None and before is not None:
            node = self.nodes[path]
            self._durable_names[path] = before
            self._collecting.append(lambda: self._renamed(path, node))

    def open(self, path: str, *, size: int | None = None) -> MemoryFile:
        known = path in self.nodes
        file = MemoryFiles.open(self, path, size=size)
        if not known:
            self._names.append(_Name(self._next_number(), path, self.nodes[path]))
        return file

    def unlink(self, path: str) -> None:
        if path in self.nodes:
            if LEDGER_DATA in path or CLASSIC_DATA in path:
                self.removals.append((path, self.now_ms - self.nodes[path].mtime_ms))
            MemoryFiles.unlink(self, path)
            self._names.append(_Name(self._next_number(), path, None))
            if LEDGER_DATA in path:
                self.ledger_removed = True
            for place in [at for at in self.flips if at[0] == path]:
                self._overwritten_flips.append((path, self.flips.pop(place)))

    def rename(self, old: str, new: str) -> None:
        MemoryFiles.rename(self, old, new)
        for path, node in list(self.nodes.items()):
            if path == new or path.startswith(f"{new}/"):
                former = old + path[len(new) :]
                self._names.append(_Name(self._next_number(), path, node))
                self._names.append(_Name(self._next_number(), former, None))

    def sync_dir(self, path: str) -> None:
        MemoryFiles.sync_dir(self, path)
        self._names = [change for change in self._names if change.path.rpartition("/")[0] != path]

    def written_back(self) -> None:
        """Make everything durable, as the page cache becomes within hours."""
        for node in {id(node): node for node in self.nodes.values()}.values():
            node.durable = node.content()
        self._durable_names = dict(self.nodes)
        self._names.clear()
        self._writes.clear()
        self._overwritten_flips.clear()

    # virtual_time.Syncs

    @property
    def broken(self) -> bool:
        return self.full or self.failing or self.syncs_fail

    def begin(self) -> int:
        number = self._next_number()
        self._collecting = self._running[number] = []
        return number

    def collected(self) -> None:
        self._collecting = None

    def end(self, number: int) -> None:
        for reached in self._running.pop(number):
            reached()

    def _make_durable(self, node: MemoryNode, content: bytes, number: int) -> None:
        if self._last_sync.get(id(node), 0) < number:
            self._last_sync[id(node)] = number
            node.keep(content)
            if self._overwritten_flips:
                self._overwritten_flips = [
                    each for each in self._overwritten_flips if each[1].node is not node
                ]
            later = [write for write in self._writes.pop(node, ()) if write.number > number]
            if later:
                self._writes[node] = later

    def _renamed(self, path: str, node: MemoryNode) -> None:
        if self.nodes.get(path) is node:
            self._durable_names[path] = node

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # Faults

    def process_ended(self) -> None:
        """End a process that was killed; everything that it wrote is kept."""
        self.locks.clear()
        self.crash_after = -1
        self._collecting = None
        self._running.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Keep what is durable, and some of what is not."""
        self.process_ended()
        self.power_failures += 1
        self.synced_to = {path: node.synced_to for path, node in self._durable_names.items()}
        names, contents = self._surviving_changes(rng)
        nodes = dict(self._durable_names)
        for path, node in names.items():
            if node is None:
                nodes.pop(path, None)
            else:
                nodes[path] = node
        for node in nodes.values():
            content = bytes(contents.get(id(node), node.durable))
            if node.mapped:
                content = mixed(content, node.content(), rng)
            node.data = MemoryNode.of(len(node.data), content, b"", 0).data
            node.extent = len(content)
            node.durable = content
        self.nodes = nodes
        self._durable_names = dict(nodes)
        self._keep_flips()
        self._names.clear()
        self._writes.clear()
        self._last_sync.clear()
        self.folders = set()
        for path in nodes:
            self.make_dirs(path.rpartition("/")[0])

    def _surviving_changes(
        self, rng: random.Random
    ) -> tuple[dict[str, MemoryNode | None], dict[int, bytearray]]:
        """Return the unsynced changes that survive: names, and contents by identity of the file."""
        names: dict[str, MemoryNode | None] = {}
        contents: dict[int, bytearray] = {}
        journal: list[_Name | _Write] = [*self._names]
        for writes in self._writes.values():
            journal += writes
        journal.sort(key=lambda change: change.number)
        count = rng.randrange(len(journal) + 1)
        if rng.random() < self.scattered:
            for change in journal:
                if isinstance(change, _Write) and id(change.node) not in contents:
                    node = change.node
                    contents[id(node)] = bytearray(mixed(node.durable, node.content(), rng))
            names = {
                change.path: change.node for change in journal[:count] if isinstance(change, _Name)
            }
            return names, contents
        for number, change in enumerate(journal[:count]):
            if isinstance(change, _Name):
                names[change.path] = change.node
                continue
            node, end = change.node, change.position + len(change.data)
            content = contents.setdefault(id(node), bytearray(node.durable))
            content.extend(bytes(max(0, end - len(content))))
            old = bytes(content[change.position : end])
            torn = number == count - 1 and rng.random() < 0.5
            content[change.position : end] = mixed(old, change.data, rng) if torn else change.data
        return names, contents

    def _keep_flips(self) -> None:
        """Keep the flips whose bytes are still wrong after a power failure."""
        flips = [(path, flip) for (path, _), flip in self.flips.items()] + self._overwritten_flips
        self.flips.clear()
        for path, flip in flips:
            # A sync that started before the flip, or an overwrite, may have corrected the byte.
            if self.nodes.get(path) is flip.node and flip.is_present:
                self.flips[path, flip.position] = flip
        self._overwritten_flips.clear()

    def heal(self) -> None:
        self.full = self.failing = self.syncs_fail = False


def mixed(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Return what a power failure leaves of a file: each sector is old or new.

    ``old`` is the content when it was last synced, and ``new`` the current one.
    """
    if old == new:
        return old
    length = max(len(old), len(new))
    old, new = old.ljust(length, b"\0"), new.ljust(length, b"\0")
    chance = rng.choice((0.0, 0.5, 0.9, 1.0))
    sectors = []
    for start in range(0, length, SECTOR_BYTES):
        before, after = old[start : start + SECTOR_BYTES], new[start : start + SECTOR_BYTES]
        if before == after or rng.random() >= chance:
            sectors.append(before)
        else:
            sectors.append(after)
    return b"".join(sectors)
