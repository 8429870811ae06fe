"""Leave DLedger: entries become records of a classic log that Java 4.9 and 5.x read.

Messages, queue offsets, body CRCs, and consumer progress stay. So do physical offsets, except that
the first message of each DLedger file moves down by 48. The headers of the entries are absorbed by
one reserved property per message (:mod:`rmqpy.upgrade.plan.reframe`). The log is first cut at an
index, the same on all members (:func:`rmqpy.upgrade.checks.ledger.agreed_index`); consume queues,
key index, and checkpoint follow. All of this happens in place, each change with an undo record, or
in a copy of the directory.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import attrs
from attrs import define

from rmqpy.codec.backend import scan_records
from rmqpy.codec.layout import CHECKPOINT_SIZE
from rmqpy.config.keys import parse_dledger_peers
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.commitlog.opening import COMMIT_LOG_SIZE_KEY
from rmqpy.store.files.mapped_files import MappedFiles, file_name
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.config_checks import CONFIG_FILE_CHECKS, roles
from rmqpy.upgrade.checks.ledger import (
    EntryFile,
    EntryView,
    Ledger,
    agreed_index,
    position_after,
    read_ledger,
    topics_after,
)
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.plan.configuration import classic_keys, rewritten_config
from rmqpy.upgrade.plan.node_context import (
    CHUNK,
    NodeContext,
    UpgradeRefusedError,
    digest_of,
    range_digest,
)
from rmqpy.upgrade.plan.operations import (
    Cut,
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
from rmqpy.upgrade.plan.reframe import DataFile, Piece, edits_of, pieces_of
from rmqpy.upgrade.plan.undo import RANGE_BYTES
from rmqpy.upgrade.steps.fetch_entries import Donor, Fetched, donor_of, fetch_entries, lacks
from rmqpy.upgrade.steps.given_up import fact_of
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState
from rmqpy.upgrade.steps.written_config import check_written

FROM = frozenset((GroupState.JOINED, GroupState.DLEDGER_ONLY))
TO: GroupState | None = GroupState.ALIGNED
REASON = "back to master and slave, or on to another mode, with every message"

_OF_CLASSIC_GROUPS = ("same-sizes", "same-group", "flags-together")

PIECE_BYTES = 16 << 20
"""The size in bytes of the piece that one operation changes; bounds its undo record and memory."""

LEFT_CONFIG_CHECKS = {
    **{name: check for name, check in CONFIG_FILE_CHECKS.items() if name in _OF_CLASSIC_GROUPS},
    "roles": roles,
}
"""The checks of the configurations that this step writes."""

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


def plan(context: PlanContext) -> list[NodePlan]:
    """Return the parts of the members on this host.

    Members on other hosts are considered in the choice of the cut, and plan their own parts with
    the same replicas.
    """
    local = context.on_this_host
    nodes = {replica.name: context.node_context(replica) for replica in local}
    ledgers = {
        replica.name: read_ledger(nodes[replica.name].files, nodes[replica.name].settings)
        if isinstance(replica, LocalReplica)
        else _surveyed_ledger(replica)
        for replica in context.group.replicas
    }
    cut_index = context.options.cut_index
    if cut_index is None:
        cut_index = agreed_index(list(ledgers.values()), _group_size(context, local))
    keys, notes = _config_keys(context)
    parts = []
    for replica in local:
        survey = replica.survey()
        text, path = "", None
        if survey.name in keys:
            path = survey.config_path
            text = rewritten_config(context.files, survey, keys[survey.name])
        options = LeaveOptions(
            replica=replica.name,
            cut_index=cut_index,
            config_path=path,
            config_text=text,
            reads_version=context.options.reads_version,
        )
        donor = _donor(context, ledgers, replica, cut_index)
        part = plan_leave(nodes[replica.name], options, donor)
        parts.append(attrs.evolve(part, notes=(*part.notes, *notes)))
        notes = ()
    return parts


def given_up(context: PlanContext) -> dict[str, Any]:
    """Return the fact with the messages after ``--cut-index`` that may have been acknowledged."""
    cut_index = context.options.cut_index
    if cut_index is None:
        return {}
    topics: Counter[str] = Counter()
    by_replica = {}
    for replica in context.on_this_host:
        node = context.node_context(replica)
        found = topics_after(node.files, read_ledger(node.files, node.settings), cut_index)
        by_replica[replica.name] = sum(found.values())
        topics |= found  # The members have the same messages: the largest number of each topic.
    return fact_of(topics, by_replica)


def _donor(
    context: PlanContext, ledgers: dict[str, Ledger], replica: LocalReplica, cut_index: int
) -> Donor | None:
    """Return the member with the newest entries up to the cut, if this one may not have them."""
    newest = max(each.end_term for each in ledgers.values())
    own = ledgers[replica.name]
    if own.end_term == newest and own.end_index >= cut_index:
        return None
    able = [
        each
        for each in context.group.replicas
        if ledgers[each.name].end_term == newest and ledgers[each.name].end_index >= cut_index
    ]
    if not able:
        return None
    # A directory of this host is read without a transfer.
    chosen = min(able, key=lambda each: not isinstance(each, LocalReplica))
    holder = chosen if isinstance(chosen, LocalReplica) else replica
    return donor_of(chosen, context.node_context(holder), own)


def _config_keys(context: PlanContext) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    """Return the settings to write, by replica, and notes.

    Raise UpgradeRefusedError if the configuration of any replica would be wrong.
    """
    if not context.options.write_config:
        return {}, ()
    keys = {
        survey.name: classic_keys(survey, context.options.roles)
        for survey in context.group.surveys
        if survey.config is not None
    }
    return keys, check_written(context, keys, LEFT_CONFIG_CHECKS)


def verify(context: PlanContext) -> list[str]:
    """Return the replicas that still have DLedger data."""
    return [
        f"{survey.name}: DLedger data is left"
        for survey in context.group.surveys
        if survey.manifest.log("dledger") is not None
    ]


def undo() -> str:
    return "rmqpy upgrade rollback: every byte from the undo records, until finalize"


def plan_leave(context: NodeContext, options: LeaveOptions, donor: Donor | None = None) -> NodePlan:
    """Return this member's part; entries that it lacks are taken from ``donor``. Change nothing.

    Raise UpgradeRefusedError if the member cannot leave, StoreError for a damaged directory.
    """
    ledger = read_ledger(context.files, context.settings)
    planner = _LeavePlanner(context, options, ledger)
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
    if files.exists(paths.abort):
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
    fetched: Fetched | None = None

    @property
    def _paths(self) -> StorePaths:
        return StorePaths.from_settings(self.context.settings)

    @property
    def keep_folder(self) -> str:
        tag = digest_of(f"{self.options.replica}|{self.ledger.end_index}".encode())[:8]
        return f"{upgrade_work(self._paths.root)}/keep-{tag}"

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
        moved_to = kept[-1].base_offset + kept[-1].content_end if kept else self.ledger.base_offset
        for entry_file in kept:
            ops += self._reframe(entry_file, moved_to)
        ops += self._move_files(kept)
        ops += self._derived()
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
        index, ledger = self.options.cut_index, self.ledger
        if self.fetched is not None:
            return list(ledger.files), list(self.fetched.ops)
        if index > ledger.end_index:
            raise UpgradeRefusedError(
                f"the group keeps entries up to {index}, this member has them up to"
                f" {ledger.end_index}; start the group, let it catch up, and stop it again"
            )
        if index < 0 or index < ledger.files[0].first_index:
            return [], self._aside(ledger.files)
        number, position = position_after(self.context.files, ledger, index)
        last, later = ledger.files[number], ledger.files[number + 1 :]
        if index == ledger.end_index and not any(each.first_index >= 0 for each in later):
            return list(ledger.files[: number + 1]), self._aside(later)
        ops = self._aside(later)
        end = _content_end(self.context.files, last.path)
        if end > position:
            before = range_digest(self.context.files, last.path, position, end)
            ops.append(
                Cut(
                    path=last.path,
                    start=position,
                    end=end,
                    before=before,
                    after=digest_of(bytes(end - position)),
                    kept=f"{self.keep_folder}/cut/{file_name(last.base_offset + position)}",
                    why=f"entries after {index} were never acknowledged",
                )
            )
        cut = attrs.evolve(last, content_end=position, closed=False, last_index=index)
        return [*ledger.files[:number], cut], ops

    def _aside(self, entry_files: list[EntryFile]) -> list[Op]:
        """Move files aside in reverse order, so that an interruption leaves no gap."""
        return [
            MoveAside(
                path=entry_file.path,
                to=f"{self.keep_folder}/entries/{file_name(entry_file.base_offset)}",
                why="no entry in it is kept",
            )
            for entry_file in reversed(entry_files)
        ]

    def _reframe(self, entry_file: EntryFile, moved_to: int) -> list[Op]:
        end = entry_file.size if entry_file.closed else entry_file.content_end
        file = self._open(entry_file)
        try:
            base = self.ledger.base_offset
            data = DataFile(file.view, entry_file.base_offset, end, base, moved_to)
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
            moved_from=data.moved_from,
            moved_to=data.moved_to,
            undo_bytes=undo_bytes,
        )

    def _open(self, entry_file: EntryFile) -> EntryView:
        """Return the content of a file as it will be once missing entries are fetched."""
        if self.fetched is not None:
            return self.fetched.open(self.context.files, entry_file.path)
        return self.context.files.open_readonly(entry_file.path)

    def _move_files(self, kept_files: list[EntryFile]) -> list[Op]:
        files, paths = self.context.files, self._paths
        ops: list[Op] = []
        if not files.is_dir(paths.commit_log):
            ops.append(MakeDir(path=paths.commit_log))
        ops += [
            Move(path=each.path, to=f"{paths.commit_log}/{file_name(each.base_offset)}")
            for each in kept_files
        ]
        self_id = self.context.settings.dledger_self_id
        assert self_id is not None
        ops.append(
            MoveAside(
                path=paths.dledger(self_id),
                to=f"{self.keep_folder}/dledger-{self_id}",
                why="index, term and votes of the group",
            )
        )
        return ops

    def _derived(self) -> list[Op]:
        files, paths, keep = self.context.files, self._paths, self.keep_folder
        built = f"{keep}/derived"
        ops: list[Op] = [
            Derive(
                path=built,
                commit_log=paths.commit_log,
                queues=paths.consume_queue,
                index=paths.index,
                config=paths.config,
                from_offset=self.ledger.base_offset,
            )
        ]
        for name, folder in (("consumequeue", paths.consume_queue), ("index", paths.index)):
            if files.is_dir(folder):
                ops.append(MoveAside(path=folder, to=f"{keep}/{name}"))
            ops.append(Move(path=f"{built}/{name}", to=folder))
        return ops

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


def _content_end(files: FileSystem, path: str) -> int:
    """Return the position after the last byte that is not zero."""
    file = files.open_readonly(path)
    try:
        view, stop = file.view, file.size
        while stop > 0:
            start = max(0, stop - CHUNK)
            chunk = bytes(view[start:stop]).rstrip(b"\0")
            if chunk:
                return start + len(chunk)
            stop = start
        return 0
    finally:
        file.close()


def _surveyed_ledger(replica: Replica) -> Ledger:
    """Return the entries of a member on another host, from its survey."""
    facts = replica.survey().manifest.facts
    last = (facts.get("ledger") or {}).get("last") or {}
    state = facts.get("ledger_state") or {}
    end_index = last.get("index", -1)
    return Ledger(
        end_index=end_index,
        end_term=last.get("term", -1),
        committed_index=min(state.get("committed_index", -1), end_index),
    )


def _group_size(context: PlanContext, replicas: list[LocalReplica]) -> int:
    for replica in replicas:
        peers = context.settings_of(replica).dledger_peers or context.options.peers
        if peers:
            return len(parse_dledger_peers(peers))
    raise UpgradeRefusedError(
        "the number of members of the group is not known: give a broker.conf with dLegerPeers"
        " (-c), or --cut-index"
    )
