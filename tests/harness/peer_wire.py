"""Members of a DLedger group without a core: their transports, on a wire with virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, evolve, field

from rmqpy.dledger.handshake import PeerHello
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import Answered, Received, Reply, Send
from rmqpy.dledger.protocol.messages import (
    RESPONSES,
    HeartBeatRequest,
    Request,
)
from rmqpy.model.errors import NetworkError
from rmqpy.model.ids import Term
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.handshakes import PeerStatus
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.remoting.channel import Reply as Done
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel

MEMBERS: Final = ("n0", "n1", "n2")
ADDRESSES: Final = {name: f"10.0.0.{number}:40911" for number, name in enumerate(MEMBERS)}
BEAT_MS: Final = 500
RPC_TIMEOUT_MS: Final = RaftOptions().rpc_timeout_ms


def hello_of(name: str) -> PeerHello:
    return PeerHello(
        group="g",
        member=name,
        file_size=4096,
        divided_offset=-1,
        old_log_end=-1,
        old_log_digest="",
        end_index=-1,
        peers=ADDRESSES,
    )


@define(eq=False)
class Side:
    """One member: its transport without a core, which answers each request with SUCCESS."""

    wire: Wire
    name: str
    admission: PeerAdmission
    source: str
    """The address from which its connections seem to come."""

    hello: PeerHello
    transport: PeerTransport = field(init=False)
    answers: list[Answered] = field(factory=list)
    received: list[Request] = field(factory=list)
    tickets: int = 0
    takes: Callable[[RemotingCommand], RemotingCommand | None] = lambda _command: None
    """Answers a request in place of the transport."""

    loses: int = 0
    """The number of the next requests to this member that are lost."""

    answer_delay_ms: int = 0

    def __attrs_post_init__(self) -> None:
        self.transport = PeerTransport(
            Membership("g", self.name, MEMBERS),
            RaftOptions(addresses=ADDRESSES, heartbeat_interval_ms=BEAT_MS),
            WireClient(self.wire, self),
            self.wire.scheduler,
            self.answers.append,
            lambda: self.hello,
            lambda: None,
            lambda _name, _takes: None,
            lambda _name: "",
            lambda _address: True,
            self.admission,
            lambda address: (self.name, address) in self.wire.channels,
        )

    def handle(self, channel: MemoryChannel, command: RemotingCommand) -> None:
        received = self.transport.receive(channel, command)
        if isinstance(received, Received):
            self.received.append(received.request)
            answer = RESPONSES[type(received.request)]()
            self.transport.replies.reply(Reply(received.ticket, answer))
        self.transport.replies.write_all()

    def beat(self, to: str) -> bool:
        """Send a heartbeat and return whether it was answered with SUCCESS."""
        self.start_beat(to)
        self.wire.scheduler.advance(50)
        (answered,) = self.beats_answered()
        return answered

    def start_beat(self, to: str) -> None:
        self.tickets += 1
        request = HeartBeatRequest(
            group="g", remote_id=to, local_id=self.name, leader_id=self.name, term=Term(1)
        )
        self.transport.send(Send(to, self.tickets, request))

    def beats_answered(self) -> list[bool]:
        """Return whether the last heartbeat was answered with SUCCESS, if it has a result."""
        answers = [each.response for each in self.answers if each.ticket == self.tickets]
        return [response is not None and response.code == 200 for response in answers]

    def wait(self, delay_ms: int) -> None:
        """Let time pass, with a tick of the driver every 10 ms."""
        for _ in range(delay_ms // 10):
            self.wire.scheduler.advance(10)
            self.transport.handshakes.repeated.tick()

    def status(self, name: str) -> PeerStatus:
        return self.transport.handshakes.links[name].standing

    def ask(self, command: RemotingCommand, host: str) -> RemotingCommand:
        """Return the answer to a request of ``host`` on a new connection."""
        channel = MemoryChannel((host, 4711))
        return self.ask_on(channel, command)

    def ask_on(self, channel: MemoryChannel, command: RemotingCommand) -> RemotingCommand:
        self.handle(channel, command)
        self.wire.scheduler.advance(50)
        return channel.take_one()


@define
class Wire:
    scheduler: ManualScheduler = field(factory=ManualScheduler)
    sides: dict[str, Side] = field(factory=dict)
    channels: dict[tuple[str, str], MemoryChannel] = field(factory=dict)
    """The connection from one member to the address of another."""

    def add(self, name: str, **changes: object) -> Side:
        values: dict[str, object] = {
            "admission": PeerAdmission({"10.0.0.0", "10.0.0.1", "10.0.0.2"}.__contains__),
            "source": ADDRESSES[name].partition(":")[0],
            "hello": hello_of(name),
        }
        side = self.sides[ADDRESSES[name]] = Side(self, name, **(values | changes))  # type: ignore[arg-type]
        return side

    def reconnect(self) -> None:
        """Close all connections; the next requests open new ones."""
        for (_name, address), channel in self.channels.items():
            channel.close()
            self.sides[address].transport.channel_closed(channel)
        self.channels.clear()


@define(eq=False)
class WireClient:
    """The network of one member: one connection to each address, and a delay of a millisecond."""

    wire: Wire
    side: Side

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Done,
        pieces: Sequence[bytes] = (),
    ) -> None:
        if pieces:
            command = evolve(command, body=b"".join(pieces))
        scheduler = self.wire.scheduler
        target = self.wire.sides.get(address)
        if target is None:
            scheduler.call_later(1, lambda: done(None, NetworkError(f"{address} is not reached")))
            return
        if target.loses:
            target.loses -= 1
            fault = NetworkError("no answer in time")
            scheduler.call_later(timeout_ms, lambda: done(None, fault))
            return
        key = (self.side.name, address)
        channel = self.wire.channels.setdefault(key, MemoryChannel((self.side.source, 50000)))

        def arrive() -> None:
            own = target.takes(command)
            if own is not None:
                done(own, None)
                return
            target.handle(channel, command)
            answered()

        def answered(left_ms: int = timeout_ms) -> None:
            answers = channel.take()
            if answers:
                scheduler.call_later(target.answer_delay_ms, lambda: done(answers[0], None))
            elif left_ms:
                scheduler.call_later(1, lambda: answered(left_ms - 1))
            else:
                done(None, NetworkError("no answer"))

        scheduler.call_later(1, arrive)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        raise AssertionError(f"a member sends no oneway requests: {address} {command.code}")
