"""Carries out what the DLedger core asks: time, durable votes, commits, news of the role.

The core (``dledger.node``) computes, the entry store keeps bytes, this driver goes between them. In
a group of one there is no wire; the driver of larger groups adds it here.

Invariant: a hard state is durable before anything that follows from it is done.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqpy.dledger.member import Membership, Role
from rmqpy.dledger.node import Node, Stored
from rmqpy.model.ids import LedgerIndex
from rmqpy.model.runtime import Scheduler, Timer
from rmqpy.store.commitlog.dledger import DLedgerCommitLog

TICK_MS = 10
"""Period of the state loop while a leader is looked for (Java StateMaintainer)."""

CHECKPOINT_INTERVAL_MS = 3000
PENDING_LIMIT = 10_000
"""maxPendingRequestsNum: entries that may wait for their quorum."""

RoleListener = Callable[[Role], None]


class DLedgerDriver:
    """One member of a group. ``on_role`` hears of every change, after it has taken effect in the
    log.
    """

    def __init__(
        self,
        log: DLedgerCommitLog,
        membership: Membership,
        scheduler: Scheduler,
        on_role: RoleListener,
    ) -> None:
        self._entries = log.entries
        self._log = log
        self._scheduler = scheduler
        self._on_role = on_role
        self.node = Node(
            membership,
            self._entries.load_hard_state(),
            self._entries.end,
            self._entries.committed_index,
            PENDING_LIMIT,
        )
        self._tick_timer: Timer | None = None
        self._checkpoint_timer: Timer | None = None
        self._saving = False

    def start(self) -> None:
        """Begin as a candidate; in a group of one leadership is there when this returns."""
        self._log.proposer = self.node
        self._entries.stored.subscribe(self._entries_stored)
        self._checkpoint_timer = self._scheduler.call_later(
            CHECKPOINT_INTERVAL_MS, self._save_checkpoint
        )
        self._tick()

    def stop(self) -> None:
        for timer in (self._tick_timer, self._checkpoint_timer):
            if timer is not None:
                timer.cancel()

    def _tick(self) -> None:
        self.node.tick(self._scheduler.monotonic_ms())
        self._carry_out()
        if self.node.role is not Role.LEADER:
            self._tick_timer = self._scheduler.call_later(TICK_MS, self._tick)

    def _entries_stored(self, index: int) -> None:
        self.node.step(Stored(LedgerIndex(index)))
        self._carry_out()

    def _carry_out(self) -> None:
        ready = self.node.take_ready()
        if ready is None:
            return
        if ready.hard_state is not None:
            self._entries.save_hard_state(ready.hard_state)
        if ready.committed_index is not None:
            self._entries.commit_to(ready.committed_index)
        if ready.role is not None:
            self._on_role(ready.role)

    def _save_checkpoint(self) -> None:
        self._checkpoint_timer = self._scheduler.call_later(
            CHECKPOINT_INTERVAL_MS, self._save_checkpoint
        )
        if not self._saving:
            self._saving = True
            self._scheduler.run_blocking(self._entries.save_checkpoint, self._checkpoint_saved)

    def _checkpoint_saved(self, _result: None, error: BaseException | None) -> None:
        self._saving = False
        if error is not None:
            raise error
