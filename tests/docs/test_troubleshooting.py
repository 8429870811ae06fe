"""The messages of docs/reference/start-errors.md: each is that of a start that fails here.

``RMQPY_REWRITE=1 pytest tests/docs/test_troubleshooting.py`` rewrites the table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest
from attrs import define

from rmqpy.cli import main
from rmqpy.client import Message, Producer
from rmqpy.testing.in_process import broker_in_process, name_server_in_process
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import dledger_settings

WRITE = os.environ.get("RMQPY_REWRITE") == "1"
TO_WRITE = "RMQPY_REWRITE=1 pytest tests/docs/test_troubleshooting.py"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "start-errors.md"
START, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
FILE_SIZE = 16_384
STORE = {
    "mappedFileSizeCommitLog": str(FILE_SIZE),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}


@define(frozen=True)
class Environment:
    """The folder of one case, and free ports."""

    folder: Path
    block: PortBlock
    peer_block: PortBlock
    stores: Path
    resources: ExitStack
    """Closed at the end of the case."""

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def log(self) -> Path:
        return self.store / "commitlog"

    def filled(self, name: str = "classic") -> None:
        """Copy a store with three log files after a clean stop.

        ``joined`` has also been switched to DLedger.
        """
        shutil.copytree(self.stores / name, self.store)

    def listen(self, port: int) -> None:
        taken = self.resources.enter_context(socket.socket())
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()


Provoke = Callable[[Environment], "dict[str, str] | list[str] | None"]
"""A function that prepares a failure and returns settings, or arguments, for the start."""


@define(frozen=True)
class Case:
    group: str
    title: str
    provoke: Provoke


CASES: list[Case] = []


def case(group: str, title: str) -> Callable[[Provoke], Provoke]:
    def register(provoke: Provoke) -> Provoke:
        CASES.append(Case(group, title, provoke))
        return provoke

    return register


# ------------------------------------------------------------------------------------- settings


@case("Settings", "the configuration file is missing")
def _no_file(environment: Environment) -> list[str]:
    return ["-c", str(environment.folder / "missing.conf")]


@case("Settings", "a value has the wrong type")
def _no_number(_: Environment) -> dict[str, str]:
    return {"listenPort": "many"}


@case("Settings", "a value is out of its range")
def _too_small(_: Environment) -> dict[str, str]:
    return {"mappedFileSizeCommitLog": "12"}


@case("Settings", "a key requests a feature that this version does not have")
def _refused(_: Environment) -> dict[str, str]:
    return {"duplicationEnable": "true"}


@case("Settings", "a controller of 5.x elects the master")
def _controller_mode(_: Environment) -> dict[str, str]:
    return {"enableControllerMode": "true"}


@case("Settings", "the secret of the group is too short")
def _short_secret(environment: Environment) -> dict[str, str]:
    settings = dledger_settings("group", environment.peer_block[0])
    return settings | {"rmqpyGroupSecret": "short"}


@case("Settings", "several commit log folders")
def _several(_: Environment) -> dict[str, str]:
    return {"storePathCommitLog": "/one,/two"}


@case("Settings", "an unknown escape in a properties file")
def _escape(environment: Environment) -> list[str]:
    path = environment.folder / "broker.conf"
    path.write_text("brokerName=\\u12\n", encoding="utf-8")
    return ["-c", str(path)]


@case("Settings", "`--set` without a value")
def _no_value(_: Environment) -> list[str]:
    return ["--set", "listenPort"]


@case("Settings", "an invalid address")
def _no_address(_: Environment) -> dict[str, str]:
    return {"brokerIP1": "no.such.host"}


@case("Settings", "a DLedger member that is not among its peers")
def _not_among(_: Environment) -> dict[str, str]:
    return dledger_settings("group", 40911) | {"dLegerSelfId": "n7"}


@case("Settings", "an invalid peers string")
def _no_peers(_: Environment) -> dict[str, str]:
    return dledger_settings("group", 40911) | {"dLegerPeers": "n0=127.0.0.1:40911"}


@case("Settings", "a slave with the id of a master")
def _slave_id(_: Environment) -> dict[str, str]:
    return {"brokerRole": "SLAVE", "brokerId": "0"}


# ----------------------------------------------------------------------------------------- ports


@case("Ports", "the port is in use")
def _port_taken(environment: Environment) -> None:
    environment.listen(environment.block.broker_port)


@case("Ports", "the port of the slaves is in use")
def _ha_port_taken(environment: Environment) -> None:
    environment.listen(environment.block.broker_port + 1)


@case("Ports", "the port of the DLedger peers is in use")
def _peer_port_taken(environment: Environment) -> dict[str, str]:
    environment.listen(environment.peer_block[0])
    return dledger_settings("group", environment.peer_block[0])


# ------------------------------------------------------------------------------------- directory

HOLD_LOCK = """
import sys
from rmqpy.store.files.disk import OsFileSystem
lock = OsFileSystem().lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


@case("Directory", "another broker uses it")
def _locked(environment: Environment) -> None:
    environment.store.mkdir()
    words = [sys.executable, "-c", HOLD_LOCK, str(environment.store / "lock")]
    other = environment.resources.enter_context(
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"


@case("Directory", "it is a file")
def _a_file(environment: Environment) -> None:
    environment.store.write_bytes(b"")


@case("Directory", "a newer version wrote it")
def _newer(environment: Environment) -> None:
    environment.filled()
    (environment.store / "rmqpy" / "format").write_text("99\n", encoding="utf-8")


@case("Directory", "an upgrade is incomplete")
def _half_done(environment: Environment) -> None:
    environment.filled()
    work = environment.store / "rmqpy" / "upgrade"
    work.mkdir(parents=True)
    (work / "journal.json").write_text('{"format": 1, "state": "applying"}', encoding="utf-8")


@case("Directory", "a controller of 5.x elects the master of its group")
def _controller_store(environment: Environment) -> None:
    environment.filled()
    (environment.store / "brokerIdentity").write_text("c#broker-a#1", encoding="utf-8")


@case("Directory", "timer messages of 5.x wait in it")
def _timer_store(environment: Environment) -> None:
    environment.filled()
    slot = struct.pack(">qqqii", 1 << 40, 0, 0, 3, 0)
    (environment.store / "timerwheel").write_bytes(bytes(4096) + slot)


@case("Directory", "it has DLedger data and the flag is off")
def _flag_off(environment: Environment) -> None:
    environment.filled("joined")


# ------------------------------------------------------------------------------------------- log


@case("Log", "a foreign file")
def _foreign(environment: Environment) -> None:
    environment.filled()
    (environment.log / "notes.txt").write_text("copied here", encoding="utf-8")


@case("Log", "a file of another size")
def _cut(environment: Environment) -> None:
    environment.filled()
    os.truncate(log_files(environment)[0], 5000)


@case("Log", "the file size in the settings differs from the files")
def _other_size(environment: Environment) -> dict[str, str]:
    environment.filled()
    return {"mappedFileSizeCommitLog": str(2 * FILE_SIZE)}


@case("Log", "a file is missing")
def _gap(environment: Environment) -> None:
    environment.filled()
    log_files(environment)[1].unlink()


@case("Log", "a file was renamed")
def _renamed(environment: Environment) -> None:
    environment.filled()
    first = log_files(environment)[0]
    first.rename(environment.log / f"{FILE_SIZE + 17:020}")


@case("Log", "a damaged record followed by valid ones")
def _damaged(environment: Environment) -> None:
    environment.filled()
    (environment.store / "abort").touch()
    (environment.store / "rmqpy" / "recovery-point").unlink()
    path = log_files(environment)[-1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@case("Log", "the DLedger log does not start where the old log ends")
def _not_joined(environment: Environment) -> dict[str, str]:
    environment.filled("joined")
    log_files(environment)[-1].unlink()
    return JOINED


# ------------------------------------------------------------------------------------ other files


@case("Other files", "a foreign file among the consume queues")
def _foreign_queue(environment: Environment) -> None:
    environment.filled()
    (environment.store / "consumequeue" / "TopicTest" / "old").mkdir()


@case("Other files", "index files whose sizes differ from the settings")
def _index_size(environment: Environment) -> dict[str, str]:
    environment.filled()
    return {"maxIndexNum": "300"}


@case("Other files", "consumer offsets and their backup cannot be read")
def _offsets(environment: Environment) -> None:
    environment.filled()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (environment.store / "config" / name).write_text("{", encoding="utf-8")


@case("Other files", "an invalid DLedger checkpoint")
def _checkpoint(environment: Environment) -> dict[str, str]:
    environment.filled("joined")
    for path in (environment.store / "dledger-n0").glob("checkpoint*"):
        path.write_text("committedIndex=many\n", encoding="utf-8")
    return JOINED


JOINED = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "group",
    "dLegerSelfId": "n0",
    "dLegerPeers": "n0-127.0.0.1:40911",
}


def log_files(environment: Environment) -> list[Path]:
    return sorted(environment.log.iterdir())


# --------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of two read-only stores, ``classic`` and, after the switch, ``joined``."""
    root = tmp_path_factory.mktemp("stores")

    async def fill(folder: Path, settings: dict[str, str], count: int) -> None:
        async with (
            name_server_in_process(folder) as name_server,
            broker_in_process(folder, name_server, {**STORE, **settings}),
            Producer("troubles", name_server) as producer,
        ):
            message = Message(topic="TopicTest", body=bytes(1000), keys="key")
            for _ in range(count):
                await producer.send(message)

    asyncio.run(fill(root / "a", {}, 45))
    shutil.copytree(root / "a" / "store", root / "classic")
    asyncio.run(fill(root / "a", dledger_settings("group", free_port_block()[0]), 2))
    shutil.copytree(root / "a" / "store", root / "joined")
    return root


@pytest.fixture
def environment(tmp_path: Path, stores: Path) -> Iterator[Environment]:
    with ExitStack() as stack:
        blocks = free_port_block(BROKER_PORT_COUNT), free_port_block()
        yield Environment(tmp_path, *blocks, stores, stack)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Restore the root logger, which commands configure."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def seen() -> Iterator[dict[str, str]]:
    """Return the messages by the title of their case; the page is written from them at the end."""
    messages: dict[str, str] = {}
    yield messages
    if WRITE and len(messages) == len(CASES):
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        table = "".join(table_of(messages))
        PAGE.write_text(before + START + table + END + rest.partition(END)[2], encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_failed_start_prints_the_documented_message(
    case: Case, environment: Environment, seen: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = case.provoke(environment)
    settings = {
        "listenPort": str(environment.block.broker_port),
        "brokerIP1": "127.0.0.1",
        "brokerName": "a",
        "storePathRootDir": str(environment.store),
        **STORE,
        **(arguments if isinstance(arguments, dict) else {}),
    }
    words = [f"--set={key}={value}" for key, value in settings.items()]
    before = snapshot(environment.store)

    # A broker that starts nevertheless is stopped, and the code is 0.
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.alarm(5)
    try:
        code = main(["broker", *words, *(arguments if isinstance(arguments, list) else [])])
    finally:
        signal.alarm(0)
    assert code == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("rmqpy: "), error
    seen[case.title] = message_of(error, environment)
    assert WRITE or row(case, seen) in PAGE.read_text(encoding="utf-8"), f"rewrite it: {TO_WRITE}"
    if before:
        assert snapshot(environment.store) == before, "a refused start changed the directory"


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the files that a start must not change: all but locks and rmqpy's own files."""
    if not folder.is_dir():
        return {}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("commitlog", "consumequeue", "index", "config", "dledger-n0", "checkpoint")
        for path in sorted([folder / name, *(folder / name).rglob("*")])
        if path.is_file()
    }


def message_of(error: str, environment: Environment) -> str:
    """Return the message without the parts that differ between runs."""
    text = error.replace(str(environment.store), "STORE").replace(str(environment.folder), "DIR")
    ports = {environment.block.broker_port: "PORT", environment.block.broker_port + 1: "PORT+1"}
    ports[environment.peer_block[0]] = "PEER-PORT"
    for port, name in ports.items():
        text = text.replace(f":{port}", f":{name}")
    text = re.sub(r"/index/[0-9]{17}", "/index/TIME", text)
    return text.removeprefix("rmqpy: ")


def test_the_page_has_no_other_rows() -> None:
    table = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    titles = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line]
    assert [title for title in titles if title[0] not in "#|" and title != "problem"] == [
        case.title for case in CASES
    ]


def table_of(seen: dict[str, str]) -> Iterator[str]:
    for group, cases in groupby(CASES, lambda case: case.group):
        yield f"\n### {group}\n\n| problem | message of `rmqpy broker` |\n|---|---|\n"
        yield from (row(case, seen) for case in cases)
    yield "\n"


def row(case: Case, seen: dict[str, str]) -> str:
    return f"| {case.title} | {seen[case.title].replace('|', chr(92) + '|')} |\n"
