"""Memory files on a disk that becomes full: nothing can be allocated any more."""

from __future__ import annotations

import errno

from attrs import define

from rmqpy.testing.memory_files import MemoryFile, MemoryFiles


@define(slots=True, eq=False, repr=False)
class FullDiskFile(MemoryFile):
    """A file in which only bytes that were written before can be overwritten."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        layer = self._layer
        assert isinstance(layer, FullDiskFiles)
        if position + len(data) > self._node.extent:
            layer.allocate(self.path)
        super().write(position, data)

    def reserve(self, position: int, length: int) -> None:
        layer = self._layer
        assert isinstance(layer, FullDiskFiles)
        if position + length > self._node.extent:
            layer.allocate(self.path)


class FullDiskFiles(MemoryFiles):
    """Renames, removals, and writes in place work; new blocks, files, and folders do not.

    The disk becomes full after ``allocations_left`` more allocations.
    """

    allocations_left: int = 0

    @classmethod
    def of(cls, files: MemoryFiles, allocations_left: int = 0) -> FullDiskFiles:
        """Return the files that the next process finds, on the full disk."""
        after = files.kill()
        full = cls(
            nodes=after.nodes,
            folders=after.folders,
            now_ms=after.now_ms,
            durable_names=after._durable_names,
        )
        full.allocations_left = allocations_left
        return full

    def allocate(self, path: str) -> None:
        if self.allocations_left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self.allocations_left -= 1

    def open(self, path: str, *, size: int | None = None) -> MemoryFile:
        node = self.nodes.get(path)
        if size is not None and (node is None or len(node.data) < size):
            self.allocate(path)
        file = super().open(path, size=size)
        return FullDiskFile(file.path, file._node, self)

    def replace_bytes(self, path: str, *parts: bytes) -> None:
        self.allocate(path)
        super().replace_bytes(path, *parts)

    def make_dirs(self, path: str) -> None:
        if path and path not in self.folders:
            self.allocate(path)
        super().make_dirs(path)

    def sync_dir(self, path: str) -> None:
        if path and not self.is_dir(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        super().sync_dir(path)
