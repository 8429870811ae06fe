"""Traffic is recorded with a proxy or from a store, and replayed at real brokers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqpy.cli import main
from rmqpy.client import Message, Producer, PushConsumer, PushSettings
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import CONSUME_FROM_FIRST_OFFSET
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, decode_command
from rmqpy.testing import Broker
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.processes import python_environment
from rmqpy.traffic.recording import RecordingReader, RecordingWriter, RecordKind

pytestmark = pytest.mark.slow

COUNT = 60
SECONDS_MAX = 60
FIRST = PushSettings(from_where=CONSUME_FROM_FIRST_OFFSET, rebalance_ms=200, persist_ms=50)


@pytest.fixture
def source() -> Iterator[Broker]:
    with Broker(topics=["Orders:2"], settings={"brokerName": "source"}) as broker:
        broker.send("Orders", b"before")
        yield broker


def start_recording(broker: Broker, file: Path, *words: str) -> tuple[Any, dict[str, str]]:
    argv = [sys.executable, "-m", "rmqpy.cli", "record", str(file), "--to", broker.address]
    process = subprocess.Popen(
        [*argv, "-n", broker.name_server, *words],
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


async def use(name_server: str) -> list[bytes]:
    """Send and receive through the proxy; return the bodies that were received."""
    received: list[bytes] = []
    async with asyncio.timeout(SECONDS_MAX), Producer("recorded", name_server) as producer:
        consumer = PushConsumer("readers", name_server, settings=FIRST)
        consumer.subscribe("Orders")
        async with consumer:
            sends = [Message(topic="Orders", body=b"%03d" % each) for each in range(COUNT)]
            await asyncio.gather(*(producer.send(each) for each in sends))
            await producer.send_batch([Message(topic="Orders", body=b"batch")] * 3)
            while len(received) < COUNT + 4:
                received.append((await anext(consumer)).body)
    return received


def recorded(broker: Broker, file: Path) -> list[bytes]:
    process, where = start_recording(broker, file)
    try:
        return asyncio.run(use(where["name_server"]))
    finally:
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, printed


def replayed(capsys: pytest.CaptureFixture[str], file: Path, *words: str) -> tuple[int, Any]:
    code = main(["replay", str(file), *words, "--format", "json", "--log-level", "ERROR"])
    return code, json.loads(capsys.readouterr().out)


def test_what_clients_did_is_the_same_at_another_broker(
    source: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traffic.rec"
    bodies = recorded(source, file)
    assert sorted(bodies)[:COUNT] == [b"%03d" % each for each in range(COUNT)]
    with Broker(topics=["Orders:2"]) as target:
        code, (result,) = replayed(capsys, file, "--to", target.address, "--speed", "0")
        assert (code, result["differences"]) == (0, [])
        assert result["messages"] == COUNT + 3
        assert result["not_compared"]["messages from before the recording"] == 1
        assert result["answers"] > COUNT
        assert len(target.messages("Orders")) == COUNT + 3
    with Broker(settings={"autoCreateTopicEnable": "false"}) as refusing:
        code, (result,) = replayed(capsys, file, "--to", refusing.address, "--rate", "5000")
        assert code == 2
        whats = [each["what"] for each in result["differences"]]
        assert any("SEND_MESSAGE_V2" in each and "TOPIC_NOT_EXIST" in each for each in whats), whats
        assert "topic Orders: a message is missing" in whats


def test_the_recording_of_a_killed_proxy_is_read_and_continued(
    source: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "traffic.rec"
    process, where = start_recording(source, file)
    with BlockingConnection(where["broker"]) as connection:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
        assert connection.call(request).code == 0
        size = 0
        while not size:  # The proxy flushes twice a second.
            size = sum(record.kind is RecordKind.ANSWER for record in RecordingReader(file))
    process.kill()
    process.communicate()
    before = list(RecordingReader(file))
    process, where = start_recording(source, file, "--append")
    with BlockingConnection(where["broker"]) as connection:
        connection.call(request)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS_MAX)
    after = list(RecordingReader(file))
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert {record.connection for record in added} == {2}
    codes = [
        decode_command(memoryview(each.data)[LENGTH_BYTES:]).code for each in added if each.data
    ]
    assert codes == [RequestCode.GET_BROKER_CONFIG, 0]
    assert sorted(each.time_us for each in after) == [each.time_us for each in after]


def test_a_full_disk_ends_the_recording_and_not_the_traffic(source: Broker, tmp_path: Path) -> None:
    process, where = start_recording(source, tmp_path / "traffic.rec", "--max-mib", "1")
    with BlockingConnection(where["broker"]) as connection:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
        for _ in range(400):
            assert connection.call(request).code == 0
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=SECONDS_MAX)
    assert "the recording ends here: it has 1" in printed
    assert (tmp_path / "traffic.rec").stat().st_size < 2 << 20


def test_a_store_is_recorded_and_a_changed_message_is_found(
    source: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(20):
        source.send("Orders", b"%d" % number, keys=f"k{number}", tags="T")
    source.stop()
    file = tmp_path / "store.rec"
    assert main(["record", str(file), "--store", str(source.store)]) == 0
    assert "recorded 21 messages" in capsys.readouterr().out
    with Broker(topics=["Orders:2"]) as target:
        code, (result,) = replayed(capsys, file, "--to", target.address, "--speed", "0")
        assert (code, result["messages"], result["differences"]) == (0, 21, [])
    changed = tmp_path / "changed.rec"
    with RecordingWriter(changed) as writer:
        for record in RecordingReader(file):
            if record.kind is RecordKind.REQUEST and record.data.endswith(b"7"):
                record = type(record)(
                    record.kind, record.connection, record.time_us, record.data[:-1] + b"8"
                )
            writer.append(record)
    with Broker(topics=["Orders:2"]) as target:
        code, (result,) = replayed(capsys, changed, "--to", target.address, "--speed", "0")
    assert code == 2
    assert {each["what"] for each in result["differences"]} == {
        "topic Orders: a message differs in body"
    }


def test_messages_of_batches_and_transactions_of_java_are_plain_sends(
    golden_copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden_copy("B-master-slave-v497") / "master"
    file = tmp_path / "store.rec"
    assert main(["record", str(file), "--store", str(store)]) == 0
    assert "recorded 216 messages" in capsys.readouterr().out
    with Broker() as target:
        code, (result,) = replayed(capsys, file, "--to", target.address, "--speed", "0")
    assert (code, result["messages"], result["differences"]) == (0, 208, [])


def test_nothing_compared_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.rec"
    RecordingWriter(file).close()
    with Broker() as target:
        assert main(["replay", str(file), "--to", target.address]) == 1
        assert "NOTHING COMPARED" in capsys.readouterr().out


def test_wrong_calls_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.rec"
    RecordingWriter(file).close()
    port = "127.0.0.1:1"
    for words, text in [
        (["replay", str(file), "--to", port], "start the broker"),
        (["replay", str(file), "--to", "nowhere"], "expected HOST:PORT"),
        (["replay", str(file), "--to", port, "--speed", "-1"], "below 0"),
        (["replay", str(file), "--to", port, "--clients", "0"], "expected 1 or more"),
        (["replay", str(tmp_path / "none"), "--to", port], "no such file"),
        (["record", str(file), "--to", port], "or give --append"),
        (["record", str(file), "--to", "x:99999"], "expected HOST:PORT"),
        (["record", str(tmp_path / "n"), "--to", port, "--max-mib", "0"], "expected 1 or more"),
    ]:
        assert main([*words, "--log-level", "ERROR"]) == 1
        assert text in capsys.readouterr().err, words
