"""The context of operations: the file layer, the source of other replicas' bytes, and the folder
for the journal and the undo records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from attrs import define, field

from rmqpy.codec.backend import content_end
from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, StartProgress

CHUNK = 4 << 20
"""The number of bytes that are read, compared, or sent at a time."""
READ_BYTES_MAX = 64 << 10
"""The length up to which reading a file costs less than mapping it."""
CONTENTS = "contents "
"""What digests of folders begin with. In an earlier version they had those of whole files."""
_ZEROS = memoryview(bytes(CHUNK))

ABSENT = "absent"


class UpgradeRefusedError(RmqError):
    """A safety check failed and nothing was changed. The exit code is 2."""


class RangeSource(Protocol):
    """A source of bytes of other replicas."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """The directory or the address of each replica, by name."""

    def read(self, replica: str, path: str, start: int, end: int) -> bytes:
        """Return bytes ``[start, end)`` of a replica's file. Raise RmqError if it is missing."""


class NoSource:
    """The source to use without other replicas; it refuses every read."""

    @property
    def addresses(self) -> Mapping[str, str]:
        return {}

    def read(self, replica: str, path: str, start: int, end: int) -> bytes:
        raise UpgradeRefusedError(
            f"found no replica {replica}, expected it as the source of {path}; give it as"
            f" {replica}=DIR or {replica}=https://HOST:PORT"
        )


@define(slots=True, frozen=True)
class NodeContext:
    """The context of one node; ``work`` is ``<storePathRootDir>/rmqpy/upgrade``.

    ``configuration`` has the paths of the node's broker.conf, if it was passed. ``built`` has the
    digest of each folder that this process has built below the node's own folder, under the lock of
    the store, so that it is not read again for each check of a plan that follows at once.
    """

    files: FileSystem
    work: str
    settings: StoreSettings = field(factory=StoreSettings)
    source: RangeSource = field(factory=NoSource)
    progress: StartProgress = NoProgress
    now_ms: Callable[[], int] = lambda: 0
    configuration: tuple[str, ...] = ()
    built: dict[str, str] = field(factory=dict, eq=False)

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self.work.rpartition("/rmqpy/")[0]

    def undo_path(self, plan_id: str, number: int) -> str:
        return f"{self.work}/{plan_id}/undo/{number:06d}"


def range_digest(files: FileSystem, path: str, start: int = 0, end: int | None = None) -> str:
    """Return the md5 of ``[start, end)`` in hex, or ``absent`` if the file is missing or short.

    The hole at the end of a log's last file, which would take memory, is not read.
    """
    if not files.exists(path) or files.is_dir(path):
        return ABSENT
    file = files.open_readonly(path)
    try:
        stop = file.size if end is None else end
        if stop > file.size:
            return ABSENT
        digest = hashlib.md5(usedforsecurity=False)
        view, data_end = file.view, file.data_end(0)
        for position in range(start, stop, CHUNK):
            after = min(position + CHUNK, stop)
            is_hole = position >= data_end
            digest.update(_ZEROS[: after - position] if is_hole else view[position:after])
            file.release(position, after)
        return digest.hexdigest()
    finally:
        file.close()


def digest_of(data: bytes | bytearray | memoryview) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def fingerprint_log(context: NodeContext) -> str:
    """Return a digest of the log files' names, lengths, and times; empty DLedger files are left
    out.
    """
    files = context.files
    classic = context.settings.store_path_commit_log
    paths = [f"{classic}/{name}" for name in files.list_dir(classic)]
    paths += _ledger_files_with_content(context)
    rows = [f"{path} {files.size_of(path)} {files.mtime_ms(path)}" for path in paths]
    return digest_of("\n".join(rows).encode())


def holds_entries(context: NodeContext) -> bool:
    """Return whether a DLedger log of the directory has an entry."""
    return next(_ledger_files_with_content(context), None) is not None


def _ledger_files_with_content(context: NodeContext) -> Iterator[str]:
    files, root = context.files, context.settings.store_path_root_dir
    for name in files.list_dir(root):
        folder = f"{root}/{name}/data"
        if name.startswith("dledger-"):
            paths = [f"{folder}/{file}" for file in files.list_dir(folder)]
            # Only the last files can be empty; touching all would read the beginning of each.
            while paths and not _begins_with_content(files, paths[-1]):
                paths.pop()
            yield from paths


def _begins_with_content(files: FileSystem, path: str) -> bool:
    file = files.open_readonly(path)
    try:
        return any(bytes(file.view[:ENTRY_HEADER_SIZE]))
    finally:
        file.close()


def data_bytes(files: FileSystem, path: str) -> int:
    """Return the size of a file without the hole at its end."""
    file = files.open_readonly(path)
    try:
        return file.data_end(0)
    finally:
        file.close()


def tree_digest(files: FileSystem, folder: str) -> str:
    """Return a digest over names, lengths, and bytes of all files below a folder, or ``absent``."""
    if not files.is_dir(folder):
        return ABSENT
    return digest_of_contents(
        (path.removeprefix(f"{folder}/"), content_digest(files, path))
        for path in tree_files(files, folder)
    )


def digest_of_contents(contents: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a folder with these files: the path of each below it, and its
    :func:`content_digest`, in the order of :func:`tree_files`.
    """
    rows = "\n".join(f"/{path} {content}" for path, content in contents)
    return CONTENTS + digest_of(rows.encode())


def is_tree(files: FileSystem, folder: str, digest: str) -> bool:
    """Return whether a folder has the digest of a plan, also of one of an earlier version."""
    if digest == ABSENT or digest.startswith(CONTENTS) or not files.is_dir(folder):
        return tree_digest(files, folder) == digest
    rows = [
        f"{path.removeprefix(folder)} {files.size_of(path)} {range_digest(files, path)}"
        for path in tree_files(files, folder)
    ]
    return digest_of("\n".join(rows).encode()) == digest


def content_digest(files: FileSystem, path: str) -> str:
    """Return the length of a file and the md5 of its bytes without the zeros at its end.

    The files of 50,000 queues have 300 GB of such zeros.
    """
    file = files.open_readonly(path)
    try:
        end = file.data_end(0)
        if end <= READ_BYTES_MAX:
            file.use_in_place()
            view = memoryview(file.read(0, min(end, file.size)))
        else:
            view = file.view
        view = view[: content_end(view[: min(end, len(view))], 0)]
        return f"{file.size} {digest_of(view)}"
    finally:
        file.close()


def tree_files(files: FileSystem, folder: str) -> list[str]:
    """Return the paths of all files below a folder, ordered by name."""
    found: list[str] = []
    for name in sorted(files.list_dir(folder)):
        path = f"{folder}/{name}"
        found += tree_files(files, path) if files.is_dir(path) else [path]
    return found
