"""Single faults in the files of a store, and their removal."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from attrs import define

from campaign.meaning import SETTING_TABLES, FileKind, kind_of, limit_of, meaning_of, read_table

__all__ = ["KINDS", "Fault", "StoreFiles"]

PAGE_BYTES = 4096
_LARGE_BYTES = 1 << 22
"""A file of at least this size is nearly all holes (the index of a DLedger log)."""


@define(frozen=True)
class Fault:
    """One injected fault.

    ``matters`` says whether it changes what a reader may see; then ``limit`` is empty, or says why
    no command can detect it.
    """

    kind: str
    path: str
    file_kind: FileKind
    detail: str
    matters: bool
    limit: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}: {self.detail}"


class StoreFiles:
    """A store whose files can be damaged and restored from a pristine copy."""

    def __init__(self, root: Path, pristine: Path) -> None:
        self.root = root
        self.pristine = pristine
        self.paths = sorted(
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_file() and "rmqpy" not in path.parts
        )
        self._changed: set[str] = set()

    def inject(self, kind: str, dice: random.Random) -> Fault | None:
        """Inject a fault of this kind, or return None if this draw changed nothing."""
        return KINDS[kind](self, dice)

    def restore(self) -> None:
        """Take back every change that was made since the last call."""
        for path in self._changed:
            source = self.pristine / path
            if source.exists():
                copy_sparse(source, self.root / path)
            else:
                (self.root / path).unlink()
        self._changed.clear()

    @contextmanager
    def changing(self, *paths: str) -> Iterator[None]:
        """Change these files in the body, keeping their times: rot does not change times."""
        times = {path: (self.root / path).stat() for path in paths}
        self._changed.update(paths)
        yield
        for path, status in times.items():
            if (self.root / path).exists():
                os.utime(self.root / path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def add(self, path: str, source: str) -> None:
        """Add a file with the content of another one."""
        self._changed.add(path)
        copy_sparse(self.root / source, self.root / path)

    # -- each fault ------------------------------------------------------------------

    def pick(self, dice: random.Random, *kinds: FileKind) -> str:
        """Return the path of a file: first a kind of file is drawn, then a file of that kind."""
        groups: dict[FileKind, list[str]] = {}
        for path in self.paths:
            found = kind_of(PurePosixPath(path))
            if (found in kinds) if kinds else (found is not FileKind.OTHER or dice.random() < 0.05):
                groups.setdefault(found, []).append(path)
        return dice.choice(groups[dice.choice(sorted(groups, key=lambda kind: kind.value))])

    def data_of(self, path: str) -> bytes:
        """Return the content up to the last byte that is not zero, at least one page."""
        file = self.root / path
        if file.stat().st_size < _LARGE_BYTES:
            return file.read_bytes()
        with file.open("rb") as stream:
            return stream.read(_LARGE_BYTES)

    def position(self, dice: random.Random, data: bytes) -> int:
        """Return a position, mostly in the part of a file that has content."""
        content = len(data.rstrip(b"\0"))
        return dice.randrange(content if content and dice.random() < 0.9 else len(data))

    def overwrite(self, kind: str, path: str, position: int, new: bytes, detail: str) -> Fault:
        before = self.data_of(path)
        with self.changing(path), (self.root / path).open("r+b") as stream:
            stream.seek(position)
            stream.write(new)
        return self.fault(kind, path, detail, before)

    def replace(self, kind: str, path: str, new: bytes, detail: str) -> Fault:
        before = self.data_of(path)
        with self.changing(path):
            (self.root / path).write_bytes(new)
        return self.fault(kind, path, detail, before)

    def effective(self, path: str) -> bytes:
        """Return the content that a reader uses: of a table, its backup if it is unreadable."""
        for name in (path, f"{path}.bak"):
            try:
                data = self.data_of(name)
                if kind_of(PurePosixPath(path)) is FileKind.TABLE:
                    read_table(data)
            except (ValueError, FileNotFoundError):
                continue
            return data
        return b""

    def fault(self, kind: str, path: str, detail: str, before: bytes) -> Fault:
        """Return the fault that was injected into ``path``, whose content was ``before``."""
        file_kind = kind_of(PurePosixPath(path))
        exists = (self.root / path).exists() or file_kind is FileKind.TABLE
        after = self.effective(path) if exists else None
        matters = file_kind not in (FileKind.OTHER, FileKind.CHECKPOINT) and (
            after is None
            or meaning_of(file_kind, after, before) != meaning_of(file_kind, before, before)
        )
        limit = ""
        if after is None and file_kind is FileKind.LEDGER_CHECKPOINT:
            if not (self.root / f"{path}.bak").exists():
                limit = "no checkpoint: a member has none shortly after its first start"
        elif after is not None:
            limit = limit_of(PurePosixPath(path), after, before)
        return Fault(kind, path, file_kind, detail, matters, limit if matters else "")


def _flip_bit(store: StoreFiles, dice: random.Random) -> Fault | None:
    path = store.pick(dice)
    data = store.data_of(path)
    if not data:
        return None
    position, bit = store.position(dice, data), dice.randrange(8)
    new = bytes([data[position] ^ 1 << bit])
    return store.overwrite("bit", path, position, new, f"bit {bit} of byte {position}")


def _lose_page(store: StoreFiles, dice: random.Random) -> Fault | None:
    path = store.pick(dice)
    data = store.data_of(path)
    if not data:
        return None
    begin = store.position(dice, data) // PAGE_BYTES * PAGE_BYTES
    size = min(PAGE_BYTES, len(data) - begin)
    new = dice.choice([bytes(size), dice.randbytes(size)])
    if new == data[begin : begin + size]:
        return None
    word = "random" if any(new) else "zero"
    return store.overwrite("page", path, begin, new, f"{size} {word} bytes at {begin}")


def _truncate(store: StoreFiles, dice: random.Random) -> Fault | None:
    path = store.pick(dice)
    size = (store.root / path).stat().st_size
    if not size:
        return None
    data = store.data_of(path)
    new_size = dice.choice([0, dice.randrange(size), store.position(dice, data)])
    with store.changing(path):
        os.truncate(store.root / path, new_size)
    return store.fault("truncated", path, f"{new_size} of {size} bytes", data)


def _remove(store: StoreFiles, dice: random.Random) -> Fault:
    path = store.pick(dice)
    data = store.data_of(path)
    with store.changing(path):
        (store.root / path).unlink()
    return store.fault("missing", path, "removed", data)


_ROWS = (FileKind.LOG, FileKind.LEDGER, FileKind.QUEUE, FileKind.INDEX)
"""The kinds of files that form rows, named by number."""


def _add(store: StoreFiles, dice: random.Random) -> Fault:
    """Add a file: a copy of a neighbour under a number that does not exist, or a stray name."""
    source = store.pick(dice, *_ROWS)
    file_kind = kind_of(PurePosixPath(source))
    name = PurePosixPath(source).name
    size = (store.root / source).stat().st_size
    taken = {PurePosixPath(path).name for path in store.paths if _folder(path) == _folder(source)}
    number = int(max(taken)) + size * dice.choice([1, 1, 3])
    new = dice.choice([f"{number:0{len(name)}d}", f"{name}.old", "core"])
    path = f"{_folder(source)}/{new}"
    store.add(path, source)
    return Fault("extra", path, file_kind, f"a copy of {name}", True)


def _swap(store: StoreFiles, dice: random.Random) -> Fault | None:
    first = store.pick(dice, *_ROWS)
    kind = kind_of(PurePosixPath(first))
    second = store.pick(dice, kind)
    if first == second or store.data_of(first) == store.data_of(second):
        return None
    one, other = store.root / first, store.root / second
    spare = one.with_name("spare")
    with store.changing(first, second):
        one.rename(spare)
        other.rename(one)
        spare.rename(other)
    return Fault("swapped", first, kind, f"exchanged with {second}", True)


def _make_stale(store: StoreFiles, dice: random.Random) -> Fault | None:
    """Replace a table by one from an earlier time."""
    path = store.pick(dice, FileKind.TABLE)
    data = store.data_of(path)
    value = read_table(data)
    name = PurePosixPath(path).name
    if name in SETTING_TABLES:
        rows = value[SETTING_TABLES[name]]
        if not rows:
            return None
        lost = dice.choice(sorted(rows))
        del rows[lost]
        return store.replace("stale", path, json.dumps(value).encode(), f"without {lost}")
    rows = value["offsetTable"]
    if not rows:
        return None
    for key, offset in rows.items():
        rows[key] = (
            {queue: int(each) // 2 for queue, each in offset.items()}
            if isinstance(offset, dict)
            else int(offset) // 2
        )
    return store.replace("stale", path, json.dumps(value).encode(), "half of every offset")


KINDS: dict[str, Callable[[StoreFiles, random.Random], Fault | None]] = {
    "bit": _flip_bit,
    "page": _lose_page,
    "truncated": _truncate,
    "missing": _remove,
    "extra": _add,
    "swapped": _swap,
    "stale": _make_stale,
}


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file with its holes and its times."""
    size = source.stat().st_size
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.truncate(size)
        for begin, end in _extents(reader.fileno(), size):
            reader.seek(begin)
            writer.seek(begin)
            writer.write(reader.read(end - begin))
    shutil.copystat(source, target)


def _extents(descriptor: int, size: int) -> Sequence[tuple[int, int]]:
    found = []
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole follows
            break
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        found.append((begin, end))
    return found
