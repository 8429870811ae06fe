"""More planted bugs (see :mod:`.mutations`, which lists them with its own): damaged entries, files
that expire, name servers, leaders that hand over.
"""

from __future__ import annotations

from typing import Any

from rmqpy.broker.replication.role import RoleChange
from rmqpy.config.keys import BrokerRole
from rmqpy.dledger.member import DiskState
from rmqpy.dledger.node import Node, Ready
from rmqpy.dledger.transfer import LeadershipTransfer
from rmqpy.namesrv import route_info
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.net.dledger.ready_processor import ReadyProcessor
from rmqpy.store.commitlog import dledger
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.ledger.entry_scrub import Scrub
from rmqpy.store.queues.consume_queue import MIN_STATE, ConsumeQueue
from simulator.mutation_engine import Planting, bug

# Damaged entries


@bug
def nobody_looks_for_damage(to: Planting) -> None:
    to.put(Scrub, "_look", lambda self: None)


@bug
def leads_with_a_damaged_entry(to: Planting) -> None:
    real = to.real(Node, "_disk")

    def disk(self: Node, disk: DiskState) -> None:
        real(self, DiskState.GOOD if disk is DiskState.DAMAGED else disk)

    to.put(Node, "_disk", disk)


@bug
def neighbour_fetched_for_a_damaged_entry(to: Planting) -> None:
    real = to.real(PeerTransport, "fetch")

    def fetch(self: PeerTransport, leader: str, index: int, done: Any, expired: Any) -> None:
        real(self, leader, max(0, index - 1), done, expired)

    to.put(PeerTransport, "fetch", fetch)


@bug
def damage_asked_for_after_it_has_expired(to: Planting) -> None:
    to.put(Scrub, "_forget_what_is_gone", lambda self: None)


# Files that expire


@bug
def ledger_files_expire_at_once(to: Planting) -> None:
    to.put(dledger, "DLEDGER_MORE_HOURS", -1)


@bug
def new_log_expires_before_the_old_one(to: Planting) -> None:
    def oldest_file(self: JoinedCommitLog, *, nothing_went: bool) -> Any:
        return self.new.oldest_file(nothing_went=nothing_went)

    to.put(JoinedCommitLog, "oldest_file", oldest_file)
    to.put(JoinedCommitLog, "release_oldest", lambda self: self.new.release_oldest())


@bug
def old_log_dropped_with_any_cut(to: Planting) -> None:
    real = to.real(ReadyProcessor, "_cut_log")

    def cut_log(self: ReadyProcessor, ready: Ready) -> None:
        if ready.begin_again or ready.truncate_from is not None:
            self._store.delete_classic_prefix()
        real(self, ready)

    to.put(ReadyProcessor, "_cut_log", cut_log)


@bug
def one_message_too_many_out_of_sight(to: Planting) -> None:
    real = to.real(ConsumeQueue, "correct_min_offset")

    def correct(self: ConsumeQueue, log_min_offset: int) -> None:
        before = self.state[MIN_STATE]
        real(self, log_min_offset)
        if before < self.state[MIN_STATE] < (self.max_offset - 1) * 20:
            self.state[MIN_STATE] += 20

    to.put(ConsumeQueue, "correct_min_offset", correct)


# Name servers and transfers


@bug
def former_leader_registers_as_master(to: Planting) -> None:
    def become_slave(self: RoleChange, broker_id: int) -> None:
        self.store.set_role(slave=True)
        self.services.stop()
        self.leadership_lost()
        if self.identity.broker_id < 0:
            self.identity.change_role(BrokerRole.SLAVE, broker_id)
            self.registration.register()

    to.put(RoleChange, "become_slave", become_slave)


@bug
def old_broker_id_kept_in_routes(to: Planting) -> None:
    to.put(route_info, "_ids_of", lambda addresses, address: [])


@bug
def preferred_leader_ignored(to: Planting) -> None:
    to.put(LeadershipTransfer, "tick", lambda self: self._check_taking())


@bug
def leader_that_could_not_hand_over_refuses_for_ever(to: Planting) -> None:
    def given(self: LeadershipTransfer, *_told: Any) -> None:
        pass

    to.put(LeadershipTransfer, "_given", given)
