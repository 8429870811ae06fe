"""Pages of mapped files that the disk cannot deliver: a truncated file stands for a bad sector, and
both raise SIGBUS. Brokers and tools run in processes of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define

from rmqpy.codec import backend
from rmqpy.codec.message import decode_message
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import PullMessageRequestHeader
from rmqpy.testing.blocking_connection import BlockingConnection, connect_when_ready, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        backend.implementation != "c", reason="without the C core, SIGBUS ends the process"
    ),
]

FILE_BYTES = 65536
BODY = b"x" * 3000
PAGE = 4096


@define
class Scene:
    """A broker with a log of two files, and a connection to it."""

    broker: ServerProcess
    client: BlockingConnection

    def file(self, folder: str, number: int = 0) -> Path:
        assert self.broker.store is not None
        return sorted(path for path in (self.broker.store / folder).rglob("0*") if path.is_file())[
            number
        ]

    def send(self) -> int:
        return self.client.call(send_request("T", 0, [BODY])).code

    def pull(self, offset: int, count: int = 1) -> RemotingCommand:
        header = PullMessageRequestHeader(
            consumer_group="G",
            topic="T",
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
        )
        return self.client.call(RemotingCommand.request(RequestCode.PULL_MESSAGE, header))

    def body(self, offset: int) -> bytes:
        answer = self.pull(offset)
        assert answer.code == ResponseCode.SUCCESS, answer
        return decode_message(answer.body, 0).body


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    ports = free_port_block(BROKER_PORT_COUNT + 1)
    spec = BrokerSpec(port=ports.broker_port, namesrv=f"127.0.0.1:{ports[BROKER_PORT_COUNT]}")
    broker = RmqpySite(tmp_path).broker("broker", spec)
    broker.start()
    try:
        with connect_when_ready(broker.address) as client:
            scene = Scene(broker, client)
            for _ in range(30):
                assert scene.send() == ResponseCode.SUCCESS
            assert scene.body(0) == BODY  # known to the C core from now on
            yield scene
    finally:
        broker.kill()


def restore(path: Path, data: bytes) -> None:
    """Write the content of a file whose pages are mapped."""
    with path.open("r+b") as file:
        file.write(data)


def test_a_message_on_a_lost_page_is_refused_and_all_others_are_served(scene: Scene) -> None:
    log = scene.file("commitlog")
    os.truncate(log, 2 * PAGE)
    for _ in range(2):  # also when the page of zeros is in place
        refused = scene.pull(5)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert str(log) in (refused.remark or "")
    assert scene.body(0) == scene.body(25) == BODY
    assert scene.send() == ResponseCode.SUCCESS
    assert scene.broker.running
    printed = scene.broker.printed()
    assert printed.count("ERROR") == 1 and f"{log}: bytes" in printed
    page = scene.pull(0, 32)  # a page ends before the message, or is refused as a whole
    assert page.code == ResponseCode.SYSTEM_ERROR


def test_a_body_that_spans_a_lost_page_is_not_delivered_with_zeros(scene: Scene) -> None:
    """The header of message 2 is readable, its body continues on the page that is lost."""
    os.truncate(scene.file("commitlog"), 2 * PAGE)
    first = decode_message(scene.pull(0).body, 0)
    assert 2 * first.size < 2 * PAGE < 3 * first.size
    assert scene.body(1) == BODY
    for _ in range(2):
        assert scene.pull(2).code == ResponseCode.SYSTEM_ERROR


def test_no_message_is_skipped_if_its_unit_is_on_a_lost_page(scene: Scene) -> None:
    os.truncate(scene.file("consumequeue"), 0)
    for _ in range(2):
        refused = scene.pull(3)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "consumequeue" in (refused.remark or "")
    assert scene.broker.running


def test_no_message_is_accepted_for_a_file_that_has_lost_pages(scene: Scene) -> None:
    log = scene.file("commitlog", -1)
    os.truncate(log, 0)
    # The newest messages are still in memory; the first one of the file is on the lost page.
    assert scene.pull(21).code == ResponseCode.SYSTEM_ERROR
    assert scene.send() == ResponseCode.SERVICE_NOT_AVAILABLE
    assert scene.body(0) == BODY
    assert f"the store accepts no messages: {log}" in scene.broker.printed()


LOSES_A_PAGE = """
import errno, os, sys, tempfile
from rmqpy.cli import main
from rmqpy.model.files import UnitFolders
from rmqpy.store.files import disk

map_file, pread = disk.map_file, os.pread

def is_lost(fd):
    return os.readlink(f"/proc/self/fd/{fd}").endswith(sys.argv[1])

def readable(size):
    return 4096 if size > 4096 else 0

def map_with_lost_pages(fd, size, **how):
    if not is_lost(fd):
        return map_file(fd, size, **how)
    path = os.readlink(f"/proc/self/fd/{fd}")
    with tempfile.TemporaryFile() as copy, open(path, "rb") as original:
        copy.write(original.read())
        copy.flush()
        view = map_file(copy.fileno(), size, **how)
        copy.truncate(readable(size))
    return view

def pread_without_lost_pages(fd, length, position):
    if is_lost(fd):
        left = readable(os.fstat(fd).st_size) - position
        if left <= 0:
            raise OSError(errno.EIO, "a bad sector")
        length = min(length, left)
    return pread(fd, length, position)

disk.map_file, os.pread = map_with_lost_pages, pread_without_lost_pages
# C could not read the queue, and would leave it to Python.
disk.unit_folders = lambda _, topics, *sizes: iter([UnitFolders()] * len(topics))
sys.exit(main(sys.argv[2:]))
"""
"""Runs a command for which files whose path ends with the first argument can be read to byte 4096
only (small ones not at all), as with bad sectors: their size does not change.
"""


def run_with_loss(lost: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", LOSES_A_PAGE, "/".join(lost.parts[-2:]), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", ["store fsck", "store dump", "upgrade verify"])
def test_a_tool_names_the_file_instead_of_a_result(scene: Scene, words: str) -> None:
    log, store = scene.file("commitlog"), scene.broker.store
    scene.broker.stop()
    assert store is not None
    stores = [str(store)]
    if "verify" in words:
        stores.append(str(shutil.copytree(store, store.with_name("replica"))))
    ended = run_with_loss(log, *words.split(), *stores)
    assert ended.returncode == 1, ended
    assert f"{log.name}: found bytes 4096 to" in ended.stderr
    assert "restore the file" in ended.stderr


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue"])
def test_a_start_does_not_take_lost_pages_for_the_end_of_the_log(scene: Scene, folder: str) -> None:
    store, configuration = scene.broker.store, scene.broker.directory / "broker.conf"
    assert store is not None
    lost = scene.file(folder, -1 if folder == "commitlog" else 0)
    scene.broker.kill()
    before = {path: path.read_bytes() for path in store.rglob("0*") if path.is_file()}
    ended = run_with_loss(lost, "broker", "-c", str(configuration))
    assert ended.returncode == 1, ended
    assert f"{lost}: found bytes" in ended.stderr
    assert not (store / "rmqpy" / "quarantine").exists()
    assert {path: path.read_bytes() for path in before} == before
