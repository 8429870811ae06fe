"""A file layer in memory (``store.files.FileLayer``) that knows which bytes a crash would keep.

``crash()`` gives the layer as it would be found after a power loss: of every file only what was synced, of every folder
only the names that were synced (a rename by ``replace_bytes`` counts as synced). ``kill()`` gives what a killed process
leaves: everything written. Faults can be planted with ``fail_write`` and ``fail_sync``.
"""

from __future__ import annotations

import errno

from attrs import define, field

from rmqpy.model.errors import StoreFault


@define(slots=True, eq=False)
class _Node:
    """One file: its bytes now, its bytes as last synced (None: never), when it was last written."""

    data: bytearray
    durable: bytes | None = None
    mtime_ms: int = 0
    name_durable: bool = False


@define(slots=True, eq=False)
class MemoryFile:
    """Implements ``StoreFile``."""

    path: str
    _node: _Node
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
        assert not self._readonly
        return memoryview(self._node.data)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        assert not self._closed and not self._readonly
        assert position + len(data) <= self.size, "write behind the end of a file of fixed size"
        self._layer.check_fault("write", self.path)
        self._node.data[position : position + len(data)] = data
        self._node.mtime_ms = self._layer.now_ms

    def sync(self) -> None:
        self._layer.check_fault("sync", self.path)
        self._node.durable = bytes(self._node.data)
        self._node.name_durable = True

    def close(self) -> None:
        self._closed = True


@define(slots=True, eq=False)
class MemoryLock:
    """Implements ``FileLock``."""

    _layer: MemoryFiles
    _path: str

    def release(self) -> None:
        self._layer.locks.discard(self._path)


@define(slots=True, eq=False)
class MemoryFiles:
    """Implements ``FileLayer``. ``free_bytes`` is what ``disk_usage`` tells."""

    nodes: dict[str, _Node] = field(factory=dict)
    folders: set[str] = field(factory=set)
    locks: set[str] = field(factory=set)
    now_ms: int = 0
    total_bytes: int = 1 << 40
    free_bytes: int = 1 << 39
    _faults: dict[tuple[str, str], OSError] = field(factory=dict)

    def fail_write(self, path_part: str, code: int = errno.EIO) -> None:
        """From now on writes to paths that contain ``path_part`` fail."""
        self._faults["write", path_part] = OSError(code, "planted fault")

    def fail_sync(self, path_part: str, code: int = errno.EIO) -> None:
        self._faults["sync", path_part] = OSError(code, "planted fault")

    def heal(self) -> None:
        self._faults.clear()

    def check_fault(self, operation: str, path: str) -> None:
        for (kind, part), error in self._faults.items():
            if kind == operation and part in path:
                raise OSError(error.errno, error.strerror, path)

    def kill(self) -> MemoryFiles:
        """What the next process finds after this one was killed."""
        after = MemoryFiles(folders=set(self.folders), now_ms=self.now_ms)
        for path, node in self.nodes.items():
            after.nodes[path] = _Node(bytearray(node.data), node.durable, node.mtime_ms, node.name_durable)
        return after

    def crash(self) -> MemoryFiles:
        """What is found after a power loss."""
        after = MemoryFiles(folders=set(self.folders), now_ms=self.now_ms)
        for path, node in self.nodes.items():
            if node.name_durable:
                data = node.durable if node.durable is not None else bytes(len(node.data))
                after.nodes[path] = _Node(bytearray(data), data, node.mtime_ms, True)
        return after

    def open(self, path: str, *, size: int | None = None) -> MemoryFile:
        node = self.nodes.get(path)
        if node is None:
            if size is None:
                raise FileNotFoundError(path)
            self.check_fault("write", path)
            self.make_dirs(path.rpartition("/")[0])
            node = self.nodes[path] = _Node(bytearray(size), mtime_ms=self.now_ms)
        elif size is not None and len(node.data) != size:
            node.data = bytearray(bytes(node.data[:size]).ljust(size, b"\0"))
        return MemoryFile(path, node, self)

    def open_readonly(self, path: str) -> MemoryFile:
        if path not in self.nodes:
            raise FileNotFoundError(path)
        return MemoryFile(path, self.nodes[path], self, True)

    def read_bytes(self, path: str) -> bytes:
        if path not in self.nodes:
            raise FileNotFoundError(path)
        return bytes(self.nodes[path].data)

    def replace_bytes(self, path: str, data: bytes) -> None:
        self.check_fault("write", path)
        self.check_fault("sync", path)
        self.make_dirs(path.rpartition("/")[0])
        self.nodes[path] = _Node(bytearray(data), bytes(data), self.now_ms, True)

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

    def size_of(self, path: str) -> int:
        return len(self.nodes[path].data)

    def mtime_ms(self, path: str) -> int:
        return self.nodes[path].mtime_ms

    def make_dirs(self, path: str) -> None:
        while path and path not in self.folders:
            self.folders.add(path)
            path = path.rpartition("/")[0]

    def rename(self, old: str, new: str) -> None:
        self.nodes[new] = self.nodes.pop(old)

    def unlink(self, path: str) -> None:
        self.nodes.pop(path, None)

    def remove_tree(self, path: str) -> None:
        prefix = path + "/"
        for entry in [entry for entry in self.nodes if entry.startswith(prefix)]:
            del self.nodes[entry]
        self.folders = {
            folder for folder in self.folders if folder != path and not folder.startswith(prefix)
        }

    def sync_dir(self, path: str) -> None:
        self.check_fault("sync", path)
        for entry, node in self.nodes.items():
            if entry.rpartition("/")[0] == path:
                node.name_durable = True

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise StoreFault(
                path,
                "the lock held by another broker process",
                "a store directory that no broker is using",
                "stop that broker, or give this one its own storePathRootDir",
            )
        self.make_dirs(path.rpartition("/")[0])
        self.locks.add(path)
        return MemoryLock(self, path)

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self.total_bytes, self.free_bytes
