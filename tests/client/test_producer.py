"""Sends: the request, retries, time-outs, batches, and new topics."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Sequence

import pytest
from attrs import evolve
from harness.client import A0, A1, B0, ClientWorld, Run, T, topic_route

from rmqpy.client import (
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    SendResult,
    SendStatus,
    split_batch,
)
from rmqpy.client.core.message import plain_batch_body, property_string
from rmqpy.client.errors import ClosedError
from rmqpy.codec.message import BatchItem, batch_records, encode_batch_body
from rmqpy.codec.properties import decode_properties
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import ConfigError, NetworkError, RequestRejectedError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import SendMessageResponseHeader

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
HELLO = Message(topic="T", body=b"hello")
DEFAULTS = ProducerSettings()

JAVA_FIELDS = {
    "a": "PID_probe",
    "b": "Normal",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1795243128808",
    "h": "0",
    "i": "UNIQ_KEY\x01FD00000000000000000000000000000273F94E0E2F2A686C4FE80000"
    "\x02WAIT\x01true\x02seq\x010",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "golden",
}
"""The fields that Java 4.9.7 sends for a message of topic Normal with the user property seq=0."""


async def with_producer(
    world: ClientWorld,
    use: Callable[[Producer], Coroutine[object, object, T]],
    settings: ProducerSettings = DEFAULTS,
) -> T:
    async with Producer("PID_probe", settings=settings, instance=world.instance()) as producer:
        return await use(producer)


async def send(
    world: ClientWorld, message: Message = HELLO, settings: ProducerSettings = DEFAULTS
) -> SendResult:
    return await with_producer(world, lambda producer: producer.send(message), settings)


async def send_batch(
    world: ClientWorld, messages: Sequence[Message], settings: ProducerSettings = DEFAULTS
) -> SendResult:
    return await with_producer(world, lambda producer: producer.send_batch(messages), settings)


def brokers(world: ClientWorld) -> list[str]:
    """Return the broker of each attempt."""
    names = {A0: "a", A1: "a", B0: "b"}
    return [names[address] for address in world.addresses(SEND, BATCH)]


def test_the_request_of_a_send_has_javas_fields(world: ClientWorld, run: Run) -> None:
    route = topic_route()
    for queue_data in route.queue_datas:
        queue_data.broker_name = "golden"
    for broker_data in route.broker_datas:
        broker_data.broker_name = "golden"
    world.routes["Normal"] = route
    queue = MessageQueue("Normal", "golden", 0)
    message = Message(topic="Normal", body=b"b", properties={"seq": "0"})
    run(with_producer(world, lambda producer: producer.send(message, queue)))
    (received,) = world.requests(SEND)
    fields = dict(received.command.ext_fields)
    java = dict(JAVA_FIELDS)
    ours, theirs = (decode_properties(each.pop("i").encode()) for each in (fields, java))
    assert fields == java
    assert ours.keys() == theirs.keys()
    assert ours | {"UNIQ_KEY": ""} == theirs | {"UNIQ_KEY": ""}
    assert received.command.version == 407
    assert received.command.language == 3


def test_the_result_identifies_the_stored_message(world: ClientWorld, run: Run) -> None:
    result = run(send(world))
    (received,) = world.requests(SEND)
    assert result.status is SendStatus.SEND_OK
    assert decode_properties(received.command.ext_fields["i"].encode())["UNIQ_KEY"] == result.msg_id
    assert result.msg_id.startswith("0A000007234530946E09")
    assert result.offset_msg_id == "0A00000100002A9F0000000000000001"
    assert result.queue.queue_id == int(received.command.ext_fields["e"])
    assert result.queue.broker_name == received.command.ext_fields["n"]
    assert result.queue_offset == 101


def test_queues_are_used_in_turn(world: ClientWorld, run: Run) -> None:
    async def use(producer: Producer) -> list[tuple[str, int]]:
        results = [await producer.send(HELLO) for _ in range(8)]
        return [(result.queue.broker_name, result.queue.queue_id) for result in results]

    used = run(with_producer(world, use))
    assert used[:4] == used[4:]
    assert sorted(used[:4]) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


@pytest.mark.parametrize("code", [1, 16, 17, 204, 205])
def test_retryable_codes_are_retried_at_another_broker(
    world: ClientWorld, run: Run, code: int
) -> None:
    world.answer(A0, code)
    world.answer(B0, code)
    with pytest.raises(RequestRejectedError) as refused:
        run(send(world))
    assert refused.value.code == code
    assert "after 3 attempts" in str(refused.value)
    assert "as planned" in str(refused.value)
    used = brokers(world)
    assert used in (["a", "b", "a"], ["b", "a", "b"])


def test_a_broker_without_a_leader_is_tried_again_until_the_time_out(
    world: ClientWorld, run: Run
) -> None:
    def elected(request: RemotingCommand) -> RemotingCommand:
        if world.clock.passed_ms > 2_000:
            return world.store(request)
        return RemotingCommand.response_to(request, 14, "an election")

    world.answers[A0] = world.answers[B0] = elected
    with pytest.raises(RequestRejectedError, match=r"\[14\] .*after 1 attempt"):
        run(send(world, settings=evolve(DEFAULTS, retries=0)))
    world.received.clear()
    assert run(send(world)).status is SendStatus.SEND_OK
    assert len(brokers(world)) > 1 + DEFAULTS.retries
    assert len(world.pauses) >= len(brokers(world)) - 2, "only another broker is tried at once"


@pytest.mark.parametrize("code", [2, 13, 26, 999])
def test_other_codes_are_not_retried(world: ClientWorld, run: Run, code: int) -> None:
    world.answer(A0, code)
    world.answer(B0, code)
    with pytest.raises(RequestRejectedError, match="as planned") as refused:
        run(send(world))
    assert refused.value.code == code
    assert len(world.requests(SEND)) == 1


def test_an_unreachable_broker_is_skipped(world: ClientWorld, run: Run) -> None:
    del world.answers[A0]

    async def use(producer: Producer) -> None:
        for _ in range(6):
            assert (await producer.send(HELLO)).queue.broker_name == "b"

    run(with_producer(world, use))
    assert "a" in brokers(world)


def test_a_send_fails_if_all_brokers_are_unreachable(world: ClientWorld, run: Run) -> None:
    del world.answers[A0], world.answers[B0]
    with pytest.raises(NetworkError, match=r"after \d+ attempts in 3000 ms, .*refused"):
        run(send(world))


def test_all_attempts_have_the_same_unique_id(world: ClientWorld, run: Run) -> None:
    world.answer(A0, 1)
    world.answer(B0, 1)
    with pytest.raises(RequestRejectedError):
        run(send(world))
    assert len({each.command.ext_fields["i"] for each in world.requests(SEND)}) == 1
    assert len({each.command.opaque for each in world.requests(SEND)}) == 3


def test_attempts_share_the_time_out(world: ClientWorld, run: Run) -> None:
    delay_ms = 1_000

    def slow(request: RemotingCommand) -> RemotingCommand:
        world.clock.passed_ms += delay_ms
        return RemotingCommand.response_to(request, 1, "slow")

    world.answers[A0] = world.answers[B0] = slow
    with pytest.raises(RequestRejectedError):
        run(send(world))
    assert [each.timeout_ms for each in world.requests(SEND)] == [
        3000,
        2000,
        1000 - sum(world.pauses),
    ]
    world.received.clear()
    delay_ms = 2_999
    with pytest.raises(RequestRejectedError, match="after 2 attempts in 5998 ms"):
        run(send(world))
    assert [each.timeout_ms for each in world.requests(SEND)] == [3000, 1]


def test_a_missing_answer_uses_up_the_time_out(world: ClientWorld, run: Run) -> None:
    world.answers[A0] = world.answers[B0] = lambda request: None
    with pytest.raises(NetworkError, match=r"after 1 attempt in 3000 ms, .*did not answer"):
        run(send(world))


def test_a_send_can_have_its_own_time_out(world: ClientWorld, run: Run) -> None:
    run(with_producer(world, lambda producer: producer.send(HELLO, timeout_ms=77)))
    assert world.requests(SEND)[0].timeout_ms == 77


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_warning_is_a_result_unless_it_is_retried(
    world: ClientWorld, run: Run, code: int, status: SendStatus
) -> None:
    world.answers[A0] = world.answers[B0] = lambda request: world.store(request, code)
    assert run(send(world)).status is status
    assert world.stored == 1
    assert run(send(world, settings=ProducerSettings(retry_warnings=True))).status is status
    assert world.stored == 4


def test_an_earlier_warning_is_returned_instead_of_a_later_error(
    world: ClientWorld, run: Run
) -> None:
    warned: list[RemotingCommand] = []

    def warn_once(request: RemotingCommand) -> RemotingCommand:
        if warned:
            return RemotingCommand.response_to(request, 1, "no")
        warned.append(request)
        return world.store(request, 10)

    world.answers[A0] = world.answers[B0] = warn_once
    result = run(send(world, settings=ProducerSettings(retry_warnings=True)))
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT


def test_a_send_to_a_chosen_queue_is_not_retried(world: ClientWorld, run: Run) -> None:
    world.answer(A0, 1)
    queue = MessageQueue("T", "a", 1)
    with pytest.raises(RequestRejectedError, match="after 1 attempt"):
        run(with_producer(world, lambda producer: producer.send(HELLO, queue)))
    assert world.requests(SEND)[0].command.ext_fields["e"] == "1"


def test_a_queue_of_another_topic_is_refused(world: ClientWorld, run: Run) -> None:
    queue = MessageQueue("U", "a", 1)
    with pytest.raises(RequestRejectedError, match="the queue belongs to U"):
        run(with_producer(world, lambda producer: producer.send(HELLO, queue)))


def test_a_broker_without_a_master_is_not_used(world: ClientWorld, run: Run) -> None:
    for broker in world.routes["T"].broker_datas:
        broker.broker_addrs.pop(0)
    with pytest.raises(NetworkError, match="no broker accepts messages of T"):
        run(send(world))
    queue = MessageQueue("T", "a", 0)
    with pytest.raises(NetworkError, match="the broker a has no master at the moment"):
        run(with_producer(world, lambda producer: producer.send(HELLO, queue)))


def test_a_new_master_is_found_immediately(world: ClientWorld, run: Run) -> None:
    """The route is requested again after a failure, not only every 30 s."""
    del world.routes["T"].queue_datas[0], world.routes["T"].broker_datas[1]  # broker b

    async def use(producer: Producer) -> str:
        await producer.send(HELLO)
        del world.answers[A0]
        with pytest.raises(NetworkError):
            await producer.send(HELLO)
        world.routes["T"].broker_datas[0].broker_addrs = {0: A1}
        world.clock.passed_ms += 500
        await producer.send(HELLO)
        return str(world.addresses(SEND)[-1])

    assert run(with_producer(world, use)) == A1


def test_a_new_topic_uses_the_template_until_it_has_a_route(world: ClientWorld, run: Run) -> None:
    world.routes["TBW102"] = topic_route(read_queue_nums=8, write_queue_nums=8, perm=7)
    new = Message(topic="New", body=b"x")

    async def use(producer: Producer) -> list[int]:
        first = [await producer.send(new) for _ in range(8)]
        assert {result.queue.queue_id for result in first} == {0, 1, 2, 3}
        world.routes["New"] = topic_route(read_queue_nums=1, write_queue_nums=1)
        world.clock.passed_ms += 500
        return [(await producer.send(new)).queue.queue_id for _ in range(3)]

    assert run(with_producer(world, use)) == [0, 0, 0]


def test_an_unknown_topic_without_a_template_is_refused(world: ClientWorld, run: Run) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        run(send(world, Message(topic="New", body=b"x")))
    assert refused.value.code == 17
    assert "New" in refused.value.remark


def test_long_bodies_are_compressed(world: ClientWorld, run: Run) -> None:
    body = b"abcd" * 1024
    run(send(world, Message(topic="T", body=body)))
    run(send(world, Message(topic="T", body=body[1:])))
    run(send(world, Message(topic="T", body=body), ProducerSettings(compress_from_bytes=None)))
    packed, short, plain = (each.command for each in world.requests(SEND))
    assert packed.ext_fields["f"] == "769"
    assert packed.body == zlib.compress(body, 5)
    assert (short.ext_fields["f"], short.body) == ("0", body[1:])
    assert (plain.ext_fields["f"], plain.body) == ("0", body)


def test_a_large_body_is_refused_before_anything_is_sent(world: ClientWorld, run: Run) -> None:
    with pytest.raises(RequestRejectedError, match="5 bytes, more than 4"):
        run(send(world, settings=ProducerSettings(body_bytes_max=4)))
    assert world.received == []


def test_a_oneway_send_has_no_answer(world: ClientWorld, run: Run) -> None:
    run(with_producer(world, lambda producer: producer.send_oneway(HELLO)))
    (received,) = world.requests(SEND)
    assert received.command.is_oneway
    assert received.timeout_ms is None


def test_a_batch_is_sent_as_one_request(world: ClientWorld, run: Run) -> None:
    messages = [
        Message(topic="T", body=b"b1", tags="TagA", flag=7),
        Message(topic="T", body=b"b" * 5000),
    ]
    world.answers[A0] = world.answers[B0] = lambda request: RemotingCommand.response_to(
        request,
        header=SendMessageResponseHeader(msg_id="X,Y", queue_id=1, queue_offset=40),
    )
    result = run(send_batch(world, messages))
    (received,) = world.requests(BATCH)
    assert received.command.ext_fields["m"] == "true"
    assert received.command.ext_fields["i"] == "WAIT\x01true"
    assert received.command.ext_fields["f"] == "0"  # Batches are never compressed.
    items = batch_records(received.command.body)
    assert [bytes(item.body) for item in items] == [b"b1", b"b" * 5000]
    assert [item.flag for item in items] == [7, 0]
    properties = [decode_properties(item.properties) for item in items]
    assert properties[0]["TAGS"] == "TagA"
    assert result.msg_id == ",".join(each["UNIQ_KEY"] for each in properties)
    assert (result.offset_msg_id, result.queue_offset, result.queue.queue_id) == ("X,Y", 40, 1)
    assert encode_batch_body(items) == received.command.body


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (evolve(HELLO, topic="U"), "one topic; this one has T and U"),
        (evolve(HELLO, delay_level=1), "delayed"),
        (evolve(HELLO, wait_store_ok=False), "wait_store_ok"),
        (evolve(HELLO, body=b""), "empty"),
        (evolve(HELLO, body=b"x" * 101), "more than 100"),
        (
            evolve(HELLO, body=b"x" * 100),
            "the batch has 2.. bytes, more than 100; send it in parts",
        ),
    ],
)
def test_an_invalid_batch_is_refused(
    world: ClientWorld, run: Run, second: Message, reason: str
) -> None:
    with pytest.raises(RequestRejectedError, match=reason) as refused:
        run(send_batch(world, [HELLO, second], ProducerSettings(body_bytes_max=100)))
    assert refused.value.code == 13
    assert world.received == []


def test_plain_messages_of_a_batch_are_encoded_like_others() -> None:
    bodies = [b"a", b"bb", b"x" * 200, b"a"]
    messages = [Message(topic="T", body=body) for body in bodies]
    start, ends = "F" * 28, "0001,0002,0003,0004"
    expected = [
        BatchItem(0, body, property_string(evolve(message), start + end).encode())
        for body, message, end in zip(bodies, messages, ends.split(","), strict=True)
    ]
    assert plain_batch_body(messages, start, ends, 200) == encode_batch_body(expected)
    others = [
        Message(topic="T", body=b"a", keys="k"),
        Message(topic="T", body=b"a", tags="t"),
        Message(topic="T", body=b"a", properties={"p": "v"}),
        Message(topic="T", body=b"a", delay_level=1),
        Message(topic="T", body=b"a", wait_store_ok=False),
        Message(topic="T", body=b"a", flag=1),
        Message(topic="U", body=b"a"),
        Message(topic="T", body=bytearray(b"a")),  # type: ignore[arg-type]
        Message(topic="T", body=b""),
        Message(topic="T", body=b"x" * 201),
    ]
    for other in others:
        assert plain_batch_body([*messages[1:], other], start, ends, 200) is None
        assert plain_batch_body([other, *messages[1:]], start, ends, 200) is None


def test_each_batch_says_whether_it_waits_for_the_disk(world: ClientWorld, run: Run) -> None:
    waits = [True, False, True]

    async def send(producer: Producer) -> None:
        for wait in waits:
            await producer.send_batch([Message(topic="T", body=b"b", wait_store_ok=wait)])
            await producer.send(Message(topic="T", body=b"b", wait_store_ok=wait))

    run(with_producer(world, send))
    said = [each.command.ext_fields["i"] for each in world.requests(BATCH)]
    assert said == ["WAIT\x01true", "WAIT\x01false", "WAIT\x01true"]
    alone = [each.command.ext_fields["i"] for each in world.requests(SEND)]
    assert [text.partition("WAIT")[2] for text in alone] == ["\x01true", "\x01false", "\x01true"]


def test_empty_batches_and_batches_of_retries_are_refused(world: ClientWorld, run: Run) -> None:
    retry = [Message(topic="%RETRY%g", body=b"x")]
    for messages, reason in (([], "has no messages"), (retry, "retry topic")):
        with pytest.raises(RequestRejectedError, match=reason):
            run(send_batch(world, messages))


def test_the_parts_of_a_split_batch_can_be_sent(world: ClientWorld, run: Run) -> None:
    messages = [Message(topic="T", body=b"x" * size) for size in (10, 60, 50, 1, 1, 90)]
    fixed = 22 + len(property_string(HELLO, "0" * 56))
    assert fixed == 97
    parts = split_batch(messages, 250)
    assert [[len(message.body) for message in part] for part in parts] == [
        [10],
        [60],
        [50, 1],
        [1],
        [90],
    ]
    assert [message for part in parts for message in part] == messages

    async def use(producer: Producer) -> None:
        for part in parts:
            await producer.send_batch(part)

    run(with_producer(world, use, ProducerSettings(body_bytes_max=250)))
    sizes = [len(each.command.body) for each in world.requests(BATCH)]
    assert max(sizes) <= 250
    with pytest.raises(
        RequestRejectedError, match=f"needs {fixed + 5} bytes, more than {fixed + 4}"
    ):
        split_batch([HELLO], fixed + 4)
    assert split_batch([HELLO], fixed + 5) == [[HELLO]]
    assert split_batch([], 1) == []


def test_a_closed_producer_is_unregistered(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        async with Producer("G", instance=instance) as producer:
            await producer.send(HELLO)
            await instance.send_heartbeats()
        with pytest.raises(ClosedError, match="the Producer of G is closed"):
            await producer.send(HELLO)
        await producer.close()

    run(main())
    unregister = world.requests(RequestCode.UNREGISTER_CLIENT)
    assert [each.address for each in unregister] == [A0, B0]
    assert unregister[0].command.ext_fields == {"clientID": "10.0.0.7@i", "producerGroup": "G"}


def test_an_invalid_group_or_name_server_is_refused() -> None:
    with pytest.raises(RequestRejectedError, match="group"):
        Producer("a b", "h:1")
    with pytest.raises(ConfigError, match="give host:port"):
        Producer("a")


def test_concurrent_sends_use_all_brokers(world: ClientWorld, run: Run) -> None:
    async def use(producer: Producer) -> set[str]:
        results = await asyncio.gather(*(producer.send(HELLO) for _ in range(20)))
        assert len({result.msg_id for result in results}) == 20
        return {result.queue.broker_name for result in results}

    assert run(with_producer(world, use)) == {"a", "b"}


def test_queues_to_send_to_are_computed_once_per_route(world: ClientWorld, run: Run) -> None:
    async def main(producer: Producer) -> None:
        queues = await producer._publish_queues("T")
        assert queues == await producer.queues("T")
        assert await producer._publish_queues("T") is queues
        world.routes["T"] = topic_route(write_queue_nums=1)
        assert producer._instance is not None
        await producer._instance.refresh_routes()
        assert len(await producer._publish_queues("T")) < len(queues)

    run(with_producer(world, main))


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"queueId": "-1", "queueOffset": "-7"}, (-1, -7)),
        ({"queueId": "0" * 12, "queueOffset": "5"}, (0, 5)),
        ({"queueId": "2147483648", "queueOffset": "5"}, "queueId of SendMessageResponseHeader"),
        ({"queueId": "0", "queueOffset": "9" * 5000}, "queueOffset of SendMessageResponseHeader"),
        ({"queueId": "0"}, "queueOffset of SendMessageResponseHeader is missing"),
    ],
)
def test_unusual_numbers_in_an_answer(
    world: ClientWorld, run: Run, fields: dict[str, str], outcome: tuple[int, int] | str
) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        response = RemotingCommand.response_to(request)
        response.ext_fields = {"msgId": "M", **fields} if request.code == SEND else {}
        return response

    world.answers[A0] = world.answers[B0] = answer

    async def main(producer: Producer) -> tuple[int, int] | str:
        try:
            result = await producer.send(HELLO)
        except RequestRejectedError as refusal:
            return str(refusal)
        return result.queue.queue_id, result.queue_offset

    found = run(with_producer(world, main))
    assert outcome in found if isinstance(outcome, str) else found == outcome
