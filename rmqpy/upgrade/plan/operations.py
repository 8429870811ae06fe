"""The closed set of operations: everything that a plan may do to a directory.

Each operation names its file, the content that the file must have before, and the content that it
will have after. So an operation can be printed and signed off, refused if its "before" no longer
holds, repeated without harm, and reverted. Paths are those of the node that carries it out.

===========  ======================================================  ===============================
kind         effect                                                  reverted by
===========  ======================================================  ===============================
copy         bytes of another replica into an existing file          undo record
create       a whole file of another replica                         removing it
cut          zeros after the last record; the bytes are kept         undo record
fill         a BLANK up to the end of a file                         undo record
fetch        entries that another member has, from the plan itself   undo record
reframe      entries of a DLedger file become classic records        undo record
move         a file or folder to another path                        moving it back
move_aside   the same, out of the store, to the plan's keep folder   moving it back
make_dir     a folder                                                removing it, if empty
write        a small file as a whole (configuration, checkpoint)     undo record
derive       consume queues and key index from the log, separately   removing them
install      a folder that was built separately takes its place      renaming both back
===========  ======================================================  ===============================
"""

from __future__ import annotations

import base64
import errno
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import Any, ClassVar

import attrs
from attrs import define

from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.message import encode_blank
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.model.typed_json import check_types
from rmqpy.upgrade.plan import derive, undo
from rmqpy.upgrade.plan.copying import copy_file
from rmqpy.upgrade.plan.node_context import (
    ABSENT,
    CHUNK,
    NodeContext,
    data_bytes,
    digest_of,
    fingerprint_log,
    range_digest,
    tree_digest,
    tree_files,
)
from rmqpy.upgrade.plan.reframe import DataFile, Edit, Piece, edits_of
from rmqpy.upgrade.plan.stage import LOG, Stage, known_digest, learned_of

INCOMING = ".incoming"
"""The suffix of a file that is being copied from another file system."""


class OpState(Enum):
    BEFORE = "before"
    AFTER = "after"
    OTHER = "other"


@define(slots=True, frozen=True, kw_only=True)
class Op(ABC):
    """One operation on ``path``; ``why`` is for readers of the plan."""

    kind: ClassVar[str]
    path: str
    why: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths of this node that the operation reads or writes."""
        return (self.path,)

    @property
    def source(self) -> tuple[str, str, int] | None:
        """The replica, its file, and the end of the range that is copied from there, if any."""
        return None

    @abstractmethod
    def state(self, context: NodeContext) -> OpState:
        """Return the state of the directory as this operation sees it."""

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        """Save, durably, what :meth:`perform` would destroy. Most kinds destroy nothing."""
        return

    @abstractmethod
    def perform(self, context: NodeContext) -> None:
        """Go from *before* to *after*. On return the change is durable."""

    def resume(self, context: NodeContext, undo_path: str) -> None:
        """Go back to *before* after an interruption, unless it is *after* already.

        Kinds that consist of one atomic step do nothing.
        """
        return

    @abstractmethod
    def revert(self, context: NodeContext, undo_path: str) -> None:
        """Go back to *before*: from *before*, from *after*, or from halfway."""

    @property
    def changed_bytes(self) -> int:
        """The number of bytes that the operation writes, for progress reports."""
        return 0

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        """Return the space that the operation takes at most, its undo record included.

        Each item is a path on the file system that is meant, and a number of bytes.
        """
        return ()


@define(slots=True, frozen=True, kw_only=True)
class Patch(Op):
    """A change of bytes ``[start, end)`` of an existing file; the file keeps its time.

    ``before`` and ``after`` are the md5 of that range.
    """

    start: int
    end: int
    before: str
    after: str

    @abstractmethod
    def edits(self, context: NodeContext) -> Iterable[Edit]:
        """Return the bytes to write, all within the range."""

    def state(self, context: NodeContext) -> OpState:
        found = range_digest(context.files, self.path, self.start, self.end)
        if found == self.after:
            return OpState.AFTER
        return OpState.BEFORE if found == self.before else OpState.OTHER

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        undo.save_ranges(context.files, undo_path, self.path, self.overwritten(context))

    def overwritten(self, context: NodeContext) -> list[tuple[int, int]]:
        """Return the (position, length) ranges that will be written."""
        return [(self.start, self.end - self.start)]

    def perform(self, context: NodeContext) -> None:
        edits = list(self.edits(context))
        mtime_ms = context.files.mtime_ms(self.path)
        file = context.files.open(self.path)
        try:
            for edit in edits:
                assert self.start <= edit.position <= self.end - len(edit.data)
                file.write(edit.position, edit.data)
            file.sync()
        finally:
            file.close()
        context.files.set_mtime_ms(self.path, mtime_ms)
        if self.state(context) is not OpState.AFTER:
            raise StoreError(
                self.path,
                f"other bytes than planned at [{self.start}, {self.end}) after the write",
                f"md5 {self.after}",
                "take the plan back with rmqpy upgrade rollback, and check the disk",
            )

    def resume(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)

    @property
    def changed_bytes(self) -> int:
        return self.end - self.start

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        return [(context.work, self.end - self.start)]


@define(slots=True, frozen=True, kw_only=True)
class Copy(Patch):
    kind: ClassVar[str] = "copy"
    replica: str
    source_path: str

    @property
    def source(self) -> tuple[str, str, int]:
        return self.replica, self.source_path, self.end

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        # The range may be a hole so far.
        return [*super().space(context), (self.path, self.end - self.start)]

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        data = context.source.read(self.replica, self.source_path, self.start, self.end)
        if len(data) != self.end - self.start or digest_of(data) != self.after:
            raise RmqError(
                f"{self.source_path} on {self.replica}: bytes {self.start} to {self.end} are no"
                " longer those of the plan; stop its broker and plan again"
            )
        return [Edit(self.start, data)]


@define(slots=True, frozen=True, kw_only=True)
class Cut(Patch):
    """Zeros in place of records; the bytes are saved in the file ``kept``."""

    kind: ClassVar[str] = "cut"
    kept: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.kept)

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        return [*super().space(context), (self.kept, self.end - self.start)]

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        return [
            Edit(position, bytes(min(CHUNK, self.end - position)))
            for position in range(self.start, self.end, CHUNK)
        ]

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        super().prepare(context, undo_path)
        files = context.files
        source = files.open_readonly(self.path)
        kept = files.open(self.kept, size=self.end - self.start)
        try:
            for position in range(self.start, self.end, CHUNK):
                kept.write(
                    position - self.start, source.view[position : min(position + CHUNK, self.end)]
                )
            kept.sync()
        finally:
            kept.close()
            source.close()
        files.sync_dir(self.kept.rpartition("/")[0])

    def revert(self, context: NodeContext, undo_path: str) -> None:
        super().revert(context, undo_path)
        context.files.unlink(self.kept)


@define(slots=True, frozen=True, kw_only=True)
class Fill(Patch):
    """A BLANK from ``start`` to the end of the file, whose size is ``file_size``."""

    kind: ClassVar[str] = "fill"
    file_size: int

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        assert self.end == self.start + BLANK_SIZE
        return [Edit(self.start, encode_blank(self.file_size - self.start))]


@define(slots=True, frozen=True, kw_only=True)
class Fetch(Patch):
    """Bytes of entries that ``replica`` has, in base64.

    ``before`` is ``absent`` for a file that does not exist; it is created with ``file_size`` bytes.
    """

    kind: ClassVar[str] = "fetch"
    content: str
    file_size: int
    replica: str

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        return [Edit(self.start, base64.b64decode(self.content))]

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        if self.before != ABSENT:
            super().prepare(context, undo_path)

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        folder = self.path.rpartition("/")[0]
        return [*super().space(context), (folder, self.end - self.start)]

    def perform(self, context: NodeContext) -> None:
        if self.before == ABSENT:
            context.files.open(self.path, size=self.file_size).close()
            context.files.sync_dir(self.path.rpartition("/")[0])
        super().perform(context)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        self.revert(context, undo_path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        if self.before == ABSENT:
            context.files.unlink(self.path)
        else:
            super().revert(context, undo_path)


@define(slots=True, frozen=True, kw_only=True)
class Reframe(Patch):
    """Entries of a file become classic records; messages between the two offsets move."""

    kind: ClassVar[str] = "reframe"
    base_offset: int
    content_end: int
    moved_from: int
    moved_to: int
    undo_bytes: int = -1
    """The number of bytes that are overwritten; -1 in plans of earlier versions."""

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        known = self.undo_bytes >= 0
        return [(context.work, self.undo_bytes)] if known else super().space(context)

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        file = context.files.open_readonly(self.path)
        try:
            return list(edits_of(self._data(file.view), Piece(self.start, self.end)))
        finally:
            file.close()

    def overwritten(self, context: NodeContext) -> list[tuple[int, int]]:
        return [(edit.position, len(edit.data)) for edit in self.edits(context)]

    def _data(self, view: memoryview) -> DataFile:
        return DataFile(view, self.base_offset, self.content_end, self.moved_from, self.moved_to)


@define(slots=True, frozen=True, kw_only=True)
class Create(Op):
    """A new file; holes of the source stay holes, and the source's time is kept."""

    kind: ClassVar[str] = "create"
    replica: str
    source_path: str
    size: int
    after: str
    mtime_ms: int
    data_bytes: int = -1
    """The number of bytes before the hole at the end; -1 in plans of earlier versions."""

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        count = self.data_bytes if self.data_bytes >= 0 else self.size
        if self._staged(context) is not None:
            count = 0
        moved = context.files.device_of(context.work) != context.files.device_of(self.path)
        return [(self.path, count), *([(context.work, count)] if moved else [])]

    @property
    def source(self) -> tuple[str, str, int]:
        return self.replica, self.source_path, self.size

    def state(self, context: NodeContext) -> OpState:
        found = known_digest(context, self.path)
        if found == ABSENT:
            return OpState.BEFORE
        return OpState.AFTER if found == self.after else OpState.OTHER

    def _staged(self, context: NodeContext) -> str | None:
        """Return the path of this file if it waits on the stage."""
        path = Stage(context.files, context.root, LOG).path(self.path.rpartition("/")[2])
        learned = learned_of(context)
        if learned is None or not context.files.exists(path):
            return None
        return path if learned.known_md5(path) == self.after else None

    def perform(self, context: NodeContext) -> None:
        files = context.files
        staged = self._staged(context)
        if staged is not None:
            _move(context, staged, self.path)
            return
        incoming = f"{context.work}/incoming"
        files.unlink(incoming)
        file = files.open(incoming, size=self.size)
        try:
            for position in range(0, self.size, CHUNK):
                stop = min(position + CHUNK, self.size)
                data = context.source.read(self.replica, self.source_path, position, stop)
                if any(data):
                    file.write(position, data)
            file.sync()
        finally:
            file.close()
        if range_digest(files, incoming) != self.after:
            files.unlink(incoming)
            raise RmqError(
                f"{self.source_path} on {self.replica} is no longer the file of the plan; stop its"
                " broker and plan again"
            )
        files.set_mtime_ms(incoming, self.mtime_ms)
        _move(context, incoming, self.path)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        context.files.unlink(f"{context.work}/incoming")
        context.files.unlink(self.path + INCOMING)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        self.resume(context, undo_path)
        if self.state(context) is OpState.AFTER:
            context.files.unlink(self.path)
            context.files.sync_dir(self.path.rpartition("/")[0])

    @property
    def changed_bytes(self) -> int:
        return self.size


@define(slots=True, frozen=True, kw_only=True)
class Move(Op):
    kind: ClassVar[str] = "move"
    to: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.to)

    def state(self, context: NodeContext) -> OpState:
        files = context.files
        at_source, at_target = files.exists(self.path), files.exists(self.to)
        if at_source and at_target and files.is_dir(self.to) and not files.list_dir(self.to):
            return OpState.BEFORE  # A rename replaces an empty folder.
        if at_source == at_target:
            return OpState.OTHER
        return OpState.BEFORE if at_source else OpState.AFTER

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        files = context.files
        if files.device_of(self.path) == files.device_of(self.to) or files.is_dir(self.path):
            return ()
        return [(self.to, files.size_of(self.path) if files.exists(self.path) else 0)]

    def perform(self, context: NodeContext) -> None:
        _move(context, self.path, self.to)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        _settle_move(context, self.path, self.to)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        _settle_move(context, self.path, self.to)
        _settle_move(context, self.to, self.path)
        if self.state(context) is OpState.AFTER:
            _move(context, self.to, self.path)


@define(slots=True, frozen=True, kw_only=True)
class MoveAside(Move):
    kind: ClassVar[str] = "move_aside"


@define(slots=True, frozen=True, kw_only=True)
class MakeDir(Op):
    kind: ClassVar[str] = "make_dir"

    def state(self, context: NodeContext) -> OpState:
        if context.files.is_dir(self.path):
            return OpState.AFTER
        return OpState.OTHER if context.files.exists(self.path) else OpState.BEFORE

    def perform(self, context: NodeContext) -> None:
        context.files.make_dirs(self.path)
        context.files.sync_dir(self.path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        if context.files.is_dir(self.path) and not context.files.list_dir(self.path):
            context.files.remove_tree(self.path)


@define(slots=True, frozen=True, kw_only=True)
class Write(Op):
    """The whole content of a small file.

    ``before`` is the md5 of the present file or ``absent``; ``content`` is in base64.
    """

    kind: ClassVar[str] = "write"
    before: str
    content: str

    @classmethod
    def of(cls, path: str, before: str, data: bytes, why: str) -> Write:
        return cls(path=path, before=before, content=base64.b64encode(data).decode(), why=why)

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.content)

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        files = context.files
        old = files.size_of(self.path) if files.exists(self.path) else 0
        return [(self.path, len(self.data)), (context.work, old)]

    def state(self, context: NodeContext) -> OpState:
        found = range_digest(context.files, self.path)
        if found == digest_of(self.data):
            return OpState.AFTER
        return OpState.BEFORE if found == self.before else OpState.OTHER

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        undo.save_whole(context.files, undo_path, self.path)

    def perform(self, context: NodeContext) -> None:
        context.files.replace_bytes(self.path, self.data)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)


@define(slots=True, frozen=True, kw_only=True)
class Derive(Op):
    """Consume queues and key index, built below ``path``.

    From ``from_offset`` on they are built from the log; below it they are copied from the old ones
    at ``queues`` and ``index``.
    """

    kind: ClassVar[str] = "derive"
    commit_log: str
    queues: str
    index: str
    config: str
    from_offset: int

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.commit_log, self.queues, self.index, self.config)

    def state(self, context: NodeContext) -> OpState:
        if not context.files.exists(self.path):
            has_base = self.from_offset <= 0 or context.files.is_dir(self.queues)
            return OpState.BEFORE if has_base else OpState.OTHER
        return OpState.AFTER if derive.is_finished(context.files, self.path) else OpState.OTHER

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        """Return the size of the old queues and index, and a share of the log from which new ones
        are built.
        """
        files = context.files
        kept = [*tree_files(files, self.queues), *tree_files(files, self.index)]
        log = [
            path
            for path in tree_files(files, self.commit_log)
            if int(path.rpartition("/")[2]) + files.size_of(path) > self.from_offset
        ]
        built = sum(data_bytes(files, path) for path in log) // 4
        return [(self.path, built + sum(data_bytes(files, path) for path in kept))]

    def perform(self, context: NodeContext) -> None:
        places = derive.DerivedPaths(
            self.path, self.commit_log, self.queues, self.index, self.config
        )
        derive.build(context, places, self.from_offset)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        if self.state(context) is not OpState.AFTER:
            context.files.remove_tree(self.path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        context.files.remove_tree(self.path)


@define(slots=True, frozen=True, kw_only=True)
class Install(Op):
    """The replacement of ``path`` by the folder ``made``; the present folder moves to ``aside``.

    ``after`` is the digest of ``made``. ``log`` is the fingerprint of the log from which ``made``
    was built: if the log was written to since, its queues are different.
    """

    kind: ClassVar[str] = "install"
    made: str
    aside: str
    after: str
    log: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.made, self.aside)

    def state(self, context: NodeContext) -> OpState:
        files = context.files
        if not files.is_dir(self.made):
            installed = tree_digest(files, self.path) == self.after
            return OpState.AFTER if installed else OpState.OTHER
        if files.exists(self.aside) or tree_digest(files, self.made) != self.after:
            return OpState.OTHER
        return OpState.BEFORE if fingerprint_log(context) == self.log else OpState.OTHER

    def perform(self, context: NodeContext) -> None:
        if context.files.exists(self.path):
            _move(context, self.path, self.aside)
        _move(context, self.made, self.path)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        files = context.files
        if files.is_dir(self.made) and not files.exists(self.path) and files.exists(self.aside):
            _move(context, self.aside, self.path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        files = context.files
        if not files.is_dir(self.made) and files.exists(self.path):
            _move(context, self.path, self.made)
        self.resume(context, undo_path)


OPERATIONS: tuple[type[Op], ...] = (
    Copy,
    Create,
    Cut,
    Fill,
    Fetch,
    Reframe,
    Move,
    MoveAside,
    MakeDir,
    Write,
    Derive,
    Install,
)
_BY_KIND = {each.kind: each for each in OPERATIONS}


def op_to_json(op: Op) -> dict[str, Any]:
    """Return the JSON form. Fields that plans of earlier versions lack keep their ids unchanged."""
    value = attrs.asdict(op)
    for name in ("undo_bytes", "data_bytes"):
        if value.get(name) == -1:
            del value[name]
    return {"op": op.kind, **value}


def op_from_json(value: dict[str, Any]) -> Op:
    """Decode an operation. Raise RmqError if it is invalid, because a plan may have been edited."""
    fields = dict(value)
    kind = _BY_KIND.get(str(fields.pop("op", None)))
    if kind is None:
        raise RmqError(
            f"unknown operation {value.get('op')!r}; known are {', '.join(sorted(_BY_KIND))}"
        )
    try:
        check_types(kind, fields)
        return kind(**fields)
    except TypeError as error:
        raise RmqError(
            f"operation {kind.kind}: {error}; the plan was changed after it was created, plan again"
        ) from None


def _move(context: NodeContext, old: str, new: str) -> None:
    files = context.files
    folder = new.rpartition("/")[0]
    files.make_dirs(folder)
    learned = None if files.is_dir(old) else learned_of(context)
    entries = learned.parts_of(old) if learned is not None else []
    try:
        files.rename(old, new)
    except OSError as error:
        if error.errno != errno.EXDEV or files.is_dir(old):
            raise
        _copy_over(context, old, new)
    files.sync_dir(folder)
    files.sync_dir(old.rpartition("/")[0])
    if learned is not None:
        learned.carry_over(entries, new)


def _copy_over(context: NodeContext, old: str, new: str) -> None:
    """Move to another file system: copy under a temporary name, rename, remove the old file."""
    files = context.files
    copy_file(files, old, new + INCOMING)
    files.rename(new + INCOMING, new)
    files.sync_dir(new.rpartition("/")[0])
    files.unlink(old)


def _settle_move(context: NodeContext, old: str, new: str) -> None:
    """Clean up after a kill between the steps of :func:`_copy_over`."""
    files = context.files
    files.unlink(new + INCOMING)
    both = files.exists(old) and files.exists(new)
    if both and not files.is_dir(old) and range_digest(files, old) == range_digest(files, new):
        files.unlink(old)
