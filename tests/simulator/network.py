"""The network of a simulated cluster, which carries frames as bytes (``remoting.channel``).

Ports belong to processes, so a crash closes them. The bytes of one write form a piece, which
arrives at the other end, perhaps late, twice, or never. Pieces are independent, so they overtake
each other. Nothing arrives in a blocked direction. A request to a machine that is down fails like a
refused connection, after a delay.

Invariants: ``done`` of a request is called once, and never after its process has ended; pieces hold
complete frames.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from attrs import define, evolve, field

from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.remoting.channel import Reply, RequestHandler
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, decode_command, encode_head
from rmqpy.remoting.frame_decoder import FrameDecoder
from simulator.virtual_time import Event, ProcessLifetime, Timeline

TIMEOUT_MS = 3_000
"""The longest time until a connection that cannot be opened fails."""


@define(slots=True, kw_only=True)
class NetworkFaults:
    """The current faults of the network. Probabilities are per piece."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_ms: int = 3
    slow: float = 0.0
    """The probability that a piece takes up to a hundred times ``delay_ms``."""


@define(slots=True, eq=False, repr=False)
class Machine:
    """A machine with connections. ``life`` is None while it is down."""

    name: str
    host: str
    life: ProcessLifetime | None = None


class FrameReceiver(Protocol):
    """A receiver that also answers requests, like the feed of a ``FastServer``."""

    def receive(self, channel: WireChannel, data: bytes) -> None:
        """Answer the frames of ``data``, or pass them to the handler of the port."""

    def forget(self, channel: WireChannel) -> None:
        """Release what belongs to a channel that is closed."""


@define(slots=True, eq=False, repr=False)
class Port:
    """A listening port of a process. With a ``receiver``, frames reach the handler through it.

    If it ``gathers``, what it writes to a channel in one moment is one piece.
    """

    machine: Machine
    life: ProcessLifetime
    handler: RequestHandler
    number: int
    receiver: FrameReceiver | None = None
    gathers: bool = False
    turn_planned: bool = False
    channels: dict[int, WireChannel] = field(factory=dict)

    def received(self, channel: WireChannel, data: bytes) -> None:
        if not self.turn_planned:
            self.turn_planned = True
            self.life.call_soon(self._turn_ended)
        if self.receiver is not None:
            self.receiver.receive(channel, data)
            return
        commands: Sequence[RemotingCommand] = FrameDecoder().receive(data)
        while commands:
            rest = self.handler.handle(channel, commands) or ()
            if len(rest) == len(commands):  # It waits for the next turn.
                self.handler.turn_ended()
            commands = rest

    def closed(self, channel: WireChannel) -> None:
        if self.receiver is not None:
            self.receiver.forget(channel)
        self.handler.channel_closed(channel)

    def _turn_ended(self) -> None:
        self.turn_planned = False
        self.handler.turn_ended()


@define(slots=True, eq=False, repr=False)
class GatheredWrites:
    """What a server has written to a channel in one moment."""

    stamp: int = 0
    data: bytearray = field(factory=bytearray)


def in_order(data: bytearray) -> bytes:
    """Return the frames of ``data`` in the order of their opaques."""
    frames: list[tuple[int, int, bytes]] = []
    position = 0
    while position < len(data):
        start = position + LENGTH_BYTES
        end = start + int.from_bytes(data[position:start])
        opaque = decode_command(memoryview(data)[start:end]).opaque
        frames.append((opaque, position, bytes(data[position:end])))
        position = end
    return b"".join(frame for _, _, frame in sorted(frames))


@define(slots=True, eq=False, repr=False)
class WireChannel:
    """The server's end of a connection (``net.server.feed_api.FeedChannel``)."""

    network: SimulatedNetwork
    port: Port
    link: NetworkLink
    peer: tuple[str, int]
    local_port: int
    closed: bool = False
    congested: bool = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed or not self.port.life.alive:
            return
        if self.port.gathers:
            self.network.gather(self, data)
        else:
            self.send(bytes(data), self.network.stamp(self.port.machine))

    def send(self, piece: bytes, stamp: int) -> None:
        """Carry a piece to the client."""
        link, network = self.link, self.network
        network.tap(self.port.machine, self.local_port, link.client.machine.name, piece)
        network.carry(
            self.port.machine, link.client.machine, lambda: link.on_response(piece, stamp), piece
        )

    @property
    def order(self) -> tuple[str, int, int]:
        return self.port.machine.name, self.port.number, self.link.number

    def unsent(self, data: bytes) -> None:
        self.write(data)

    def send_failed(self, code: int) -> None:
        raise AssertionError(f"the feed does not send on this connection: {code}")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.carry(self.port.machine, self.link.client.machine, self.link.on_closed)


@define(slots=True, eq=False, repr=False)
class _PendingDelivery:
    command: RemotingCommand
    done: Reply
    timer: Event


@define(slots=True, eq=False, repr=False)
class NetworkLink:
    """The client's end of a connection."""

    client: NetworkClient
    address: str
    number: int
    pending: dict[int, _PendingDelivery] = field(factory=dict)

    def on_response(self, data: bytes, stamp: int) -> None:
        life = self.client.life
        if not life.alive:
            return
        for response in FrameDecoder().receive(data):
            if not response.is_response:
                self._receive(life, response)
                continue
            pending = self.pending.pop(response.opaque, None)
            if pending is not None:
                pending.timer.cancel()
                self._deliver(life, pending, response, stamp)

    def on_closed(self) -> None:
        """Fail the requests of a connection that is closed."""
        self.client.links.pop(self.address, None)
        life = self.client.life
        if life.alive:
            waiting, self.pending = self.pending, {}
            for pending in waiting.values():
                pending.timer.cancel()
                fault = NetworkError(f"the connection to {self.address} was closed")
                self._deliver_fault(life, pending, fault)

    def on_timeout(self, opaque: int) -> None:
        pending = self.pending.pop(opaque, None)
        if pending is not None:
            pending.done(None, NetworkError(f"{self.address} did not answer in time"))

    def _receive(self, life: ProcessLifetime, request: RemotingCommand) -> None:
        client = self.client
        client.network.run_on(life, lambda: client.on_request(self.address, request))

    def _deliver(
        self,
        life: ProcessLifetime,
        pending: _PendingDelivery,
        response: RemotingCommand,
        stamp: int,
    ) -> None:
        def deliver() -> None:
            self.client.stamp = stamp
            pending.done(response, None)

        self.client.network.run_on(life, deliver)

    def _deliver_fault(
        self, life: ProcessLifetime, pending: _PendingDelivery, fault: RmqError
    ) -> None:
        self.client.network.run_on(life, lambda: pending.done(None, fault))


@define(slots=True, eq=False, repr=False)
class NetworkClient:
    """The network as one process sees it (``remoting.channel.Network``)."""

    network: SimulatedNetwork
    machine: Machine
    life: ProcessLifetime
    links: dict[str, NetworkLink] = field(factory=dict)
    stamp: int = 0
    """The value of ``SimulatedNetwork.stamp`` when the current answer was written."""

    on_request: Callable[[str, RemotingCommand], None] = lambda _address, _command: None
    """Called with the requests of servers, and their addresses."""

    opaque: int = 0
    """The number of the last request."""

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
        timer = self.life.call_later(timeout_ms, lambda: link.on_timeout(opaque))
        link.pending[opaque] = _PendingDelivery(command, done, timer)
        self.network.send(link, frame)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        self.network.send(self._link(address), self._frame(command, FLAG_ONEWAY)[1])

    def _link(self, address: str) -> NetworkLink:
        link = self.links.get(address)
        if link is None:
            self.network.link_number += 1
            link = self.links[address] = NetworkLink(self, address, self.network.link_number)
        return link

    def _frame(self, command: RemotingCommand, flag: int) -> tuple[int, bytes]:
        self.opaque += 1
        body = command.body
        return self.opaque, encode_head(command, len(body), self.opaque, command.flag | flag) + body


@define(slots=True, eq=False, repr=False)
class SimulatedNetwork:
    """The network between all machines, with the faults of a plan."""

    timeline: Timeline
    rng: random.Random
    faults: NetworkFaults = field(factory=NetworkFaults)
    blocked: set[tuple[str, str]] = field(factory=set)
    """The blocked directions, as pairs of machine names."""

    calm: frozenset[str] = frozenset()
    """The machines between which nothing is lost, repeated, slow or blocked."""

    stamp: Callable[[Machine], int] = lambda _machine: 0
    """Called for each piece that a server writes; its result travels with the piece."""

    tap: Callable[[Machine, int, str, bytes], None] = lambda *_piece: None
    """Called with each such piece: sender, port of the sender, name of the receiver, bytes."""

    watch: Callable[[str, str, bytes, Callable[[], None]], Callable[[], None]] | None = None
    """Called with each piece that is sent: names of sender and receiver, bytes, and what is called
    when it arrives; returns what is called then instead.
    """

    ports: dict[str, Port] = field(factory=dict)
    """The listening ports by address."""

    losing: set[tuple[str, str]] = field(factory=set)
    """The directions in which the next piece is lost, even between calm machines."""

    gathered: dict[WireChannel, GatheredWrites] = field(factory=dict)
    """What ports that gather have written in this moment."""

    link_number: int = 0
    carried: int = 0
    lost: int = 0

    def gather(self, channel: WireChannel, data: bytes | bytearray | memoryview) -> None:
        """Send what is written to ``channel`` at the end of the moment, with the frames and the
        channels in the order of their numbers.
        """
        self.timeline.moment_ended = self._send_gathered
        writes = self.gathered.setdefault(channel, GatheredWrites())
        writes.stamp = self.stamp(channel.port.machine)
        writes.data += data

    def _send_gathered(self) -> None:
        gathered, self.gathered = self.gathered, {}
        for channel, writes in sorted(gathered.items(), key=lambda item: item[0].order):
            channel.send(in_order(writes.data), writes.stamp)

    def isolate(self, name: str, others: Iterable[str]) -> None:
        """Block both directions between a machine and all others."""
        for other in others:
            self.blocked |= {(name, other), (other, name)}

    def unblock_calm(self) -> None:
        """Block no direction between calm machines."""
        calm = self.calm
        self.blocked = {way for way in self.blocked if not (way[0] in calm and way[1] in calm)}

    def listen(
        self,
        machine: Machine,
        number: int,
        handler: RequestHandler,
        receiver: FrameReceiver | None = None,
        *,
        gathers: bool = False,
    ) -> None:
        assert machine.life is not None
        port = Port(machine, machine.life, handler, number, receiver, gathers)
        self.ports[f"{machine.host}:{number}"] = port

    def close_ports(self, machine: Machine) -> None:
        """Close the ports of a machine; its peers notice unless the direction is blocked."""
        addresses = [address for address, port in self.ports.items() if port.machine is machine]
        for address in addresses:
            for channel in self.ports.pop(address).channels.values():
                channel.closed = True
                self.carry(machine, channel.link.client.machine, channel.link.on_closed)

    def close_links(self, clients: Iterable[NetworkClient]) -> None:
        """Close the servers' ends of the connections of these clients."""
        for client in clients:
            for link in client.links.values():
                self.carry_close(client.machine, link)

    def break_line(self, client: NetworkClient, to: Machine) -> None:
        """Close the connections of a process to a machine, and lose the first piece of the next."""
        for link in list(client.links.values()):
            port = self.ports.get(link.address)
            if port is not None and port.machine is to:
                self.carry_close(client.machine, link)
                link.on_closed()
        self.losing.add((client.machine.name, to.name))

    def carry_close(self, machine: Machine, link: NetworkLink) -> None:
        port = self.ports.get(link.address)
        if port is None or link.number not in port.channels:
            return

        def ended() -> None:
            channel = port.channels.pop(link.number, None)
            if channel is not None and port.life.alive:
                channel.closed = True
                self.run_on(port.life, lambda: port.closed(channel))

        self.carry(machine, port.machine, ended)

    def send(self, link: NetworkLink, frame: bytes) -> None:
        """Carry a frame from the client's end."""
        sender = link.client.machine
        port = self.ports.get(link.address)
        if port is None:  # no listener: a refused connection, or silence
            self.timeline.at(self._delay_ms(), link.on_closed)
            return
        self.carry(sender, port.machine, lambda: self._arrive(link, frame), frame)

    def _arrive(self, link: NetworkLink, frame: bytes) -> None:
        port = self.ports.get(link.address)
        sender = link.client
        if port is None or not port.life.alive:
            if port is not None or sender.life.alive:
                self.timeline.at(self._delay_ms(), link.on_closed)
            return
        channel = port.channels.get(link.number)
        if channel is None:
            peer = sender.machine.host, 40_000 + link.number % 20_000
            channel = WireChannel(self, port, link, peer, port.number)
            port.channels[link.number] = channel
        opened = channel
        self.run_on(port.life, lambda: port.received(opened, frame))

    def carry(
        self, sender: Machine, to: Machine, arrive: Callable[[], None], piece: bytes = b""
    ) -> None:
        """Call ``arrive`` at the other end: late, twice, or never, depending on the faults."""
        rng, faults, way = self.rng, self.faults, (sender.name, to.name)
        self.carried += 1
        if self.watch is not None and piece:
            arrive = self.watch(sender.name, to.name, piece, arrive)
        if way in self.losing:
            self.losing.discard(way)
            self.lost += 1
            return
        if sender.name in self.calm and to.name in self.calm:
            self.timeline.at(1 + int(rng.random() * faults.delay_ms), arrive)
            return
        if way in self.blocked or (faults.loss and rng.random() < faults.loss):
            self.lost += 1
            return

        def arrived() -> None:
            if way not in self.blocked:
                arrive()

        self.timeline.at(self._delay_ms(), arrived)
        if faults.repeat and rng.random() < faults.repeat:
            self.timeline.at(self._delay_ms(), arrived)

    def run_on(self, life: ProcessLifetime, callback: Callable[[], None]) -> None:
        """Run an event of that process, now or at the end of its pause."""
        if life.paused_until_ms > self.timeline.now_ms:
            self.timeline.add(life.paused_until_ms - self.timeline.now_ms, Event(callback, life))
        elif life.alive:
            life.run(callback)

    def _delay_ms(self) -> int:
        rng, faults = self.rng, self.faults
        delay_ms = 1 + int(rng.random() * faults.delay_ms)
        if faults.slow and rng.random() < faults.slow:
            delay_ms *= 1 + int(rng.random() * 99)
        return delay_ms
