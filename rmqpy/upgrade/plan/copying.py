"""Copy files and folders: zeros become holes, times are kept, and the result is durable."""

from __future__ import annotations

from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.node_context import CHUNK


def copy_file(files: FileSystem, source: str, target: str) -> None:
    original = files.open_readonly(source)
    files.unlink(target)
    copy = files.open(target, size=original.size)
    try:
        for position in range(0, original.data_end(0), CHUNK):
            data = bytes(original.view[position : position + CHUNK])
            if any(data):
                copy.write(position, data)
            original.release(position, position + CHUNK)
        copy.sync()
    finally:
        copy.close()
        original.close()
    files.set_mtime_ms(target, files.mtime_ms(source))
    files.sync_dir(target.rpartition("/")[0])


def copy_tree(
    files: FileSystem, source: str, target: str, skip: frozenset[str] = frozenset()
) -> None:
    """Copy a folder except for the entries that ``skip`` names.

    A file that already exists with the same size and time is not copied again.
    """
    files.make_dirs(target)
    for name in files.list_dir(source):
        path, copied = f"{source}/{name}", f"{target}/{name}"
        if name in skip:
            continue
        if files.is_dir(path):
            copy_tree(files, path, copied)
        elif not _same(files, path, copied):
            copy_file(files, path, copied)


def _same(files: FileSystem, path: str, copied: str) -> bool:
    if not files.exists(copied):
        return False
    same_size = files.size_of(path) == files.size_of(copied)
    return same_size and files.mtime_ms(path) == files.mtime_ms(copied)
