"""``leave`` in a group of a 5.x controller: master and slaves again, with every confirmed message.

tests/interop/test_leave_controller.py starts real brokers on the result.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from harness.upgrade import SHOWN, RunUpgrade, log_of, tree_of, write_confs

from rmqpy.codec.backend import scan_records

pytestmark = pytest.mark.slow

MEMBERS = ("n0", "n1", "n2")
CONTROLLED = "enableControllerMode=true\ncontrollerAddr=10.0.0.1:9878\nallAckInSyncStateSet=true\n"
ROLES = "--role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
LEAVE = f"leave {SHOWN} {ROLES}"
LAST = "commitlog/00000000000000196608"
EPOCHS = b"2\n0\n0-0\n1-4096\n"
PENDING = struct.pack(">qqqii", 1_800_000_000, 0, 0, 3, 0)
"""A slot of a timer wheel with three messages."""


@pytest.fixture
def controlled(classic: Path) -> Path:
    """Return the directory of three equal replicas that a controller has led."""
    write_confs(classic, CONTROLLED)
    for number, member in enumerate(MEMBERS, 1):
        (classic / member / "epochFileCheckpoint").write_bytes(EPOCHS)
        (classic / member / "epochFileCheckpoint.bak").write_bytes(EPOCHS)
        (classic / member / "brokerIdentity").write_text(f"DefaultCluster#b0#{number}")
    return classic


def last_record(root: Path, back: int = 1) -> tuple[int, int]:
    """Return position and size of a record of the last file, counted from its end."""
    data = (root / LAST).read_bytes()
    scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    return scan.offset[-back], scan.size[-back]


def overwrite(root: Path, position: int, data: bytes) -> None:
    with (root / LAST).open("r+b") as file:
        file.seek(position)
        file.write(data)


def content_of(root: Path) -> dict[str, tuple[bytes, int]]:
    return {path: found for path, found in tree_of(root).items() if path != "lock"}


def test_a_group_leaves_with_a_replica_that_lags(controlled: Path, run: RunUpgrade) -> None:
    position, size = last_record(controlled / "n1")
    overwrite(controlled / "n1", position, bytes(size))
    before = {member: content_of(controlled / member) for member in MEMBERS}
    confs = {member: (controlled / f"{member}.conf").read_bytes() for member in MEMBERS}
    assert run(f"{LEAVE} --out plan.json")[0] == 0
    for member in MEMBERS:
        line = f"apply --plan plan.json --node {member} {SHOWN}"
        assert run(f"{line} --dry-run")[0] == 0
        assert content_of(controlled / member) == before[member]
    assert run(f"{LEAVE} --apply")[0] == 0
    for number, member in enumerate(MEMBERS):
        lines = (controlled / f"{member}.conf").read_text().splitlines()
        role = "SLAVE" if number else "SYNC_MASTER"
        assert {f"brokerRole={role}", f"brokerId={number}"} <= {*lines}
        assert not any(line.partition("=")[0] in CONTROLLED for line in lines if line)
        found = {path.name for path in (controlled / member).iterdir()}
        assert not any(name.startswith(("epochFile", "brokerIdentity")) for name in found)
        assert log_of(controlled / member) == log_of(controlled / "n0")
    code, out, _ = run(f"check {SHOWN} --details")
    assert code == 0, out
    for member in MEMBERS:
        assert run(f"rollback {member}")[0] == 0
        assert content_of(controlled / member) == before[member]
        assert (controlled / f"{member}.conf").read_bytes() == confs[member]


def test_what_an_old_master_never_replicated_is_given_up_by_number_only(
    controlled: Path, run: RunUpgrade
) -> None:
    """n2 was the master of epoch 1; its last two messages are not in the logs of epoch 2."""
    position, _ = last_record(controlled / "n0", back=2)
    newer = EPOCHS.replace(b"2\n0", b"3\n0") + b"2-%d\n" % (196608 + position)
    for member in ("n0", "n1"):
        (controlled / member / "epochFileCheckpoint").write_bytes(newer)
    overwrite(controlled / "n2", position + 16, b"\x12\x34\x56\x78")  # Another flag.
    code, _, err = run(LEAVE)
    assert code == 2 and "expected --give-up 2" in err and "of n2" in err
    assert run(f"{LEAVE} --give-up 2 --out plan.json")[0] == 0
    assert "newest" in Path("plan.json").read_text()
    code, _, err = run(f"{LEAVE} --reference n2")
    assert code == 2 and "expected --give-up 2" in err and "of n0, n1" in err
    assert run(f"{LEAVE} --give-up 2 --apply")[0] == 0
    assert log_of(controlled / "n2") == log_of(controlled / "n0")
    assert run("rollback n2")[0] == 0
    assert (controlled / "n2" / LAST).read_bytes()[position + 16 :][:4] == b"\x12\x34\x56\x78"


def test_without_epochs_that_decide_the_operator_does(controlled: Path, run: RunUpgrade) -> None:
    position, _ = last_record(controlled / "n0")
    overwrite(controlled / "n2", position + 16, b"\x12\x34\x56\x78")
    code, _, err = run(LEAVE)
    assert code == 2 and "--reference NAME" in err


def test_data_that_only_5x_reads_is_listed(controlled: Path, run: RunUpgrade) -> None:
    (controlled / "n0/timerwheel").write_bytes(PENDING)
    (controlled / "n1/kvStore").mkdir()
    (controlled / "n1/kvStore/CURRENT").write_bytes(b"MANIFEST-000001\n")
    (controlled / "n1/kvStore/MANIFEST-000001").touch()
    (controlled / "n1/kvStore/000004.sst").touch()
    before = {member: content_of(controlled / member) for member in MEMBERS}
    code, _, err = run(f"{LEAVE} --apply")
    assert code == 2 and "n0: 3 timer messages" in err and "n1: POP messages" in err
    assert "--reader 5" in err and "epochFile" not in err
    assert all(content_of(controlled / member) == before[member] for member in MEMBERS)
    position, size = last_record(controlled / "n1")
    overwrite(controlled / "n1", position, bytes(size))
    code, _, err = run(f"{LEAVE} --reader 5")
    assert code == 2 and "n1: POP messages" in err and "n0" not in err
    overwrite(controlled / "n1", position, (controlled / "n0" / LAST).read_bytes()[position:])
    assert run(f"{LEAVE} --reader 5 --apply")[0] == 0
    assert (controlled / "n0/timerwheel").read_bytes() == PENDING


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"leave {SHOWN} --role n0=SYNC_MASTER", "both are masters"),
        (f"{LEAVE} --cut-index 7", "found --cut-index 7"),
        (LEAVE.replace("-c n1=n1.conf", ""), "n1: its broker.conf is not known"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_is_written(
    controlled: Path, run: RunUpgrade, line: str, told: str
) -> None:
    before = {member: content_of(controlled / member) for member in MEMBERS}
    code, _, err = run(f"{line} --apply")
    assert (code, told in err) == (2, True), err
    assert all(content_of(controlled / member) == before[member] for member in MEMBERS)


def test_a_store_that_was_killed_is_started_once_before(controlled: Path, run: RunUpgrade) -> None:
    (controlled / "n1/abort").touch()
    code, _, err = run(LEAVE)
    assert code == 2 and "start the broker once with its present configuration" in err
    assert "if the controller gives it no role, start it once without enableControllerMode" in err
    code, out, _ = run(f"check {SHOWN} --details")
    assert code == 2 and "if the controller gives it no role" in out


def test_a_group_file_leads_back_from_the_controller(controlled: Path, run: RunUpgrade) -> None:
    """The commands of the printed runbook that no broker takes part in, as they are."""
    code, _, err = run("init n0.conf n1.conf n2.conf")
    assert code == 0, err
    assert "controller-halted" in run("status")[1]
    code, out, _ = run("leave --runbook java")
    lines = [line for line in out.splitlines() if line.startswith("rmqpy upgrade")]
    assert code == 0 and lines
    for line in lines:
        if "returned" not in line:
            assert run(line.removeprefix("rmqpy upgrade "))[0] == 0, line
    assert "left-verified" in run("status")[1]
    code, out, _ = run("rollback")
    assert code == 0 and "the way back is taken back" in out
    assert "leave-planned" in run("status")[1], "the plan still fits"
