"""Put-message hooks: what they see, what they may change, and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import stored_message
from harness.hooks import install_hooks

from rmqpy.codec.message import BatchItem, decode_message, encode_batch_body
from rmqpy.model.errors import ConfigError
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.in_process import broker_in_process

HOOKS = """
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError

seen = []

class Recorder:
    def __call__(self, message, /):
        seen.append(message)

def mark(message, /):
    message.properties["marks"] = message.properties.get("marks", "") + "x"

def refuse(message, /):
    if message.body == b"refuse":
        raise RequestRejectedError(ResponseCode.NO_PERMISSION, "not this one")

def delay(message, /):
    message.properties["DELAY"] = "3"

def fail(message, /):
    raise ZeroDivisionError("oops")

def inject(message, /):
    message.properties["a"] = "b\x02TAGS\x01c"

no_function = 7
"""
POINTS = {
    name: f"hooks_of_this_test:{name}"
    for name in ("Recorder", "mark", "refuse", "delay", "fail", "inject", "no_function", "missing")
}

Build = Callable[[str], BrokerHarness]


@pytest.fixture
def hooked(build: BuildBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return a function that builds a broker with the hooks of these names."""
    install_hooks(tmp_path, monkeypatch, "hooks_of_this_test", HOOKS, POINTS)
    return lambda names: build(rmqpy_put_message_hooks=names)


def test_hooks_see_and_change_a_message_in_their_order(hooked: Build) -> None:
    harness = hooked("mark; mark;Recorder")
    assert harness.send(b"hello", queue_id=1, flag=7, properties="KEYS\x01k").code == 0
    import hooks_of_this_test as hooks  # type: ignore[import-not-found]

    (message,) = hooks.seen
    assert (message.topic, message.queue_id, message.body) == ("T", 1, b"hello")
    assert (message.flag, message.born_host) == (7, (bytes([10, 0, 0, 1]), 1234))
    assert message.properties.items() >= {"KEYS": "k", "marks": "x"}.items()
    stored = stored_message(harness.store, 0).properties
    assert stored == {"KEYS": "k", "marks": "x", "CLUSTER": "C"}


def test_a_refused_message_is_answered_with_the_code_of_the_hook(hooked: Build) -> None:
    harness = hooked("refuse")
    harness.deliver(*(harness.send_command(body) for body in (b"1", b"refuse", b"2")))
    answers = harness.channel.take()
    assert sorted((answer.code, answer.remark) for answer in answers if answer.code) == [
        (16, "not this one")
    ]
    assert harness.store.reader.max_queue_offset("T", 0) == 2


def test_each_message_of_a_batch_is_seen_and_one_refusal_stores_none(hooked: Build) -> None:
    harness = hooked("mark;refuse")
    for bodies, code in (((b"1", b"2"), 0), ((b"3", b"refuse"), 16)):
        body = encode_batch_body(BatchItem(0, each, b"KEYS\x01" + each) for each in bodies)
        assert harness.send(body, code=320, batch=True).code == code
    assert harness.store.reader.max_queue_offset("T", 0) == 2
    assert stored_message(harness.store, 0).properties == {
        "KEYS": "1",
        "marks": "x",
        "UNIQ_KEY": "U1",
        "CLUSTER": "C",
    }


def test_a_hook_may_delay_a_message_and_sees_it_once(hooked: Build) -> None:
    harness = hooked("delay;mark")
    assert harness.send().code == 0
    assert harness.store.reader.max_queue_offset("T", 0) == 0
    harness.scheduler.advance(11_000)
    assert harness.store.reader.max_queue_offset("T", 0) == 1
    (delivered,) = harness.store.reader.get_message("T", 0, 0, 1, None).messages
    assert decode_message(bytes(delivered)).properties["marks"] == "x"


@pytest.mark.parametrize(
    ("name", "reason"), [("fail", "ZeroDivisionError: oops"), ("inject", "must not contain")]
)
def test_a_hook_that_fails_refuses_the_message(hooked: Build, name: str, reason: str) -> None:
    harness = hooked(name)
    answer = harness.send()
    assert answer.code == 1
    assert f"hook {name} failed" in (answer.remark or "") and reason in (answer.remark or "")
    assert harness.store.log.max_offset == 0


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("Recordr", "did you mean Recorder"),
        ("mark;missing", "cannot be loaded: AttributeError"),
        ("no_function", "is neither a function nor a class of one"),
    ],
)
def test_hooks_that_cannot_be_used_stop_the_start(hooked: Build, names: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        hooked(names)


def test_nothing_is_created_before_the_hooks_are_found(tmp_path: Path) -> None:
    async def start() -> None:
        settings = {"rmqpyPutMessageHooks": "missing"}
        async with broker_in_process(tmp_path, "127.0.0.1:1", settings):
            pass

    with pytest.raises(ConfigError, match="no installed package has an entry point"):
        asyncio.run(start())
    assert not [*tmp_path.iterdir()]
