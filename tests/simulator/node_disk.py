"""The disk of a bare DLedger node: its hard state, its checkpoint, and a log in memory."""

from __future__ import annotations

import random

from attrs import define, field

from rmqpy.dledger.state import HardState
from simulator.memory_log import MemoryLog
from simulator.virtual_time import MachineCrashError

UNSYNCED_KEPT_MAX = 3


@define(slots=True, eq=False, repr=False)
class NodeDisk:
    """A disk whose faults are only reported to the node.

    Writes to a full or failing disk are kept nevertheless. A saved hard state is durable; entries
    are durable after a sync.
    """

    log: MemoryLog = field(factory=MemoryLog)
    hard_state: HardState = field(factory=HardState)
    checkpoint: int = -1
    crash_after: int = -1
    full: bool = False
    failing: bool = False
    syncs_fail: bool = False
    now_ms: int = 0

    def load_hard_state(self) -> HardState:
        """Return the hard state of a process at its start."""
        return self.hard_state

    def load_committed_index(self) -> int:
        """Return the committed index of the checkpoint."""
        return min(self.checkpoint, self.log.end.index)

    def changed(self) -> None:
        """Note that something was written, and crash the machine if this is the chosen change."""
        if self.crash_after >= 0:
            self.crash_after -= 1
            if self.crash_after < 0:
                raise MachineCrashError

    @property
    def broken(self) -> bool:
        return False  # no operation raises

    def heal(self) -> None:
        self.full = self.failing = self.syncs_fail = False

    def process_ended(self) -> None:
        self.crash_after = -1

    def lose_power(self, rng: random.Random) -> None:
        self.process_ended()
        self.log.lose_power(rng.randrange(UNSYNCED_KEPT_MAX))

    # Blocking calls, of which a bare node makes none.

    def begin(self) -> int:
        return 0

    def collected(self) -> None:
        pass

    def end(self, number: int) -> None:
        pass
