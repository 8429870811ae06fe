"""``rmqpy dev`` as a process: its line, its control, and its end."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from rmqpy.cli import main
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.slow

DEV = [sys.executable, "-m", "rmqpy.cli", "dev", "--log-level", "ERROR"]
SECONDS_MAX = 60
PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), end="", flush=True)
sys.stdin.read()
"""


def test_a_start_imports_nothing_that_only_other_commands_need() -> None:
    """Most of the start is the import of modules."""
    unneeded = ["rmqpy.client", "rmqpy.audit", "rmqpy.upgrade", "rmqpy.admin", "rmqpy.dledger"]
    unneeded += ["rmqpy.net.log_file", "pickle", "aiohttp", "multiprocessing"]
    code = "import sys, rmqpy.cli.command_line, rmqpy.cli.dev, rmqpy.testing.dev.serve\n"
    code += f"print(*[name for name in {unneeded} if name in sys.modules])"
    argv, environment = [sys.executable, "-c", code], python_environment()
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@define
class DevProcess:
    process: subprocess.Popen[str]

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def command(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()


@contextmanager
def started(*words: str) -> Iterator[DevProcess]:
    pipe, argv = subprocess.PIPE, [*DEV, *words]
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=python_environment())
    try:
        yield DevProcess(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevProcess]:
    with started("--topic", "Orders", "--keep", str(tmp_path / "kept")) as process:
        yield process


def post(control: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(control.removeprefix("http://"), timeout=SECONDS_MAX)
    try:
        connection.request("GET" if path == "/" else "POST", path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_the_line_names_a_broker_that_can_be_used_and_controlled(dev: DevProcess) -> None:
    ready = dev.read()
    with BlockingConnection(ready["brokers"]["broker"]) as connection:
        assert connection.call(send_request("Orders", 0, [b"1"])).code == 0
    control = ready["control"]
    assert post(control, "/")[1]["nodes"]["broker"]["leads"] is True
    assert dev.command('{"do": "kill"}') == {"ok": True}
    assert post(control, "/")[1]["nodes"]["broker"]["state"] == "stopped"
    assert post(control, "/start") == (200, {"ok": True})
    assert post(control, "/advance", b'{"seconds": 60}') == (200, {"ok": True})
    wrong = [
        ("/paus", b"", {}, 400, "did you mean pause"),
        ("/pause", b"[1]", {}, 400, "expected a JSON object"),
        ("/pause", b"{", {}, 400, "not JSON"),
        ("/advance", b'{"seconds": "1"}', {}, 400, "found seconds = '1'"),
        ("/advance", b'{"second": 1}', {}, 400, "found 'second', expected seconds"),
        ("/kill", b'{"node": "n7"}', {}, 400, "expected one of broker, namesrv"),
        ("/slow_disk", b'{"seconds": 1, "node": "namesrv"}', {}, 400, "expected one of broker"),
        ("/topic", b"{}", {}, 400, "expected a text"),
        ("/topic", b'{"name": "T", "queues": 0}', {}, 400, "a number above 0"),
        ("/partition", b'{"nodes": "broker"}', {}, 400, "a list of names"),
        ("/kill", b"", {"Origin": "http://example.org"}, 403, "web pages"),
        ("/kill", b"", {"Host": "example.org:80"}, 403, "expected the Host"),
        ("/kill", bytes(70_000), {}, 413, "at most"),
    ]
    for path, body, headers, status, text in wrong:
        found, answer = post(control, path, body, **headers)
        assert (found, answer["ok"]) == (status, False), path
        assert text in answer["error"]
    assert "not JSON" in dev.command("{")["error"]
    assert "expected an object" in dev.command("7")["error"]
    assert post(control, "/")[1]["nodes"]["broker"]["state"] == "running"
    assert dev.command('{"do": "quit"}') == {"ok": True}
    assert dev.process.wait(SECONDS_MAX) == 0


def test_options_choose_a_group_and_its_settings(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerClusterName=FromFile\nmaxMessageSize=9000\n")
    words = ("--group", "3", "--config", str(conf), "--set", "maxMessageSize=1000")
    with started(*words, "--topic", "Orders", "--keep", str(tmp_path / "kept")) as dev:
        ready = dev.read()
        assert [*ready["brokers"]] == ["n0", "n1", "n2"]
        leader = dev.command('{"do": "leader"}')["node"]
        with BlockingConnection(ready["brokers"][leader]) as connection:
            assert connection.call(send_request("Orders", 0, [b"1"])).code == ResponseCode.SUCCESS
            refused = connection.call(send_request("Orders", 0, [bytes(2000)])).code
            assert refused == ResponseCode.MESSAGE_ILLEGAL
        with BlockingConnection(ready["name_server"]) as connection:
            request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert [*ClusterInfo.decode(connection.call(request).body).cluster_addr_table] == [
                "FromFile"
            ]
        assert dev.command(json.dumps({"do": "partition", "nodes": [leader]}))["ok"]
        deadline = time.monotonic() + SECONDS_MAX
        while dev.command('{"do": "leader"}')["node"] == leader:
            assert time.monotonic() < deadline, "no other leader is elected"
        assert dev.command('{"do": "heal"}')["ok"]


def test_one_broker_may_have_a_dledger_log(tmp_path: Path) -> None:
    with started("--dledger", "--keep", str(tmp_path)) as dev:
        ready = dev.read()
        with BlockingConnection(ready["brokers"]["broker"]) as connection:
            assert connection.call(send_request("T", 0, [b"1"])).code == ResponseCode.SUCCESS
        assert [*Path(ready["stores"]["broker"]).glob("dledger-*/data/*")]


def test_it_ends_with_its_stdin_even_while_a_command_waits(dev: DevProcess) -> None:
    dev.read()
    dev.command('{"do": "stop"}')
    assert dev.process.stdin is not None
    dev.process.stdin.write('{"do": "leader"}\n')
    dev.process.stdin.close()
    dev.process.stdin = None
    assert dev.process.wait(SECONDS_MAX / 2) == 0


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *DEV, "--keep", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
    )
    assert parent.stdout is not None
    pid = json.loads(parent.stdout.readline())["pid"]
    descriptor = os.pidfd_open(pid)
    parent.kill()
    parent.communicate()
    try:
        import select

        assert select.select([descriptor], [], [], SECONDS_MAX)[0]
    finally:
        os.close(descriptor)


def test_the_next_one_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    environment = python_environment({"TMPDIR": str(tmp_path)})
    for _ in range(2):
        process = subprocess.Popen(
            DEV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        store = Path(json.loads(process.stdout.readline())["stores"]["broker"])
        assert store.is_dir()
        assert len(list(tmp_path.iterdir())) == 1
        process.kill()
        process.communicate()
        assert store.is_dir()


def test_a_run_and_a_wrong_topic_print_no_warning(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*DEV[:-2], *words, "--keep", str(tmp_path)],
            input="",
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            env=python_environment(),
            cwd=tmp_path,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    code, printed, errors = run("--topic", "Orders")
    assert (code, errors) == (0, "")
    assert json.loads(printed)["brokers"]
    code, printed, errors = run("--topic", "Orders.new")
    assert (code, printed) == (1, "")
    assert errors.count("\n") == 1, errors
    assert "topic 'Orders.new': " in errors


def test_it_does_not_start_for_a_process_that_is_not_its_parent(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEV, "--parent", "1", "--keep", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
        env=python_environment(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_bad_usage_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in [
        (["--set", "x"], "expected KEY=VALUE"),
        (["--topic", "a:b"], "expected NAME or NAME:QUEUES"),
        (["--config", str(tmp_path / "none.conf")], "none.conf"),
        (["--group", "3", "--set", "maxMessageSize=10"], "[13] the message is illegal"),
    ]:
        assert main(["dev", *words]) == 1
        captured = capsys.readouterr()
        assert text in captured.err
        assert captured.out == ""
