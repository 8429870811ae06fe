"""Planted bugs that only power failures, failing syncs and damaged files show.

:mod:`.mutations` lists them with its own.
"""

from __future__ import annotations

import contextlib

from attrs import evolve

from rmqpy.broker.services.flush import LogFlusher
from rmqpy.codec.entry import IndexUnit
from rmqpy.dledger.member import Member
from rmqpy.dledger.state import UNKNOWN_VOTE, HardState
from rmqpy.store.commitlog.interface import FlushTask
from rmqpy.store.files.atomic import write_atomically
from rmqpy.store.files.boot_note import BootNote
from rmqpy.store.files.log_recovery import DurablePoint, LogRecovery, WalkEnd
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.ledger import entry_recovery
from rmqpy.store.ledger.entry_index import EntryIndex
from rmqpy.store.ledger.member_state import MemberFiles
from simulator.mutation_engine import (
    Patches,
    aimed_mutation,
    group_mutation,
    lonely_mutation,
    lonely_refusal_mutation,
)


@group_mutation
def failed_sync_taken_for_a_good_one(patches: Patches) -> None:
    original = patches.original(FlushTask, "run")

    def run(self: FlushTask) -> None:
        with contextlib.suppress(OSError):
            original(self)

    patches.replace(FlushTask, "run", run)


@group_mutation
def older_vote_read_from_the_backup(patches: Patches) -> None:
    """The backup of ``currterm`` is its previous version, mostly the same term without the vote."""
    original = patches.original(MemberFiles, "load_hard_state")

    def load(self: MemberFiles) -> HardState:
        state: HardState = original(self)
        if state.voted_for != UNKNOWN_VOTE:
            return state
        raw = self.files.read_bytes(f"{self.directory}/currterm.bak")
        pairs = dict(line.partition("=")[::2] for line in raw.decode().splitlines())
        return HardState(state.current_term, pairs.get("voteLeader") or None)

    def save(self: MemberFiles, state: HardState) -> None:
        text = f"voteLeader={state.voted_for or ''}\ncurrTerm={state.current_term}\n"
        write_atomically(self.files, f"{self.directory}/currterm", text.encode())

    patches.replace(MemberFiles, "load_hard_state", load)
    patches.replace(MemberFiles, "save_hard_state", save)


@aimed_mutation(heartbeat_ms=300, send_interval_ms=600, tail_interval_ms=5000, tail_unit=True)
def leads_below_its_own_committed_index(patches: Patches) -> None:
    """A member that has lost its last, committed entry leads, and votes for others without it."""
    patches.replace(Member, "lacks_entries", False)
    patches.replace(Member, "known_committed", property(lambda self: self.committed_index))


@lonely_mutation
def damaged_last_records_cut_off(patches: Patches) -> None:
    """The last records of a classic log are known to have been on the disk, and are damaged."""
    original = patches.original(LogRecovery, "_judge_tail")

    def judge_tail(self: LogRecovery, end: WalkEnd) -> WalkEnd:
        found: WalkEnd = original(evolve(self, durable=evolve(self.durable, offset=0)), end)
        return found

    patches.replace(LogRecovery, "_judge_tail", judge_tail)


@lonely_refusal_mutation
def hole_after_the_last_sync_taken_for_damage(patches: Patches) -> None:
    """A power failure keeps pages in any order, and so records after a hole that was promised to
    nobody.
    """
    patches.replace(DurablePoint, "covers", lambda self, offset, timestamp_ms: True)


@group_mutation
def kill_taken_for_a_power_failure(patches: Patches) -> None:
    """An entry that is younger than the checkpoint is damaged, and cut off with those after it."""
    patches.replace(BootNote, "holds", lambda self: False)


@group_mutation
def damaged_last_entry_cut_off(patches: Patches) -> None:
    """Nobody leads while the only other member with that entry may not lead, either."""
    original = patches.original(entry_recovery, "_damaged_unit")

    def damaged_unit(data: MappedFiles, index: EntryIndex, offset: int) -> IndexUnit | None:
        unit: IndexUnit | None = original(data, index, offset)
        return unit if unit is not None and index.get(unit.index + 1) is not None else None

    patches.replace(entry_recovery, "_damaged_unit", damaged_unit)


@group_mutation
def ledger_flushed_as_rarely_as_a_classic_log(patches: Patches) -> None:
    original = patches.original(LogFlusher, "__init__")

    def init(self: LogFlusher, *deps: object) -> None:
        original(self, *deps[:-1], lambda: 500)

    patches.replace(LogFlusher, "__init__", init)
