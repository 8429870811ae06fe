"""What Linux shows of a broker's process: its configuration file, and deleted files it holds."""

from __future__ import annotations

import os
from pathlib import Path

from rmqpy.why.sources.interface import DeletedFile

__all__ = ["configuration_of_process", "deleted_files"]

PROC = Path("/proc")
_DELETED = " (deleted)"


def configuration_of_process(process: int, proc: Path = PROC) -> str | None:
    """Return the path after ``-c`` on the command line of a process, or None."""
    try:
        words = (proc / str(process) / "cmdline").read_bytes().split(b"\0")
        folder = os.readlink(proc / str(process) / "cwd")
    except OSError:
        return None
    if b"-c" not in words[:-1]:
        return None
    path = os.fsdecode(words[words.index(b"-c") + 1])
    return str(Path(folder, path)) if path else None


def deleted_files(process: int, below: str, proc: Path = PROC) -> list[DeletedFile] | None:
    """Return the deleted files below a directory that a process has open or mapped, or None if this
    user may not look.
    """
    found: dict[str, int] = {}
    try:
        for name in os.listdir(proc / str(process) / "fd"):
            entry = proc / str(process) / "fd" / name
            try:
                target = os.readlink(entry)
                if target.startswith(f"{below}/") and target.endswith(_DELETED):
                    found[target.removesuffix(_DELETED)] = entry.stat().st_size
            except OSError:
                continue  # closed in the meantime
        maps = (proc / str(process) / "maps").read_text(errors="replace")
    except OSError:
        return None
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(f"{below}/") and fields[5].endswith(_DELETED):
            path = fields[5].removesuffix(_DELETED)
            begin, _, end = fields[0].partition("-")
            found.setdefault(path, int(end, 16) - int(begin, 16))
    return [DeletedFile(path, size) for path, size in sorted(found.items())]
