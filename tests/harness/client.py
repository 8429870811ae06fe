"""A cluster in memory: name servers and brokers behind a transport that carries real frames.

``world`` has two name servers and the brokers a (ids 0 and 1) and b (id 0) with topic T, two queues
each. ``world.answers[address]`` may be replaced to make an address misbehave; ``world.asked`` are
all requests as they arrived.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from attrs import define, evolve, field

from rmqpy.client.core.instance import ClientDependencies, ClientInstance, ClientSettings
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.headers import SendMessageResponseHeader

NOW_MS = 1_795_243_128_808

NAME_SERVERS = ("10.0.0.8:9876", "10.0.0.9:9876")

A0, A1, B0 = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"

Answer = Callable[[RemotingCommand], RemotingCommand | None]


class FrozenClock:
    """Stands still unless a test or a time-out moves it."""

    def __init__(self) -> None:
        self.passed_ms = 0

    def now_ms(self) -> int:
        return NOW_MS + self.passed_ms

    def monotonic_ms(self) -> int:
        return self.passed_ms


@define
class ReceivedRequest:
    """One request that reached an address."""

    address: str
    command: RemotingCommand
    timeout_ms: int | None


def through_frames(command: RemotingCommand) -> RemotingCommand:
    (received,) = FrameDecoder().receive(encode_command(command))
    return received


@define
class ClientWorld:
    """The transport, and what is behind it. An answer of None lets the request time out."""

    clock: FrozenClock = field(factory=FrozenClock)
    answers: dict[str, Answer] = field(factory=dict)
    asked: list[ReceivedRequest] = field(factory=list)
    routes: dict[str, TopicRouteData] = field(factory=dict)
    closed: bool = False
    opaque: int = 0
    stored: int = 0

    # -- Transport

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: int = 3_000
    ) -> RemotingCommand:
        request = self._arrived(address, command, timeout_ms)
        await asyncio.sleep(0)
        answer = self.answers.get(address)
        if answer is None:
            raise NetworkError(f"connect to {address}: refused")
        response = answer(request)
        if response is None:
            self.clock.passed_ms += timeout_ms
            raise NetworkError(f"{address} did not answer within {timeout_ms} ms")
        received = through_frames(response)
        assert received.opaque == request.opaque and received.is_response
        return received

    async def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        self._arrived(address, evolve(command, flag=2), None)

    async def close(self) -> None:
        self.closed = True

    def _arrived(
        self, address: str, command: RemotingCommand, timeout_ms: int | None
    ) -> RemotingCommand:
        self.opaque += 1
        request = through_frames(evolve(command, opaque=self.opaque))
        self.asked.append(ReceivedRequest(address, request, timeout_ms))
        return request

    # -- what is behind it

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
        return self.stored_at(request)

    def stored_at(self, request: RemotingCommand, code: int = 0) -> RemotingCommand:
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

    def instance(self, **settings: Any) -> ClientInstance:
        return ClientInstance(
            ClientSettings(name_servers=NAME_SERVERS, instance_name="i", **settings),
            ClientDependencies(
                transport=self,
                clock=self.clock,
                randomness=random.Random(7),
                client_ip="10.0.0.7",
                process_id=0x12345,
                marker=bytes.fromhex("30946e09"),
            ),
        )

    def answer(self, address: str, code: int, header: CommandHeader | None = None) -> None:
        """From now on ``address`` answers every request (but heartbeats) with ``code``."""

        def answer(request: RemotingCommand) -> RemotingCommand:
            if request.code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
                return RemotingCommand.response_to(request)
            return RemotingCommand.response_to(request, code, "as told", header)

        self.answers[address] = answer

    def requests(self, *codes: int) -> list[ReceivedRequest]:
        return [each for each in self.asked if each.command.code in codes]

    def addresses(self, *codes: int) -> list[str]:
        return [each.address for each in self.requests(*codes)]


def topic_route(**queue_data: Any) -> TopicRouteData:
    """Brokers a and b with ``queue_data`` for both."""
    data = {"read_queue_nums": 2, "write_queue_nums": 2, "perm": 6} | queue_data
    return TopicRouteData(
        queue_datas=[QueueData("b", **data), QueueData("a", **data)],
        broker_datas=[BrokerData("c", "a", {0: A0, 1: A1}), BrokerData("c", "b", {0: B0})],
    )
