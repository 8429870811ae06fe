"""Make a damaged log readable again: plan the repair first, then execute it from a journal.

==============  ===================================================================================
repair          effect
==============  ===================================================================================
FORCE_TRUNCATE  the log ends before the first damage: everything from there on is copied to
                rmqpy/quarantine and zeroed, and later files are moved there
QUARANTINE      the log stays as it is, except for the damage: its bytes are copied to
                rmqpy/quarantine and replaced by empty messages with the same size, topic, queue,
                and queue offset (as the consume queue states them) and the property
                ``__RMQPY_LOST``. Bytes to which no consume queue leads are replaced by a
                rolled-back message, which no reader sees.
==============  ===================================================================================

Both are for classic logs. A damaged DLedger log is repaired from the other members instead.

The plan is written to the journal (``rmqpy/fsck-journal.json``) before anything is changed. Every
action is safe to repeat, so the next call completes a plan that was interrupted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Final

from attrs import asdict, define

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.checks.messages import MessageSelection, MessageWalk, file_view
from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.scan.directory import LogFile, LogSegments, StoreDirectory, read_directory
from rmqpy.audit.scan.findings import Finding, json_value
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.queue_units import QueueUnits, map_file, units_within
from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.hashes import crc32
from rmqpy.codec.message import HEADS, encode_blank
from rmqpy.codec.scan import StopReason, measure_record
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.flags import TRANSACTION_ROLLBACK
from rmqpy.model.text import count_text

__all__ = ["Action", "Repair", "RepairPlan", "execute_repair", "plan_repair", "unfinished_plan"]

JOURNAL: Final = "fsck-journal.json"
LOST_TOPIC: Final = b"RMQPY_LOST"
LOST_PROPERTY: Final = b"__RMQPY_LOST\x01true"
_STRUCTURAL: Final = ("RECORD_", "FILLER_")
_NO_HOST: Final = bytes(4)


class Repair(Enum):
    """The way of repair; the values are the options of ``rmqpy store fsck``."""

    FORCE_TRUNCATE = "force-truncate"
    QUARANTINE = "quarantine"


class ActionKind(Enum):
    """The kind of an action; journals contain the values."""

    KEEP = "keep"
    """Copy ``length`` bytes to the quarantine."""
    WRITE = "write"
    """Write ``data``, or ``length`` zeros if ``data`` is empty."""
    SET_ASIDE = "set aside"
    """Move the whole file to the quarantine."""


@define(slots=True, frozen=True, kw_only=True)
class Action:
    """One action.

    ``file`` is relative to the root, ``kept_as`` to rmqpy/quarantine; ``data`` is in hex.
    """

    kind: ActionKind
    file: str
    position: int = 0
    length: int = 0
    kept_as: str = ""
    data: str = ""

    def __str__(self) -> str:
        if self.kind is ActionKind.SET_ASIDE:
            return f"move {self.file} to rmqpy/quarantine/{self.kept_as}"
        place = f"{self.length} bytes at {self.position} of {self.file}"
        if self.kind is ActionKind.KEEP:
            return f"keep {place} in rmqpy/quarantine/{self.kept_as}"
        return f"write {place}" if self.data else f"zero {place}"


@define(slots=True, frozen=True, kw_only=True)
class RepairPlan:
    """The actions of a repair and their reasons."""

    repair: Repair
    actions: tuple[Action, ...]
    reasons: tuple[str, ...]
    """The findings that the plan repairs, one line each, then the sound messages it gives up."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self, value_serializer=json_value), indent=1).encode()

    @classmethod
    def decode(cls, raw: bytes) -> RepairPlan:
        tree = json.loads(raw)
        actions = [Action(**{**each, "kind": ActionKind(each["kind"])}) for each in tree["actions"]]
        return cls(
            repair=Repair(tree["repair"]),
            actions=tuple(actions),
            reasons=tuple(tree["reasons"]),
        )


def plan_repair(
    files: FileSystem, root: str, repair: Repair, settings: StoreSettings | None = None
) -> RepairPlan:
    """Return the plan of a repair. Raise StoreError for a running broker and for a DLedger log."""
    directory = read_directory(files, root, settings)
    _check_stopped(directory)
    found: list[Finding] = []
    audit_store(files, AuditOptions(root=root, settings=settings, sink=found.extend))
    damage = sorted(f for f in found if f.code.name.startswith(_STRUCTURAL) and f.offset >= 0)
    ledger = directory.ledger
    if any(f.file.startswith("dledger-") for f in damage) or (
        damage and repair is Repair.FORCE_TRUNCATE and ledger is not None and ledger.data
    ):
        raise StoreError(
            root,
            "damage in a store with a DLedger log",
            "a classic store",
            "repair it from another member (rmqpy upgrade plan)",
        )
    planner = _Planner(files, directory)
    if not damage:
        actions: list[Action] = []
    elif repair is Repair.FORCE_TRUNCATE:
        actions = list(planner.truncate(damage[0].offset))
    else:
        actions = [action for finding in damage for action in planner.replace(finding)]
    reasons = list(map(str, damage))
    if damage and repair is Repair.FORCE_TRUNCATE:
        reasons.append(_given_up(files, directory, damage))
    return RepairPlan(repair=repair, actions=tuple(actions), reasons=tuple(reasons))


def _given_up(files: FileSystem, directory: StoreDirectory, damage: list[Finding]) -> str:
    """Return a sentence on the sound messages after the first damage, by topic."""
    topics: Counter[str] = Counter()
    offset, damaged = damage[0].offset, {each.offset for each in damage}
    for file in directory.classic.files:
        if file.first_offset + file.size <= offset:
            continue
        view = file_view(files, file, directory.classic.framing)
        for found in MessageWalk(view, MessageSelection()).run(0):
            place = found.message.physical_offset
            if place >= offset and place not in damaged:
                topics[found.message.topic] += 1
    if not topics:
        return "no message after the first damage can be read"
    given_up = count_text(
        topics.total(),
        "message after the first damage can be read and is given up",
        "messages after the first damage can be read and are given up",
    )
    listed = ", ".join(f"{topic} {count}" for topic, count in topics.most_common())
    return f"{given_up} ({listed}); --quarantine keeps them in the log"


def _check_stopped(directory: StoreDirectory) -> None:
    process = find_lock_owner(directory.paths.lock)
    if process is not None:
        raise StoreError(
            directory.root,
            f"a broker that runs on it (process {process})",
            "a stopped broker",
            "stop it first",
        )


def unfinished_plan(files: FileSystem, directory: StoreDirectory) -> RepairPlan | None:
    """Return the plan of a repair that was interrupted, or None."""
    path = f"{directory.paths.own}/{JOURNAL}"
    return RepairPlan.decode(files.read_bytes(path)) if files.exists(path) else None


def execute_repair(files: FileSystem, directory: StoreDirectory, plan: RepairPlan) -> None:
    """Execute ``plan``. After an interruption, call this again with the same plan."""
    _check_stopped(directory)
    lock = files.lock(directory.paths.lock)
    try:
        journal = f"{directory.paths.own}/{JOURNAL}"
        files.make_dirs(directory.paths.quarantine)
        files.replace_bytes(journal, plan.encode())
        for action in plan.actions:
            _do(files, directory, action)
        files.unlink(directory.paths.recovery_point)  # what it records may be gone
        files.unlink(directory.paths.boot)
        files.unlink(journal)
        files.sync_dir(directory.paths.own)
    finally:
        lock.release()


def _do(files: FileSystem, directory: StoreDirectory, action: Action) -> None:
    path = action.file if action.file.startswith("/") else f"{directory.root}/{action.file}"
    quarantined = f"{directory.paths.quarantine}/{action.kept_as}"
    if action.kind is ActionKind.SET_ASIDE:
        if files.exists(path):
            files.rename(path, quarantined)
            files.sync_dir(path.rpartition("/")[0])
            files.sync_dir(directory.paths.quarantine)
        return
    if action.kind is ActionKind.KEEP:
        # A repetition after an interruption would copy the bytes that were already written.
        if not files.exists(quarantined):
            view = map_file(files, path)
            files.replace_bytes(quarantined, bytes(view[action.position :][: action.length]))
        return
    file = files.open(path)
    try:
        data = bytes.fromhex(action.data) if action.data else bytes(action.length)
        file.write(action.position, data)
        file.sync()
    finally:
        file.close()


@define(slots=True, frozen=True)
class _Tile:
    """A range of bytes to replace by one message, and the queue slot of the lost message."""

    offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    unit: tuple[str, int] | None = None
    """The file and position of the message's consume queue unit."""


class _Planner:
    def __init__(self, files: FileSystem, directory: StoreDirectory) -> None:
        self._files = files
        self._directory = directory
        self._units = QueueUnits(files, directory)

    @property
    def _segments(self) -> LogSegments:
        return self._directory.classic

    def _relative(self, file: LogFile) -> str:
        return self._directory.relative(file.path)

    def _file_at(self, offset: int) -> LogFile:
        file = self._segments.file_at(offset)
        assert file is not None, "findings have offsets in files"
        return file

    def truncate(self, offset: int) -> Iterator[Action]:
        """Yield actions that end the log at ``offset``.

        They start at the end of the log, so that after an interruption the same damage is found
        again.
        """
        damaged = self._file_at(offset)
        for file in reversed(self._segments.files):
            if file.first_offset > damaged.first_offset:
                name = file.path.rpartition("/")[2]
                yield Action(
                    kind=ActionKind.SET_ASIDE, file=self._relative(file), kept_as=f"{name}.file"
                )
        position = offset - damaged.first_offset
        length = map_log(self._files, damaged.path).content_end(position) - position
        yield self._keep(damaged, position, length)
        yield Action(
            kind=ActionKind.WRITE, file=self._relative(damaged), position=position, length=length
        )

    def _keep(self, file: LogFile, position: int, length: int) -> Action:
        return Action(
            kind=ActionKind.KEEP,
            file=self._relative(file),
            position=position,
            length=length,
            kept_as=f"{file.first_offset + position:020d}.bin",
        )

    def replace(self, finding: Finding) -> Iterator[Action]:
        """Yield actions that replace damage by empty messages, or rewrite a wrong filler."""
        damaged = self._file_at(finding.offset)
        position = finding.offset - damaged.first_offset
        view = map_file(self._files, damaged.path)
        rest = damaged.size - position
        length = finding.length or rest
        yield self._keep(damaged, position, length)
        if finding.code.name.startswith("FILLER_") and length == rest:
            data = encode_blank(rest)
            yield self._write(damaged, position, data)
            return
        end = finding.offset + length
        to_end = end == damaged.end_offset
        if to_end:
            end -= layout.BLANK_SIZE
        tiles = list(self._tiles(finding.offset, end))
        stored_ms = _time_before(view, position)
        for tile in tiles:
            data = _empty_message(tile, stored_ms)
            yield self._write(damaged, tile.offset - damaged.first_offset, data)
            if tile.unit is not None:
                file, unit_position = tile.unit
                yield Action(
                    kind=ActionKind.WRITE, file=file, position=unit_position + 12, length=8
                )
        tiles_end = tiles[-1].offset + tiles[-1].size if tiles else finding.offset
        if to_end:
            left = damaged.end_offset - tiles_end
            data = encode_blank(left)
            yield self._write(damaged, tiles_end - damaged.first_offset, data)

    def _write(self, file: LogFile, position: int, data: bytes) -> Action:
        return Action(
            kind=ActionKind.WRITE,
            file=self._relative(file),
            position=position,
            length=len(data),
            data=data.hex(),
        )

    def _tiles(self, begin: int, end: int) -> Iterator[_Tile]:
        """Yield the tiles between two offsets, split by the units that lead there."""
        offset = begin
        for tile in sorted(self._units_between(begin, end), key=lambda tile: tile.offset):
            if tile.offset < offset or tile.offset + tile.size > end:
                continue
            yield from self._unclaimed(offset, tile.offset)
            yield tile
            offset = tile.offset + tile.size
        yield from self._unclaimed(offset, end)

    def _unclaimed(self, begin: int, end: int) -> Iterator[_Tile]:
        if begin == end:
            return
        if end - begin < layout.RECORD_SIZE_MIN + len(LOST_TOPIC):
            raise StoreError(
                self._file_at(begin).path,
                f"{end - begin} damaged bytes at offset {begin} to which no consume queue leads",
                f"at least {layout.RECORD_SIZE_MIN + len(LOST_TOPIC)}, so that a message fits",
                "restore the file from a backup or a replica, or use --force-truncate",
            )
        yield _Tile(begin, end - begin, LOST_TOPIC, 0, -1)

    def _units_between(self, begin: int, end: int) -> Iterator[_Tile]:
        for queue in self._directory.queues:
            topic = queue.topic.encode("utf-8", "surrogateescape")
            units = self._units(topic, queue.queue_id)
            if units is None:
                continue
            for queue_offset, unit in units_within(units, begin, end):
                position = queue_offset * layout.QUEUE_UNIT_SIZE
                file = queue.segments.file_at(position)
                if file is None:
                    continue
                where = self._directory.relative(file.path), position - file.first_offset
                yield _Tile(unit[0], unit[1], topic, queue.queue_id, queue_offset, where)


def _time_before(view: memoryview, position: int) -> int:
    """Return the store time in ms of the last complete record before ``position`` of a file.

    Return 0 if there is none.
    """
    stored_ms, at = 0, 0
    while at < position:
        scan = scan_records(view[at:position], at, dledger=False, check_crc=False)
        stored_ms = scan.store_timestamp_ms[-1] if len(scan) else stored_ms
        at = scan.end
        if scan.stop is not StopReason.LIMIT:
            break
    return stored_ms


def _empty_message(tile: _Tile, stored_ms: int) -> bytes:
    """Return a record without content of exactly the tile's size."""
    fixed = layout.RECORD_SIZE_MIN + len(tile.topic)
    properties = LOST_PROPERTY if fixed + len(LOST_PROPERTY) <= tile.size else b""
    body = bytes(tile.size - fixed - len(properties))
    lost = tile.queue_offset < 0
    head = HEADS[0].pack(
        *(tile.size, layout.MESSAGE_MAGIC_V1, crc32(body) if body else 0, tile.queue_id, 0),
        *(0 if lost else tile.queue_offset, tile.offset, TRANSACTION_ROLLBACK if lost else 0),
        *(stored_ms, _NO_HOST, 0, stored_ms, _NO_HOST, 0, 0, 0, len(body)),
    )
    record = head + body + bytes([len(tile.topic)]) + tile.topic
    record += len(properties).to_bytes(2) + properties
    assert not isinstance(measure_record(memoryview(record), 0, len(record)), StopReason)
    return record
