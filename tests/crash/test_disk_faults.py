"""A real broker whose disk fails: system calls that fail on demand (faulty_io.c, preloaded), and a
file system that is really full.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from harness.preload import FAULTY, Faults, build_preloaded

from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import (
    BlockingConnection,
    connect_when_ready,
    create_topic,
    read_queue,
    send_request,
)
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, dledger_settings
from rmqpy.testing.store_reader import StoreReading, read_store

pytestmark = pytest.mark.crash

TOPIC = "faults"
REFUSED = 14
WAIT_SECONDS_MAX = 30
MODES = ("classic", "classic-without-fast-path", "sync-flush", "dledger")


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults", build_preloaded(FAULTY, tmp_path))


def create_broker(
    tmp_path: Path,
    mode: str,
    environment: Mapping[str, str],
    store: Path | None = None,
    **more_settings: str,
) -> ServerProcess:
    names, ports = free_port_block(1), free_port_block(BROKER_PORT_COUNT)
    member = free_port_block(1)
    settings = dict(more_settings)
    if mode == "sync-flush":
        settings["flushDiskType"] = "SYNC_FLUSH"
    if mode == "dledger":
        settings |= dledger_settings("broker-a", member.first)
    if mode == "classic-without-fast-path":
        environment = {**environment, "RMQPY_FAST": "0"}
    spec = BrokerSpec(
        port=ports.broker_port,
        namesrv=f"127.0.0.1:{names.first}",
        settings=settings,
        store=store,
    )
    return RmqpySite(tmp_path, environment=environment).broker("broker", spec)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def broker(mode: str, tmp_path: Path, faults: Faults) -> Iterator[ServerProcess]:
    """A broker in ``mode``, not started, whose system calls ``faults`` decides."""
    server = create_broker(tmp_path, mode, faults.environment())
    yield server
    server.kill()


def connect(broker: ServerProcess) -> BlockingConnection:
    """Return a connection once the broker accepts messages."""
    connection = connect_when_ready(broker.address)
    create_topic(connection, TOPIC, 1)
    wait_for(lambda: send(connection, b"ready") == 0, broker)
    return connection


def wait_for(condition: Callable[[], bool], broker: ServerProcess) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert broker.running, broker.printed()[-3000:]
        assert time.monotonic() < deadline, broker.printed()[-3000:]
        time.sleep(0.02)


def send(connection: BlockingConnection, body: bytes) -> int:
    """Send a message and return the response code."""
    return connection.call(send_request(TOPIC, 0, [body], "KEYS\x01k")).code


def send_many(
    connection: BlockingConnection, bodies: list[bytes], acknowledged: list[bytes]
) -> set[int]:
    """Send all messages without waiting for a response between them, append the acknowledged
    bodies to ``acknowledged``, and return the response codes.
    """
    requests = [send_request(TOPIC, 0, [body], "KEYS\x01k") for body in bodies]
    in_flight = dict(zip(connection.send(*requests), bodies, strict=True))
    codes = set()
    for _ in bodies:
        response = connection.receive()
        body = in_flight.pop(response.opaque)
        codes.add(response.code)
        if response.code == 0:
            acknowledged.append(body)
    return codes


def runtime_info(connection: BlockingConnection) -> dict[str, str]:
    return KVTable.decode(connection.call(RemotingCommand.request(28)).body).table


def stored_bodies(connection: BlockingConnection) -> list[bytes]:
    return [bytes(message.body) for message in read_queue(connection, TOPIC, 0)]


def read_stopped_store(broker: ServerProcess) -> StoreReading:
    assert broker.store is not None
    return read_store(broker.store)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"message %06d " % number + b"x" * 500 for number in range(first, first + count)]


def log_part(mode: str) -> str:
    """Return the part that the paths of log files contain in ``mode``."""
    return "/data/" if mode == "dledger" else "/commitlog/"


def test_a_disk_without_space_for_the_log_refuses_messages_until_space_is_free(
    broker: ServerProcess, mode: str, faults: Faults
) -> None:
    """Sends are refused at once, reads continue, and no acknowledged message is missing."""
    acknowledged: list[bytes] = []
    with broker, connect(broker) as connection:
        assert send_many(connection, numbered(0, 200), acknowledged) == {0}
        faults.set(f"write {errno.ENOSPC} {log_part(mode)}")
        assert send_many(connection, numbered(1000, 200), acknowledged) == {REFUSED}
        assert send_many(connection, numbered(2000, 50), acknowledged) == {REFUSED}
        assert set(stored_bodies(connection)) >= set(acknowledged)
        assert "storeRefusesPuts" in runtime_info(connection)
        faults.clear()
        wait_for(lambda: send(connection, b"again") == 0, broker)
        assert send_many(connection, numbered(3000, 200), acknowledged) == {0}
        wait_for(lambda: set(stored_bodies(connection)) >= set(acknowledged), broker)
        assert broker.stop() == 0
    reading = read_stopped_store(broker)
    assert reading.problems == []
    assert {message.body for message in reading.messages} >= set(acknowledged)


def test_a_disk_without_space_for_the_derived_files_refuses_messages(
    broker: ServerProcess, faults: Faults
) -> None:
    acknowledged: list[bytes] = []
    codes: set[int] = set()
    with broker, connect(broker) as connection:
        faults.set(f"room {errno.ENOSPC} /consumequeue/", f"room {errno.ENOSPC} /index/")
        for first in range(0, 20_000, 500):
            codes = send_many(connection, numbered(first, 500), acknowledged)
            if REFUSED in codes:
                break
        assert REFUSED in codes, "the files had space allocated for more messages than that"
        faults.clear()
        wait_for(lambda: send(connection, b"again") == 0, broker)
        wait_for(lambda: set(stored_bodies(connection)) >= set(acknowledged), broker)


def test_a_failed_sync_ends_writing(broker: ServerProcess, mode: str, faults: Faults) -> None:
    """Nothing is acknowledged after it, even if later syncs would succeed; after a restart every
    acknowledged message is available.
    """
    acknowledged: list[bytes] = []
    with broker, connect(broker) as connection:
        assert send_many(connection, numbered(0, 100), acknowledged) == {0}
        faults.set(f"sync {errno.EIO} {log_part(mode)}")
        if mode == "sync-flush":
            assert send_many(connection, numbered(1000, 100), acknowledged) == {REFUSED}
        wait_for(lambda: send(connection, b"probe") == REFUSED, broker)
        faults.clear()
        time.sleep(1.5)
        assert send_many(connection, numbered(2000, 50), acknowledged) == {REFUSED}
        assert "storeFailure" in runtime_info(connection)
        assert set(stored_bodies(connection)) >= set(acknowledged)
    broker.kill()
    with broker, connect(broker) as connection:
        wait_for(lambda: set(stored_bodies(connection)) >= set(acknowledged), broker)


def test_a_full_file_system_refuses_messages_until_space_is_free(
    small_disk: Path, tmp_path: Path, mode: str
) -> None:
    """Log, consume queues, index, and tables run out of space together. The process survives (a
    write to a mapping without space would end it), and accepts messages again when something is
    deleted.
    """
    broker = create_broker(
        tmp_path,
        mode,
        {},
        store=small_disk / "store",
        maxHashSlotNum="1000",
        maxIndexNum="100000",
        cleanFileForciblyEnable="false",
        cleanResourceInterval="600000",
    )
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 << 20))
    acknowledged: list[bytes] = []
    try:
        with broker, connect(broker) as connection:
            codes: set[int] = set()
            for first in range(0, 100_000, 100):
                codes = send_many(connection, numbered(first, 100), acknowledged)
                if codes == {REFUSED}:
                    break
            assert codes == {REFUSED}
            for first in range(200_000, 202_000, 100):
                send_many(connection, numbered(first, 100), acknowledged)
            assert stored_bodies(connection)[0] == b"ready", "reads continue"
            assert broker.running
            ballast.unlink()
            wait_for(lambda: send(connection, b"again") == 0, broker)
            assert send_many(connection, numbered(300_000, 200), acknowledged) == {0}
            wait_for(lambda: set(stored_bodies(connection)) >= set(acknowledged), broker)
            assert broker.stop() == 0
        reading = read_stopped_store(broker)
        assert {message.body for message in reading.messages} >= set(acknowledged)
    except NetworkError as fault:
        raise AssertionError(broker.printed()[-3000:]) from fault
    finally:
        broker.kill()
