"""A group of brokers on three hosts goes to DLedger and back with five commands.

Each host is a network namespace with an sshd; the commands run on a fourth, over ssh.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.interop import MEMBERS, PATIENCE_SECONDS, ROLES, InteropServers
from harness.ssh_hosts import SshHosts, missing, ssh_hosts

from rmqpy.cli import main
from rmqpy.testing.java import ClientError, Probe
from rmqpy.testing.java.site import BUSY_MACHINE
from rmqpy.testing.processes import BrokerSpec, ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

TOPIC = "goods"
PORT = 10911
COUNT = 40


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path, MEMBERS) as hosts:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        monkeypatch.chdir(tmp_path)
        yield hosts


def brokers(
    servers: InteropServers, kind: str, hosts: SshHosts, namesrv: str
) -> dict[str, ServerProcess]:
    """Return the brokers; the test starts none of them, because they run on other hosts."""
    found = {}
    for member in MEMBERS:
        address = hosts.addresses[member]
        (hosts.folder / member).mkdir()
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


def add_commands(hosts: SshHosts, servers: dict[str, ServerProcess]) -> None:
    """Write ``start`` and ``stop`` of each member into ``group.toml``."""
    text = (hosts.folder / "group.toml").read_text()
    for member, server in servers.items():
        script = hosts.folder / f"start-{member}"
        script.write_text(
            f"cd {shlex.quote(str(server.directory))}\n"
            f"export ROCKETMQ_HOME={shlex.quote(str(server.directory))}\n"
            f"nohup {shlex.join(server.argv)} > {member}.log 2>&1 &\n"
            f"echo $! > {hosts.folder}/{member}.pid\n"
        )
        start, stop = f"sh {script}", f"kill $(cat {hosts.folder}/{member}.pid)"
        text = text.replace(
            f"[member.{member}]\n", f'[member.{member}]\nstart = "{start}"\nstop = "{stop}"\n'
        )
    (hosts.folder / "group.toml").write_text(text)


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


def start(hosts: SshHosts, member: str) -> None:
    words = ["ssh", hosts.addresses[member], f"sh {hosts.folder}/start-{member}"]
    subprocess.run(words, check=True, timeout=60)


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


def cut_while(path: Path, hosts: SshHosts, over: threading.Event) -> Callable[[], int]:
    """Cut all connections once, when ``path`` exists; return a function that returns how many."""
    cut: list[int] = []

    def run() -> None:
        while not over.wait(0.01):
            if path.exists() and (count := hosts.cut_connections()):
                cut.append(count)
                return

    thread = threading.Thread(target=run)
    thread.start()

    def joined() -> int:
        over.set()
        thread.join()
        return sum(cut)

    return joined


@pytest.mark.parametrize("kind", ["rmqpy", "java"])
def test_a_group_on_three_hosts_there_and_back(
    servers: InteropServers, three: SshHosts, kind: str
) -> None:
    namesrv = servers.namesrv("java", f"over-ssh-{kind}-namesrv")
    address = f"{three.gateway}:{namesrv.port}"
    members = brokers(servers, kind, three, address)
    probe = servers.java.probe(address, f"over-ssh-{kind}-probe")
    configs = [
        f"ssh://{three.addresses[member]}"
        + next(word for word in server.argv if word.endswith("broker.conf"))
        for member, server in members.items()
    ]
    command(f"rmqpy upgrade init {' '.join(configs)}")
    add_commands(three, members)
    for member in ("n0", "n1"):
        start(three, member)
    create_topic(probe, f"{three.addresses['n0']}:{PORT}")
    send(probe, 1)
    command(f"rmqpy admin updateSubGroup -n {address} -b {three.addresses['n0']}:{PORT} -g readers")
    cut = cut_while(three.folder / "plan.json", three, threading.Event())
    command("rmqpy upgrade run --until dledger --yes")
    assert cut() > 0, "no connection was cut while the plan was carried out"
    send(probe, 2)
    command("rmqpy upgrade verify")
    assert len(read(probe)) == 2 * COUNT
    command("rmqpy upgrade run --until returned --yes")
    send(probe, 3)
    assert len(read(probe)) == 3 * COUNT
    command("rmqpy upgrade finalize")
    for member in MEMBERS:
        assert read_store(three.folder / member).problems == []
