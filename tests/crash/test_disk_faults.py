"""A real broker whose disk fails: faults of the system calls on demand (faulty_io.c, preloaded),
and a file system that is really full.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import (
    connect_when_ready,
    create_topic,
    read_queue,
    send_request,
)
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, dledger_settings
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.crash

TOPIC = "faults"
REFUSED = 14
WAIT_SECONDS_MAX = 30
MODES = ("classic", "classic-cold", "sync-flush", "dledger")


@pytest.fixture(scope="session")
def faulty_io(tmp_path_factory: pytest.TempPathFactory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is needed to build faulty_io.c")
    library = tmp_path_factory.mktemp("faulty") / "faulty_io.so"
    source = Path(__file__).with_name("faulty_io.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


class Faults:
    """What the broker's system calls do from now on."""

    def __init__(self, path):
        self.path = path
        self.clear()

    def set(self, *lines):
        temporary = self.path.with_suffix(".new")
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.rename(self.path)

    def clear(self):
        self.set()


@pytest.fixture
def faults(tmp_path: Path):
    return Faults(tmp_path / "faults")


def made(tmp_path, mode, environment, store=None, **more):
    names, ports = free_port_block(1), free_port_block(BROKER_PORT_COUNT)
    member = free_port_block(1)
    settings = dict(more)
    if mode == "sync-flush":
        settings["flushDiskType"] = "SYNC_FLUSH"
    if mode == "dledger":
        settings |= dledger_settings("broker-a", member.first)
    if mode == "classic-cold":
        environment = {**environment, "RMQPY_FAST": "0"}
    spec = BrokerSpec(
        port=ports.broker_port,
        namesrv=f"127.0.0.1:{names.first}",
        settings=settings,
        store=store,
    )
    return RmqpySite(tmp_path, environment=environment).broker("broker", spec)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture
def broker(mode, tmp_path: Path, faulty_io, faults):
    environment = {"LD_PRELOAD": str(faulty_io), "FAULTY_IO": str(faults.path)}
    broker = made(tmp_path, mode, environment)
    yield broker
    broker.kill()


def ready(broker):
    connection = connect_when_ready(broker.address)
    create_topic(connection, TOPIC, 1)
    wait_for(lambda: send(connection, b"ready") == 0, broker)
    return connection


def wait_for(condition, broker):
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert broker.running, broker.printed()[-3000:]
        assert time.monotonic() < deadline, broker.printed()[-3000:]
        time.sleep(0.02)


def send(connection, body):
    return connection.call(send_request(TOPIC, 0, [body], "KEYS\x01k")).code


def send_many(connection, bodies, acknowledged):
    """All under way at once; the codes that came back."""
    requests = [send_request(TOPIC, 0, [body], "KEYS\x01k") for body in bodies]
    under_way = dict(zip(connection.send(*requests), bodies, strict=True))
    codes = set()
    for _ in bodies:
        response = connection.receive()
        body = under_way.pop(response.opaque)
        codes.add(response.code)
        if response.code == 0:
            acknowledged.append(body)
    return codes


def info(connection):
    return KVTable.decode(connection.call(RemotingCommand.request(28)).body).table


def stored(connection):
    return [bytes(message.body) for message in read_queue(connection, TOPIC, 0)]


def numbered(first, count):
    return [b"message %06d " % number + b"x" * 500 for number in range(first, first + count)]


def log_part(mode):
    return "/data/" if mode == "dledger" else "/commitlog/"


def test_no_room_for_the_log(broker, mode, faults) -> None:
    """Refused at once, read on, taken again by itself; nothing acknowledged is missing."""
    acknowledged = []
    with broker, ready(broker) as connection:
        assert send_many(connection, numbered(0, 200), acknowledged) == {0}
        faults.set(f"write {errno.ENOSPC} {log_part(mode)}")
        assert send_many(connection, numbered(1000, 200), acknowledged) == {REFUSED}
        assert send_many(connection, numbered(2000, 50), acknowledged) == {REFUSED}
        assert set(stored(connection)) >= set(acknowledged)
        assert "storeRefusesPuts" in info(connection)
        faults.clear()
        wait_for(lambda: send(connection, b"again") == 0, broker)
        assert send_many(connection, numbered(3000, 200), acknowledged) == {0}
        wait_for(lambda: set(stored(connection)) >= set(acknowledged), broker)
        assert broker.stop() == 0
    reading = read_store(broker.store)
    assert reading.problems == []
    assert {message.body for message in reading.messages} >= set(acknowledged)


def test_no_room_for_the_derived_files(broker, faults) -> None:
    acknowledged = []
    with broker, ready(broker) as connection:
        faults.set(f"room {errno.ENOSPC} /consumequeue/", f"room {errno.ENOSPC} /index/")
        for first in range(0, 20_000, 500):
            codes = send_many(connection, numbered(first, 500), acknowledged)
            if REFUSED in codes:
                break
        assert REFUSED in codes, "room was taken ahead for so many"
        faults.clear()
        wait_for(lambda: send(connection, b"again") == 0, broker)
        wait_for(lambda: set(stored(connection)) >= set(acknowledged), broker)


def test_a_failed_sync_ends_writing(broker, mode, faults) -> None:
    """No acknowledgement behind it, whatever the disk says later; after a restart all that was
    acknowledged is there.
    """
    acknowledged = []
    with broker, ready(broker) as connection:
        assert send_many(connection, numbered(0, 100), acknowledged) == {0}
        faults.set(f"sync {errno.EIO} {log_part(mode)}")
        if mode == "sync-flush":
            assert send_many(connection, numbered(1000, 100), acknowledged) == {REFUSED}
        wait_for(lambda: send(connection, b"probe") == REFUSED, broker)
        faults.clear()
        time.sleep(1.5)
        assert send_many(connection, numbered(2000, 50), acknowledged) == {REFUSED}
        assert "storeFailure" in info(connection)
        assert set(stored(connection)) >= set(acknowledged)
    broker.kill()
    with broker, ready(broker) as connection:
        wait_for(lambda: set(stored(connection)) >= set(acknowledged), broker)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_file_system_that_is_full(small_disk, tmp_path: Path, mode) -> None:
    """Everything at once: log, consume queues, index, tables. The process lives (a write into a
    mapping without room would end it), and goes on when something is deleted.
    """
    broker = made(
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
    acknowledged = []
    try:
        with broker, ready(broker) as connection:
            codes = set()
            for first in range(0, 100_000, 100):
                codes = send_many(connection, numbered(first, 100), acknowledged)
                if codes == {REFUSED}:
                    break
            assert codes == {REFUSED}
            for first in range(200_000, 202_000, 100):
                send_many(connection, numbered(first, 100), acknowledged)
            assert stored(connection)[0] == b"ready", "reads go on"
            assert broker.running
            ballast.unlink()
            wait_for(lambda: send(connection, b"again") == 0, broker)
            assert send_many(connection, numbered(300_000, 200), acknowledged) == {0}
            wait_for(lambda: set(stored(connection)) >= set(acknowledged), broker)
            assert broker.stop() == 0
        reading = read_store(broker.store)
        assert {message.body for message in reading.messages} >= set(acknowledged)
    except NetworkError as fault:
        raise AssertionError(broker.printed()[-3000:]) from fault
    finally:
        broker.kill()
