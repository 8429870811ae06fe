"""The errors of the client, the validation of what it is given, and the retries of a send."""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness.client import A0, B0, ClientWorld, FrozenClock, Run

import rmqpy.client.errors
from rmqpy.client import (
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushSettings,
    SendResult,
)
from rmqpy.client.consuming.consume_service import as_listener
from rmqpy.client.core.quiet_log import PERIOD_MS, QuietLog
from rmqpy.client.errors import (
    ClientStateError,
    ClosedError,
    ConfigError,
    ConnectFailedError,
    InvalidMessageError,
    NetworkError,
    NotStartedError,
    RequestRejectedError,
    RequestTimeoutError,
    ResponseCode,
    RmqError,
)
from rmqpy.remoting.command import RemotingCommand

HELLO = Message(topic="T", body=b"hello")


def test_the_table_names_every_error_and_whether_it_is_retriable() -> None:
    rows = re.findall(
        r"^``(\w+)`` +(yes|no|by code)  ", rmqpy.client.errors.__doc__ or "", flags=re.M
    )
    classes = {
        name: found
        for name in rmqpy.client.errors.__all__
        if isinstance(found := getattr(rmqpy.client.errors, name), type)
        and issubclass(found, RmqError)
    }
    assert {name for name, _ in rows} == classes.keys()
    for name, retriable in rows:
        if retriable != "by code" and name != "InvalidMessageError":
            assert classes[name].retriable is (retriable == "yes"), name
    assert not InvalidMessageError("reason").retriable


def test_a_refusal_knows_its_code_and_whether_it_may_end() -> None:
    busy = RequestRejectedError(2, "busy")
    assert busy.response_code is ResponseCode.SYSTEM_BUSY
    assert busy.retriable
    assert not RequestRejectedError(16, "no").retriable
    assert RequestRejectedError(9_999, "unknown").response_code is None
    invalid = pickle.loads(pickle.dumps(InvalidMessageError("empty")))
    assert (type(invalid), invalid.code, invalid.remark) == (InvalidMessageError, 13, "empty")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"body": "text"}, "body: found a value of type str, expected bytes; encode it"),
        ({"body": None}, "body: found a value of type NoneType, expected bytes"),
        ({"body": 7}, "body: found a value of type int"),
        ({"topic": b"T"}, "topic: found a value of type bytes, expected a text"),
        ({"tags": 7}, "tags: found a value of type int"),
        ({"keys": 7}, "keys: found 7, expected texts"),
        ({"keys": [7]}, "keys: found"),
        ({"delay_level": -1}, "delay_level: found -1, expected 0 or more"),
        ({"delay_level": "3"}, "delay_level: found '3', expected an integer"),
        ({"delay_level": True}, "delay_level: found True, expected an integer"),
        ({"flag": 1.5}, "flag: found 1.5"),
        ({"properties": [("a", "b")]}, "properties: found a value of type list"),
        ({"properties": {"a": 1}}, "the property 'a'=1 is not a pair of texts"),
    ],
)
def test_a_message_with_a_wrong_value_cannot_be_created(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidMessageError, match=re.escape(text)):
        Message(**{"topic": "T", "body": b"b", **fields})


def test_other_bytes_are_accepted() -> None:
    bodies: list[Any] = [b"b", bytearray(b"b"), memoryview(b"b")]
    for body in bodies:
        assert bytes(Message(topic="T", body=body).body) == b"b"


def test_settings_and_listeners_are_checked_at_once() -> None:
    with pytest.raises(ConfigError, match="from_where: found 'earliest', expected CONSUME_FROM"):
        PushSettings(from_where="earliest")
    with pytest.raises(ConfigError, match="parallel: found 0"):
        PushSettings(parallel=0)
    not_a_function: Any = "listen"
    with pytest.raises(ConfigError, match="listener: found 'listen', expected a function"):
        PushConsumer("G", "127.0.0.1:9876", listener=not_a_function)


def test_a_function_listens_in_a_thread_and_a_coroutine_function_in_the_loop(run: Run) -> None:
    def blocking(_messages: Sequence[MessageExt]) -> ConsumeResult:
        return ConsumeResult[(threading.current_thread().name.startswith("t") and "SUCCESS") or ""]

    async def coroutine(_messages: Sequence[MessageExt]) -> None:
        assert threading.current_thread() is threading.main_thread()

    class Callable:
        async def __call__(self, _messages: Sequence[MessageExt]) -> None:
            assert threading.current_thread() is threading.main_thread()

    async def main() -> list[ConsumeResult | None]:
        with ThreadPoolExecutor(1, thread_name_prefix="t") as threads:
            given: list[Any] = [blocking, coroutine, Callable(), lambda each: coroutine(each)]
            return [await as_listener(each, threads)([]) for each in given]

    assert run(main()) == [ConsumeResult.SUCCESS, None, None, None]


def test_a_member_outside_of_its_lifetime_says_so(world: ClientWorld, run: Run) -> None:
    async def main() -> None:
        producer = Producer("G", instance=world.instance())
        with pytest.raises(NotStartedError, match="use it in a with block"):
            await producer.send(HELLO)
        async with producer:
            with pytest.raises(ClientStateError, match="already started"):
                await producer.start()
        await producer.close()
        for call in (producer.send(HELLO), producer.start()):
            with pytest.raises(ClosedError, match="create a new one"):
                await call
        never = Producer("H", instance=world.instance())
        await never.close()

    run(main())


# -- retries


async def sent(world: ClientWorld, **settings: Any) -> SendResult:
    instance = world.instance()
    async with Producer("G", instance=instance, settings=ProducerSettings(**settings)) as producer:
        return await producer.send(HELLO)


def fail_at_first(world: ClientWorld, times: int, address: str, error: RmqError) -> list[int]:
    """Let ``address`` fail some sends; the returned list has the time of each."""
    seen: list[int] = []

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields.get("i") is None:
            return world.broker(request)
        seen.append(world.clock.passed_ms)
        if len(seen) <= times:
            raise error
        return world.broker(request)

    world.answers[address] = answer
    return seen


def test_a_broker_that_cannot_be_reached_is_tried_until_the_time_is_up(
    world: ClientWorld, run: Run
) -> None:
    del world.answers[B0]
    world.routes["T"].broker_datas[:] = [
        each for each in world.routes["T"].broker_datas if each.broker_name == "a"
    ]
    seen = fail_at_first(world, 4, A0, ConnectFailedError("refused"))
    assert run(sent(world)).queue.broker_name == "a"
    assert len(seen) == 5
    assert [80 <= pause <= 1_200 for pause in world.pauses] == [True] * len(world.pauses)
    assert sum(world.pauses) > 1_000 > world.pauses[0]


def test_the_error_of_a_send_is_that_of_its_last_attempt(world: ClientWorld, run: Run) -> None:
    for address in (A0, B0):
        fail_at_first(world, 1_000, address, ConnectFailedError("connect to it: refused"))
    with pytest.raises(ConnectFailedError, match=r"sending failed after \d+ attempts") as failed:
        run(sent(world))
    assert isinstance(failed.value.__cause__, ConnectFailedError)
    assert 2_900 <= world.clock.passed_ms <= 3_100
    for address in (A0, B0):
        world.answers[address] = lambda _request: None
    with pytest.raises(NetworkError):
        run(sent(world))


def test_without_retries_there_is_one_attempt(world: ClientWorld, run: Run) -> None:
    seen = [fail_at_first(world, 9, each, ConnectFailedError("refused")) for each in (A0, B0)]
    with pytest.raises(ConnectFailedError):
        run(sent(world, retries=0))
    assert sum(map(len, seen)) == 1
    assert world.pauses == []


def test_a_lost_answer_counts_as_an_attempt(world: ClientWorld, run: Run) -> None:
    seen = [fail_at_first(world, 9, each, RequestTimeoutError("late")) for each in (A0, B0)]
    with pytest.raises(RequestTimeoutError, match="after 3 attempts"):
        run(sent(world))
    assert sum(map(len, seen)) == 3
    assert len(world.pauses) == 1, "two brokers are tried at once, the third time after a pause"


def test_a_name_server_that_is_away_is_waited_for(world: ClientWorld, run: Run) -> None:
    for address in ("10.0.0.8:9876", "10.0.0.9:9876"):
        world.answers[address] = lambda _request: None
    with pytest.raises(NetworkError, match="no name server answers"):
        run(sent(world))
    asked: list[int] = []

    def later(request: RemotingCommand) -> RemotingCommand:
        asked.append(request.code)
        if len(asked) < 5:
            raise ConnectFailedError("refused")
        return world.name_server(request)

    for address in ("10.0.0.8:9876", "10.0.0.9:9876"):
        world.answers[address] = later
    assert run(sent(world)).queue_offset > 0


# -- the log


def test_a_repeated_warning_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = FrozenClock()
    log, logger = QuietLog(clock), logging.getLogger("quiet")
    for _ in range(100):
        log.warn(logger, "one", "it failed: %s", "why")
    log.warn(logger, "two", "another")
    clock.passed_ms += PERIOD_MS
    log.warn(logger, "one", "it failed: %s", "why")
    for number in range(1_000):
        log.warn(logger, number, "many causes")
    assert caplog.messages[:3] == [
        "it failed: why",
        "another",
        "it failed: why (99 more times in the last minute)",
    ]
    assert len(caplog.messages) == 1_003


def test_asyncio_is_not_blocked_by_a_listener(run: Run) -> None:
    released = threading.Event()

    def wait(_messages: Sequence[MessageExt]) -> None:
        released.wait(10)

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            call = asyncio.ensure_future(as_listener(wait, threads)([]))
            await asyncio.sleep(0)
            assert not call.done()
            released.set()
            await call

    run(main())
