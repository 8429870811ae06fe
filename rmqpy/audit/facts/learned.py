"""What was learned about the files of a store that no longer change, kept from one audit to the
next.

A log file that is followed by another one, a full queue file, and a full index file are sealed:
nobody writes to them again. What an audit finds out about one of them is kept in
``rmqpy/learned/PATH``, with the identity of the file (inode, length, times of the last write and of
the last change). An entry is used if the identity is still the same: a file that was written to, or
replaced by another one, has another inode or another time of the last change, which cannot be set,
even if its length and the time of its last write are as before. An entry that is damaged, of
another version, or of another file counts as missing.

What an entry cannot show is a byte that changes without a write, on the disk itself. Therefore
everything that rests on entries says so, with the age of the oldest
(:class:`rmqpy.audit.facts.proof_age.ProofAge`), and ``full`` reads every file again and reports
entries that were wrong.

The last file of the key index and of the DLedger index can become as large as 420 and 160 MB before
it is sealed. Entries are only added to it, so what was learned about those that it had then (its
``head``) counts for the same inode with the same length, whatever its times are. Who uses it checks
what a look at the rest of the file can check; an age names these bytes separately.

There is one entry for each file and part (``walk``: the walk over a log file; ``units`` and
``index``: the sums of a queue or index file; ``head``; ``md5``; ``span``: the time of the first
message; ``twin``: its form in a classic log). Those of a file are in ``rmqpy/learned/PATH.known``,
so that one read and one write carry them over when the file is moved: a header line, and for each
part its name (8 bytes), the length and the BLAKE2b digest of its JSON (4 and 16 bytes), and the
JSON, compressed:

========  ====================================================================================
version   version of rmqpy and of the kernel of the audit
path      path of the file below the root
part      what was learned
identity  of the file
ms        when the file was read
value     what was learned
========  ====================================================================================

The digests of the blocks of a log file are beside its ``walk``, in ``rmqpy/learned/PATH.blocks``,
as packed bytes (:mod:`rmqpy.audit.scan.blocks`), which have their checksum in the ``walk``. They
are read only if somebody asks for a single block.

The folder belongs to rmqpy alone (no broker looks at it), may be removed at any time, and is
created by ``rmqpy upgrade prepare`` only: where it does not exist, audits change nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import define, field

from rmqpy import __version__
from rmqpy.audit.facts.proof_age import ProofAge
from rmqpy.codec.tally.kernel import KERNEL_VERSION
from rmqpy.model.files import FileIdentity, FileSystem
from rmqpy.store.files.paths import own_folder

__all__ = ["Learned", "learned_folder", "open_learned"]

log = logging.getLogger(__name__)

WALK: Final = "walk"
MD5: Final = "md5"
UNITS: Final = "units"
INDEX: Final = "index"
TWIN: Final = "twin"
SPAN: Final = "span"
HEAD: Final = "head"
PARTS: Final = (WALK, MD5, UNITS, INDEX, TWIN, SPAN, HEAD)
KNOWN: Final = "known"
BLOCKS: Final = "blocks"

HEADER: Final = b"rmqpy-learned 2\n"
DIGEST_BYTES: Final = 16
SECTION: Final = struct.Struct(f">8sI{DIGEST_BYTES}s")
VERSION: Final = f"{__version__}/{KERNEL_VERSION}"

SETTLED_NS: Final = 100_000_000
COARSE_SETTLED_NS: Final = 2_000_000_000
"""The time for which a file must have been unchanged before it is read: a write in the same tick of
the file system's clock would not change its times. Some file systems have ticks of seconds.
"""


SETTLE_ATTEMPTS: Final = 30


@define(slots=True, eq=False)
class Learned:
    """What was learned about one store. Thread-safe.

    With ``full``, nothing that was learned earlier is used; ``wrong`` has the paths of files whose
    entries turned out to be wrong.
    """

    files: FileSystem
    root: str
    now_ms: Callable[[], int]
    full: bool = False
    wrong: list[str] = field(factory=list)
    unsettled: int = 0
    """The number of files that had just changed, so that nothing was kept about them."""
    _met: dict[tuple[str, str], tuple[int, int]] = field(factory=dict)
    _used: dict[str, tuple[int, int]] = field(factory=dict)
    _heads: dict[str, tuple[int, int]] = field(factory=dict)
    _read: dict[str, int] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)
    _writing: threading.Lock = field(factory=threading.Lock)

    @property
    def folder(self) -> str:
        return learned_folder(self.root)

    def identity(self, path: str) -> FileIdentity | None:
        """Return the identity of a file before it is read, or None if it has just changed."""
        found = self.files.identity(path)
        changed_ns = found[3]
        settled_ns = SETTLED_NS if changed_ns % 1_000_000_000 else COARSE_SETTLED_NS
        if changed_ns + settled_ns <= self.now_ms() * 1_000_000:
            return found
        self.unsettled += 1
        return None

    def settled(self, path: str, sleep: Callable[[float], None]) -> FileIdentity | None:
        """Return the identity of a file that this process has just written, once it has settled."""
        for _ in range(SETTLE_ATTEMPTS):
            found = self.identity(path)
            if found is not None:
                return found
            sleep(SETTLED_NS / 1_000_000_000)
        return None

    def known_md5(self, path: str) -> str | None:
        """Return the MD5 sum of a whole file, or None if it is not known."""
        value = self.known(path, MD5)
        return value["md5"] if value is not None and value["valid"] is None else None

    def known(self, path: str, part: str) -> Any:
        """Return what was learned about a file, or None."""
        found = None if self.full else self._load(path, part)
        if found is None:
            return None
        with self._lock:
            self._met[path, part] = found["ms"], found["identity"][1]
        return found["value"]

    def known_head(self, path: str) -> dict[str, Any] | None:
        """Return what was learned about the first entries of an open file (``bytes``: their size),
        even with ``full``: then the caller compares.
        """
        found = self._load(path, HEAD)
        if found is None:
            return None
        value: dict[str, Any] = found["value"]
        with self._lock:
            self._met[path, HEAD] = found["ms"], value["bytes"]
        return value

    def head_used(self, path: str, rest: int) -> None:
        """Note that the result rests on a head, and that ``rest`` bytes of the file were read."""
        with self._lock:
            self._heads[path] = self._met[path, HEAD]
            self._read[path] = max(rest, self._read.get(path, 0))

    def keep_head(self, path: str, value: dict[str, Any]) -> None:
        """Keep what was learned about the first entries of a file, as old as the head that it rests
        on.
        """
        at_ms = self._heads.get(path, (self.now_ms(), 0))[0]
        try:
            self._write(path, HEAD, value, self.files.identity(path), at_ms)
        except OSError as error:
            log.debug("cannot keep what was learned about %s: %s", path, error)

    def note_wrong(self, path: str) -> None:
        """Note that what was learned about a file is not what it has."""
        with self._lock:
            self.wrong.append(path)

    def used(self, path: str, part: str) -> None:
        """Note that the result rests on what :meth:`known` has returned."""
        with self._lock:
            at_ms, size = self._met[path, part]
            self._used[path] = min(at_ms, self._used.get(path, (at_ms, 0))[0]), size

    def read(self, path: str, count: int) -> None:
        """Note that ``count`` bytes of a file have been read now."""
        with self._lock:
            self._read[path] = max(count, self._read.get(path, 0))

    def keep(self, path: str, part: str, value: Any, identity: FileIdentity | None) -> None:
        """Keep what was learned about a file that had ``identity`` before it was read.

        Nothing is kept if the file has changed since, or if the folder cannot be written.
        """
        if identity is None:
            return
        before = self._load(path, part) if self.full else None
        if before is not None and before["value"] != json.loads(json.dumps(value)):
            self.note_wrong(path)
        try:
            if self.files.identity(path) == identity:
                self._write(path, part, value, identity, self.now_ms())
        except OSError as error:
            log.debug("cannot keep what was learned about %s: %s", path, error)

    def keep_walk(
        self, path: str, value: Any, blocks: bytes, identity: FileIdentity | None
    ) -> None:
        """Keep the walk over a log file, and the packed digests of its blocks."""
        if identity is None:
            return
        try:
            self.files.replace_bytes(self._place(path, BLOCKS), blocks)
        except OSError as error:
            log.debug("cannot keep the block digests of %s: %s", path, error)
            return
        self.keep(path, WALK, value, identity)

    def blocks(self, path: str) -> bytes | None:
        """Return the packed digests that were kept of a log file, or None. Who knows their checksum
        compares it.
        """
        try:
            return self.files.read_bytes(self._place(path, BLOCKS))
        except OSError:
            return None

    def _write(self, path: str, part: str, value: Any, identity: FileIdentity, at_ms: int) -> None:
        entry = self._packed(path, part, value, identity, at_ms)
        with self._writing:
            self._replace(path, {**self._entries(path), part: entry})

    def _packed(
        self, path: str, part: str, value: Any, identity: FileIdentity, at_ms: int
    ) -> bytes:
        tree = {
            "version": VERSION,
            "path": self._relative(path),
            "part": part,
            "identity": identity,
            "ms": at_ms,
            "value": value,
        }
        return zlib.compress(json.dumps(tree, separators=(",", ":")).encode(), 1)

    def _replace(self, path: str, entries: Mapping[str, bytes]) -> None:
        sections = (
            SECTION.pack(part.encode(), len(packed), _digest(packed)) + packed
            for part, packed in entries.items()
        )
        self.files.replace_bytes(self._place(path, KNOWN), HEADER + b"".join(sections))

    def parts_of(self, path: str) -> list[dict[str, Any]]:
        """Return all valid entries of a file that is about to be renamed."""
        entries = self._entries(path)
        found = (self._decoded(path, part, entries.get(part)) for part in PARTS)
        return [each for each in found if each is not None]

    def carry_over(self, entries: list[dict[str, Any]], path: str) -> None:
        """Keep entries of a file under its new path. The caller has just renamed it, and nobody
        else may change it. On a full disk they are lost, and the file is read again.
        """
        if not entries:
            return
        identity = self.files.identity(path)
        kept = {
            each["part"]: self._packed(path, each["part"], each["value"], identity, each["ms"])
            for each in entries
            if identity[:3] == tuple(each["identity"][:3])
        }
        try:
            if WALK in kept:
                self._move_blocks(entries[0]["path"], path)
            if kept:
                self._replace(path, kept)
        except OSError as error:
            log.debug("cannot keep what was learned about %s: %s", path, error)

    def _move_blocks(self, before: str, path: str) -> None:
        old, new = self._place(before, BLOCKS), self._place(path, BLOCKS)
        if self.files.exists(old):
            self.files.make_dirs(new.rpartition("/")[0])
            self.files.rename(old, new)

    def files_below(self, folder: str) -> list[str]:
        """Return the paths of the files in a folder about which something was learned."""
        base = f"{self.folder}/{self._relative(folder).lstrip('/')}"
        places = _files_below(self.files, base)
        return sorted({folder + each.removeprefix(base).rpartition(".")[0] for each in places})

    @property
    def age(self) -> ProofAge:
        learned = {path: each for path, each in self._used.items() if path not in self._read}
        grown = sum(size for _, size in self._heads.values())
        times = [at_ms for at_ms, _ in (*learned.values(), *self._heads.values())]
        return ProofAge(
            read_bytes=sum(self._read.values()),
            learned_bytes=sum(size for _, size in learned.values()) + grown,
            oldest_ms=min(times, default=-1),
            wrong=tuple(sorted({self._relative(path) for path in self.wrong})),
            grown_bytes=grown,
        )

    def forget_missing(self) -> None:
        """Remove the entries of files that no longer exist, and of parts that have no meaning."""
        for place in _files_below(self.files, self.folder):
            path, _, part = place.removeprefix(f"{self.folder}/").rpartition(".")
            is_used = part in (KNOWN, BLOCKS)
            places = f"{self.root}/{path}", f"/{path}"
            if not is_used or not any(map(self.files.exists, places)):
                self.files.unlink(place)

    def _relative(self, path: str) -> str:
        return path.removeprefix(f"{self.root}/")

    def _place(self, path: str, part: str) -> str:
        return f"{self.folder}/{self._relative(path).lstrip('/')}.{part}"

    def _load(self, path: str, part: str) -> dict[str, Any] | None:
        """Return a valid entry, or None."""
        return self._decoded(path, part, self._entries(path).get(part))

    def _entries(self, path: str) -> dict[str, bytes]:
        """Return the compressed entries of a file that are undamaged, by part."""
        try:
            raw = self.files.read_bytes(self._place(path, KNOWN))
        except OSError:
            return {}
        found, position = {}, len(HEADER)
        while raw.startswith(HEADER) and position + SECTION.size <= len(raw):
            name, size, digest = SECTION.unpack_from(raw, position)
            position += SECTION.size
            packed = raw[position : position + size]
            position += size
            if _digest(packed) == digest:
                found[name.rstrip(b"\0").decode("latin-1")] = packed
        return found

    def _decoded(self, path: str, part: str, packed: bytes | None) -> dict[str, Any] | None:
        if packed is None:
            return None
        try:
            identity = self.files.identity(path)
            tree: dict[str, Any] = json.loads(zlib.decompress(packed))
            count = 2 if part == HEAD else len(identity)
            found = tree["version"], tree["path"], tree["part"], tuple(tree["identity"])[:count]
            is_valid = found == (VERSION, self._relative(path), part, identity[:count])
            return tree if is_valid and {"ms", "value"} <= tree.keys() else None
        except (OSError, ValueError, KeyError, TypeError, zlib.error):
            return None


def learned_folder(root: str) -> str:
    return f"{own_folder(root)}/learned"


def open_learned(
    files: FileSystem, root: str, now_ms: Callable[[], int], *, full: bool = False
) -> Learned | None:
    """Return what was learned about a store, or None if it was never prepared."""
    return Learned(files, root, now_ms, full) if files.is_dir(learned_folder(root)) else None


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


def _files_below(files: FileSystem, folder: str) -> list[str]:
    found: list[str] = []
    for name in files.list_dir(folder):
        path = f"{folder}/{name}"
        found += _files_below(files, path) if files.is_dir(path) else [path]
    return found
