"""The name servers of a simulated cluster: the production ``NameServer``.

Restarts leave an empty disk.
"""

from __future__ import annotations

from attrs import define, field

from rmqpy.config.loading import NamesrvConfiguration
from rmqpy.namesrv.server import NameServer
from simulator.disks import SimulatedDisk
from simulator.network import Machine, SimulatedNetwork
from simulator.virtual_time import ProcessLifetime, Timeline

NAMESRV_PORT = 9876


def name_server_host(number: int) -> str:
    """Return the address of a name server without its port."""
    return f"10.0.2.{number + 1}"


def name_server_addresses(count: int) -> list[str]:
    return [f"{name_server_host(number)}:{NAMESRV_PORT}" for number in range(count)]


@define(slots=True, eq=False, repr=False)
class NameServerHost:
    """A machine with a name server; ``server`` is None while it is down."""

    number: int
    timeline: Timeline
    network: SimulatedNetwork
    server: NameServer | None = None
    machine: Machine = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.machine = Machine(f"ns{self.number}", name_server_host(self.number))

    @property
    def name(self) -> str:
        return self.machine.name

    def start(self) -> None:
        """Start a server without routes."""
        disk = SimulatedDisk()
        life = ProcessLifetime(self.timeline, _nothing, _nothing, lambda: 1, disk)
        self.machine.life = life
        self.server = NameServer(NamesrvConfiguration(), life, disk)
        self.network.listen(self.machine, NAMESRV_PORT, self.server)
        self.server.start()

    def kill(self) -> None:
        assert self.machine.life is not None
        self.machine.life.alive = False
        self.machine.life = self.server = None
        self.network.close_ports(self.machine)


def _nothing() -> None:
    pass
