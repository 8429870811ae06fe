"""A client instance: its name servers, routes and heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from attrs import evolve
from harness.client import A0, A1, B0, NAME_SERVERS, SETTINGS, ClientWorld, Run, topic_route

from rmqpy.client.core.instance import split_name_servers
from rmqpy.client.core.server_requests import ServerRequestHandler
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import ConfigError, NetworkError, RequestRejectedError
from rmqpy.remoting.bodies import CLUSTERING, CONSUME_ACTIVELY, BrokerData, ConsumerData
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
HEARTBEAT = RequestCode.HEART_BEAT


def test_one_name_server_is_kept_while_it_answers(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        for _ in range(3):
            await instance.invoke_namesrv(ROUTE, None)

    world.answers = dict.fromkeys(world.answers, RemotingCommand.response_to)
    run(main())
    assert len(set(world.addresses(ROUTE))) == 1


def test_the_next_name_server_takes_over_and_is_kept(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        await instance.route("T")
        (first,) = world.addresses(ROUTE)
        working = world.answers.pop(first)
        await instance.refresh_routes()
        world.answers[first] = working
        await instance.refresh_routes()
        (second,) = set(NAME_SERVERS) - {first}
        assert world.addresses(ROUTE) == [first, first, second, second]

    run(main())


def test_the_error_names_all_name_servers_that_do_not_answer(world: ClientWorld, run: Run) -> None:
    world.answers.clear()
    with pytest.raises(NetworkError, match="no name server answers") as fault:
        run(world.instance().route("T"))
    assert "10.0.0.8:9876: connect" in str(fault.value)
    assert "10.0.0.9:9876: connect" in str(fault.value)


def test_concurrent_callers_share_one_request_of_a_route(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        await asyncio.gather(*(instance.route("T") for _ in range(5)))

    run(main())
    assert len(world.requests(ROUTE)) == 1
    assert world.received[0].command.ext_fields == {"topic": "T"}


def test_the_route_of_an_unknown_topic_is_refused(world: ClientWorld, run: Run) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        run(world.instance().route("Unknown"))
    assert refused.value.code == 17


def test_a_suspect_route_is_requested_again_after_a_pause(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        await instance.route("T")
        world.routes["T"] = topic_route(write_queue_nums=9)
        instance.invalidate_route("T")
        assert (await instance.route("T")).queue_datas[0].write_queue_nums == 2
        world.clock.passed_ms += 500
        assert (await instance.route("T")).queue_datas[0].write_queue_nums == 9
        world.clock.passed_ms += 5000
        await instance.route("T")

    run(main())
    assert len(world.requests(ROUTE)) == 2


def test_the_last_route_is_kept_while_no_name_server_answers(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        before = await instance.route("T")
        for address in NAME_SERVERS:
            del world.answers[address]
        await instance.refresh_routes()
        instance.invalidate_route("T")
        world.clock.passed_ms += 500
        assert await instance.route("T") is before

    run(main())


def test_the_number_of_routes_is_bounded(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance(evolve(SETTINGS, topics_max=2))
        for topic in ("T", "U", "V", "U", "T"):
            world.routes[topic] = topic_route()
            await instance.route(topic)

    run(main())
    assert [each.command.ext_fields["topic"] for each in world.requests(ROUTE)] == list("TUVT")


def test_the_address_of_a_new_broker_is_found(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        await instance.route("T")
        world.clock.passed_ms += 500
        with pytest.raises(NetworkError, match="the broker z is in no route of T"):
            await instance.address("T", "z")
        world.routes["T"].broker_datas.append(BrokerData("c", "z", {3: "10.0.0.4:10911"}))
        world.clock.passed_ms += 500
        assert await instance.address("T", "z") == "10.0.0.4:10911"
        assert await instance.address("T", "a", 1) == A1

    run(main())


def test_heartbeats_of_producers_go_to_masters(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        instance.join_producer("PID_probe")
        await instance.send_heartbeats()
        assert world.requests(HEARTBEAT) == []
        await instance.route("T")
        await instance.send_heartbeats()

    run(main())
    assert world.addresses(HEARTBEAT) == [A0, B0]
    assert world.requests(HEARTBEAT)[0].command.body == (
        b'{"clientID":"10.0.0.7@i","consumerDataSet":[],'
        b'"producerDataSet":[{"groupName":"PID_probe"}]}'
    )


def test_heartbeats_of_consumers_go_to_masters_and_slaves(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        instance.join_consumer("CID", lambda: ConsumerData("CID", CONSUME_ACTIVELY, CLUSTERING))
        await instance.route("T")
        del world.answers[A0]
        await instance.send_heartbeats()
        world.received.clear()
        await instance.close()

    run(main())
    assert world.closed
    unregister = world.requests(RequestCode.UNREGISTER_CLIENT)
    assert [each.address for each in unregister] == [
        A1,
        B0,
    ]  # the brokers that have received a heartbeat
    assert unregister[0].command.ext_fields == {"clientID": "10.0.0.7@i", "consumerGroup": "CID"}


def test_brokers_without_a_route_are_forgotten(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        instance.join_producer("P")
        await instance.route("T")
        world.routes["T"].broker_datas.pop()
        await instance.refresh_routes()
        await instance.send_heartbeats()

    run(main())
    assert world.addresses(HEARTBEAT) == [A0]


def test_background_tasks_send_heartbeats_and_refresh_routes(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance(evolve(SETTINGS, route_refresh_ms=1, heartbeat_ms=60_000))
        instance.join_producer("P")
        instance.start()
        await instance.route("T")
        while not world.requests(HEARTBEAT) or len(world.requests(ROUTE)) < 3:
            await asyncio.sleep(0.001)
        await instance.close()
        count = len(world.received)
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert len(world.received) == count

    run(main())
    assert set(world.addresses(HEARTBEAT)) == {A0, B0}


def test_a_group_can_join_only_once(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        instance.join_producer("P")
        with pytest.raises(ConfigError, match="producer group P is already in use"):
            instance.join_producer("P")
        await instance.leave_producer("P")
        instance.join_producer("P")

    run(main())


@pytest.mark.parametrize("servers", ["", "host", "a:1;b", [], ["a:0"]])
def test_invalid_name_servers_are_refused(servers: str | Sequence[str]) -> None:
    with pytest.raises(ConfigError, match="give host:port"):
        split_name_servers(servers)


def test_name_servers_are_a_string_or_a_sequence() -> None:
    assert split_name_servers("a:1; b:2;") == ("a:1", "b:2")
    assert split_name_servers(["a:1", "[::1]:2"]) == ("a:1", "[::1]:2")


def test_pushed_requests_for_other_groups_are_refused() -> None:
    channel = MemoryChannel()
    foreign = RemotingCommand(code=307, opaque=5, ext_fields={"consumerGroup": "G"})
    pushed = ServerRequestHandler()
    pushed.handle(channel, [RemotingCommand(code=40, flag=2), foreign])
    response = channel.take_one()
    assert (response.code, response.opaque) == (1, 5)
    assert response.remark == "the group G is not one of this client's"
    pushed.handle(channel, [RemotingCommand(code=326, opaque=6)])
    response = channel.take_one()
    assert (response.code, response.remark) == (3, " request type 326 not supported")


def test_the_handler_of_a_group_answers_its_pushed_requests(run: Run) -> None:
    async def main() -> None:
        async def answer(_channel: Channel, request: RemotingCommand) -> bytes | None:
            if request.ext_fields["clientId"] == "none":
                raise ValueError("planted")
            return b"{}"

        channel = MemoryChannel()
        pushed = ServerRequestHandler()
        pushed.answer("G", {307: answer})
        for client in ("c", "none"):
            fields = {"consumerGroup": "G", "clientId": client}
            pushed.handle(channel, [RemotingCommand(code=307, ext_fields=fields)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            response = channel.take_one()
            expected = (0, None, b"{}") if client == "c" else (1, "ValueError('planted')", b"")
            assert (response.code, response.remark, response.body) == expected
        pushed.forget("G", [307])
        pushed.handle(channel, [RemotingCommand(code=307, ext_fields=fields)])
        assert channel.take_one().code == 1
        await pushed.close()

    run(main())
