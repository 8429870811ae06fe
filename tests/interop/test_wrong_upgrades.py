"""The wrong upgrades, made by Java groups: what became of them is found, mended or refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.interop import InteropServers

from rmqpy.cli import main
from rmqpy.codec.backend import scan_records
from rmqpy.testing.java import ClientError, JavaHome
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ProcessError, group_settings

pytestmark = pytest.mark.interop

MEMBERS = ("n0", "n1", "n2")
LAST = "commitlog/00000000000000196608"
WAIT_SECONDS_MAX = 90
SHORT = 5
"""Messages that a log lacks."""

UNSOUND = {"same-log", "same-divide", "tables-there", "tables-readable", "divide-fits"}


def shorten(store: Path, count: int) -> None:
    """The last messages of a log are not there; their queues know nothing of it."""
    path = store / LAST
    data = bytearray(path.read_bytes())
    scan = scan_records(memoryview(bytes(data)), 0, dledger=False, check_crc=False)
    data[scan.offset[-count] :] = bytes(len(data) - scan.offset[-count])
    path.write_bytes(data)
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")


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
    """As after a kill: the abort file, a torn last record, a file made ahead."""
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
"""How the stores are made wrong, and who should lead."""

MENDED, REFUSED = 0, 2
OUTCOMES = {
    "gap_same_file": {MENDED},
    "gap_whole_file": {MENDED, REFUSED},  # a short one that leads begins inside the old log
    "third_empty": {MENDED},
    "empty_leads": {MENDED, REFUSED},  # an empty one that leads begins at 0
    "bare_leads": {MENDED},
    "killed_store": {REFUSED},
    "roll_back": {REFUSED},
    "delete_old": {MENDED},
}
"""Exit codes of ``rmqpy upgrade plan``. Who leads first is Java's dice."""


class Wrong:
    """A Java group on wrong stores."""

    def __init__(self, ground, root: Path, name: str, leader: str):
        self.ground, self.root, self.name = ground, root, name
        self.namesrv = ground.namesrv("java", f"wrong-{name}-namesrv")
        self.probe = ground.probe.at(self.namesrv.address)
        ports = list(ground.block(3))
        self.servers = {}
        for number, member in enumerate(MEMBERS):
            own = group_settings("golden", ports, number) | {"preferredLeaderId": leader}
            spec = BrokerSpec(
                port=ground.block(BROKER_PORT_COUNT).broker_port,
                namesrv=self.namesrv.address,
                broker_name="golden",
                store=root / member,
                settings=own,
            )
            server = ground.take(ground.java.broker(f"wrong-{name}-{member}", spec))
            self.servers[member] = server

    def conf(self, member: str) -> Path:
        words = self.servers[member].argv
        return next(Path(word) for word in words if word.endswith("broker.conf"))

    def run(self, *members: str, first: int = 0) -> None:
        """Some of them, until messages were taken or nothing comes any more."""
        for member in members:
            self.servers[member].launch()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                self.probe.run("send", topic="Normal", count=20, first=first, retryMs=20_000)
                break
            except ClientError:
                time.sleep(0.5)
        time.sleep(3)  # what followers do with it
        for member in members:
            try:
                self.servers[member].stop(20)
            except ProcessError:
                self.servers[member].kill()


@pytest.mark.parametrize("name", CASES)
def test_it_is_found_and_mended_or_refused(
    ground: InteropServers,
    golden_copy: Callable[[str], Path],
    name,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = golden_copy("B-master-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "slave").rename(root / "n1")
    shutil.copytree(root / "n0", root / "n2")
    change, leader = CASES[name]
    change(root)
    wrong = Wrong(ground, root, name, leader)
    wrong.run(*MEMBERS)
    if name == "roll_back":
        conf = wrong.conf("n0")
        flagged = conf.read_text()
        conf.write_text(flagged.replace("CommitLog=true", "CommitLog=false"))
        wrong.run("n0", first=100)
        conf.write_text(flagged)
        wrong.run(*MEMBERS, first=200)
    if name == "delete_old":
        shutil.rmtree(root / "n1" / "commitlog")
        wrong.run(*MEMBERS, first=100)
    for member in MEMBERS:
        (root / member / "abort").unlink(missing_ok=True)  # some do not stop cleanly any more
    monkeypatch.chdir(root)
    replicas = [*MEMBERS]
    for member in MEMBERS:
        replicas += ["-c", f"{member}={os.fspath(wrong.conf(member))}"]

    def upgrade(*words: str) -> tuple[int, str]:
        code = main(["upgrade", *words])
        told = capsys.readouterr()
        return code, told.out + told.err

    def findings() -> set[str]:
        code, out = upgrade("check", *replicas, "--format", "json")
        told = json.loads(out[: out.rindex("}") + 1])["findings"]
        found = {each["check"] for each in told}
        assert code == (2 if found else 0)
        return found

    found = findings()
    assert found, "it is seen"
    code, told = upgrade("plan", *replicas, "--out", "plan.json")
    print(f"{name}: {sorted(found)}; plan: {code} {told[:300]}")
    assert code in OUTCOMES[name]
    if code == REFUSED:
        return
    for member in MEMBERS:
        code, told = upgrade("apply", "--plan", "plan.json", "--node", member, *replicas)
        assert code == 0, told
    left = findings()
    print(f"{name}: left {sorted(left)}")
    assert not left & UNSOUND


def test_another_file_size_is_refused_by_java_itself(
    ground: InteropServers, golden_copy: Callable[[str], Path]
) -> None:
    """Ours tells it before: ``same-sizes`` and ``file-sizes`` of ``rmqpy upgrade check``."""
    assert JavaHome().missing() is None
    root = golden_copy("B-master-slave-v497")
    namesrv = ground.namesrv("java", "wrong-size-namesrv")
    spec = BrokerSpec(
        port=ground.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        broker_name="golden",
        store=root / "master",
        settings=group_settings("golden", list(ground.block(3)), 0)
        | {"mappedFileSizeCommitLog": "131072"},
    )
    server = ground.take(ground.java.broker("wrong-size", spec))
    with pytest.raises(ProcessError, match="before it was ready"):
        server.start()
    conf = next(word for word in server.argv if word.endswith("broker.conf"))
    assert main(["upgrade", "check", f"n0={root / 'master'}", "-c", f"n0={conf}"]) == 2
