"""The view that a checker has of one member of a group: its files, entry by entry.

The cost of a check depends on what has changed since the last one. The entries are read from the
bytes of the data files, the queues from those of the consume queue files. The running broker
supplies only its role and how far it has stored, committed and dispatched.
"""

from __future__ import annotations

from struct import Struct

from attrs import define, field

from rmqpy.dledger.node import Node
from rmqpy.dledger.state import Role
from rmqpy.store.commitlog.dledger import DLEDGER_MORE_HOURS
from rmqpy.store.dispatcher import Dispatcher
from rmqpy.store.ledger.entry_store import EntryStore
from rmqpy.store.retention import HOUR_MS
from simulator.broker_host import RESERVED_HOURS, ROOT, BrokerHost, Running
from simulator.disks import LEDGER_DATA, SimulatedDisk
from simulator.invariants import InvariantChecker, InvariantViolationError, Queue
from simulator.records import LedgerEntry, MessageRecord, body_of, entry_at, record_at

_UNIT = Struct(">qi")
_FILE_FILLER = Struct(">ii")
UNIT_BYTES = 20
FLUSH_MS = 10
"""The period of the flushes of a DLedger log, which is Java's."""

MARGIN_MS = 20
FILLER = (0, 0x7FFFFFFF)
"""The unit that replaces those whose messages have expired."""


@define(slots=True, eq=False, repr=False)
class MemberView:
    """The view of one member. ``entries`` are those in its files, dense from index ``begin``."""

    host: BrokerHost
    invariants: InvariantChecker
    others: list[MemberView]
    """All views of the group, this one included."""

    entries: list[LedgerEntry] = field(factory=list)
    begin: int = 0
    stored: int = -1
    """The last entry that the member reports as stored."""

    committed: int = -1
    role: Role | None = None
    term: int = -1
    cursor: int = -1
    units: dict[Queue, int] = field(factory=dict)
    entries_at_kill: dict[int, int] = field(factory=dict)
    """The entries when the process was killed, with their positions.

    The next start must find them, unless their files have expired.
    """

    damaged_since_ms: int = -1
    """The time since when the member leads and knows of a damaged entry."""

    durable_at_end: int | None = None
    """The number of entries that were synced when the power failed. The next start finds them. None
    if it has not failed since the last start.
    """

    durable_to: int = 0
    """The end of these entries in the log."""

    remembers: bool = False
    """True after a blackout until the members are equal: what a member knows as committed may be
    lost on the others.
    """

    written: list[tuple[int, int]] = field(factory=list)
    """(time, last entry) of each growth of the log, since the last cut."""

    flipped_at_end: set[int] = field(factory=set)
    """The entries with a flipped bit that the next start may cut off: after a power failure any of
    them, with those after it, and otherwise the last one, whose term may be uncertain.
    """

    _parts: tuple[Running, SimulatedDisk, Node, EntryStore, Dispatcher] | None = None

    @property
    def name(self) -> str:
        return self.host.name

    def check(self) -> None:
        """Check the member after one of its events."""
        parts = self._parts
        if parts is None:
            return
        running, disk, node, entries, dispatch = parts
        if disk.hard_state_changed:
            self._check_hard_state()
        changed = disk.ledger_from is not None or disk.ledger_removed
        if changed or entries.stored_index != self.stored:
            assert running.driver is not None
            if not running.driver.carrier.is_cutting:
                self._read_entries(running)
        if entries.committed_index != self.committed:
            self._check_commits(running, entries.committed_index)
        if node.role is not self.role or node.term != self.term:
            self.role, self.term = node.role, node.term
            if node.role is Role.LEADER:
                self._check_leader(node.term)
        if disk.flips or self.damaged_since_ms >= 0:
            self._check_damaged_leader(running)
        if disk.removals:
            self._check_removed_files()
        if dispatch.queue_cursor != self.cursor and not self.remembers:
            self.cursor = dispatch.queue_cursor
            self._check_queues(running)

    def started(self) -> None:
        """Check what a new process found on its disk."""
        running = self.host.running
        assert running is not None and running.node is not None
        store, disk = running.store, self.host.disk
        assert store.opened.entries is not None
        disk.removals.clear()
        self.damaged_since_ms = -1
        self._parts = running, disk, running.node, store.opened.entries, store.dispatcher
        disk.ledger_from = 0
        self.entries.clear()
        self._read_entries(running)
        have = {entry.index for entry in self.entries} | self.flipped_at_end
        self.invariants.check_log_start(self.host.name, store.opened.entries.base_offset)
        gone_to, places = self.invariants.expired_to, self.entries_at_kill.items()
        # Unsynced entries after a damaged one are cut off with it.
        cut_from = min(self.flipped_at_end, default=1 << 62)
        lost = sorted(
            index
            for index, at in places
            if at >= gone_to and index not in have and index < cut_from
        )
        if lost:
            raise InvariantViolationError(
                f"{self.host.name} was killed and has lost the entries {lost[:5]}"
            )
        durable = min(self.durable_at_end or 0, cut_from)
        if self.durable_to <= gone_to:
            durable = 0  # All of it has expired, and the log may start again.
        if len(self.entries) < durable and self.begin == 0:
            raise InvariantViolationError(
                f"{self.host.name} had synced {durable} entries when its power failed, and has"
                f" {len(self.entries)}"
            )
        self.durable_at_end = None
        # What a member remembers after a blackout may be lost on the others, which decide.
        self.committed = store.opened.entries.committed_index if self.remembers else -1
        self.role = None
        self.units.clear()
        self.cursor = -1
        expired = not self._old_files()
        self.invariants.check_divided_offset(
            self.host.name, running.store.opened.divided_offset, expired=expired
        )
        self.check()

    def ended(self, *, power_lost: bool, working: bool) -> None:
        """Note the end of the process.

        It may be in the middle of an event that drops entries, or wait for its disk to drop them.
        """
        parts, self._parts = self._parts, None
        driver = parts[0].driver if parts is not None else None
        kept = [] if power_lost else self.entries
        may_cut = working or (driver is not None and driver.carrier.is_cutting)
        if may_cut:
            kept = [entry for entry in kept if self.invariants.has_committed(entry)]
        if power_lost and self.durable_at_end is None:
            self.durable_at_end = self.durable_to = 0
            for entry in self.entries:
                if not self.has_durably(entry):
                    break
                if may_cut and not self.invariants.has_committed(entry):
                    break
                self.durable_at_end += 1
                self.durable_to = entry.position + entry.size
            if parts is not None and not working:
                self._check_flushed(parts[0])
        self.written.clear()
        self.entries_at_kill = {entry.index: entry.position for entry in kept}
        if parts is not None:  # Otherwise a killed start may have cut off a flipped entry.
            self.flipped_at_end.clear()
        flipped = {flip.index for flip in self.host.disk.flips.values()}
        last = {entry.index for entry in self.entries[-1:]}
        self.flipped_at_end |= flipped if power_lost else flipped & last
        self._note_removed_files()
        self.host.disk.ledger_from = None

    def _check_flushed(self, running: Running) -> None:
        """Check that what is older than two flushes was synced when the power failed."""
        plan, now_ms = self.host.plan, self.host.timeline.now_ms
        since_ms = now_ms - 2 * (plan.sync_ms + FLUSH_MS) - MARGIN_MS
        if running.life.paused_until_ms > since_ms or not running.store.health.is_healthy:
            return
        old = [index for written_ms, index in self.written if written_ms <= since_ms]
        assert self.durable_at_end is not None
        end = self.begin + self.durable_at_end
        if old and old[-1] >= end and not self.host.disk.broken:
            raise InvariantViolationError(
                f"{self.host.name} wrote entry {old[-1]} more than {now_ms - since_ms} ms before"
                f" its power failed, and had synced only those before {end}"
            )

    def power_failed(self) -> None:
        """Keep the entries that are still on the disk after a blackout."""
        self.entries = self._entries_on_disk()
        self.remembers = True

    def joined(self) -> None:
        """Keep the entries that an operator has left on the disk: the others are not committed."""
        before, self.entries = self.entries, self._entries_on_disk()
        for entry in before[len(self.entries) :]:
            self.invariants.check_dropped(self.name, entry.index, entry.term)
            self.entries_at_kill.pop(entry.index, None)

    def _entries_on_disk(self) -> list[LedgerEntry]:
        survivors: list[LedgerEntry] = []
        for entry in self.entries:
            start = entry.position % self.host.plan.file_size
            data = self.host.disk.content_of(self._data_path(entry.position - start))
            if entry_at(data, start, entry.position) != entry:
                break
            if start == 0 and survivors and not self._is_closed_after(survivors[-1]):
                break
            survivors.append(entry)
        return survivors

    def _is_closed_after(self, entry: LedgerEntry) -> bool:
        """Return whether the filler after the last entry of a file is there: else the log ends."""
        size = self.host.plan.file_size
        end = entry.position + entry.size
        data = self.host.disk.content_of(self._data_path(entry.position - entry.position % size))
        return data[end % size :][:8] == _FILE_FILLER.pack(-1, -end % size)

    def recovered(self) -> None:
        """Check the log and the queues again, now that the members are equal after a blackout."""
        running = self.host.running
        assert running is not None
        # A member that was killed in the middle of an event may have had one more entry.
        self._check_commits(running, self.committed)
        self.remembers = False
        known = self.invariants.committed[: self.committed + 1]
        for entry in self.entries[: len(known) - self.begin]:
            if entry != known[entry.index]:
                raise InvariantViolationError(
                    f"{self.host.name} has {entry} after a blackout; committed is"
                    f" {known[entry.index]}"
                )
        self.units.clear()
        self.cursor = -1

    def has(self, entry: LedgerEntry) -> bool:
        """Return whether the entry is in the files of this member, up or down."""
        number = entry.index - self.begin
        return 0 <= number < len(self.entries) and self.entries[number].term == entry.term

    def has_durably(self, entry: LedgerEntry) -> bool:
        """Return whether the entry would survive a power failure; flipped bits do not count."""
        file_size, disk = self.host.plan.file_size, self.host.disk
        start = entry.position % file_size
        path, end = self._data_path(entry.position - start), start + entry.size
        if not self.has(entry) or any(flipped == path for flipped, _ in disk.flips):
            return self.has(entry)
        return disk.durable_content(path)[start:end] == bytes(disk.content_of(path)[start:end])

    def check_vote(self, candidate: str, piece: bytes) -> None:
        """Check a vote that the member grants in a frame: it must already be durable."""
        term = body_of(piece)["term"]
        state = _hard_state_of(self.host.disk.durable_content(self._state_path))
        if state != (term, candidate):
            raise InvariantViolationError(
                f"{self.host.name} votes for {candidate} in term {term}; durable is {state}"
            )
        self.invariants.check_vote(self.host.name, term, candidate)

    def audit(self) -> None:
        """Check all files again: they may have changed since they were checked."""
        running = self.host.running
        assert running is not None
        if self.damaged:
            raise InvariantViolationError(
                f"{self.host.name} still has damaged entries: {self.damaged}"
            )
        self.host.disk.ledger_from = 0
        self._read_entries(running)
        self.units.clear()
        self._check_queues(running)
        low = int(running.store.log.min_offset)
        for (topic, queue_id), queue in running.store.queues.items():
            name = topic.encode(), queue_id
            self.invariants.check_queue_start(self.host.name, name, int(queue.min_offset), low)
        for name, places in self.invariants.queues.items():
            end = self.units.get(name, 0)
            if end != len(places) and not self.invariants.is_below(name, len(places) - 1, low):
                raise InvariantViolationError(
                    f"{self.host.name} has {end} of {len(places)} messages in queue {name}"
                )

    @property
    def _state_path(self) -> str:
        return f"{self.host.ledger_folder}/currterm"

    def _check_hard_state(self) -> None:
        disk = self.host.disk
        disk.hard_state_changed = False
        content = disk.read_bytes(self._state_path) if disk.exists(self._state_path) else b""
        if not content.isascii():
            return  # it was damaged while the process was down
        self.invariants.check_hard_state(self.host.name, *_hard_state_of(content))

    def _read_entries(self, running: Running) -> None:
        """Read what was written since the last check."""
        disk, store = self.host.disk, running.store.opened.entries
        assert store is not None
        changed_from, disk.ledger_from = disk.ledger_from, None
        entries = self.entries
        dropped: list[LedgerEntry] = []
        if disk.ledger_removed or changed_from == 0:
            disk.ledger_removed = False
            dropped, self.entries = entries, []
            entries = self.entries
        elif changed_from is not None:
            while entries and entries[-1].position + entries[-1].size > changed_from:
                dropped.append(entries.pop())
        end = self.stored = store.stored_index
        while entries and entries[-1].index > end:
            dropped.append(entries.pop())
        base = store.base_offset
        self._read_to(end, base)
        if dropped:
            self.written.clear()
        if self.entries:
            self.written.append((self.host.timeline.now_ms, self.entries[-1].index))
        for entry in dropped:
            if not self.has(entry) and entry.position >= base:
                self.invariants.check_dropped(self.host.name, entry.index, entry.term)

    def _read_to(self, end: int, base_offset: int) -> None:
        file_size, entries = self.host.plan.file_size, self.entries
        if entries:
            last = entries[-1]
            position, index, term = last.position + last.size, last.index + 1, last.term
        else:
            position, index, term = base_offset, -1, -2
        while index <= end:
            data = self.host.disk.content_of(self._data_path(position - position % file_size))
            entry = entry_at(data, position % file_size, position)
            if entry is None and position % file_size:
                position += file_size - position % file_size
                continue
            if entry is None or index not in (-1, entry.index):
                if index < 0 and end < 0:
                    return
                raise InvariantViolationError(
                    f"{self.host.name} reports {end} as stored; entry {index} is not at"
                    f" {position} but {entry}"
                )
            if index < 0:
                self.begin = entry.index
                term = -1 if entry.index == 0 else -2
                if end < entry.index:
                    return
            self.invariants.check_entry(self.host.name, entry, term)
            entries.append(entry)
            position, index, term = entry.position + entry.size, entry.index + 1, entry.term

    def _data_path(self, first_offset: int) -> str:
        return f"{self.host.ledger_folder}/data/{first_offset:020d}"

    def _check_commits(self, running: Running, index: int) -> None:
        name, node = self.host.name, running.node
        assert node is not None
        if index < self.committed:
            raise InvariantViolationError(
                f"the committed index of {name} falls from {self.committed} to {index}"
            )
        if index >= self.begin + len(self.entries):
            raise InvariantViolationError(
                f"{name} commits {index} and has {len(self.entries)} entries"
            )
        news = False
        first, last = max(self.committed + 1, self.begin), index
        if self.remembers:
            first = min(first, len(self.invariants.committed))
            while last >= first and self._is_only_remembered(last):
                last -= 1
        for number in range(first, last + 1):
            entry = self.entries[number - self.begin]
            record = self._record(entry)
            news = self.invariants.commit_record(name, node.term, entry, record) or news
        self.committed = index
        if news:
            self.invariants.check_quorum(
                name,
                self.entries[last - self.begin],
                self.others,
                synced=self.host.plan.sync_flush,
                leads_in=node.term if node.role is Role.LEADER else None,
            )

    def _is_only_remembered(self, index: int) -> bool:
        """Return whether a blackout has taken an entry from a majority, and another member, which
        knows it to be committed, has told this one.
        """
        entry = self.entries[index - self.begin]
        if sum(view.has(entry) for view in self.others) >= self.invariants.quorum:
            return False
        return any(view.committed >= index for view in self.others if view is not self)

    def _record(self, entry: LedgerEntry) -> MessageRecord | None:
        file_size = self.host.plan.file_size
        start = entry.position % file_size
        data = self.host.disk.content_of(self._data_path(entry.position - start))
        return record_at(data, start + 48)

    def _check_leader(self, term: int) -> None:
        self.invariants.check_leader(self.host.name, term)
        needed = self.invariants.required_entry(term)
        if needed is not None and needed.index >= self.begin and not self.has(needed):
            raise InvariantViolationError(
                f"{self.host.name} leads in term {term} without the committed entry {needed}"
            )

    def _check_queues(self, running: Running) -> None:
        for (topic, queue_id), queue in running.store.queues.items():
            name = topic.encode(), queue_id
            seen, end = self.units.get(name, -1), int(queue.max_offset)
            if end == seen:
                continue
            seen = max(seen, int(queue.min_offset))
            low = int(running.store.log.min_offset)
            for offset in range(seen, end):
                unit = self._unit(name, offset)
                if unit != FILLER or not self.invariants.is_below(name, offset, low):
                    self.invariants.check_queue_unit(self.host.name, name, offset, unit)
            self.units[name] = end

    @property
    def damaged(self) -> list[int]:
        """The entries with a flipped bit; index units of expired entries do not count."""
        flips = self.host.disk.flips.values()
        return sorted({flip.index for flip in flips if flip.index >= self.begin})

    def _check_damaged_leader(self, running: Running) -> None:
        """Check that a leader that knows of a damaged entry steps down at its next tick."""
        assert running.driver is not None and running.node is not None
        now_ms, since_ms = self.host.timeline.now_ms, self.damaged_since_ms
        if not running.driver.damaged or running.node.role is not Role.LEADER:
            self.damaged_since_ms = -1
        elif since_ms < running.life.paused_until_ms:
            self.damaged_since_ms = now_ms
        elif now_ms > since_ms + 2 * self.host.plan.tick_ms:
            raise InvariantViolationError(
                f"{self.host.name} leads and knows of damage: {running.driver.damaged}"
            )

    def _check_removed_files(self) -> None:
        """Check the files that were removed from a log.

        They must be the first ones, must have expired, and those of the classic log must go first.
        A log that starts again after the expired files of other members may remove all of its own.
        """
        disk, running = self.host.disk, self.host.running
        assert running is not None and running.store.opened.entries is not None
        base = running.store.opened.entries.base_offset
        removed, disk.removals = disk.removals, []
        for path, age_ms in removed:
            new = LEDGER_DATA in path
            if new and _first_offset(path) >= base:
                continue  # the tail was cut off
            if new and self._old_files():
                raise InvariantViolationError(f"{path} is removed before older files")
            end = _first_offset(path) + self.host.plan.file_size
            if age_ms + self.host.expiry_lag_ms >= _kept_ms(path):
                self.invariants.note_expired(end)
            elif end > self.invariants.expired_to:
                raise InvariantViolationError(
                    f"{path} is removed {age_ms} ms after it was written to"
                )

    def _note_removed_files(self) -> None:
        """Note the first files of a log that the last event of a process removed."""
        disk = self.host.disk
        removed, disk.removals = disk.removals, []
        for path, age_ms in removed:
            folder, first = path.rpartition("/")[0], _first_offset(path)
            later = [name for name in disk.list_dir(folder) if int(name) > first]
            if later and age_ms >= _kept_ms(path):
                self.invariants.note_expired(first + self.host.plan.file_size)

    def _old_files(self) -> bool:
        return any(path.startswith(f"{ROOT}/commitlog/") for path in self.host.disk.nodes)

    def _unit(self, queue: Queue, offset: int) -> tuple[int, int]:
        file_size = self.host.queue_file_size
        at = offset * UNIT_BYTES % file_size
        first = offset * UNIT_BYTES - at
        path = f"{ROOT}/consumequeue/{queue[0].decode()}/{queue[1]}/{first:020d}"
        physical_offset, size = _UNIT.unpack_from(self.host.disk.content_of(path), at)
        return physical_offset, size


def _first_offset(path: str) -> int:
    return int(path.rpartition("/")[2])


def _kept_ms(path: str) -> int:
    more_hours = DLEDGER_MORE_HOURS if LEDGER_DATA in path else 0
    return (RESERVED_HOURS + more_hours) * HOUR_MS


def _hard_state_of(content: bytes) -> tuple[int, str | None]:
    """Return the content of ``currterm`` as (term, vote), or (0, None) if it is empty."""
    pairs = dict(line.partition("=")[::2] for line in content.decode().splitlines())
    return int(pairs.get("currTerm", 0)), pairs.get("voteLeader") or None
