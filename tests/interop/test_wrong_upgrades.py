"""Wrong upgrades, performed by Java groups: their damage is found, and repaired or refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.interop import MEMBERS, InteropServers

from rmqpy.cli import main
from rmqpy.codec.backend import scan_records
from rmqpy.testing.java import ClientError, JavaHome
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ProcessError, ServerProcess, group_settings

pytestmark = pytest.mark.interop

LAST = "commitlog/00000000000000196608"
WAIT_SECONDS_MAX = 90
SHORT = 5
"""The number of messages that are cut off a log."""

UNSOUND = {"same-log", "same-divide", "tables-there", "tables-readable", "divide-fits"}


def shorten(store: Path, count: int) -> None:
    """Cut the last messages off a log, and remove its consume queues and index."""
    path = store / LAST
    data = bytearray(path.read_bytes())
    scan = scan_records(memoryview(bytes(data)), 0, dledger=False, check_crc=False)
    data[scan.offset[-count] :] = bytes(len(data) - scan.offset[-count])
    path.write_bytes(data)
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")


def after_a_kill(store: Path, member: str) -> None:
    """Remove the marks of a kill: the findings must be those of the wrong upgrade alone."""
    (store / "abort").unlink(missing_ok=True)
    checkpoint = store / f"dledger-{member}/checkpoint"
    backup = checkpoint.with_name("checkpoint.bak")
    if backup.exists() and not checkpoint.exists():  # Java replaces the file in several steps.
        shutil.copy2(backup, checkpoint)


def gap_same_file(root: Path) -> None:
    for member in ("n1", "n2"):
        shorten(root / member, SHORT)


def gap_whole_file(root: Path) -> None:
    for member in ("n1", "n2"):
        (root / member / LAST).unlink()
        shutil.rmtree(root / member / "consumequeue")
        shutil.rmtree(root / member / "index")


def no_third(root: Path) -> None:
    shutil.rmtree(root / "n2")
    (root / "n2").mkdir()


def bare_third(root: Path) -> None:
    for path in (root / "n2").iterdir():
        if path.name != "commitlog":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def killed(root: Path) -> None:
    """Leave a store as after a kill: the abort file, a torn last record, a preallocated file."""
    path = root / "n0" / LAST
    data = bytearray(path.read_bytes())
    end = scan_records(memoryview(bytes(data)), 0, dledger=False, check_crc=False).end
    data[end - 60 : end] = bytes(60)
    path.write_bytes(data)
    (root / "n0" / "abort").touch()
    (root / "n0/commitlog/00000000000000262144").write_bytes(bytes(65536))


def nothing(_root: Path) -> None:
    pass


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "gap_same_file": (gap_same_file, "n0"),
    "gap_whole_file": (gap_whole_file, "n0"),
    "third_empty": (no_third, "n0"),
    "empty_leads": (no_third, "n2"),
    "bare_leads": (bare_third, "n2"),
    "killed_store": (killed, "n0"),
    "roll_back": (nothing, "n0"),
    "delete_old": (nothing, "n1"),
}
"""The change to the stores, and the member that should lead."""

REPAIRED, REFUSED = 0, 2
OUTCOMES = {
    "gap_same_file": {REPAIRED},
    "gap_whole_file": {REPAIRED, REFUSED},  # A short member that leads starts inside the old log.
    "third_empty": {REPAIRED},
    "empty_leads": {REPAIRED, REFUSED},  # An empty member that leads starts at 0.
    "bare_leads": {REPAIRED},
    "killed_store": {REFUSED},
    "roll_back": {REFUSED},
    "delete_old": {REPAIRED},
}
"""The exit codes of ``rmqpy upgrade plan``. Java chooses the first leader at random."""


class WrongGroup:
    """A Java group on damaged stores."""

    def __init__(self, servers: InteropServers, root: Path, name: str, leader: str) -> None:
        self.namesrv = servers.namesrv("java", f"wrong-{name}-namesrv")
        self.probe = servers.probe.at(self.namesrv.address)
        ports = list(servers.block(3))
        self.servers: dict[str, ServerProcess] = {}
        for number, member in enumerate(MEMBERS):
            own = group_settings("golden", ports, number) | {"preferredLeaderId": leader}
            spec = BrokerSpec(
                port=servers.block(BROKER_PORT_COUNT).broker_port,
                namesrv=self.namesrv.address,
                broker_name="golden",
                store=root / member,
                settings=own,
            )
            server = servers.take(servers.java.broker(f"wrong-{name}-{member}", spec))
            self.servers[member] = server

    def conf(self, member: str) -> Path:
        words = self.servers[member].argv
        return next(Path(word) for word in words if word.endswith("broker.conf"))

    def run(self, *members: str, first: int = 0) -> None:
        """Run some members until messages are accepted or the time is up."""
        for member in members:
            self.servers[member].launch()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                self.probe.run("send", topic="Normal", count=20, first=first, retryMs=20_000)
                break
            except ClientError:
                time.sleep(0.5)
        time.sleep(3)  # The followers replicate meanwhile.
        for member in members:
            try:
                self.servers[member].stop(20)
            except ProcessError:
                self.servers[member].kill()


@pytest.mark.parametrize("name", CASES)
def test_the_damage_is_found_and_repaired_or_refused(
    servers: InteropServers,
    golden_copy: Callable[[str], Path],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = golden_copy("B-master-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "slave").rename(root / "n1")
    shutil.copytree(root / "n0", root / "n2")
    change, leader = CASES[name]
    change(root)
    group = WrongGroup(servers, root, name, leader)
    group.run(*MEMBERS)
    if name == "roll_back":
        conf = group.conf("n0")
        flagged = conf.read_text()
        conf.write_text(flagged.replace("CommitLog=true", "CommitLog=false"))
        group.run("n0", first=100)
        conf.write_text(flagged)
        group.run(*MEMBERS, first=200)
    if name == "delete_old":
        shutil.rmtree(root / "n1" / "commitlog")
        group.run(*MEMBERS, first=100)
    for member in MEMBERS:
        after_a_kill(root / member, member)  # Some members cannot stop cleanly.
    monkeypatch.chdir(root)
    replicas = [*MEMBERS]
    for member in MEMBERS:
        replicas += ["-c", f"{member}={os.fspath(group.conf(member))}"]

    def upgrade(*words: str) -> tuple[int, str]:
        code = main(["upgrade", *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    def findings() -> set[str]:
        code, printed = upgrade("check", *replicas, "--format", "json")
        rows = json.loads(printed[: printed.rindex("}") + 1])["findings"]
        found = {each["check"] for each in rows}
        assert code == (2 if found else 0)
        return found

    found = findings()
    assert found, "the damage is found"
    code, printed = upgrade("plan", *replicas, "--out", "plan.json")
    print(f"{name}: {sorted(found)}; plan: {code} {printed[:300]}")
    assert code in OUTCOMES[name]
    if code == REFUSED:
        return
    for member in MEMBERS:
        code, printed = upgrade("apply", "--plan", "plan.json", "--node", member, *replicas)
        assert code == 0, printed
    left = findings()
    print(f"{name}: left {sorted(left)}")
    assert not left & UNSOUND


def test_java_refuses_another_file_size_and_our_check_finds_it(
    servers: InteropServers, golden_copy: Callable[[str], Path]
) -> None:
    """The checks ``same-sizes`` and ``file-sizes`` of ``rmqpy upgrade check`` report it."""
    assert JavaHome().missing() is None
    root = golden_copy("B-master-slave-v497")
    namesrv = servers.namesrv("java", "wrong-size-namesrv")
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        broker_name="golden",
        store=root / "master",
        settings=group_settings("golden", list(servers.block(3)), 0)
        | {"mappedFileSizeCommitLog": "131072"},
    )
    server = servers.take(servers.java.broker("wrong-size", spec))
    with pytest.raises(ProcessError, match="before it was ready"):
        server.start()
    conf = next(word for word in server.argv if word.endswith("broker.conf"))
    assert main(["upgrade", "check", f"n0={root / 'master'}", "-c", f"n0={conf}"]) == 2
