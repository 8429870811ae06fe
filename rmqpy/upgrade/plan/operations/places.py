"""Operations that create, move, and exchange files and folders as a whole."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import ClassVar

from attrs import define

from rmqpy.model.errors import RmqError
from rmqpy.upgrade.plan.copying import copy_file
from rmqpy.upgrade.plan.node_context import (
    ABSENT,
    CHUNK,
    NodeContext,
    data_bytes,
    fingerprint_log,
    is_tree,
    range_digest,
)
from rmqpy.upgrade.plan.operations.operation import Op, OpState
from rmqpy.upgrade.plan.stage import LOG, Stage, known_digest, learned_of

INCOMING = ".incoming"
"""The suffix of a file that is being copied from another file system."""


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

    def space_to_revert(self, context: NodeContext, undo_path: str) -> Iterable[tuple[str, int]]:
        files = context.files
        return [(self.path, -data_bytes(files, self.path))] if files.exists(self.path) else ()

    @property
    def source(self) -> tuple[str, str, int]:
        return self.replica, self.source_path, self.size

    def state(self, context: NodeContext) -> OpState:
        found = known_digest(context, self.path)
        if found == ABSENT:
            return OpState.BEFORE
        return OpState.AFTER if found == self.after else OpState.OTHER

    def needs_source(self, context: NodeContext) -> bool:
        return self._staged(context) is None

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

    @property
    def written_bytes(self) -> int:
        return self.data_bytes if self.data_bytes >= 0 else self.size


@define(slots=True, frozen=True, kw_only=True)
class Move(Op):
    """A move of ``path`` to ``to``; ``after`` is the md5 of a file that was made for the plan."""

    kind: ClassVar[str] = "move"
    to: str
    after: str = ""

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
        if at_source and self.after and known_digest(context, self.path) != self.after:
            return OpState.OTHER
        return OpState.BEFORE if at_source else OpState.AFTER

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        files = context.files
        if files.device_of(self.path) == files.device_of(self.to) or files.is_dir(self.path):
            return ()
        return [(self.to, data_bytes(files, self.path) if files.exists(self.path) else 0)]

    def space_to_revert(self, context: NodeContext, undo_path: str) -> Iterable[tuple[str, int]]:
        files = context.files
        if not files.exists(self.to) or files.exists(self.path) or files.is_dir(self.to):
            return ()
        if files.device_of(self.path) == files.device_of(self.to):
            return ()
        count = data_bytes(files, self.to)
        return [(self.path, count), (self.to, -count)]

    def perform(self, context: NodeContext) -> None:
        _move(context, self.path, self.to)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        _settle_move(context, self.path, self.to)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        _settle_move(context, self.path, self.to)
        _settle_move(context, self.to, self.path)
        if self.state(context) is OpState.AFTER:
            _move(context, self.to, self.path)

    def kept_to_revert(self, undo_path: str) -> str | None:
        return self.to


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
            installed = is_tree(files, self.path, self.after)
            return OpState.AFTER if installed else OpState.OTHER
        is_made = context.built.get(self.made) == self.after
        if files.exists(self.aside) or not (is_made or is_tree(files, self.made, self.after)):
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


def _move(context: NodeContext, old: str, new: str) -> None:
    files = context.files
    folder = new.rpartition("/")[0]
    files.make_dirs(folder)
    learned = learned_of(context)
    entries = {}
    if learned is not None:
        paths = learned.files_below(old) if files.is_dir(old) else [old]
        entries = {new + path.removeprefix(old): learned.parts_of(path) for path in paths}
    try:
        files.rename(old, new)
    except OSError as error:
        if error.errno != errno.EXDEV or files.is_dir(old):
            raise
        _copy_over(context, old, new)
    files.sync_dir(folder)
    files.sync_dir(old.rpartition("/")[0])
    if learned is not None:
        for path, parts in entries.items():
            learned.carry_over(parts, path)


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
