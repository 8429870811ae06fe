"""A cluster in memory: name servers and brokers on a transport that carries real frames.

``ClientWorld.cluster()`` has two name servers and the brokers a (ids 0 and 1) and b (id 0) with
topic T, two queues each. Replace ``world.answers[address]`` to make an address misbehave;
``world.received`` has all requests in the order of their arrival.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, Self, TypeVar

from attrs import define, evolve, field

from rmqpy.client.core.instance import ClientDependencies, ClientInstance, ClientSettings
from rmqpy.codec.message import encode_message, set_offsets
from rmqpy.codec.properties import encode_properties
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConnectFailedError, RequestTimeoutError
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.headers import SendMessageResponseHeader
from rmqpy.remoting.request_template import Request, command_of

NOW_MS = 1_795_243_128_808

NAME_SERVERS = ("10.0.0.8:9876", "10.0.0.9:9876")

A0, A1, B0 = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"

SETTINGS = ClientSettings(name_servers=NAME_SERVERS, instance_name="i")

T = TypeVar("T")


class Run(Protocol):
    """The fixture ``run``: it runs a coroutine to completion, with a deadline."""

    def __call__(self, main: Coroutine[object, object, T], /) -> T: ...


Answer = Callable[[RemotingCommand], RemotingCommand | None]


class FrozenClock:
    """A clock that only a test or a time-out advances."""

    def __init__(self) -> None:
        self.passed_ms = 0

    def now_ms(self) -> int:
        return NOW_MS + self.passed_ms

    def monotonic_ms(self) -> int:
        return self.passed_ms


@define
class ReceivedRequest:
    """A request that reached an address; a oneway request has no timeout."""

    address: str
    command: RemotingCommand
    timeout_ms: int | None


def through_frames(command: RemotingCommand) -> RemotingCommand:
    """Return ``command`` as the receiver of its frame decodes it."""
    (received,) = FrameDecoder().receive(encode_command(command))
    return received


@define
class ClientWorld:
    """The transport and its servers. An answer of None lets the request time out."""

    clock: FrozenClock = field(factory=FrozenClock)
    answers: dict[str, Answer] = field(factory=dict)
    received: list[ReceivedRequest] = field(factory=list)
    routes: dict[str, TopicRouteData] = field(factory=dict)
    closed: bool = False
    pauses: list[int] = field(factory=list)
    opaque: int = 0
    stored: int = 0

    @classmethod
    def cluster(cls) -> Self:
        """Return the cluster that the text of the module describes."""
        world = cls()
        for address in NAME_SERVERS:
            world.answers[address] = world.name_server
        for address in (A0, A1, B0):
            world.answers[address] = world.broker
        world.routes["T"] = topic_route()
        return world

    # -- Transport

    async def invoke(
        self, address: str, request: Request, timeout_ms: int = 3_000
    ) -> RemotingCommand:
        command = self._arrived(address, command_of(request), timeout_ms)
        await asyncio.sleep(0)
        answer = self.answers.get(address)
        if answer is None:
            raise ConnectFailedError(f"connect to {address}: refused")
        response = answer(command)
        if response is None:
            self.clock.passed_ms += timeout_ms
            raise RequestTimeoutError(f"{address} did not answer within {timeout_ms} ms")
        decoded = through_frames(response)
        assert decoded.opaque == command.opaque and decoded.is_response
        return decoded

    def invoke_ahead(
        self, address: str, request: Request, timeout_ms: int
    ) -> Awaitable[RemotingCommand]:
        return asyncio.ensure_future(self.invoke(address, request, timeout_ms))

    async def invoke_oneway(self, address: str, request: Request) -> None:
        self._arrived(address, evolve(command_of(request), flag=2), None)

    async def close(self) -> None:
        self.closed = True

    async def pause(self, delay_ms: int) -> None:
        self.pauses.append(delay_ms)
        self.clock.passed_ms += delay_ms
        await asyncio.sleep(0)

    def _arrived(
        self, address: str, command: RemotingCommand, timeout_ms: int | None
    ) -> RemotingCommand:
        self.opaque += 1
        request = through_frames(evolve(command, opaque=self.opaque))
        self.received.append(ReceivedRequest(address, request, timeout_ms))
        return request

    # -- the servers

    def name_server(self, request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        route = self.routes.get(request.ext_fields["topic"])
        if route is None:
            return RemotingCommand.response_to(
                request, ResponseCode.TOPIC_NOT_EXIST, f"No topic route of {request.ext_fields}"
            )
        return RemotingCommand.response_to(request, body=route.encode())

    def broker(self, request: RemotingCommand) -> RemotingCommand:
        if request.code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            return RemotingCommand.response_to(request)
        assert request.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        return self.store(request)

    def store(self, request: RemotingCommand, code: int = 0) -> RemotingCommand:
        self.stored += 1
        header = SendMessageResponseHeader(
            msg_id=f"0A00000100002A9F{self.stored:016X}",
            queue_id=int(request.ext_fields["e"]),
            queue_offset=100 + self.stored,
            trace_on=True,
            msg_region="DefaultRegion",
        )
        return RemotingCommand.response_to(request, code, header=header)

    # -- for tests

    def instance(self, settings: ClientSettings = SETTINGS) -> ClientInstance:
        return ClientInstance(
            settings,
            ClientDependencies(
                transport=self,
                clock=self.clock,
                randomness=random.Random(7),
                client_ip="10.0.0.7",
                process_id=0x12345,
                marker=bytes.fromhex("30946e09"),
                pause=self.pause,
            ),
        )

    def answer(self, address: str, code: int, header: CommandHeader | None = None) -> None:
        """Make ``address`` answer every request except heartbeats with ``code``."""

        def answer(request: RemotingCommand) -> RemotingCommand:
            if request.code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
                return RemotingCommand.response_to(request)
            return RemotingCommand.response_to(request, code, "as planned", header)

        self.answers[address] = answer

    def requests(self, *codes: int) -> list[ReceivedRequest]:
        """Return the received requests with one of ``codes``."""
        return [each for each in self.received if each.command.code in codes]

    def addresses(self, *codes: int) -> list[str]:
        """Return the addresses that received requests with one of ``codes``."""
        return [each.address for each in self.requests(*codes)]


def topic_route(
    *, read_queue_nums: int = 2, write_queue_nums: int = 2, perm: int = 6
) -> TopicRouteData:
    """Return a route to the brokers a and b, with the same queues at both."""

    def queues(broker: str) -> QueueData:
        return QueueData(broker, read_queue_nums, write_queue_nums, perm)

    return TopicRouteData(
        queue_datas=[queues("b"), queues("a")],
        broker_datas=[BrokerData("c", "a", {0: A0, 1: A1}), BrokerData("c", "b", {0: B0})],
    )


def encode_record(
    queue_offset: int, body: bytes = b"body", sys_flag: int = 0, **properties: str
) -> bytes:
    """Return a stored record of topic T in queue 0 at 10.0.0.1:10911."""
    draft = OutgoingMessage(
        topic=b"T",
        queue_id=0,
        body=body,
        properties=encode_properties(properties),
        sys_flag=sys_flag,
        born_timestamp_ms=NOW_MS,
        born_host=(bytes([10, 0, 0, 7]), 1234),
        store_host=(bytes([10, 0, 0, 1]), 10911),
    )
    raw = encode_message(draft)
    set_offsets(raw, 0, queue_offset, 1000 * queue_offset, NOW_MS + 1)
    return bytes(raw)
