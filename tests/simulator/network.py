"""The network of a simulated cluster: frames as bytes, in channels and requests as services know
them (``remoting.channel``).

A machine has a life and a name; ports belong to lives. What one end writes arrives as one piece at
the other, or later, or twice, or never: each piece decides for itself, so pieces overtake each
other. Where the way is blocked (in one direction, perhaps) nothing arrives. To a machine that is
down a request fails as a refused connection does; that news travels too.

Invariants: ``done`` of a request is called once, and never by a life that has ended; pieces hold
complete frames.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from attrs import define, evolve, field

from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.remoting.channel import Reply, RequestHandler
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from simulator.virtual_time import Event, ProcessLifetime, Timeline

PATIENCE_MS = 3_000
"""A connection that cannot be made fails after so long, at the latest."""


@define(slots=True, kw_only=True)
class NetworkFaults:
    """How bad the network is now. Chances are per piece."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_ms: int = 3
    slow: float = 0.0
    """Chance that a piece takes up to a hundred times ``delay_ms``."""


@define(slots=True, eq=False, repr=False)
class Machine:
    """An end of wires. ``life`` is None while it is down; ``address`` is ``host:port`` of clients'
    and brokers' main port.
    """

    name: str
    host: str
    life: ProcessLifetime | None = None


@define(slots=True, eq=False, repr=False)
class Port:
    """A listening port of a life."""

    machine: Machine
    life: ProcessLifetime
    handler: RequestHandler
    number: int
    turn_planned: bool = False
    channels: dict[int, WireChannel] = field(factory=dict)

    def received(self, channel: WireChannel, data: bytes) -> None:
        if not self.turn_planned:
            self.turn_planned = True
            self.life.call_soon(self._turn_ended)
        self.handler.handle(channel, FrameDecoder().receive(data))

    def _turn_ended(self) -> None:
        self.turn_planned = False
        self.handler.turn_ended()


@define(slots=True, eq=False, repr=False)
class WireChannel:
    """The server's end of a connection (``remoting.channel.Channel``)."""

    wires: SimulatedNetwork
    port: Port
    link: NetworkLink
    peer: tuple[str, int]
    local_port: int
    closed: bool = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed or not self.port.life.alive:
            return
        piece, link, wires = bytes(data), self.link, self.wires
        stamp = wires.stamp(self.port.machine)
        wires.tap(self.port.machine, self.local_port, link.network.machine.name, piece)
        wires.carry(self.port.machine, link.network.machine, lambda: link.answered(piece, stamp))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.wires.carry(self.port.machine, self.link.network.machine, self.link.broken)


@define(slots=True, eq=False, repr=False)
class _PendingDelivery:
    command: RemotingCommand
    done: Reply
    timer: Event


@define(slots=True, eq=False, repr=False)
class NetworkLink:
    """The client's end of a connection."""

    network: MachineNetwork
    address: str
    number: int
    pending: dict[int, _PendingDelivery] = field(factory=dict)

    def answered(self, data: bytes, stamp: int) -> None:
        life = self.network.life
        if not life.alive:
            return
        for response in FrameDecoder().receive(data):
            pending = self.pending.pop(response.opaque, None) if response.is_response else None
            if pending is not None:
                pending.timer.cancel()
                self._tell(life, pending, response, stamp)

    def broken(self) -> None:
        """The connection is gone: who waits on it is told."""
        self.network.links.pop(self.address, None)
        life = self.network.life
        if life.alive:
            waiting, self.pending = self.pending, {}
            for pending in waiting.values():
                pending.timer.cancel()
                fault = NetworkError(f"the connection to {self.address} was closed")
                self._fail(life, pending, fault)

    def late(self, opaque: int) -> None:
        pending = self.pending.pop(opaque, None)
        if pending is not None:
            pending.done(None, NetworkError(f"{self.address} did not answer in time"))

    def _tell(
        self,
        life: ProcessLifetime,
        pending: _PendingDelivery,
        response: RemotingCommand,
        stamp: int,
    ) -> None:
        def tell() -> None:
            self.network.stamp = stamp
            pending.done(response, None)

        self.network.wires.here(life, tell)

    def _fail(self, life: ProcessLifetime, pending: _PendingDelivery, fault: RmqError) -> None:
        self.network.wires.here(life, lambda: pending.done(None, fault))


@define(slots=True, eq=False, repr=False)
class MachineNetwork:
    """What a life knows of the network (``remoting.channel.Network``)."""

    wires: SimulatedNetwork
    machine: Machine
    life: ProcessLifetime
    links: dict[str, NetworkLink] = field(factory=dict)
    stamp: int = 0
    """``SimulatedNetwork.stamp`` when the answer that is being handed out was written."""

    _opaque: int = 0

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Reply,
        pieces: Sequence[bytes] = (),
    ) -> None:
        if pieces:
            command = evolve(command, body=b"".join(pieces))
        link = self._link(address)
        opaque, frame = self._frame(command, 0)
        timer = self.life.call_later(timeout_ms, lambda: link.late(opaque))
        link.pending[opaque] = _PendingDelivery(command, done, timer)
        self.wires.send(link, frame)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        self.wires.send(self._link(address), self._frame(command, FLAG_ONEWAY)[1])

    def _link(self, address: str) -> NetworkLink:
        link = self.links.get(address)
        if link is None:
            self.wires.link_number += 1
            link = self.links[address] = NetworkLink(self, address, self.wires.link_number)
        return link

    def _frame(self, command: RemotingCommand, flag: int) -> tuple[int, bytes]:
        self._opaque += 1
        sent = evolve(command, opaque=self._opaque, flag=command.flag | flag)
        return self._opaque, encode_command(sent)


@define(slots=True, eq=False, repr=False)
class SimulatedNetwork:
    """See the module."""

    timeline: Timeline
    rng: random.Random
    weather: NetworkFaults = field(factory=NetworkFaults)
    blocked: set[tuple[str, str]] = field(factory=set)
    """Directions, by names of machines, that let nothing through."""

    stamp: Callable[[Machine], int] = lambda _machine: 0
    """Asked for each piece that a server writes, as it is written."""

    tap: Callable[[Machine, int, str, bytes], None] = lambda *_told: None
    """Told of each such piece: who writes, on which of its ports, to whom."""

    ports: dict[str, Port] = field(factory=dict)
    """By address."""

    link_number: int = 0
    carried: int = 0
    lost: int = 0

    def isolate(self, name: str, others: Iterable[str]) -> None:
        """Block both directions between a machine and all others."""
        for other in others:
            self.blocked |= {(name, other), (other, name)}

    def listen(self, machine: Machine, number: int, handler: RequestHandler) -> None:
        assert machine.life is not None
        self.ports[f"{machine.host}:{number}"] = Port(machine, machine.life, handler, number)

    def machine_down(self, machine: Machine) -> None:
        """Its ports are closed; whoever is connected hears of it, unless the way is blocked."""
        gone = [address for address, port in self.ports.items() if port.machine is machine]
        for address in gone:
            for channel in self.ports.pop(address).channels.values():
                channel.closed = True
                self.carry(machine, channel.link.network.machine, channel.link.broken)

    def life_ended(self, networks: Iterable[MachineNetwork]) -> None:
        """These clients are gone: the servers' ends of their connections close."""
        for network in networks:
            for link in network.links.values():
                self.carry_end(network.machine, link)

    def carry_end(self, machine: Machine, link: NetworkLink) -> None:
        port = self.ports.get(link.address)
        if port is None or link.number not in port.channels:
            return

        def ended() -> None:
            channel = port.channels.pop(link.number, None)
            if channel is not None and port.life.alive:
                channel.closed = True
                self.here(port.life, lambda: port.handler.channel_closed(channel))

        self.carry(machine, port.machine, ended)

    def send(self, link: NetworkLink, frame: bytes) -> None:
        """A frame from the client's end."""
        sender = link.network.machine
        port = self.ports.get(link.address)
        if port is None:  # nobody there: a refused connection, or silence
            self.timeline.at(self._delay_ms(), link.broken)
            return
        self.carry(sender, port.machine, lambda: self._arrive(link, frame))

    def _arrive(self, link: NetworkLink, frame: bytes) -> None:
        port = self.ports.get(link.address)
        sender = link.network
        if port is None or not port.life.alive:
            if port is not None or sender.life.alive:
                self.timeline.at(self._delay_ms(), link.broken)
            return
        channel = port.channels.get(link.number)
        if channel is None:
            peer = sender.machine.host, 40_000 + link.number % 20_000
            channel = WireChannel(self, port, link, peer, port.number)
            port.channels[link.number] = channel
        opened = channel
        self.here(port.life, lambda: port.received(opened, frame))

    def carry(self, sender: Machine, to: Machine, arrive: Callable[[], None]) -> None:
        """Let ``arrive`` happen at the other end, as the weather will have it."""
        rng, weather, way = self.rng, self.weather, (sender.name, to.name)
        self.carried += 1
        if way in self.blocked or (weather.loss and rng.random() < weather.loss):
            self.lost += 1
            return

        def arrived() -> None:
            if way not in self.blocked:
                arrive()

        self.timeline.at(self._delay_ms(), arrived)
        if weather.repeat and rng.random() < weather.repeat:
            self.timeline.at(self._delay_ms(), arrived)

    def here(self, life: ProcessLifetime, callback: Callable[[], None]) -> None:
        """An event of that machine, now or when its pause is over."""
        if life.paused_until_ms > self.timeline.now_ms:
            self.timeline.add(life.paused_until_ms - self.timeline.now_ms, Event(callback, life))
        elif life.alive:
            life.run(callback)

    def _delay_ms(self) -> int:
        rng, weather = self.rng, self.weather
        delay_ms = 1 + int(rng.random() * weather.delay_ms)
        if weather.slow and rng.random() < weather.slow:
            delay_ms *= 1 + int(rng.random() * 99)
        return delay_ms
