"""The command line: exit codes, printed settings, and error messages."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.cli import start_process, write_broker_conf

from rmqpy import __version__
from rmqpy.cli import main
from rmqpy.cli.version import commit, version_text
from rmqpy.codec import backend
from rmqpy.testing.ports import PortBlock, free_port_block
from rmqpy.testing.processes import python_environment


@pytest.fixture
def ports() -> PortBlock:
    block = free_port_block(4)
    return block


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    first, *lines = capsys.readouterr().out.splitlines()
    found = dict(line.split(": ", 1) for line in lines)
    assert first == f"rmqpy {__version__}"
    assert found["core"].partition(" ")[0] == {"c": "C", "pure": "Python"}[backend.implementation]
    loop = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
    assert found["event loop"].startswith(loop)
    assert f" {platform.python_version()} " in found["Python"]
    assert re.fullmatch(r"unknown|[0-9a-f]{40}(\+changes)?", found["commit"])


def test_without_uvloop_and_the_c_core_the_version_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(backend, "implementation", "pure")
    monkeypatch.setattr(backend, "reason", "it was not built")
    lines = version_text().splitlines()
    assert "core: Python (it was not built)" in lines
    assert "event loop: asyncio (uvloop is not installed)" in lines


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("1" * 40 + "\n", "1" * 40),
        ("1" * 40 + "+changes\n", "1" * 40 + "+changes"),
        ("", "unknown"),
        ("v1.0\n", "unknown"),
        ("\u2028", "unknown"),
    ],
)
def test_the_commit_is_that_of_the_build(tmp_path: Path, content: str, found: str) -> None:
    file = tmp_path / "commit.txt"
    assert commit(file) == "unknown"
    file.write_text(content, encoding="utf-8")
    assert commit(file) == found


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["broker", "--no-such-option"]])
def test_bad_usage_is_exit_code_1(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1


@pytest.mark.parametrize("rate", ["-1", "nan", "inf", "fast"])
@pytest.mark.parametrize(
    "command",
    ["store backup DIR TO", "upgrade prepare n0=DIR", "rehearse -n 127.0.0.1:1 -b b --dir DIR"],
)
def test_a_rate_that_is_none_is_refused(
    command: str, rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.replace("DIR", str(tmp_path)).replace("TO", str(tmp_path / "to")).split()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--rate", rate])
    assert ended.value.code == 1
    assert f"found {rate!r}, expected MiB a second, or 0" in capsys.readouterr().err


def test_broker_prints_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = write_broker_conf(tmp_path, 20911)
    assert main(["broker", "-c", str(conf), "-n", "127.0.0.1:9876;127.0.0.1:9877", "-p"]) == 0
    printed = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert printed["brokerName"] == "cli-broker"
    assert printed["namesrvAddr"] == "127.0.0.1:9876;127.0.0.1:9877"
    assert printed["mappedFileSizeCommitLog"] == "65536"
    assert printed["messageDelayLevel"].startswith("1s 5s 10s")


def test_the_command_line_overrides_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = write_broker_conf(tmp_path, 20911)
    assert main(["broker", "-c", str(conf), "--set", "brokerName=other", "-p"]) == 0
    assert "brokerName=other\n" in capsys.readouterr().out


def test_namesrv_prints_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["namesrv", "--set", "listenPort=19876", "-p"]) == 0
    assert "listenPort=19876\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("flushDiskType=SOMETIMES", ["broker.conf:9", "flushDiskType", "ASYNC_FLUSH"]),
        ("mappedFileSizeCommitLog=big", ["broker.conf:9", "mappedFileSizeCommitLog", "big"]),
        ("messageStorePlugIn=org.example.Plugin", ["messageStorePlugIn"]),
    ],
)
def test_the_error_for_an_invalid_value_has_file_line_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: list[str]
) -> None:
    conf = write_broker_conf(tmp_path, 20911)
    conf.write_text(conf.read_text() + line + "\n")
    assert main(["broker", "-c", str(conf)]) == 1
    error = capsys.readouterr().err
    assert [word for word in words if word not in error] == []
    assert not (tmp_path / "store").exists()


def test_an_unreadable_file_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "-c", "/no/such/broker.conf"]) == 1
    assert "/no/such/broker.conf" in capsys.readouterr().err


def test_set_without_a_value_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--set", "brokerName", "-p"]) == 1
    assert "KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dLegerSelfId": "n2"}, "dLegerSelfId=n2, is not among them"),
        ({"dLegerSelfId": "node-0"}, "one letter and a number"),
        ({"dLegerGroup": ""}, "enableDLegerCommitLog=true needs it"),
        ({"dLegerPeers": "n0-127.0.0.1"}, "separated by ;"),
        ({"dLegerPeers": "n0-127.0.0.1:1;n0-127.0.0.1:2"}, "the same id twice"),
        ({"dLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:1"}, "the same address twice"),
    ],
)
def test_an_invalid_dledger_group_is_refused_with_a_remedy(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ports: PortBlock,
    changes: dict[str, str],
    message: str,
) -> None:
    settings = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerPeers": "n0-127.0.0.1:20001;n1-127.0.0.1:20002",
        "dLegerSelfId": "n0",
    }
    conf = write_broker_conf(tmp_path, ports.broker_port, **(settings | changes))
    assert main(["broker", "-c", str(conf)]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_slave_with_the_id_of_the_master_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ports: PortBlock
) -> None:
    conf = write_broker_conf(tmp_path, ports.broker_port, brokerRole="SLAVE", brokerId="0")
    assert main(["broker", "-c", str(conf)]) == 1
    assert "a slave needs its own id" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_foreign_file_in_the_store_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ports: PortBlock
) -> None:
    conf = write_broker_conf(tmp_path, ports.broker_port)
    stray = tmp_path / "store/commitlog/md5sums.txt"
    stray.parent.mkdir(parents=True)
    stray.write_text("x")
    assert main(["broker", "-c", str(conf)]) == 1
    error = capsys.readouterr().err
    assert str(stray) in error and "move it elsewhere" in error


@pytest.mark.slow
def test_sigterm_stops_a_broker_cleanly_and_logs_have_one_line_per_event(
    tmp_path: Path, ports: PortBlock
) -> None:
    conf = write_broker_conf(tmp_path, ports.broker_port)
    broker = start_process(["broker", "-c", str(conf), "--log-json"])
    assert broker.stdout is not None
    assert broker.stdout.readline() == f"ready: broker cli-broker 127.0.0.1:{ports.broker_port}\n"
    assert (tmp_path / "store/abort").exists()
    broker.send_signal(signal.SIGTERM)
    _, errors = broker.communicate(timeout=30)
    assert broker.returncode == 0
    assert not (tmp_path / "store/abort").exists()
    events = [json.loads(line) for line in errors.splitlines()]
    assert {"time_ms", "level", "logger", "text"} <= set(events[0])


@pytest.mark.slow
def test_a_second_broker_on_the_same_store_is_refused(tmp_path: Path, ports: PortBlock) -> None:
    conf = write_broker_conf(tmp_path, ports.broker_port)
    first = start_process(["broker", "-c", str(conf)])
    try:
        assert first.stdout is not None and first.stdout.readline().startswith("ready:")
        second = start_process(["broker", "-c", str(conf)])
        _, errors = second.communicate(timeout=30)
        assert second.returncode == 1
        assert "lock" in errors and "another broker" in errors
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=30)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["store", "fsck", "DIR"], "rmqpy: interrupted\n"),
        (["upgrade", "apply", "--resume", "DIR"], "rmqpy upgrade apply --resume DIR continues"),
        (["upgrade", "switch", "DIR"], "rmqpy upgrade rollback DIR takes them back"),
        (["upgrade", "rollback", "DIR"], "run the command again"),
        (["pipeline", "rebuild", "DIR", "--apply"], "rmqpy upgrade apply --resume DIR continues"),
    ],
)
def test_ctrl_c_exits_with_130_and_one_line(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(**_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rmqpy.cli.command_line.configure_logging", interrupt)
    assert main(words) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


INTERRUPTED_IMPORTS = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from rmqpy.cli import main
sys.exit(main(["--version"]))
"""


@pytest.mark.parametrize(
    "name", ["rmqpy.cli.command_line", "argparse", "rmqpy.cli.parsing", "rmqpy.cli.servers"]
)
def test_ctrl_c_while_the_command_is_imported_prints_no_traceback(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORTS, name],
        capture_output=True,
        text=True,
        env=python_environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rmqpy: interrupted\n")


def test_the_hint_of_a_group_names_no_directory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(options: argparse.Namespace) -> None:
        options.given_group = "group"
        raise KeyboardInterrupt

    monkeypatch.setattr("rmqpy.cli.upgrade.base.given.use_group", interrupt)
    assert main(["upgrade", "apply"]) == 130
    assert "rmqpy upgrade apply continues them and rmqpy upgrade rollback takes" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_reader_that_has_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "rmqpy.cli", "completion", "bash"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=python_environment(),
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_command_for_one_broker_needs_no_name_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert main(["admin", "clusterList"]) == 1
    assert "found no name server, expected one; use -n" in capsys.readouterr().err
    assert main(["admin", "brokerStatus", "-b", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1:1" in error and "name server" not in error
