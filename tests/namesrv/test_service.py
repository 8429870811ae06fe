"""The request handler on its own, and a name server on real sockets."""

from __future__ import annotations

import pytest
from harness.namesrv import NameServerHarness, remark_of

from rmqpy.net.client import RemotingClient
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.net.server.server import RemotingServer
from rmqpy.remoting.bodies import TopicRouteData
from rmqpy.remoting.command import FLAG_RESPONSE, SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel

JAVA_CODES = {
    *(100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304),
    *(311, 312, 313, 318, 319, 322, 327),
}


def test_every_code_is_answered_and_unknown_ones_with_code_3(world: NameServerHarness) -> None:
    for code in range(-5, 1100):
        answer = world.request(code)
        if code in JAVA_CODES:
            assert answer.code != 3, code
        else:
            assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_the_answer_has_the_serialize_type_of_the_request(world: NameServerHarness) -> None:
    request = RemotingCommand(999, serialize_type=SERIALIZE_ROCKETMQ)
    assert world.send(request).serialize_type == SERIALIZE_ROCKETMQ
    assert world.request(999).serialize_type == 0


def test_a_response_from_a_peer_is_dropped(world: NameServerHarness) -> None:
    world.server.handle(world.channel, [RemotingCommand(103, flag=FLAG_RESPONSE)])
    assert world.channel.written == []


def test_an_internal_error_is_answered_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = NameServerHarness()
    monkeypatch.setattr(type(world.server.routes), "route", lambda self, topic: 1 // 0)
    answer = world.request(105, topic="T")
    assert answer.code == 1
    assert remark_of(answer).startswith("ZeroDivisionError")
    assert world.server.counts.failures == 1


def test_an_answer_larger_than_a_frame_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = NameServerHarness()
    monkeypatch.setattr("rmqpy.remoting.frame.MAX_FRAME", 600)
    world.register("10.0.0.1:10911", *(f"Topic{n}" for n in range(60)))
    answer = world.request(206)
    assert answer.code == 1
    assert "larger than a peer accepts" in remark_of(answer)


def test_lists_for_many_connections_do_not_delay_clients_and_brokers(
    world: NameServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqpy.namesrv.server.REPLIES_PER_TURN", 3000)
    for number in range(4):
        world.request(100, namespace="n", key=f"k{number}", value="v" * 500)
    lists = RemotingCommand(219, ext_fields={"namespace": "n"})
    route = RemotingCommand(105, ext_fields={"topic": "T"})
    channels = [MemoryChannel() for _ in range(5)]
    handled = [len(world.server.handle(channel, [lists])) == 0 for channel in channels]
    assert handled == [True, True, False, False, False]
    assert not world.server.handle(channels[4], [route])
    assert channels[4].take_one().code == 17
    assert list(world.server.handle(channels[4], [route, lists])) == [lists]
    world.server.turn_ended()
    assert not world.server.handle(channels[4], [lists])


def test_stop_cancels_the_expiry_scan(world: NameServerHarness) -> None:
    assert world.scheduler.waiting == 1
    world.server.stop()
    assert world.scheduler.waiting == 0
    world.server.stop()


@pytest.mark.parametrize("uvloop", ["off", "auto"])
def test_a_name_server_serves_requests_on_sockets(uvloop: str) -> None:
    world = NameServerHarness()

    async def main(scheduler: AsyncioScheduler) -> None:
        server = RemotingServer(world.server, scheduler)
        host, port = await server.listen("127.0.0.1", 0)
        address = f"{host}:{port}"
        broker, client = RemotingClient(scheduler), RemotingClient(scheduler)
        body = (
            b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,"timestamp":1},'
            b'"topicConfigTable":{"T":{"topicName":"T"}}}}'
        )
        registration = RemotingCommand(
            103,
            ext_fields={
                "brokerName": "broker-a",
                "brokerAddr": "10.0.0.1:10911",
                "clusterName": "C",
                "haServerAddr": "10.0.0.1:10912",
                "brokerId": "0",
            },
            body=body,
        )
        assert (await broker.invoke(address, registration)).code == 0
        query = RemotingCommand(105, ext_fields={"topic": "T"})
        route = TopicRouteData.decode((await client.invoke(address, query)).body)
        assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
        await broker.close()  # The broker is removed with its connection.
        while (await client.invoke(address, query)).code == 0:
            pass
        await client.close()
        await server.close()
        assert scheduler.failure_log.failures == 0

    run(main, uvloop=uvloop)
    assert world.server.counts.failures == 0
