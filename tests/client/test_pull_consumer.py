"""Pulls, offsets, and lookups of messages."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Coroutine

import pytest
from harness.client import A0, A1, B0, NOW_MS, ClientWorld, Run, T, encode_record

from rmqpy.client import MessageExt, MessageQueue, PullConsumer, PullResult, PullStatus
from rmqpy.client.core.base_consumer import _pull_numbers, exact_tags
from rmqpy.codec.received import decode_records
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError, RemoteProtocolError, RequestRejectedError
from rmqpy.remoting.bodies import EXPRESSION_TAG, HeartbeatData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import (
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetResponseHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetResponseHeader,
)

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("T", "a", 0)
PULL_FIELDS = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")


async def with_consumer(
    world: ClientWorld, use: Callable[[PullConsumer], Coroutine[object, object, T]]
) -> T:
    async with PullConsumer("CID", instance=world.instance()) as consumer:
        return await use(consumer)


async def pull(
    world: ClientWorld,
    max_count: int = 32,
    expression: str = "*",
    suspend_ms: int = 0,
    expression_type: str = EXPRESSION_TAG,
) -> PullResult:
    return await with_consumer(
        world,
        lambda consumer: consumer.pull(
            QUEUE, 5, max_count, expression, suspend_ms, expression_type
        ),
    )


def answer_pulls(
    world: ClientWorld, address: str, code: int, body: bytes = b"", suggest: int = 0
) -> None:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=suggest, next_begin_offset=9, min_offset=2, max_offset=30
    )

    def answer(request: RemotingCommand) -> RemotingCommand:
        if request.code != PULL:
            return RemotingCommand.response_to(request)
        return RemotingCommand.response_to(request, code, "status", header, body)

    world.answers[address] = answer


def test_a_pull_returns_messages_and_offsets(world: ClientWorld, run: Run) -> None:
    body = encode_record(5, b"five", TAGS="TagA", KEYS="k1 k2", UNIQ_KEY="U5") + encode_record(
        6, b"six"
    )
    answer_pulls(world, A0, 0, body)
    result = run(pull(world, max_count=7))
    assert result.status is PullStatus.FOUND
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (9, 2, 30)
    first, second = result.messages
    assert (first.body, first.tags, first.keys, first.queue_offset) == (b"five", "TagA", "k1 k2", 5)
    assert (first.msg_id, first.offset_msg_id) == ("U5", "0A00000100002A9F0000000000001388")
    assert second.msg_id == second.offset_msg_id == "0A00000100002A9F0000000000001770"
    assert first.queue == QUEUE
    assert first.stored.born_timestamp_ms == NOW_MS


def test_the_request_of_a_pull_has_javas_fields(world: ClientWorld, run: Run) -> None:
    answer_pulls(world, A0, 19)
    run(pull(world, max_count=7, expression="TagA || TagB", suspend_ms=15_000))
    run(pull(world))
    first, second = world.requests(PULL)
    assert first.command.ext_fields == {
        "consumerGroup": "CID",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "5",
        "maxMsgNums": "7",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "TagA || TagB",
        "subVersion": "0",
        "expressionType": "TAG",
        "bname": "a",
    }
    assert first.timeout_ms == 25_000
    assert second.command.ext_fields["sysFlag"] == "4"
    assert second.command.ext_fields["subscription"] == "*"
    assert second.timeout_ms == 10_000


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (19, PullStatus.NO_NEW_MSG),
        (20, PullStatus.NO_MATCHED_MSG),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_a_pull_without_messages_has_a_status(
    world: ClientWorld, run: Run, code: int, status: PullStatus
) -> None:
    answer_pulls(world, A0, code)
    result = run(pull(world))
    assert (result.status, result.messages, result.next_begin_offset) == (status, [], 9)


@pytest.mark.parametrize("code", [1, 2, 16, 17, 23, 24, 25, 26])
def test_other_codes_of_a_pull_are_refused(world: ClientWorld, run: Run, code: int) -> None:
    world.answer(A0, code)
    with pytest.raises(RequestRejectedError, match="as planned") as refused:
        run(pull(world))
    assert refused.value.code == code


@pytest.mark.parametrize(
    "number", ["0", "12", "9" * 18, "9" * 19, str(2**63 - 1), str(2**63), "-1", "+1", "1_0", " 1"]
)
@pytest.mark.parametrize("name", PULL_FIELDS)
def test_the_numbers_of_a_pull_are_those_of_its_header(name: str, number: str) -> None:
    fields = {**dict.fromkeys(PULL_FIELDS, "7"), name: number}
    assert _refusal_or(lambda: _pull_numbers(fields)) == _refusal_or(lambda: _decoded(fields))


@pytest.mark.parametrize("name", PULL_FIELDS)
def test_a_pull_without_one_of_its_numbers_is_refused(name: str) -> None:
    for fields in ({**dict.fromkeys(PULL_FIELDS, "7"), name: ""}, {}):
        with pytest.raises(RequestRejectedError):
            _pull_numbers(fields)


def _decoded(fields: dict[str, str]) -> tuple[int, ...]:
    header = PullMessageResponseHeader.decode(fields)
    return (
        header.suggest_which_broker_id,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
    )


def _refusal_or(read: Callable[[], tuple[int, ...]]) -> tuple[int, ...] | str:
    try:
        return read()
    except RequestRejectedError as refusal:
        return str(refusal)


def test_tags_are_compared_exactly(world: ClientWorld, run: Run) -> None:
    """Aa and BB have the same hash code, so that a broker cannot distinguish them."""
    answer_pulls(
        world, A0, 0, encode_record(5, TAGS="Aa") + encode_record(6, TAGS="BB") + encode_record(7)
    )
    assert [each.queue_offset for each in run(pull(world, expression="BB")).messages] == [6]
    assert [each.queue_offset for each in run(pull(world, expression="C || Aa")).messages] == [5]
    assert len(run(pull(world, expression="*")).messages) == 3
    sql = run(pull(world, expression="a > 1", expression_type="SQL92"))
    assert len(sql.messages) == 3
    nothing = run(pull(world, expression="C"))
    assert (nothing.status, nothing.messages) == (PullStatus.FOUND, [])


def test_a_tag_expression_is_a_set_of_tags() -> None:
    assert exact_tags("*") is None
    assert exact_tags("") is None
    assert exact_tags(" a ||b|| ") == frozenset({"a", "b"})
    with pytest.raises(RequestRejectedError, match="names no tag"):
        exact_tags(" || ")


def test_the_next_pull_goes_to_the_broker_that_was_suggested(world: ClientWorld, run: Run) -> None:
    answer_pulls(world, A0, 19, suggest=1)
    answer_pulls(world, A1, 19, suggest=0)

    async def use(consumer: PullConsumer) -> None:
        for _ in range(3):
            await consumer.pull(QUEUE, 5)

    run(with_consumer(world, use))
    assert world.addresses(PULL) == [A0, A1, A0]


def test_a_slave_that_fails_is_abandoned(world: ClientWorld, run: Run) -> None:
    answer_pulls(world, A0, 19, suggest=1)
    del world.answers[A1]

    async def use(consumer: PullConsumer) -> None:
        await consumer.pull(QUEUE, 5)
        with pytest.raises(NetworkError):
            await consumer.pull(QUEUE, 5)
        await consumer.pull(QUEUE, 5)

    run(with_consumer(world, use))
    assert world.addresses(PULL) == [A0, A1, A0]


def test_a_slave_serves_pulls_without_a_master(world: ClientWorld, run: Run) -> None:
    world.routes["T"].broker_datas[0].broker_addrs = {1: A1}
    answer_pulls(world, A1, 19)
    assert run(pull(world)).status is PullStatus.NO_NEW_MSG


def test_decoding_stops_at_an_invalid_record(world: ClientWorld, run: Run) -> None:
    good, torn = encode_record(5), encode_record(6)[:-3]
    answer_pulls(world, A0, 0, good + torn)
    result = run(pull(world))
    assert [each.queue_offset for each in result.messages] == [5]
    assert result.next_begin_offset == 6  # not 9: nothing is skipped
    answer_pulls(world, A0, 0, torn)
    with pytest.raises(RemoteProtocolError, match="at offset 0: TOTALSIZE"):
        run(pull(world))


def test_decode_records_returns_the_position_of_the_error() -> None:
    good = encode_record(5)
    records, fault = decode_records(good + good + b"\x00")
    assert len(records) == 2
    assert fault is not None
    assert fault.offset == 2 * len(good)
    assert decode_records(b"") == ([], None)


def test_a_compressed_body_is_inflated(world: ClientWorld, run: Run) -> None:
    packed = zlib.compress(b"long" * 2000)
    answer_pulls(world, A0, 0, encode_record(5, packed, 0x301))
    (message,) = run(pull(world)).messages
    assert message.body == b"long" * 2000
    assert message.stored.body == packed


def test_the_queues_of_a_topic_are_those_of_its_route(world: ClientWorld, run: Run) -> None:
    queues = run(with_consumer(world, lambda consumer: consumer.queues("T")))
    assert queues == [MessageQueue("T", name, queue_id) for name in "ab" for queue_id in (0, 1)]


@pytest.mark.parametrize(
    ("query", "code", "header", "fields"),
    [
        (
            lambda consumer: consumer.min_offset(QUEUE),
            31,
            GetMinOffsetResponseHeader(offset=42),
            {},
        ),
        (
            lambda consumer: consumer.max_offset(QUEUE),
            30,
            GetMaxOffsetResponseHeader(offset=42),
            {},
        ),
        (
            lambda consumer: consumer.search_offset(QUEUE, 77),
            29,
            SearchOffsetResponseHeader(offset=42),
            {"timestamp": "77"},
        ),
        (
            lambda consumer: consumer.earliest_time(QUEUE),
            32,
            GetEarliestMsgStoretimeResponseHeader(timestamp=42),
            {},
        ),
        (
            lambda consumer: consumer.committed_offset(QUEUE),
            14,
            QueryConsumerOffsetResponseHeader(offset=42),
            {"consumerGroup": "CID"},
        ),
    ],
    ids=["min", "max", "search", "earliest", "committed"],
)
def test_an_offset_is_queried_at_the_master(
    world: ClientWorld,
    run: Run,
    query: Callable[[PullConsumer], Coroutine[object, object, int]],
    code: int,
    header: CommandHeader,
    fields: dict[str, str],
) -> None:
    world.answer(A0, 0, header)
    assert run(with_consumer(world, query)) == 42
    (received,) = world.requests(code)
    expected = {"topic": "T", "queueId": "0", "bname": "a"} | fields
    assert received.command.ext_fields == expected
    world.answer(A0, 1)
    with pytest.raises(RequestRejectedError, match="as planned"):
        run(with_consumer(world, query))


def test_the_committed_offset_may_be_missing(world: ClientWorld, run: Run) -> None:
    world.answer(A0, 22)
    assert run(with_consumer(world, lambda consumer: consumer.committed_offset(QUEUE))) is None


def test_a_commit_waits_for_its_answer(world: ClientWorld, run: Run) -> None:
    world.answer(A0, 0)
    run(with_consumer(world, lambda consumer: consumer.commit_offset(QUEUE, 12)))
    (received,) = world.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert received.command.ext_fields == {
        "consumerGroup": "CID",
        "topic": "T",
        "queueId": "0",
        "commitOffset": "12",
        "bname": "a",
    }
    assert not received.command.is_oneway
    world.answer(A0, 1)
    with pytest.raises(RequestRejectedError):
        run(with_consumer(world, lambda consumer: consumer.commit_offset(QUEUE, 12)))


def answer_with(world: ClientWorld, address: str, code: int, body: bytes) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request, code, "as planned", body=body)

    world.answers[address] = answer


async def view(world: ClientWorld, msg_id: str) -> MessageExt:
    return await with_consumer(world, lambda consumer: consumer.view_message(msg_id))


def test_view_message_reads_a_record_by_its_id(world: ClientWorld, run: Run) -> None:
    answer_with(world, A0, 0, encode_record(5, b"five"))
    msg_id = "0A00000100002A9F0000000000001388"
    message = run(view(world, msg_id))
    assert (message.body, message.offset_msg_id) == (b"five", msg_id)
    (received,) = world.requests(RequestCode.VIEW_MESSAGE_BY_ID)
    assert (received.address, received.command.ext_fields) == (A0, {"offset": "5000"})


@pytest.mark.parametrize("body", [b"", b"\x00" * 10])
def test_view_message_refuses_an_answer_without_a_record(
    world: ClientWorld, run: Run, body: bytes
) -> None:
    answer_with(world, A0, 0, body)
    with pytest.raises(RemoteProtocolError, match="has 0 messages, not one"):
        run(view(world, "0A00000100002A9F0000000000001388"))


def test_view_message_refuses_invalid_ids(world: ClientWorld, run: Run) -> None:
    answer_with(world, A0, 1, b"")
    for msg_id, reason in [
        ("0A00000100002A9F0000000000001388", "as planned"),
        ("0A00", "4 characters"),
        ("X" * 32, "not hexadecimal"),
    ]:
        with pytest.raises(RequestRejectedError, match=reason):
            run(view(world, msg_id))


async def query_by_key(
    world: ClientWorld, key: str, max_count: int = 32, *, unique: bool = False
) -> list[MessageExt]:
    return await with_consumer(
        world, lambda consumer: consumer.query_by_key("T", key, max_count, unique=unique)
    )


def test_query_by_key_merges_the_answers_of_all_brokers(world: ClientWorld, run: Run) -> None:
    answer_with(
        world, A0, 0, encode_record(5, KEYS="x key", UNIQ_KEY="U") + encode_record(6, KEYS="keyx")
    )
    answer_with(world, B0, 0, encode_record(7, KEYS="key") + encode_record(8))
    found = run(query_by_key(world, "key"))
    assert [(each.queue.broker_name, each.queue_offset) for each in found] == [("a", 5), ("b", 7)]
    assert [each.queue_offset for each in run(query_by_key(world, "U", unique=True))] == [5]
    assert run(query_by_key(world, "U")) == []
    assert len(run(query_by_key(world, "key", max_count=1))) == 1
    first = world.requests(RequestCode.QUERY_MESSAGE)[0].command.ext_fields
    assert first == {
        "topic": "T",
        "key": "key",
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(2**63 - 1),
        "_UNIQUE_KEY_QUERY": "false",
    }


def test_query_by_key_accepts_missing_but_no_invalid_answers(world: ClientWorld, run: Run) -> None:
    answer_with(world, A0, 22, b"")
    answer_with(world, B0, 22, b"")
    assert run(query_by_key(world, "key")) == []
    del world.answers[A0]
    answer_with(world, B0, 0, encode_record(7, KEYS="key"))
    assert [each.queue_offset for each in run(query_by_key(world, "key"))] == [7]
    answer_with(world, B0, 0, encode_record(7, KEYS="key") + b"\x00")
    with pytest.raises((NetworkError, RemoteProtocolError)):
        run(query_by_key(world, "key"))


def test_heartbeats_have_the_group_and_its_topics(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        instance = world.instance()
        async with PullConsumer("CID", instance=instance) as consumer:
            await consumer.queues("T")
            await instance.send_heartbeats()

    run(main())
    beats = world.requests(RequestCode.HEART_BEAT)
    assert [each.address for each in beats] == [A0, A1, B0]
    (consumer,) = HeartbeatData.decode(beats[0].command.body).consumer_data_set
    assert consumer.group_name == "CID"
    assert consumer.consume_type == "CONSUME_ACTIVELY"
    assert consumer.message_model == "CLUSTERING"
    (subscription,) = consumer.subscription_data_set
    assert (subscription.topic, subscription.sub_string) == ("T", "*")
    unregister = world.requests(RequestCode.UNREGISTER_CLIENT)
    assert len(unregister) == 3
    assert unregister[0].command.ext_fields["consumerGroup"] == "CID"
