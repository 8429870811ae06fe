"""A group whose other hosts are reached through ``rmqpy upgrade serve --drive``, over TLS."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from harness.cutting_proxy import CuttingProxy
from harness.upgrade import RunUpgrade, log_of, tree_of

from rmqpy.cli.upgrade.group.limits import AgentLimits
from rmqpy.model.errors import RmqError
from rmqpy.testing.processes import python_environment
from rmqpy.upgrade.link.frames import Frame

pytest.importorskip("aiohttp", reason="rmqpy[upgrade] is not installed")

NAMES = ("n0", "n1", "n2")
TOKEN = "a-token-of-enough-characters"


class Hosts:
    """Processes of ``rmqpy upgrade serve`` for members of a group in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}
        self.proxies: dict[str, CuttingProxy] = {}
        (folder / "token").write_text(f"{TOKEN}\n")
        made = subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
            + ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost"]
            + ["-addext", "subjectAltName=IP:127.0.0.1"],
            capture_output=True,
            cwd=folder,
            check=False,
        )
        if made.returncode:
            pytest.skip("openssl, which creates the certificate, failed or is not installed")

    def serve(self, name: str, *more: str) -> str:
        """Serve the directory of a member and return the address."""
        tls = ["--token-file", "token", "--certificate", "cert.pem", "--key", "key.pem"]
        words = ["upgrade", "serve", name, "-c", f"{name}.conf", *tls, *more]
        process = subprocess.Popen(
            [sys.executable, "-m", "rmqpy.cli", *words],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=python_environment(),
        )
        self.processes[name] = process
        timer = threading.Timer(60, process.kill)
        timer.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        timer.cancel()
        assert line.startswith("ready: https://"), line
        proxy = self.proxies[name] = CuttingProxy(int(line.rpartition(":")[2]))
        self.addresses[name] = f"https://127.0.0.1:{proxy.port}"
        return self.addresses[name]

    def stop(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()
        for process in self.processes.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Hosts]]:
    made: list[Hosts] = []
    yield made
    for each in made:
        each.stop()


def init(folder: Path, run: RunUpgrade, hosts: list[Hosts], *more: str) -> Hosts:
    """Write a ``group.toml`` with a local member and two that are served."""
    mine = Hosts(folder)
    hosts.append(mine)
    addresses = [mine.serve(name, *more) for name in NAMES[1:]]
    tls = "--token-file token --authority cert.pem"
    code, out, err = run(f"init {tls} n0.conf {' '.join(addresses)}")
    assert code == 0, (out, err)
    return mine


def trees(folder: Path) -> dict[str, dict[str, tuple[bytes, int]]]:
    return {name: {**tree_of(folder / name), "lock": (b"", 0)} for name in NAMES}


def state_of(run: RunUpgrade) -> str:
    return str(json.loads(run("status --format json")[1])["state"])


@pytest.mark.slow
def test_served_members_are_switched_and_rolled_back(
    lagging: Path, run: RunUpgrade, hosts: list[Hosts]
) -> None:
    before = trees(lagging)
    mine = init(lagging, run, hosts, "--drive")
    assert run("check")[0] == 2 and state_of(run) == "stopped"
    code, out, err = run("run --until switched --yes")
    assert code == 0 and state_of(run) == "switched", (out, err)
    logs = [log_of(lagging / name) for name in NAMES]
    assert logs[0] == logs[1] == logs[2]
    for name in NAMES:
        assert f"dLegerSelfId={name}\n" in (lagging / f"{name}.conf").read_text()
    mine.proxies["n2"].left = 1_000
    code, out, err = run("rollback")
    assert code == 0 and out.count("the switch is taken back") == 3, (out, err)
    assert mine.proxies["n2"].cuts == 1
    code, out, err = run("rollback")
    assert code == 0 and trees(lagging) == before, (out, err)


@pytest.mark.slow
def test_served_members_leave(joined: Path, run: RunUpgrade, hosts: list[Hosts]) -> None:
    mine = init(joined, run, hosts, "--drive")
    assert state_of(run) == "halted"
    mine.proxies["n1"].left = 4_000
    code, out, err = run("run --until left-verified --yes")
    assert code == 0 and state_of(run) == "left-verified", (out, err)
    assert mine.proxies["n1"].cuts == 1
    assert not list(joined.glob("n*/dledger-*"))
    assert "brokerRole=SLAVE\n" in (joined / "n2.conf").read_text()
    code, out, err = run("finalize")
    assert code == 0 and out.count("the upgrade is final") == 3, (out, err)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run --until left-verified --yes", "next --yes", "leave"])
def test_members_that_are_served_for_reading_are_refused_first(
    joined: Path, run: RunUpgrade, hosts: list[Hosts], verb: str
) -> None:
    init(joined, run, hosts)
    before = trees(joined)
    code, out, err = run(verb)
    assert code == 1 and "--drive -c broker.conf" in err, (out, err)
    assert trees(joined) == before and not (joined / "plan.json").exists()


@pytest.mark.slow
def test_a_change_is_refused_before_the_local_member_is_touched(
    lagging: Path, run: RunUpgrade, hosts: list[Hosts]
) -> None:
    init(lagging, run, hosts)
    assert run("plan")[0] == 0
    before = trees(lagging)
    for verb in ("apply", "apply --dry-run", "switch", "rollback", "finalize"):
        code, out, err = run(verb)
        assert code == 1 and "--drive -c broker.conf" in err, (verb, out, err)
    assert trees(lagging) == before


@pytest.mark.slow
def test_only_allowed_commands_run_on_a_served_host(
    lagging: Path, run: RunUpgrade, hosts: list[Hosts]
) -> None:
    init(lagging, run, hosts, "--drive", "--allow", "touch started-$PPID")
    assert run("run --until switched --yes")[0] == 0
    text = (lagging / "group.toml").read_text()
    for name in NAMES:
        command = "touch started" if name == "n2" else "touch started-$PPID"
        text = text.replace(f"[member.{name}]\n", f'[member.{name}]\nstart = "{command}"\n')
    (lagging / "group.toml").write_text(text)
    code, _, err = run("next --yes")
    assert code == 1 and "restart rmqpy upgrade serve there with --allow 'touch started'" in err
    assert not list(lagging.glob("started*")), "no member was started"


class _Sent:
    """The sending side of a request that was upgraded."""

    headers: ClassVar = {"Upgrade": "tcp"}

    def __init__(self) -> None:
        self.transport = self.writer = self
        self.data = b""
        self.is_closed = False

    async def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.slow
def test_the_agent_of_a_lost_connection_is_awaited() -> None:
    from rmqpy.upgrade.served_agent import relay

    async def lost() -> _Sent:
        received, sent = asyncio.StreamReader(), _Sent()
        received.feed_eof()
        at_work = "import sys; sys.stdin.read(); print('ended')"
        await relay(sent, received, [sys.executable, "-c", at_work])  # type: ignore[arg-type]
        return sent

    sent = asyncio.run(lost())
    assert sent.is_closed and sent.data.startswith(b"HTTP/1.1 101")


def test_a_served_member_needs_a_token_and_tls(lagging: Path, run: RunUpgrade) -> None:
    code, _, err = run("serve n1 -c n1.conf --drive")
    assert code == 1 and "with --drive: found no token" in err and "TLS" in err
    code, _, err = run("serve n1 --drive")
    assert code == 1 and "add -c FILE" in err


LIMITS = AgentLimits(directory="/s/n1", config="/s/n1.conf", commands=("systemctl start b",))
LONG = ["n1=/s/n1", "n0=driver:", "-c", "n1=/s/n1.conf"]


@pytest.mark.parametrize(
    "frame",
    [
        Frame("get", {"what": "facts", "directory": "/s/n1", "config": ""}),
        Frame("get", {"what": "facts", "directory": "/s/n1", "config": "/s/n1.conf"}),
        Frame("run", {"words": ["apply", "--plan", "{plan}", "--node", "n1", *LONG]}),
        Frame("run", {"words": ["apply", "--resume", "/s/n1", "n0=driver:"]}),
        Frame("run", {"words": ["rollback", "/s/n1", "--plan", "p1"]}),
        Frame("run", {"words": ["leave", *LONG, "--role", "n1=SLAVE", "--format", "json"]}),
        Frame("run", {"words": ["prepare", *LONG, "--rate", "5.0", "--leave"]}),
        Frame("shell", {"command": "systemctl start b"}),
        Frame("port", {"port": 1}),
    ],
)
def test_what_drives_one_directory_is_allowed(frame: Frame) -> None:
    LIMITS.check(frame)


@pytest.mark.parametrize(
    "frame",
    [
        Frame("get", {"what": "facts", "directory": "/s/n2", "config": ""}),
        Frame("get", {"what": "facts", "directory": "/s/n1", "config": "/etc/shadow"}),
        Frame("config", {"path": "/etc/shadow"}),
        Frame("run", {"words": ["apply", "--plan", "/tmp/plan.json", *LONG]}),
        Frame("run", {"words": ["apply", "--resume", "/s/n2"]}),
        Frame("run", {"words": ["rollback", "/s/n2"]}),
        Frame("run", {"words": ["rollback", "/s/n1/../n2"]}),
        Frame("run", {"words": ["leave", *LONG, "--into", "/tmp/x"]}),
        Frame("run", {"words": ["leave", *LONG, "--out=/etc/passwd"]}),
        Frame("run", {"words": ["leave", *LONG, "--ou", "/etc/passwd"]}),
        Frame("run", {"words": ["leave", *LONG[:2], "-c", "n1=/etc/passwd"]}),
        Frame("run", {"words": ["leave", *LONG[:2], "-cn1=/etc/passwd"]}),
        Frame("run", {"words": ["prepare", "n2=/s/n2", "--clear"]}),
        Frame("run", {"words": ["serve", "/s/n1"]}),
        Frame("run", {"words": []}),
        Frame("shell", {"command": "systemctl start b; reboot"}),
    ],
)
def test_anything_else_is_refused(frame: Frame) -> None:
    with pytest.raises(RmqError, match="found"):
        LIMITS.check(frame)


def test_a_link_to_another_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    limits = AgentLimits(directory=str(tmp_path / "n1"), config="", commands=())
    limits.check(Frame("run", {"words": ["rollback", str(tmp_path / "n1")]}))
    with pytest.raises(RmqError, match="found the path"):
        limits.check(Frame("run", {"words": ["rollback", str(tmp_path / "link")]}))
