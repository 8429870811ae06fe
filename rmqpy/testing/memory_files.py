"""A file layer in memory (``model.files.FileSystem``) that tracks which bytes survive a crash.

``kill()`` returns the files after the end of a process: everything that was written. ``crash()``
returns the files after the worst power loss: every file has only its synced bytes, and every folder
only the names that existed at its last sync (a file that was removed since is back). ``tear()``
returns the files after an ordinary one: any of the later pages and names may be there too.
``fail_write`` and ``fail_sync`` inject faults; a subclass may override ``touched``, which is called
before every operation that changes something, and may raise an error.

Files may be large as long as little is written to them: bytes after the last written one are
neither copied nor touched.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import posixpath
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from attrs import define, field

from rmqpy.model.errors import StoreError
from rmqpy.model.files import MAPPINGS_MAX, DirectoryEntry, FileIdentity, UnitFolders

PAGE_BYTES = 512
"""The unit in which unsynced bytes reach the disk; small, because the files of tests are."""
LARGE_BYTES = 256 * 1024
"""The size from which a file is anonymous memory, which the system allocates on first use."""


@define(slots=True, eq=False, repr=False)
class MemoryNode:
    """One file: its current bytes, its bytes at the last sync, and the time of its last write.

    All bytes from ``extent`` on are zero.
    """

    data: bytearray | mmap.mmap
    extent: int = 0
    durable: bytes = b""
    mtime_ms: int = 0
    changes: int = 0
    """The number of changes of the file; its identity contains it in place of a time."""

    mapped: bool = False
    """True if the file was also opened for writing in place."""

    synced_to: int = 0
    """The number of bytes that were synced; more may have become durable without a sync."""

    inode: int = field(factory=itertools.count(1).__next__)

    @classmethod
    def of(cls, size: int, content: bytes, durable: bytes, mtime_ms: int) -> MemoryNode:
        data = bytearray(size) if size < LARGE_BYTES else mmap.mmap(-1, size)
        data[: len(content)] = content
        return cls(data, len(content), durable, mtime_ms)

    def content(self) -> bytes:
        return bytes(memoryview(self.data)[: self.extent])

    def keep(self, content: bytes) -> None:
        """Make ``content`` durable."""
        self.durable = content
        self.synced_to = len(content)


@define(slots=True, eq=False, repr=False)
class MemoryFile:
    """A ``StoreFile`` in memory."""

    path: str
    _node: MemoryNode
    _layer: MemoryFiles
    _readonly: bool = False
    _closed: bool = False

    @property
    def size(self) -> int:
        return len(self._node.data)

    @property
    def view(self) -> memoryview:
        return memoryview(self._node.data).toreadonly()

    @property
    def writable(self) -> memoryview:
        assert not self._readonly and not self._closed
        self._node.extent = self.size
        self._node.changes += 1
        self._node.mapped = True
        return memoryview(self._node.data)

    def release(self, begin: int, end: int) -> None:
        """Do nothing: these bytes are in no other place."""

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._node.data[position : position + length])

    def use_in_place(self) -> None:
        """Do nothing: memory has neither descriptors nor read-ahead."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        assert not self._closed and not self._readonly
        assert position + len(data) <= self.size, "write after the end of a file of fixed size"
        self._layer.touched("write", self.path)
        self._node.data[position : position + len(data)] = data
        self._node.extent = max(self._node.extent, position + len(data))
        self._node.mtime_ms = self._layer.now_ms
        self._node.changes += 1
        self._layer.wrote(self.path, position, len(data))

    def data_end(self, position: int) -> int:
        return max(position, self._node.extent)

    def reserve(self, position: int, length: int) -> None:
        assert not self._closed and position + length <= self.size
        self._layer.touched("reserve", self.path)

    def sync(self) -> None:
        if self._closed:
            return
        self._layer.touched("sync", self.path)
        self._layer.synced(self._node)

    def close(self) -> None:
        self._closed = True


@define(slots=True, eq=False, repr=False)
class MemoryLock:
    """A ``FileLock`` in memory."""

    _layer: MemoryFiles
    _path: str

    def release(self) -> None:
        self._layer.locks.discard(self._path)


@define(slots=True, eq=False, repr=False)
class MemoryFiles:
    """A ``FileSystem`` in memory. ``disk_usage`` reports ``free_bytes``, ``free_inodes``
    ``inodes_left``.
    """

    nodes: dict[str, MemoryNode] = field(factory=dict)
    folders: set[str] = field(factory=set)
    open_paths: set[str] = field(factory=set)
    """The paths that other users of the machine can read."""

    locks: set[str] = field(factory=set)
    now_ms: int = 0
    power_failures: int = 0
    """The number of power failures of the machine, each of which begins another boot."""
    total_bytes: int = 1 << 40
    free_bytes: int = 1 << 39
    inodes_left: int | None = None
    mappings_max: int = MAPPINGS_MAX
    _durable_names: dict[str, MemoryNode] = field(factory=dict)
    _faults: dict[tuple[str, str], int] = field(factory=dict)

    def fail_write(self, path_part: str, code: int = errno.EIO) -> None:
        """Make writes and reservations of space fail for paths that contain ``path_part``."""
        self._faults["write", path_part] = self._faults["reserve", path_part] = code

    def fail_sync(self, path_part: str, code: int = errno.EIO) -> None:
        """Make syncs fail for paths that contain ``path_part``."""
        self._faults["sync", path_part] = code

    def heal(self) -> None:
        """Remove all injected faults."""
        self._faults.clear()

    def touched(self, operation: str, path: str) -> None:
        """Raise OSError if a fault is injected for this operation.

        This is called before each operation that changes something: ``write`` (also a creation),
        ``reserve``, ``sync`` (also of a folder), ``remove``; but not before writes through a
        mapping.
        """
        for (kind, part), code in self._faults.items():
            if kind == operation and part in path:
                raise OSError(code, "planted fault", path)

    def wrote(self, path: str, position: int, length: int) -> None:
        """Do nothing. This is called after ``length`` bytes were written at ``position``."""

    def synced(self, node: MemoryNode) -> None:
        """Make the content of a file durable. This is called when the file is synced."""
        node.keep(node.content())

    def put(self, path: str, data: bytes) -> None:
        """Create a file whose content and name are durable."""
        self.make_dirs(path.rpartition("/")[0])
        content = data.rstrip(b"\0")
        node = MemoryNode.of(len(data), content, content, self.now_ms)
        node.synced_to = len(content)
        self.nodes[path] = self._durable_names[path] = node

    def kill(self) -> MemoryFiles:
        """Return the files that the next process finds after this process was killed."""
        after = MemoryFiles(
            folders=set(self.folders), now_ms=self.now_ms, power_failures=self.power_failures
        )
        copies = {}
        for path, node in self.nodes.items():
            copy = MemoryNode.of(len(node.data), node.content(), node.durable, node.mtime_ms)
            copy.inode, copy.changes = node.inode, node.changes
            after.nodes[path] = copies[id(node)] = copy
        for path, node in self._durable_names.items():
            after._durable_names[path] = copies.get(id(node), node)
        return after

    def crash(self) -> MemoryFiles:
        """Return the files that are found after a power loss."""
        after = MemoryFiles(now_ms=self.now_ms, power_failures=self.power_failures + 1)
        for path, node in self._durable_names.items():
            copy = MemoryNode.of(len(node.data), node.durable, node.durable, node.mtime_ms)
            after.nodes[path] = after._durable_names[path] = copy
            after.make_dirs(path.rpartition("/")[0])
        return after

    def tear(self, rng: random.Random, page_bytes: int = PAGE_BYTES) -> MemoryFiles:
        """Return the files that are found after a power loss during write-back: each page that was
        written after the last sync of its file is on disk or not, in any combination. The names
        that each folder gained since its last sync are lost from a random one on, because a
        journal keeps their order.
        """
        after = self.crash()
        gained: dict[str, list[str]] = defaultdict(list)
        for path in self.nodes:
            if path not in after.nodes:
                gained[path.rpartition("/")[0]].append(path)
        kept = [path for paths in gained.values() for path in paths[: rng.randint(0, len(paths))]]
        for path in (*after.nodes, *kept):
            node = self.nodes.get(path)
            if node is not None:
                found = _some_pages(node, rng, page_bytes)
                copy = MemoryNode.of(len(node.data), found, found, node.mtime_ms)
                after.nodes[path] = after._durable_names[path] = copy
                after.make_dirs(path.rpartition("/")[0])
        return after

    def open(self, path: str, *, size: int | None = None) -> MemoryFile:
        node = self.nodes.get(path)
        if node is None:
            if size is None:
                raise FileNotFoundError(path)
            self.touched("write", path)
            self.make_dirs(path.rpartition("/")[0])
            node = self.nodes[path] = MemoryNode.of(size, b"", b"", self.now_ms)
        elif size is not None and len(node.data) != size:
            self.touched("write", path)
            content = node.content()[:size]
            node.data = MemoryNode.of(size, content, b"", 0).data
            node.extent = len(content)
        return MemoryFile(path, node, self)

    def open_readonly(self, path: str) -> MemoryFile:
        if path not in self.nodes:
            raise FileNotFoundError(path)
        return MemoryFile(path, self.nodes[path], self, True)

    def open_part(self, path: str, begin: int, end: int) -> MemoryFile:
        return self.open_readonly(path)

    def open_slices(self, path: str) -> memoryview:
        return self.open_readonly(path).view

    def read_bytes(self, path: str) -> bytes:
        if path not in self.nodes:
            raise FileNotFoundError(path)
        return bytes(self.nodes[path].data)

    def read_head(self, path: str, length: int) -> bytes:
        return self.open_readonly(path).read(0, length)

    def replace_bytes(self, path: str, *parts: bytes) -> None:
        data = b"".join(parts)
        self.touched("write", path)
        self.touched("sync", path)
        self.make_dirs(path.rpartition("/")[0])
        node = MemoryNode.of(len(data), data, data, self.now_ms)
        node.synced_to = len(data)
        self.nodes[path] = self._durable_names[path] = node
        self.touched("sync", path.rpartition("/")[0])

    def resolve(self, path: str) -> str:
        return posixpath.normpath(path)

    def exists(self, path: str) -> bool:
        return path in self.nodes or self.is_dir(path)

    def is_dir(self, path: str) -> bool:
        return path in self.folders

    def list_dir(self, path: str) -> list[str]:
        prefix = path + "/"
        names = {
            entry[len(prefix) :].partition("/")[0]
            for entry in (*self.nodes, *self.folders)
            if entry.startswith(prefix)
        }
        return sorted(names)

    def list_entries(self, path: str) -> list[DirectoryEntry]:
        found = []
        for name in self.list_dir(path):
            node = self.nodes.get(f"{path}/{name}")
            size, mtime_ms = (0, 0) if node is None else (len(node.data), node.mtime_ms)
            found.append(DirectoryEntry(name, self.is_dir(f"{path}/{name}"), size, mtime_ms))
        return found

    def unit_folders(
        self,
        directory: str,
        topics: Sequence[str],
        file_size: int,
        files_read: int,
        low: int | None,
    ) -> Iterator[UnitFolders]:
        return iter([UnitFolders()] * len(topics))

    def open_folder(self, path: str) -> int:
        return -1

    def size_of(self, path: str) -> int:
        return len(self.nodes[path].data)

    def mtime_ms(self, path: str) -> int:
        if path not in self.nodes:
            raise FileNotFoundError(path)
        return self.nodes[path].mtime_ms

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self.touched("write", path)
        self.nodes[path].mtime_ms = mtime_ms
        self.nodes[path].changes += 1

    def identity(self, path: str) -> FileIdentity:
        if path not in self.nodes:
            raise FileNotFoundError(path)
        node = self.nodes[path]
        return node.inode, len(node.data), node.mtime_ms * 1_000_000, node.changes

    def make_dirs(self, path: str) -> None:
        while path and path not in self.folders:
            self.folders.add(path)
            path = path.rpartition("/")[0]

    def rename(self, old: str, new: str) -> None:
        self.touched("write", new)
        if old in self.nodes:
            self.nodes[new] = self.nodes.pop(old)
            return
        if old not in self.folders:
            raise FileNotFoundError(old)
        for names in (self.nodes, self._durable_names):
            for entry in [entry for entry in names if entry.startswith(old + "/")]:
                names[new + entry[len(old) :]] = names.pop(entry)
        for folder in [each for each in self.folders if (each + "/").startswith(old + "/")]:
            self.folders.remove(folder)
            self.folders.add(new + folder[len(old) :])

    def unlink(self, path: str) -> None:
        if path in self.nodes:
            self.touched("remove", path)
            del self.nodes[path]

    def remove_tree(self, path: str) -> None:
        prefix = path + "/"
        for entry in [entry for entry in self.nodes if entry.startswith(prefix)]:
            self.unlink(entry)
        for entry in [entry for entry in self._durable_names if entry.startswith(prefix)]:
            del self._durable_names[entry]
        self.folders = {
            folder for folder in self.folders if folder != path and not folder.startswith(prefix)
        }

    def sync_dir(self, path: str) -> None:
        self.touched("sync", path)
        for names in (self._durable_names, self.nodes):
            for entry in [entry for entry in names if entry.rpartition("/")[0] == path]:
                if entry in self.nodes:
                    self._durable_names[entry] = self.nodes[entry]
                else:
                    del self._durable_names[entry]

    def sync_all(self, path: str) -> bool:
        return False

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise StoreError(
                path,
                "the lock held by another broker process",
                "a store directory that no broker is using",
                "stop that broker, or give this one its own storePathRootDir",
            )
        self.make_dirs(path.rpartition("/")[0])
        self.locks.add(path)
        return MemoryLock(self, path)

    def open_to_others(self, path: str) -> bool:
        return path in self.open_paths

    def device_of(self, path: str) -> int:
        return 0

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self.total_bytes, self.free_bytes

    def free_inodes(self, path: str) -> int | None:
        return self.inodes_left


def _some_pages(node: MemoryNode, rng: random.Random, page_bytes: int) -> bytes:
    """Return the durable content of a file with a random half of its later pages."""
    content = node.content()
    found = bytearray(node.durable.ljust(len(content), b"\0"))
    for start in range(0, len(content), page_bytes):
        page = content[start : start + page_bytes]
        if page != found[start : start + page_bytes] and rng.random() < 0.5:
            found[start : start + page_bytes] = page
    return bytes(found)
