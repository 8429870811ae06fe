"""A client and a server over a socket: each operation once, and a failover of name servers."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from harness.client import Run, encode_record

from rmqpy.client import ClientInstance, ClientSettings, Message, Producer, PullConsumer
from rmqpy.model.codes import RequestCode
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.server import RemotingServer
from rmqpy.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import PullMessageResponseHeader, SendMessageResponseHeader


class SmallServer:
    """A name server and broker in one, with a fixed route and one record; it counts requests."""

    def __init__(self, record: bytes) -> None:
        self.address = ""
        self.codes: list[int] = []
        self.closed = 0
        self._record = record

    def handle(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            self.codes.append(command.code)
            if not command.is_oneway:
                channel.write(encode_command(self._answer(command)))

    def turn_ended(self) -> None:
        pass

    def channel_closed(self, channel: Channel) -> None:
        self.closed += 1

    def _answer(self, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = TopicRouteData(
                queue_datas=[QueueData("a", 1, 1, 6)],
                broker_datas=[BrokerData("c", "a", {0: self.address})],
            )
            return RemotingCommand.response_to(request, body=route.encode())
        if request.code == RequestCode.SEND_MESSAGE_V2:
            header = SendMessageResponseHeader(msg_id="M", queue_id=0, queue_offset=5)
            return RemotingCommand.response_to(request, header=header)
        if request.code == RequestCode.PULL_MESSAGE:
            found = PullMessageResponseHeader(
                suggest_which_broker_id=0, next_begin_offset=6, min_offset=0, max_offset=6
            )
            return RemotingCommand.response_to(request, header=found, body=self._record)
        return RemotingCommand.response_to(request)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_client_sends_pulls_and_closes_over_a_socket(run: Run) -> None:
    peer = SmallServer(encode_record(5, b"five"))

    async def main() -> None:
        scheduler = AsyncioScheduler()
        server = RemotingServer(peer, scheduler)
        host, port = await server.listen("127.0.0.1", 0)
        peer.address = f"{host}:{port}"
        dead = f"127.0.0.1:{closed_port()}"
        instance = await ClientInstance.open(ClientSettings(name_servers=[dead, peer.address]))
        assert instance.client_id.startswith("127.0.0.1@")
        async with (
            Producer("P", instance=instance) as producer,
            PullConsumer("C", instance=instance) as consumer,
        ):
            result = await producer.send(Message(topic="T", body=b"five"))
            assert (result.queue.broker_name, result.queue_offset) == ("a", 5)
            pulled = await consumer.pull(result.queue, result.queue_offset)
            assert [each.body for each in pulled.messages] == [b"five"]
            await producer.send_oneway(Message(topic="T", body=b"x"))
            await instance.send_heartbeats()
        await instance.close()
        async with Producer("Q", peer.address) as producer:
            await producer.send(Message(topic="T", body=b"x"))
        await server.close()
        await scheduler.close()

    run(main())
    assert peer.codes.count(RequestCode.SEND_MESSAGE_V2) == 3
    assert RequestCode.HEART_BEAT in peer.codes
    # The two that share a client unregister; the last producer may not have sent a heartbeat.
    assert peer.codes.count(RequestCode.UNREGISTER_CLIENT) in (2, 3)
    assert peer.closed == 2
