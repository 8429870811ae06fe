"""The base of simulated machines: a disk that outlives crashes, and a process while it runs."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from attrs import define, field

from rmqpy.dledger.node import Node
from simulator.network import Machine, NetworkClient, SimulatedNetwork
from simulator.plan import SimulationPlan
from simulator.virtual_time import ProcessLifetime, Syncs, Timeline

LEDGER_PORT = 40911


class FaultyDisk(Syncs, Protocol):
    """The faults that the nemesis can inject into a disk."""

    crash_after: int
    """The number of changes after which the machine crashes; negative for never."""

    full: bool
    failing: bool
    syncs_fail: bool

    def heal(self) -> None:
        """Repair the disk and free its space."""

    def process_ended(self) -> None:
        """Keep everything that was written, as after the kill of a process."""

    def lose_power(self, rng: random.Random) -> None:
        """Keep what was synced, and some of what was not."""


@define(slots=True, eq=False, repr=False)
class Host(ABC):
    """A member of the cluster.

    ``on_event`` is called with its name after each of its events, and ``on_crash`` when an event
    raised ``MachineCrashError``.
    """

    plan: SimulationPlan
    number: int
    timeline: Timeline
    network: SimulatedNetwork
    rng: random.Random
    on_event: Callable[[str], None]
    on_crash: Callable[[str], None]
    name: str = field(init=False)
    machine: Machine = field(init=False)
    life: ProcessLifetime | None = None
    """The running process; None while the machine is down."""

    client: NetworkClient | None = None
    """The network as the running process sees it."""

    skew_ms: int = 0
    _set_back: tuple[int, int] = (0, 0)
    """By how much the clock was set back last, and when."""

    starts: int = 0

    def __attrs_post_init__(self) -> None:
        self.name = f"n{self.number}"
        self.machine = Machine(self.name, member_host(self.number))

    @property
    @abstractmethod
    def disk(self) -> FaultyDisk:
        """The disk of the machine."""

    @property
    @abstractmethod
    def node(self) -> Node | None:
        """The DLedger node of the running process, if it has one."""

    @property
    def needs_restart(self) -> bool:
        """Whether the running process may not recover from a disk fault, before it is healed."""
        return False

    def jump_clock(self, jump_ms: int) -> None:
        self.skew_ms += jump_ms
        self._set_back = -jump_ms, self.timeline.now_ms
        if self.life is not None:
            self.life.skew_ms = self.skew_ms

    def set_back_ms(self, within_ms: int) -> int:
        """Return by how much the clock was set back in the last ``within_ms``."""
        jump_ms, at_ms = self._set_back
        return max(0, jump_ms) if self.timeline.now_ms <= at_ms + within_ms else 0

    @abstractmethod
    def start(self, *, force: bool = False) -> None:
        """Start a process on the disk as it is. Raise StoreError as the program does."""

    def begin_life(self) -> ProcessLifetime:
        """Return the lifetime of a new process."""
        assert self.life is None
        self.starts += 1
        self.life = self.machine.life = ProcessLifetime(
            self.timeline,
            partial(self.on_event, self.name),
            partial(self.on_crash, self.name),
            lambda: 1 + self.rng.randrange(self.plan.sync_ms),
            self.disk,
            self.skew_ms,
        )
        return self.life

    def end_life(self) -> None:
        """End the process; its ports and connections close."""
        assert self.life is not None
        self.life.alive = False
        self.life = self.machine.life = None
        client, self.client = self.client, None
        if client is not None:  # otherwise it crashed during the start
            self.network.close_ports(self.machine)
            self.network.close_links([client])

    def kill(self) -> None:
        """End the process; everything that it wrote is kept."""
        self.end_life()
        self.disk.process_ended()

    def lose_power(self) -> None:
        """End the process; only synced data is certain to be kept."""
        self.end_life()
        self.disk.lose_power(self.rng)


HostT = TypeVar("HostT", bound=Host)


def member_host(number: int) -> str:
    """Return the address of the machine of member ``number``, without a port."""
    return f"10.0.0.{number + 1}"


def ledger_address(number: int) -> str:
    """Return the address at which member ``number`` serves the other members."""
    return f"{member_host(number)}:{LEDGER_PORT}"
