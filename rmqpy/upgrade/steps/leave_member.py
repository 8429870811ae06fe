"""The way back for one member: the operations that turn its entries into records of a classic log.

Nothing is changed here: :func:`plan_leave` reads the member's files and returns its part of the
plan (migrations/m0006_leave.py), and :func:`leave_blockers` the reasons why there can be none.
"""

from __future__ import annotations

import struct

from attrs import define

from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.codec.backend import scan_records
from rmqpy.codec.layout import CHECKPOINT_SIZE
from rmqpy.codec.reframe import DataFile, Piece, edits_of, pieces_of
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.commitlog.opening import COMMIT_LOG_SIZE_KEY
from rmqpy.store.files.mapped_files import MappedFiles, file_name
from rmqpy.store.files.paths import StorePaths
from rmqpy.upgrade.checks.ledger import EntryFile, EntryView, Ledger
from rmqpy.upgrade.plan.keep import keep_folder
from rmqpy.upgrade.plan.node_context import (
    NodeContext,
    UpgradeRefusedError,
    digest_of,
    range_digest,
)
from rmqpy.upgrade.plan.operations import (
    Derive,
    Fetch,
    MakeDir,
    Move,
    MoveAside,
    Op,
    Reframe,
    Write,
)
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.plan.space import DERIVED_SHARE, present_space
from rmqpy.upgrade.plan.stage import TWINS, Stage
from rmqpy.upgrade.plan.undo import RANGE_BYTES
from rmqpy.upgrade.steps.cut_entries import cut_after
from rmqpy.upgrade.steps.fetch_entries import Donor, Fetched, fetch_entries, lacks
from rmqpy.upgrade.steps.twins import derived_base, known_ledger, twin_of

PIECE_BYTES = 16 << 20
"""The size in bytes of the piece that one operation changes; bounds its undo record and memory."""

_TIMES = struct.Struct(">qqq")


@define(slots=True, frozen=True, kw_only=True)
class LeaveOptions:
    """The options of one member's part.

    ``cut_index`` is the last entry that is kept. ``config_path`` and ``config_text`` are the
    broker.conf to write, if any. ``reads_version`` is the highest record version that the readers
    of the result know (1: Java 4.9, 2: 5.x).
    """

    replica: str
    cut_index: int
    config_path: str | None = None
    config_text: str = ""
    reads_version: int = 1
    piece_bytes: int = PIECE_BYTES


def plan_leave(context: NodeContext, options: LeaveOptions, donor: Donor | None = None) -> NodePlan:
    """Return this member's part; entries that it lacks are taken from ``donor``. Change nothing.

    Raise UpgradeRefusedError if the member cannot leave, StoreError for a damaged directory.
    """
    ledger = known_ledger(context)
    planner = _LeavePlanner(context, options, ledger, keep_folder(context))
    if donor is not None and lacks(context.files, ledger, donor, options.cut_index):
        planner.fetched = fetch_entries(
            context, ledger, donor, options.cut_index, planner.keep_folder
        )
        planner.ledger = planner.fetched.ledger
    return planner.plan()


def leave_blockers(
    files: FileSystem, settings: StoreSettings, ledger: Ledger, version: int
) -> list[str]:
    """Return the reasons why this member cannot leave, each with its remedy."""
    paths = StorePaths.from_settings(settings)
    found = []
    holder = find_lock_owner(paths.lock)
    if holder is not None:
        found.append(
            f"{paths.root}: found its lock held by process {holder}, expected a stopped broker;"
            " stop the broker"
        )
    elif files.exists(paths.abort):
        found.append(
            f"{paths.abort}: the last stop was not clean; start the broker once as it is"
            " configured, and stop it"
        )
    found += [
        f"the properties of the message at offset {offset} are too long for the way back; let its"
        " file expire, or stay with DLedger"
        for offset in ledger.too_long
    ]
    if ledger.version > version:
        found.append(
            "the log has version 2 records, which Java 4.9 cannot read; leave for 5.x only"
            " (--reader 5)"
        )
    log_files = MappedFiles(files, (paths.commit_log,), settings.mapped_file_size_commit_log)
    log_files.load(COMMIT_LOG_SIZE_KEY)
    if log_files and ledger.files and log_files.last.end_offset != ledger.base_offset:
        found.append(
            f"the old log ends at {log_files.last.end_offset}, the entries begin at"
            f" {ledger.base_offset}: messages between them are missing or exist twice; restore the"
            " missing files from another member"
        )
    log_files.close()
    return found


@define(slots=True)
class _LeavePlanner:
    context: NodeContext
    options: LeaveOptions
    ledger: Ledger
    keep_folder: str
    fetched: Fetched | None = None

    @property
    def _paths(self) -> StorePaths:
        return StorePaths.from_settings(self.context.settings)

    def plan(self) -> NodePlan:
        settings = self.context.settings
        found = leave_blockers(
            self.context.files, settings, self.ledger, self.options.reads_version
        )
        if found:
            raise UpgradeRefusedError("; ".join(found))
        if not self.ledger.files:
            raise UpgradeRefusedError(
                f"{self._paths.root} holds no DLedger data, so there is nothing to leave"
            )
        kept, ops = self._cut()
        twins = self._twins(kept)
        for entry_file in kept:
            if entry_file.base_offset not in twins:
                ops += self._reframe(entry_file)
        ops += self._move_files(kept, twins)
        ops += self._derived(twins)
        checkpoint = self._checkpoint(kept)
        ops += [checkpoint] if checkpoint is not None else []
        ops += self._config()
        return NodePlan(
            replica=self.options.replica,
            root=self._paths.root,
            keep=self.keep_folder,
            ops=tuple(ops),
            notes=tuple(self._notes(kept)),
        )

    def _cut(self) -> tuple[list[EntryFile], list[Op]]:
        """Return the files that stay, in final form, and the operations that remove the rest."""
        if self.fetched is not None:
            return list(self.fetched.ledger.files), list(self.fetched.ops)
        index = self.options.cut_index
        why = f"entries after {index} were never acknowledged"
        return cut_after(self.context.files, self.ledger, index, self.keep_folder, why)

    def _reframe(self, entry_file: EntryFile) -> list[Op]:
        end = entry_file.size if entry_file.closed else entry_file.content_end
        file = self._open(entry_file)
        try:
            data = DataFile(file.view, entry_file.base_offset, end)
            progress = self.context.progress("planning")
            progress.expect(data.size)
            ops = []
            for piece in pieces_of(data, self.options.piece_bytes):
                ops.append(self._reframe_piece(entry_file, data, piece))
                progress.advance(piece.end - piece.start)
            return ops
        finally:
            file.close()

    def _reframe_piece(self, entry_file: EntryFile, data: DataFile, piece: Piece) -> Op:
        content = bytearray(data.view[piece.start : piece.end])
        before = digest_of(content)
        undo_bytes = 0
        for edit in edits_of(data, piece):
            undo_bytes += len(edit.data) + RANGE_BYTES
            start = edit.position - piece.start
            content[start : start + len(edit.data)] = edit.data
        return Reframe(
            path=entry_file.path,
            start=piece.start,
            end=piece.end,
            before=before,
            after=digest_of(content),
            base_offset=data.base_offset,
            content_end=data.end,
            undo_bytes=undo_bytes,
        )

    def _open(self, entry_file: EntryFile) -> EntryView:
        """Return the content of a file as it will be once missing entries are fetched."""
        if self.fetched is not None:
            return self.fetched.open(self.context.files, entry_file.path)
        return self.context.files.open_readonly(entry_file.path)

    def _twins(self, kept: list[EntryFile]) -> dict[int, str]:
        """Return, by the offset of its file, the MD5 sum of each twin that waits on the stage.

        Files that the plan itself changes, by a cut or by fetching entries, have none.
        """
        if self.fetched is not None:
            return {}
        unchanged = (each for each in kept if each in self.ledger.files)
        found = ((each.base_offset, twin_of(self.context, each)) for each in unchanged)
        return {offset: md5 for offset, md5 in found if md5 is not None}

    def _move_files(self, kept_files: list[EntryFile], twins: dict[int, str]) -> list[Op]:
        files, paths = self.context.files, self._paths
        ops: list[Op] = []
        if not files.is_dir(paths.commit_log):
            ops.append(MakeDir(path=paths.commit_log))
        self_id = self.context.settings.dledger_self_id
        assert self_id is not None
        for each in kept_files:
            name = file_name(each.base_offset)
            target, md5 = f"{paths.commit_log}/{name}", twins.get(each.base_offset)
            if md5 is None:
                ops.append(Move(path=each.path, to=target))
                continue
            if not each.path.startswith(f"{paths.dledger(self_id)}/"):
                aside = f"{self.keep_folder}/entries/{name}"
                ops.append(MoveAside(path=each.path, to=aside, why="its twin takes its place"))
            twin = Stage(files, paths.root, TWINS).path(name)
            ops.append(Move(path=twin, to=target, after=md5, why="made by prepare --leave"))
        ops.append(
            MoveAside(
                path=paths.dledger(self_id),
                to=f"{self.keep_folder}/dledger-{self_id}",
                why="index, term and votes of the group",
            )
        )
        return ops

    def _derived(self, twins: dict[int, str]) -> list[Op]:
        files, paths, keep = self.context.files, self._paths, self.keep_folder
        built = f"{keep}/derived"
        present = paths.consume_queue, paths.index, self.ledger.base_offset
        base = derived_base(self.context, twins)
        queues, index, from_offset = base or present
        ops: list[Op] = [
            Derive(
                path=built,
                commit_log=paths.commit_log,
                queues=queues,
                index=index,
                config=paths.config,
                from_offset=from_offset,
                staged=base is not None,
                bytes_max=self._derived_bytes(),
            )
        ]
        for name, folder in (("consumequeue", paths.consume_queue), ("index", paths.index)):
            if files.is_dir(folder):
                ops.append(MoveAside(path=folder, to=f"{keep}/{name}"))
            ops.append(Move(path=f"{built}/{name}", to=folder))
        return ops

    def _derived_bytes(self) -> int:
        """Return the space of the result: as much as now, one index file more, and a share of what
        is fetched.
        """
        paths, settings = self._paths, self.context.settings
        fetched = self.fetched.ops if self.fetched is not None else ()
        present = present_space(self.context.files, paths.consume_queue, paths.index, settings)
        return present + sum(op.changed_bytes for op in fetched) // DERIVED_SHARE

    def _checkpoint(self, kept_files: list[EntryFile]) -> Op | None:
        """Return a checkpoint that declares all messages durable, as they are after this plan."""
        if not kept_files:
            return None
        files, path = self.context.files, self._paths.checkpoint
        raw = files.read_bytes(path) if files.exists(path) else bytes(CHECKPOINT_SIZE)
        if len(raw) != CHECKPOINT_SIZE:
            raise StoreError(path, f"{len(raw)} bytes", f"{CHECKPOINT_SIZE} bytes", "delete it")
        stored_ms = self._last_stored_ms(kept_files[-1])
        data = _TIMES.pack(stored_ms, stored_ms, stored_ms) + raw[_TIMES.size :]
        before = range_digest(files, path)
        return Write.of(path, before, data, f"all up to store time {stored_ms} is durable")

    def _last_stored_ms(self, entry_file: EntryFile) -> int:
        file = self._open(entry_file)
        try:
            offset, stored_ms = entry_file.base_offset, 0
            end = entry_file.base_offset + entry_file.content_end
            while offset < end:
                view = file.view[offset - entry_file.base_offset : entry_file.content_end]
                scan = scan_records(view, offset, dledger=True, check_crc=False)
                stored_ms = scan.store_timestamp_ms[-1]
                offset = scan.end
            return stored_ms
        finally:
            file.close()

    def _config(self) -> list[Op]:
        path = self.options.config_path
        if path is None:
            return []
        before = range_digest(self.context.files, path)
        data = self.options.config_text.encode()
        return [Write.of(path, before, data, "this node's configuration for the classic log")]

    def _notes(self, kept_files: list[EntryFile]) -> list[str]:
        first = [str(each.base_offset + 48) for each in kept_files if each.first_index >= 0]
        if self.fetched is not None:
            fetched = sum(op.changed_bytes for op in self.fetched.ops if isinstance(op, Fetch))
            name = self.fetched.donor.name
            return [
                f"entries up to {self.options.cut_index} are kept; this member lacks some of them,"
                f" which are fetched from {name} ({fetched} bytes)",
                *self._moved_notes(first),
            ]
        cut = self.ledger.end_index - max(self.options.cut_index, -1)
        notes = [
            f"entries up to {self.options.cut_index} are kept"
            + (f", {cut} after it were never acknowledged" if cut else "")
        ]
        return [*notes, *self._moved_notes(first)]

    @staticmethod
    def _moved_notes(first: list[str]) -> list[str]:
        if not first:
            return []
        more = f" and {len(first) - 20} more" if len(first) > 20 else ""
        return [
            "these messages move down by 48 bytes, so their offset message ids change: "
            + ", ".join(first[:20])
            + more
        ]
