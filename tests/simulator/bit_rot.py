"""Bits that flip on the disks of a group, where the code must find and repair them.

A bit is chosen in a committed entry that all other members hold durably and undamaged: in its
header, in the head or body of its record, or in its index unit, at places that a checksum or a
second copy covers. While a broker is stopped, a bit may also flip in its last entry or record, if
it was stopped in an orderly way and therefore knows that this was on the disk; in its vote (the
highest bit of a byte, so that the file cannot be decoded: it has no checksum); or in one of its
tables. Where machines lose their power, only entries before the last checkpoint are chosen:
younger damage looks like what a power failure leaves. Elsewhere, such entries are often chosen, and
the process is then killed at once.
(Nothing covers topic, properties, queue offset and host of a V1 record.) No
bit flips while one is wrong on any member: a damaged member does not lead, and one member must.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from attrs import define

from simulator.broker_host import ROOT, BrokerHost
from simulator.checkers import classic_records
from simulator.member_view import MemberView
from simulator.plan import NEVER
from simulator.records import ENTRY_HEADER_BYTES, LedgerEntry

HEADER_PLACES = (*range(32), *range(44, 48))
"""Magic, size, index, term, position, and the length of the body. The rest is never verified."""

RECORD_PLACES = (*range(12), *range(84, 88))
"""Size, magic, checksum, and the length of the body."""

BODY_AT = 88
NEWEST = 5
"""The number of newest entries, which readers are about to read."""

CHANGES_BEFORE_KILL = 40
"""The number of changes of a disk within which a process is killed after a bit flipped."""

UNIT_BYTES, UNIT_MAGIC_BYTES = 32, 4
DURABLE_INDEX = re.compile(rb"^durableIndex=(\d+)$", re.MULTILINE)


@define(slots=True, eq=False, repr=False)
class BitRot:
    """Flips bits. ``hosts`` and ``views`` are by name of the member."""

    hosts: Mapping[str, BrokerHost]
    views: Mapping[str, MemberView]
    rng: random.Random

    def flip(self) -> str | None:
        """Flip one bit. Return a description, or None if no bit could be flipped."""
        if len(self.views) < 2 or any(view.damaged for view in self.views.values()):
            return None
        view = self.rng.choice(list(self.views.values()))
        last, plan = view.committed, view.host.plan
        loses_power = bool(plan.power or plan.blackout_interval_ms)
        durable = _durable_index(view.host)
        if loses_power:
            last = min(last, durable)
        committed = min(last - view.begin + 1, len(view.entries))
        if view.host.running is None or committed <= 0:
            return None
        newest = max(0, committed - NEWEST) if self.rng.random() < 0.5 else 0
        # The next checkpoint is near, so a kill must follow soon.
        may_be_killed = plan.crash_interval_ms != NEVER and not loses_power and durable < last
        is_killed = may_be_killed and self.rng.random() < 0.5
        if is_killed:
            newest = max(0, min(durable + 1 - view.begin, committed - 1))
        entry = view.entries[self.rng.randrange(newest, committed)]
        if not all(self._has_durably(host, entry, view) for host in self.hosts.values()):
            return None
        path, position, what = self._place(view.host, entry)
        if path not in view.host.disk.nodes:  # It has expired since the last check.
            return None
        view.host.disk.flip(path, position, 1 << self.rng.randrange(8), entry.index)
        if is_killed:
            view.host.disk.crash_after = self.rng.randrange(CHANGES_BEFORE_KILL)
        return f"a bit flips in {what} {entry.index} of {view.host.name}"

    def flip_stopped(self, host: BrokerHost) -> str | None:
        """Flip a bit on the disk of a broker that is stopped. Return a description, or None."""
        if any(other.disk.flips for other in self.hosts.values()):
            return None
        kind = self.rng.randrange(3)
        if kind == 0:
            return self.flip_last(host)
        path = f"{host.ledger_folder}/currterm"
        if kind == 1:
            # Without a backup, the start is refused.
            names = sorted(each for each in host.disk.nodes if each.startswith(f"{ROOT}/config/"))
            tables = [
                each
                for each in names
                if f"{each}.bak" in names and host.disk.durable_content(each).isascii()
            ]
            path = self.rng.choice(tables or [path])
        length = len(host.disk.durable_content(path))
        if not length or path not in host.disk.nodes:
            return None
        host.disk.spoil(path, self.rng.randrange(length))
        return f"a bit flips in {path} of {host.name}"

    def flip_last(self, host: BrokerHost) -> str | None:
        """Flip a bit of the last entry or record of a broker that was stopped in an orderly way, if
        it is committed.
        """
        if not host.stopped:
            return None
        view = self.views.get(host.name)
        if view is not None:
            if not view.entries or view.committed < view.entries[-1].index:
                return None
            entry = view.entries[-1]
            path, start = _data_place(host, entry)
            place = start + ENTRY_HEADER_BYTES + self.rng.choice(RECORD_PLACES)
            host.disk.flip(path, place, 1 << self.rng.randrange(8), entry.index)
            if host.plan.tail_unit:
                unit = entry.index * UNIT_BYTES + self.rng.randrange(UNIT_MAGIC_BYTES)
                host.disk.flip(_index_path(host), unit, 1 << self.rng.randrange(8), entry.index)
                view.flipped_at_end.add(entry.index)
            return f"a bit flips in the last entry {entry.index} of {host.name}"
        records = classic_records(host)
        if not records:
            return None
        at = records[-1].physical_offset
        path = f"{ROOT}/commitlog/{at - at % host.plan.file_size:020d}"
        place = at % host.plan.file_size + self.rng.choice(RECORD_PLACES)
        host.disk.flip(path, place, 1 << self.rng.randrange(8), -1)
        return f"a bit flips in the last record of {host.name}, at {at}"

    def _place(self, host: BrokerHost, entry: LedgerEntry) -> tuple[str, int, str]:
        path, start = _data_place(host, entry)
        kind = self.rng.randrange(4)
        if kind == 0:
            unit = entry.index * UNIT_BYTES
            at = unit + self.rng.randrange(UNIT_BYTES)
            path = _index_path(host)
            durable = host.disk.durable_content(path)[unit : unit + UNIT_BYTES]
            if durable and durable == host.disk.content_of(path)[unit : unit + UNIT_BYTES]:
                return path, at, "the index unit"
            kind = 1
            path = _data_place(host, entry)[0]
        if kind == 1:
            return path, start + self.rng.choice(HEADER_PLACES), "the header of entry"
        record = start + ENTRY_HEADER_BYTES
        data = host.disk.content_of(path)
        body = int.from_bytes(data[record + BODY_AT - 4 : record + BODY_AT])
        if kind == 2 or not body:
            return path, record + self.rng.choice(RECORD_PLACES), "the record of entry"
        return path, record + BODY_AT + self.rng.randrange(body), "the body of entry"

    def _has_durably(self, host: BrokerHost, entry: LedgerEntry, known: MemberView) -> bool:
        path, start = _data_place(known.host, entry)
        expected = known.host.disk.content_of(path)[start : start + entry.size]
        path, _ = _data_place(host, entry)
        return host.disk.durable_content(path)[start : start + entry.size] == expected


def _durable_index(host: BrokerHost) -> int:
    """Return the last entry of which the checkpoint on the disk says that it was there, or -1."""
    path = f"{host.ledger_folder}/checkpoint"
    found = DURABLE_INDEX.search(host.disk.durable_content(path))
    return int(found[1]) if found else -1


def _index_path(host: BrokerHost) -> str:
    return f"{host.ledger_folder}/index/{0:020d}"


def _data_place(host: BrokerHost, entry: LedgerEntry) -> tuple[str, int]:
    start = entry.position % host.plan.file_size
    return f"{host.ledger_folder}/data/{entry.position - start:020d}", start
