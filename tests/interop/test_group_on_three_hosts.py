"""A group of brokers on three hosts goes to DLedger and back with six commands.

Each host is a network namespace with an sshd; the commands run on a fourth, over ssh or over
``rmqpy upgrade serve --drive``. The connections are lost while the plan is carried out, and the
disk of the third host is full when its member is filled.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define
from harness.interop import MEMBERS, PATIENCE_SECONDS, ROLES, InteropServers
from harness.ssh_hosts import SSH_PORT, SshHosts, missing, once_when, ssh_hosts

from rmqpy.cli import main
from rmqpy.cli.upgrade.group.outcome import rows_by_name
from rmqpy.testing.java import ClientError, Probe
from rmqpy.testing.java.site import BUSY_MACHINE
from rmqpy.testing.processes import BrokerSpec, ServerProcess, python_environment
from rmqpy.testing.store_reader import read_store

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

TOPIC = "goods"
PORT = 10911
SERVE_PORT = 8443
COUNT = 40
FULL = "n2"
"""The member whose disk is full at first."""
REFUSED, ENDED_IN_THE_MIDDLE = "size=64k", "size=1g,nr_inodes=24"
"""Its file system: the plan is refused, or no file can be created in the middle of it."""


@pytest.fixture
def disk(tmp_path: Path, size: str) -> Iterator[Path]:
    """Mount a file system where the store of ``FULL`` will be, before the hosts are made."""
    disk = tmp_path / FULL
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", os.fspath(disk)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", os.fspath(disk)], check=True)


@pytest.fixture
def three(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path, MEMBERS) as hosts:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        monkeypatch.chdir(tmp_path)
        yield hosts


@pytest.fixture
def serving(three: SshHosts) -> Iterator[list[subprocess.Popen[str]]]:
    """Collect the processes of ``rmqpy upgrade serve``, and end them."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def brokers(
    servers: InteropServers, kind: str, hosts: SshHosts, namesrv: str
) -> dict[str, ServerProcess]:
    """Return the brokers; the test starts none of them, because they run on other hosts."""
    found = {}
    for member in MEMBERS:
        address = hosts.addresses[member]
        (hosts.folder / member).mkdir(exist_ok=True)
        spec = BrokerSpec(
            port=PORT,
            namesrv=namesrv,
            store=hosts.folder / member,
            settings={
                **ROLES[member],
                **BUSY_MACHINE,
                "brokerIP1": address,
                "brokerIP2": address,
            },
        )
        found[member] = servers.site(kind).broker(f"over-ssh-{kind}-{member}", spec)
    return found


def config_of(server: ServerProcess) -> str:
    return next(word for word in server.argv if word.endswith("broker.conf"))


def write_start(hosts: SshHosts, member: str, server: ServerProcess) -> tuple[str, str]:
    """Write the script that starts a broker; return the commands that start and stop it."""
    script = hosts.folder / f"start-{member}"
    script.write_text(
        f"cd {shlex.quote(str(server.directory))}\n"
        f"export ROCKETMQ_HOME={shlex.quote(str(server.directory))}\n"
        f"nohup {shlex.join(server.argv)} > {member}.log 2>&1 &\n"
        f"echo $! > {hosts.folder}/{member}.pid\n"
    )
    return f"sh {script}", f"kill $(cat {hosts.folder}/{member}.pid)"


def add_commands(hosts: SshHosts, commands: dict[str, tuple[str, str]]) -> None:
    """Write ``start`` and ``stop`` of each member into ``group.toml``."""
    text = (hosts.folder / "group.toml").read_text()
    for member, (start, stop) in commands.items():
        text = text.replace(
            f"[member.{member}]\n", f'[member.{member}]\nstart = "{start}"\nstop = "{stop}"\n'
        )
    (hosts.folder / "group.toml").write_text(text)


def served(
    hosts: SshHosts,
    servers: dict[str, ServerProcess],
    commands: dict[str, tuple[str, str]],
    processes: list[subprocess.Popen[str]],
) -> list[str]:
    """Serve the directory of each member on its host; return the arguments of ``init``."""
    (hosts.folder / "token").write_text("a-token-of-enough-characters\n")
    names = ",".join(f"IP:{address}" for address in hosts.addresses.values())
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=hosts"]
        + ["-addext", f"subjectAltName={names}"],
        capture_output=True,
        cwd=hosts.folder,
        check=True,
    )
    words = ["init", "--token-file", "token", "--authority", "cert.pem"]
    for member, server in servers.items():
        address = hosts.addresses[member]
        serve = [sys.executable, "-m", "rmqpy.cli", "upgrade", "serve"]
        serve += [str(hosts.folder / member), "-c", config_of(server), "--drive"]
        serve += ["--host", address, "--port", str(SERVE_PORT), "--token-file", "token"]
        serve += ["--certificate", "cert.pem", "--key", "key.pem"]
        serve += [word for allowed in commands[member] for word in ("--allow", allowed)]
        process = subprocess.Popen(
            [*hosts.inside(member), *serve],
            stdout=subprocess.PIPE,
            text=True,
            cwd=hosts.folder,
            env=python_environment(),
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready: https://{address}:{SERVE_PORT}\n"
        words.append(f"https://{address}:{SERVE_PORT}")
    return words


def command(line: str) -> None:
    assert main(shlex.split(line)[1:]) == 0, line


def send(probe: Probe, turn: int) -> None:
    events = probe.run(
        "send",
        topic=TOPIC,
        retryMs=120_000,
        timeout_s=180.0,
        count=COUNT,
        sizes="700,20",
        first=1000 * turn,
        keys=f"turn{turn}-",
    )
    assert sum(event["event"] == "sent" for event in events) == COUNT


def read(probe: Probe) -> set[tuple[int, int]]:
    """Return the places of all messages."""
    return {
        (event["queueId"], event["queueOffset"])
        for event in probe.run("dump", topic=TOPIC)
        if event["event"] == "message"
    }


def create_topic(probe: Probe, address: str) -> None:
    """Create the topic as soon as the broker accepts it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            probe.run("createTopic", topic=TOPIC, broker=address)
            return
        except ClientError:
            assert time.monotonic() < deadline
            time.sleep(0.5)


def await_log_of_slave(hosts: SshHosts) -> None:
    """Wait until the slave has received something: before, its directory is no store."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list((hosts.folder / "n1/commitlog").glob("*")):
        assert time.monotonic() < deadline, "the slave receives nothing"
        time.sleep(0.1)


@define
class Running:
    """A master and its slave that run on their hosts, a third broker, and a probe."""

    namesrv: str
    members: dict[str, ServerProcess]
    commands: dict[str, tuple[str, str]]
    probe: Probe


def started(servers: InteropServers, three: SshHosts, kind: str, name: str) -> Running:
    """Start a master and its slave, and send the first messages."""
    namesrv = servers.namesrv("java", f"{name}-namesrv")
    address = f"{three.gateway}:{namesrv.port}"
    members = brokers(servers, kind, three, address)
    probe = servers.java.probe(address, f"{name}-probe")
    commands = {member: write_start(three, member, server) for member, server in members.items()}
    for member in ("n0", "n1"):
        words = [*three.inside(member), "sh", "-c", commands[member][0]]
        subprocess.run(words, check=True, timeout=60)
    create_topic(probe, f"{three.addresses['n0']}:{PORT}")
    send(probe, 1)
    await_log_of_slave(three)
    return Running(address, members, commands, probe)


@pytest.mark.parametrize(
    ("kind", "transport", "size"),
    [
        ("rmqpy", "ssh", REFUSED),
        ("rmqpy", "serve", ENDED_IN_THE_MIDDLE),
        ("java", "ssh", REFUSED),
        ("java", "serve", ENDED_IN_THE_MIDDLE),
    ],
)
def test_a_group_on_three_hosts_there_and_back(
    servers: InteropServers,
    three: SshHosts,
    disk: Path,
    serving: list[subprocess.Popen[str]],
    kind: str,
    transport: str,
    size: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = started(servers, three, kind, f"over-{transport}-{kind}")
    address, members, commands = group.namesrv, group.members, group.commands
    probe = group.probe
    command(f"rmqpy admin updateSubGroup -n {address} -b {three.addresses['n0']}:{PORT} -g readers")

    if transport == "ssh":
        port, init = SSH_PORT, ["init"]
        init += [f"ssh://{three.addresses[name]}{config_of(members[name])}" for name in MEMBERS]
    else:
        port, init = SERVE_PORT, served(three, members, commands, serving)
    command(f"rmqpy upgrade {shlex.join(init)}")  # 1
    add_commands(three, commands)
    plan = three.folder / "plan.json"
    cut = once_when(plan.exists, lambda: three.cut_connections(port))
    capsys.readouterr()
    code = main(["upgrade", "run", "--until", "dledger", "--yes"])  # 2
    shown = capsys.readouterr()
    text = f"{shown.out}{shown.err}"
    assert cut() > 0, "no connection was cut while the plan was carried out"
    if size == REFUSED:
        assert code == 2 and f"{FULL}: " in shown.err, text
        assert "free on its file system, expected" in shown.err
        assert not (disk / "commitlog").exists(), "the disk was checked before the first change"
    else:
        assert code == 1 and f"{FULL}: " in shown.err, text
        assert "found a file system without free inodes" in shown.err, text
        assert "continue with rmqpy upgrade apply, or" in shown.err
    subprocess.run(["mount", "-o", "remount,size=1g,nr_inodes=10000", os.fspath(disk)], check=True)
    command("rmqpy upgrade run --until dledger --yes")  # 3
    send(probe, 2)
    sending = threading.Thread(target=send, args=(probe, 3))
    sending.start()
    command("rmqpy upgrade verify")  # 4
    sending.join()
    assert len(read(probe)) == 3 * COUNT
    command("rmqpy upgrade run --until returned --yes")  # 5
    send(probe, 4)
    assert len(read(probe)) == 4 * COUNT
    command("rmqpy upgrade finalize")  # 6
    for member in MEMBERS:
        assert read_store(three.folder / member).problems == []


@pytest.mark.parametrize("size", ["size=1g"])
def test_java_brokers_are_prepared_while_they_run(
    servers: InteropServers, three: SshHosts, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The master takes messages meanwhile; the stop then reads only what was written since."""
    group = started(servers, three, "java", "prepared")
    for turn in (2, 3):
        send(group.probe, turn)
    members = group.members
    hosts = [f"ssh://{three.addresses[name]}{config_of(members[name])}" for name in MEMBERS]
    command(f"rmqpy upgrade {shlex.join(['init', *hosts])}")
    add_commands(three, group.commands)
    capsys.readouterr()
    sending = threading.Thread(target=send, args=(group.probe, 4))
    sending.start()
    code = main(["upgrade", "prepare", "--rate", "0", "--format", "json"])
    sending.join()
    found = rows_by_name(json.loads(capsys.readouterr().out))
    assert code == 0 and found["n0"]["learned_bytes"] > 0, found
    assert found[FULL]["staged_bytes"] > 0, "what the empty member lacks is on its disk"
    assert (disk / "rmqpy/upgrade/stage").is_dir() and not (disk / "commitlog").exists()
    command("rmqpy upgrade run --until aligned --yes")
    capsys.readouterr()
    assert main(["upgrade", "check", "--format", "json"]) == 0
    ages = json.loads(capsys.readouterr().out)["ages"]
    assert all(ages[name]["learned_bytes"] >= found[name]["learned_bytes"] for name in ages), ages
    command("rmqpy upgrade run --until verified --yes")
    assert len(read(group.probe)) == 4 * COUNT
