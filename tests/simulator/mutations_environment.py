"""Planted bugs about damaged entries, expired files, name servers, and leadership transfers.

:mod:`.mutations` lists them with its own.
"""

from __future__ import annotations

from rmqpy.broker.replication.role import RoleChange
from rmqpy.config.keys import BrokerRole
from rmqpy.dledger.node import Node, Ready
from rmqpy.dledger.state import DiskState
from rmqpy.dledger.transfer import LeadershipTransfer
from rmqpy.namesrv import route_info
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.net.dledger.ready_processor import ReadyProcessor
from rmqpy.store.commitlog import dledger
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.ledger.entry_scrub import Scrub
from rmqpy.store.queues.consume_queue import MIN_STATE, ConsumeQueue
from simulator.mutation_engine import Patches, group_mutation

# Damaged entries


@group_mutation
def scrub_disabled(patches: Patches) -> None:
    patches.replace(Scrub, "_check_next", lambda self: None)


@group_mutation
def leads_with_a_damaged_entry(patches: Patches) -> None:
    original = patches.original(Node, "_disk")

    def disk(self: Node, disk: DiskState) -> None:
        original(self, DiskState.GOOD if disk is DiskState.DAMAGED else disk)

    patches.replace(Node, "_disk", disk)


@group_mutation
def neighbour_fetched_for_a_damaged_entry(patches: Patches) -> None:
    original = patches.original(PeerTransport, "fetch")

    def fetch(self: PeerTransport, leader: str, index: int, *callbacks: object) -> None:
        original(self, leader, max(0, index - 1), *callbacks)

    patches.replace(PeerTransport, "fetch", fetch)


@group_mutation
def expired_damage_still_fetched(patches: Patches) -> None:
    patches.replace(Scrub, "_discard_removed", lambda self: None)


# Files that expire


@group_mutation
def ledger_files_expire_at_once(patches: Patches) -> None:
    patches.replace(dledger, "DLEDGER_MORE_HOURS", -1)


@group_mutation
def new_log_expires_before_the_old_one(patches: Patches) -> None:
    def oldest_file(self: JoinedCommitLog, *, nothing_went: bool) -> object:
        return self.new.oldest_file(nothing_went=nothing_went)

    patches.replace(JoinedCommitLog, "oldest_file", oldest_file)
    patches.replace(JoinedCommitLog, "release_oldest", lambda self: self.new.release_oldest())


@group_mutation
def old_log_dropped_with_any_cut(patches: Patches) -> None:
    original = patches.original(ReadyProcessor, "_truncate_log")

    def cut_log(self: ReadyProcessor, ready: Ready) -> None:
        if ready.begin_again or ready.truncate_from is not None:
            self._store.delete_classic_prefix()
        original(self, ready)

    patches.replace(ReadyProcessor, "_truncate_log", cut_log)


@group_mutation
def one_message_too_many_hidden(patches: Patches) -> None:
    original = patches.original(ConsumeQueue, "correct_min_offset")

    def correct(self: ConsumeQueue, log_min_offset: int) -> None:
        before = self.state[MIN_STATE]
        original(self, log_min_offset)
        if before < self.state[MIN_STATE] < (self.max_offset - 1) * 20:
            self.state[MIN_STATE] += 20

    patches.replace(ConsumeQueue, "correct_min_offset", correct)


# Name servers and transfers


@group_mutation
def former_leader_registers_as_master(patches: Patches) -> None:
    def become_slave(self: RoleChange, broker_id: int) -> None:
        self.store.set_role(slave=True)
        self.services.stop()
        self.leadership_lost()
        if self.identity.broker_id < 0:
            self.identity.change_role(BrokerRole.SLAVE, broker_id)
            self.registration.register()

    patches.replace(RoleChange, "become_slave", become_slave)


@group_mutation
def old_broker_id_kept_in_routes(patches: Patches) -> None:
    patches.replace(route_info, "_ids_of", lambda addresses, address: [])


@group_mutation
def preferred_leader_ignored(patches: Patches) -> None:
    patches.replace(LeadershipTransfer, "tick", lambda self: self._check_taking())


@group_mutation
def failed_transfer_blocks_the_leader(patches: Patches) -> None:
    def ended(self: LeadershipTransfer, *_answer: object) -> None:
        pass

    patches.replace(LeadershipTransfer, "_transfer_ended", ended)
