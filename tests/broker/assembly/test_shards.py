"""Several brokers of one configuration: what differs between them, what is refused, and the
supervisor.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define, field

from rmqpy.broker.assembly.shards.folders import claim_folders
from rmqpy.broker.assembly.shards.plan import shards_of
from rmqpy.broker.assembly.shards.supervisor import Restarts, ShardCommand, Supervisor
from rmqpy.cli import main
from rmqpy.config.loading import (
    BrokerConfiguration,
    configuration_text,
    load_broker_configuration,
    load_shard_configuration,
    updated_configuration,
)
from rmqpy.model.errors import ConfigError
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic
from rmqpy.testing.memory_files import MemoryFiles
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import python_environment

ROOT = "/store"


def configuration(**settings: str) -> BrokerConfiguration:
    base = {"brokerName": "broker-a", "storePathRootDir": ROOT, **settings}
    return load_broker_configuration(None, base).configuration


GROUP = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "broker-a",
    "dLegerSelfId": "n1",
    "dLegerPeers": "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-[::1]:40911",
}


# ------------------------------------------------------------------------------------------ plan


def test_a_shard_has_its_name_folder_and_ports() -> None:
    first, second = shards_of(configuration(metricsListenAddress="127.0.0.1:5557"), "2")
    assert (first.name, second.name) == ("broker-a-0", "broker-a-1")
    assert first.settings["listenPort"] == "10911"
    assert second.settings == {
        "brokerName": "broker-a-1",
        "storePathRootDir": "/store/broker-a-1",
        "storePathCommitLog": "/store/broker-a-1/commitlog",
        "listenPort": "10921",
        "metricsListenAddress": "127.0.0.1:5567",
    }
    assert dict(second.ports) == {
        "fast port": 10919,
        "listenPort": 10921,
        "replication port": 10922,
        "metrics port": 5567,
    }


def test_shards_may_be_named() -> None:
    assert [each.name for each in shards_of(configuration(), "east,west")] == ["east", "west"]


def test_logs_in_other_places_and_masters_are_those_of_the_shard() -> None:
    given = configuration(
        storePathCommitLog="/fast/log",
        storePathDLedgerCommitLog="/fast/ledger",
        haMasterAddress="10.0.0.9:10912",
    )
    settings = shards_of(given, "3")[2].settings
    assert settings["storePathCommitLog"] == "/fast/log/broker-a-2"
    assert settings["storePathDLedgerCommitLog"] == "/fast/ledger/broker-a-2"
    assert settings["haMasterAddress"] == "10.0.0.9:10932"


@pytest.mark.parametrize(("group", "expected"), [("broker-a", "broker-a-1"), ("g", "g-1")])
def test_each_shard_is_a_dledger_group_of_its_own(group: str, expected: str) -> None:
    shard = shards_of(configuration(**{**GROUP, "dLegerGroup": group}), "2")[1]
    assert shard.settings["dLegerGroup"] == expected
    assert shard.settings["dLegerPeers"] == "n0-10.0.0.1:40921;n1-10.0.0.2:40921;n2-[::1]:40921"
    assert shard.ports["DLedger port"] == 40921


@pytest.mark.parametrize(
    ("settings", "wanted", "reason"),
    [
        ({}, "0", "expected 1 to 64"),
        ({}, "65", "expected 1 to 64"),
        ({}, "a,a", "each once"),
        ({}, "a,", "cannot be the name"),
        ({}, "a,../b", "cannot be the name"),
        ({}, "-1,..", "cannot be the name"),
        (
            {"listenPort": "65530"},
            "2",
            "fast port of broker-a-1 would be 65538, expected 1 to 65535",
        ),
        ({"listenPort": "2"}, "1", "fast port of broker-a-0 would be 0"),
        (
            {"metricsListenAddress": "127.0.0.1:10921"},
            "2",
            "listenPort of broker-a-1 and the metrics port of broker-a-0 would both be 10921",
        ),
        (
            {**GROUP, "dLegerPeers": GROUP["dLegerPeers"].replace("40911", "10922")},
            "2",
            "replication port of broker-a-1 and the DLedger port of broker-a-0",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, str], wanted: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        shards_of(configuration(**settings), wanted)


# --------------------------------------------------------------------------------------- folders


def claim(files: MemoryFiles, wanted: str) -> None:
    claim_folders(files, ROOT, shards_of(configuration(), wanted))


def put_log(files: MemoryFiles, folder: str) -> None:
    files.make_dirs(f"{folder}/commitlog")
    files.replace_bytes(f"{folder}/commitlog/00000000000000000000", b"x")


def test_folders_are_claimed_once_and_more_shards_can_be_added() -> None:
    files = MemoryFiles()
    claim(files, "1")
    put_log(files, "/store/broker-a-0")
    claim(files, "3")
    claim(files, "3")
    assert files.read_bytes("/store/broker-a-2/rmqpy/broker-name") == b"broker-a-2\n"


def test_fewer_shards_than_have_messages_are_refused() -> None:
    files = MemoryFiles()
    claim(files, "3")
    claim(files, "2")  # the third has no messages yet
    put_log(files, "/store/broker-a-2")
    with pytest.raises(ConfigError, match=r"messages of the shard broker-a-2, expected only"):
        claim(files, "2")
    claim(files, "3")


def test_a_folder_of_another_broker_is_refused() -> None:
    files = MemoryFiles()
    claim(files, "2")
    files.rename("/store/broker-a-1", "/store/broker-a-5")
    files.rename("/store/broker-a-0", "/store/broker-a-1")
    with pytest.raises(ConfigError, match="belongs to the broker broker-a-0, expected broker-a-1"):
        claim(files, "2")


def test_the_store_of_a_single_broker_is_refused_and_can_become_the_first_shard() -> None:
    files = MemoryFiles()
    put_log(files, ROOT)
    with pytest.raises(ConfigError, match="move all that is in /store to /store/broker-a-0"):
        claim(files, "2")
    assert not files.exists("/store/broker-a-0")
    files.make_dirs("/store/broker-a-0")
    files.rename("/store/commitlog", "/store/broker-a-0/commitlog")
    claim(files, "2")


# -------------------------------------------------------------------------------------- settings


def test_changes_at_run_time_are_those_of_one_shard(tmp_path: Path) -> None:
    """What one file of all shards says later counts, unless the shard has changed it."""
    shared = tmp_path / "broker.conf"
    changes = str(tmp_path / "changes.conf")
    shared.write_text("brokerName=a\nflushIntervalCommitLog=700\nfromElsewhere=1\n")
    overrides = {"storePathRootDir": str(tmp_path), "brokerName": "a-0"}
    loaded = load_shard_configuration(shared, changes, overrides, {})
    assert loaded.path == changes
    changed = updated_configuration(loaded.configuration, {"fileReservedTime": "9"})
    text = configuration_text(changed, loaded.unknown, loaded.shared)
    assert text.splitlines() == ["fileReservedTime=9"]
    Path(changes).write_text(text)
    shared.write_text("brokerName=a\nflushIntervalCommitLog=800\n")
    again = load_shard_configuration(shared, changes, overrides, {}).configuration
    assert again.store.file_reserved_time == 9
    assert again.store.flush_interval_commit_log == 800
    assert again.broker.broker_name == "a-0"


def test_the_settings_of_all_shards_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", f"storePathRootDir={tmp_path}", "--set", "brokerName=x"]
    assert main(["broker", "--shards", "2", "-p", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [each for each in lines if each.startswith(("# ", "brokerName=", "listenPort="))] == [
        "# x-0",
        "brokerName=x-0",
        "listenPort=10911",
        "# x-1",
        "brokerName=x-1",
        "listenPort=10921",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--only", "x-0"], "expected --shards, too"),
        (["--shards", "2", "--only", "x-2"], "expected one of x-0, x-1"),
        (["--shards", "2", "--force-truncate"], "expected --only NAME, too"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", f"storePathRootDir={tmp_path}", "--set", "brokerName=x"]
    assert main(["broker", *words, *given]) != 0
    assert reason in capsys.readouterr().err


# ------------------------------------------------------------------------------------ supervisor


def test_pauses_double_until_a_process_has_run_for_a_minute() -> None:
    restarts = Restarts()
    assert [restarts.delay_ms(10) for _ in range(8)] == [
        1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip
    assert restarts.delay_ms(60_000) == 1000
    assert restarts.delay_ms(59_999) == 2000


@define
class Watched:
    """A supervisor of small programs, and what it prints. The one called ``kills`` is killed when
    all are ready.
    """

    programs: dict[str, str]
    stop_after: str
    """The line after which all are stopped."""

    kills: str = ""
    lines: list[str] = field(factory=list)

    def run(self, *, times: int = 1) -> int:
        """Run the programs until ``stop_after`` was printed so often; return the exit code."""
        commands = [
            ShardCommand(name, (sys.executable, "-c", text)) for name, text in self.programs.items()
        ]

        async def supervise(scheduler: AsyncioScheduler) -> int:
            stopped = asyncio.Event()

            def say(line: str) -> None:
                self.lines.append(line)
                if line == "ready: 2 shards" and self.kills:
                    supervisor.processes[self.kills].kill()
                if self.lines.count(self.stop_after) == times:
                    stopped.set()

            supervisor = Supervisor(commands, scheduler, stopped, say, lambda: Restarts(1))
            return await supervisor.run()

        return run(supervise, uvloop="off")


WAITS = "import signal; print('ready: {}', flush=True); signal.pause()"


@pytest.mark.slow
def test_a_process_that_ends_is_started_again() -> None:
    programs = {"a": WAITS.format("a"), "b": WAITS.format("b")}
    watched = Watched(programs, "ready: b", kills="b")
    assert watched.run(times=2) == 0
    assert watched.lines.count("ready: a") == 1
    assert watched.lines.count("ready: 2 shards") == 1


@pytest.mark.slow
def test_a_failed_start_ends_all() -> None:
    programs = {"a": WAITS.format("a"), "b": "import sys; sys.exit(3)"}
    watched = Watched(programs, "never")
    assert watched.run() == 3
    assert "ready: 2 shards" not in watched.lines


SAYS_ITS_END = """
import os, signal
def end(*_):
    os.write(1, b'ended\\n')  # print() may be interrupted by the signal, and is not reentrant.
    os._exit(0)
signal.signal(signal.SIGTERM, end)
"""


@pytest.mark.slow
def test_the_end_of_all_processes_is_awaited() -> None:
    programs = {name: SAYS_ITS_END + WAITS.format(name) for name in "ab"}
    watched = Watched(programs, "ready: 2 shards")
    assert watched.run() == 0
    assert watched.lines.count("ended") == 2


# ------------------------------------------------------------------------------- whole processes


@contextmanager
def running_shards(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "rmqpy.cli", "broker", "--shards", "2"]
    for each in (f"storePathRootDir={tmp_path}", "brokerName=x", f"listenPort={port}"):
        argv += ["--set", each]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=log, text=True, env=python_environment()
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()  # the kernel ends the shards


def line_after(process: subprocess.Popen[str], beginning: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if line.startswith(beginning))


@pytest.mark.slow
def test_two_shards_serve_are_restarted_and_stop_cleanly(tmp_path: Path) -> None:
    block = free_port_block(16)
    port = block.broker_port
    with running_shards(tmp_path, port) as process:
        line_after(process, "ready: 2 shards")
        for number in range(2):
            with BlockingConnection(f"127.0.0.1:{port + 10 * number}") as connection:
                create_topic(connection, "T", 1)
        (pid,) = re.findall(r"x-1 is process ([0-9]+)", (tmp_path / "log").read_text())
        os.kill(int(pid), signal.SIGKILL)
        line_after(process, "ready: broker x-1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    log = (tmp_path / "log").read_text()
    assert "x-1 has ended with signal SIGKILL: it is started again in 1 s" in log
    assert re.search(r"INFO x-0 rmqpy\.[a-z.]+: broker x-0 stopped", log)
    for name in ("x-0", "x-1"):
        assert (tmp_path / name / "config" / "topics.json").exists()
        assert not (tmp_path / name / "abort").exists()
    del block
