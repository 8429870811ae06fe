"""``switch --to controller``: epochs and configuration for a controller of 5.x, and the way back.

tests/interop/test_controller.py starts real brokers of 5.3.3 on the result.
"""

from __future__ import annotations

import json
import shutil
import socketserver
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.upgrade import SHOWN, RunUpgrade, tree_of, write_confs

from rmqpy.audit.facts.controller_files import (
    ControllerFacts,
    Identity,
    read_controller_facts,
)
from rmqpy.audit.scan.directory import paths_below
from rmqpy.codec.epochs import Epoch, decode_epochs
from rmqpy.config.loading import load_store_settings
from rmqpy.config.properties_file import parse_properties
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import StoreError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import check_no_unread
from rmqpy.upgrade.plan.configuration import controller_configs

pytestmark = pytest.mark.slow

ROLES = "brokerRole=SYNC_MASTER\nbrokerId=0\ndLegerSelfId=SELF\nenableDLegerCommitLog=false\n"
SWITCH = f"switch {SHOWN} --to controller --controllers '127.0.0.1:1;127.0.0.1:2'"
MEMBERS = ("n0", "n1", "n2")


def content_of(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return all files but the lock, whose time changes with each command."""
    return {path: found for path, found in tree_of(root).items() if path != "lock"}


def facts_of(root: Path) -> ControllerFacts | None:
    return read_controller_facts(OsFileSystem(), paths_below(str(root), None))


def test_every_member_gets_the_same_epoch_and_loses_its_role(
    classic: Path, run: RunUpgrade
) -> None:
    write_confs(classic, ROLES)
    (classic / "n1/commitlog/00000000000000000000").unlink()  # It has expired there.
    before = {member: content_of(classic / member) for member in MEMBERS}
    confs = {member: (classic / f"{member}.conf").read_bytes() for member in MEMBERS}
    assert run(f"{SWITCH} --dry-run")[0] == 0
    assert all(content_of(classic / member) == before[member] for member in MEMBERS)
    assert run(SWITCH)[0] == 0
    for member in MEMBERS:
        assert facts_of(classic / member) == ControllerFacts(epochs=(Epoch(0, 0),))
        lines = (classic / f"{member}.conf").read_text().splitlines()
        assert {"enableControllerMode=true", "allAckInSyncStateSet=true"} <= {*lines}
        assert "controllerAddr=127.0.0.1:1;127.0.0.1:2" in lines
        gone = ("brokerRole", "brokerId", "dLeger", "enableDLeger")
        assert not any(line.startswith(gone) for line in lines)
    code, _, err = run(SWITCH)
    assert code == 2 and "rollback" in err, "they belong to a controller already"
    for member in MEMBERS:
        assert run(f"rollback {member}")[0] == 0
        assert content_of(classic / member) == before[member]
        assert (classic / f"{member}.conf").read_bytes() == confs[member]


def test_offsets_of_an_earlier_controller_are_cleared(classic: Path, run: RunUpgrade) -> None:
    """4.9 keeps what 5.x wrote into its checkpoint; here the group has confirmed more since."""
    write_confs(classic, ROLES)
    path = classic / "n1/checkpoint"
    kept = path.read_bytes()
    stale = kept[:24] + struct.pack(">qq", 4096, 1 << 40) + kept[40:]
    path.write_bytes(stale)
    assert run(SWITCH)[0] == 0
    assert path.read_bytes() == kept
    code, printed, err = run(f"check {SHOWN}")
    assert code == 0 and "confirm-offset" not in printed, printed + err
    assert run("rollback n1")[0] == 0 and path.read_bytes() == stale


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        (SWITCH.replace("'127.0.0.1:1;127.0.0.1:2'", "localhost"), 2, "expected HOST:PORT"),
        (f"switch {SHOWN} --to controller", 1, "add --controllers"),
        (f"{SWITCH} --peers n0-a:1", 1, "--peers"),
        (f"switch {SHOWN} --controllers a:1", 1, "--controllers"),
        (SWITCH.replace(" -c n2=n2.conf", ""), 2, "n2"),
    ],
)
def test_a_wrong_switch_is_refused_before_anything_is_written(
    classic: Path, run: RunUpgrade, line: str, code: int, told: str
) -> None:
    before = {member: content_of(classic / member) for member in MEMBERS}
    found, _, err = run(line)
    assert (found, told in err) == (code, True), err
    assert all(content_of(classic / member) == before[member] for member in MEMBERS)


def test_the_configuration_of_new_controllers_is_written_once(
    classic: Path, run: RunUpgrade
) -> None:
    """tests/interop/test_controller_over_ssh.py starts 5.3.3 with it."""
    write_confs(classic, ROLES)
    line = f"{SWITCH} --controller-conf made"
    assert "found no directory" in run(line)[2]
    made = classic / "made"
    made.mkdir()
    code, _, err = run(line.replace("127.0.0.1:2", "127.0.0.1"))
    assert code == 1 and "expected HOST:PORT" in err
    assert run(f"{line} --dry-run")[0] == 0 and not [*made.iterdir()]
    (made / "controller-n1.conf").write_text("another")
    code, _, err = run(line)
    assert code == 1 and "found controller-n1.conf with other content" in err
    assert facts_of(classic / "n0") is None and len([*made.iterdir()]) == 1
    (made / "controller-n1.conf").unlink()
    addresses = "127.0.0.1:1", "127.0.0.1:2"
    name = "controller-n0.conf"
    (made / name).write_text(controller_configs(addresses)[name])  # A switch that ended early.
    assert run(line)[0] == 0
    for number in range(2):
        lines = parse_properties((made / f"controller-n{number}.conf").read_text())
        assert {each.key: each.value for each in lines} == {
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2",
            "controllerDLegerSelfId": f"n{number}",
            "enableElectUncleanMaster": "false",
        }
    code, _, err = run(f"switch {SHOWN} --peers n0-a:1 --controller-conf made")
    assert code == 1 and "--controller-conf" in err


def test_a_copy_of_one_replica_can_be_handed_over(classic: Path, run: RunUpgrade) -> None:
    """To try it: a copy of a slave is a group of one."""
    shutil.copytree(classic / "n1", classic / "copy")
    write_confs(classic, "brokerRole=SLAVE\nbrokerId=1\n")
    (classic / "n1.conf").rename(classic / "copy.conf")
    line = SWITCH.replace(SHOWN, "n0=copy -c n0=copy.conf")
    code, _, err = run(line)
    assert code == 0, err
    assert facts_of(classic / "copy") == ControllerFacts(epochs=(Epoch(0, 0),))
    assert "brokerRole" not in (classic / "copy.conf").read_text()


def test_members_of_another_controller_or_of_another_name_are_refused(
    classic: Path, run: RunUpgrade
) -> None:
    (classic / "n2/brokerIdentity").write_text("other#b9#3")
    code, _, err = run(SWITCH)
    assert code == 2 and "brokerIdentity" in err
    (classic / "n2/brokerIdentity").unlink()
    conf = classic / "n2.conf"
    before = conf.read_text()
    (classic / "n2/epochFileCheckpoint").write_bytes(EPOCHS)
    conf.write_text(f"{before}enableControllerMode=true\n")
    code, _, err = run(SWITCH)
    assert code == 2 and "n2: found epochFileCheckpoint of a controller" in err, err
    (classic / "n2/epochFileCheckpoint").unlink()
    conf.write_text(before.replace("brokerName=b0", "brokerName=b9"))
    code, _, err = run(SWITCH)
    assert code == 2 and "brokerName differs" in err
    assert not any(facts_of(classic / member) for member in MEMBERS)


def test_a_lagging_group_and_a_dledger_group_are_led_to_the_step_before(
    lagging: Path, golden_copy: Callable[[str], Path], run: RunUpgrade
) -> None:
    code, _, err = run(SWITCH)
    assert code == 2 and "rmqpy upgrade plan and apply align them first" in err
    upgraded = golden_copy("C-upgraded-v497")
    for member in MEMBERS:
        shutil.rmtree(lagging / member)
        (upgraded / member).rename(lagging / member)
    code, _, err = run(SWITCH)
    assert code == 2 and "rmqpy upgrade leave" in err


def test_the_files_of_a_controller_are_read_as_java_reads_them(tmp_path: Path) -> None:
    epochs, backup = tmp_path / "epochFileCheckpoint", tmp_path / "epochFileCheckpoint.bak"
    assert facts_of(tmp_path) is None
    backup.write_bytes(b"1\n0\n1-4096\n")
    (tmp_path / "brokerIdentity").write_text("cluster#b0#2")
    identity = Identity(cluster="cluster", broker_name="b0", broker_id=2)
    expected = ControllerFacts(epochs=(Epoch(1, 4096),), identity=identity)
    assert facts_of(tmp_path) == expected
    epochs.write_bytes(b"1\n77\n1-4096\n")
    found = facts_of(tmp_path)
    assert found is not None and found.epochs == expected.epochs
    (problem,) = found.problems
    assert problem.startswith("epochFileCheckpoint: at offset 0: CRC is ")
    backup.unlink()
    (tmp_path / "brokerIdentity").write_text("b0")
    found = facts_of(tmp_path)
    assert found is not None and not found.epochs and len(found.problems) == 2


def test_the_epochs_and_the_identity_are_read_where_the_configuration_keeps_them(
    classic: Path, run: RunUpgrade
) -> None:
    """By ``switch``, ``check``, ``leave``, and a start of rmqpy."""
    elsewhere = classic / "elsewhere"
    elsewhere.mkdir()
    for member in MEMBERS:
        conf = classic / f"{member}.conf"
        keys = f"storePathEpochFile={elsewhere}/{member}.epochs\n"
        keys += f"storePathBrokerIdentity={classic}/{member}/who\n"
        conf.write_text(f"storePathRootDir={classic}/{member}\n{keys}{conf.read_text()}")
    code, printed, err = run(SWITCH)
    assert code == 0, printed + err
    for number, member in enumerate(MEMBERS, 1):
        assert decode_epochs((elsewhere / f"{member}.epochs").read_bytes()) == (Epoch(0, 0),)
        assert not (classic / member / "epochFileCheckpoint").exists()
        (classic / member / "who").write_text(f"DefaultCluster#b0#{number}")
    code, printed, err = run(f"check {SHOWN}")
    assert code == 0, printed + err
    (elsewhere / "n1.epochs").write_bytes(b"1\n0\n7-0\n")
    code, printed, err = run(f"check {SHOWN}")
    assert code == 2 and "no epoch in common" in printed + err
    (elsewhere / "n1.epochs").write_bytes((elsewhere / "n0.epochs").read_bytes())
    settings = load_store_settings(str(classic / "n0.conf"), {})
    with pytest.raises(StoreError, match="whose master a"):
        check_no_unread(OsFileSystem(), StorePaths.from_settings(settings), accept=True)
    roles = "--role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
    code, printed, err = run(f"leave {SHOWN} {roles} --apply")
    assert code == 0, printed + err
    assert not [*elsewhere.glob("*.epochs")] and not (classic / "n2/who").exists()


EPOCHS = b"2\n0\n0-0\n1-4096\n"


@pytest.mark.parametrize(
    ("member", "name", "data", "told"),
    [
        ("n1", "epochFileCheckpoint", EPOCHS.replace(b"2", b"3"), "use the file as empty"),
        ("n1", "epochFileCheckpoint", EPOCHS.replace(b"1-4096", b"1-8192"), "two histories"),
        ("n1", "epochFileCheckpoint", b"1\n0\n7-0\n", "no epoch in common"),
        ("n1", "epochFileCheckpoint", b"", "it has no epochs, n0 has"),
        ("n2", "epochFileCheckpoint", EPOCHS + b"2-99999999\n", "the end of the log is missing"),
        ("n2", "brokerIdentity", b"DefaultCluster#b0#1", "one store is a copy of the other"),
        ("n2", "brokerIdentity", b"other#b0#3", "brokerClusterName=DefaultCluster"),
        ("n2", "brokerIdentity", b"DefaultCluster#b9#3", "brokerName=b0"),
        ("n2", "brokerIdentity", b"b9", "expected cluster#brokerName#brokerId"),
    ],
)
def test_a_wrong_start_of_a_controller_group_is_reported(
    classic: Path, run: RunUpgrade, member: str, name: str, data: bytes, told: str
) -> None:
    for number, each in enumerate(MEMBERS):
        (classic / each / "epochFileCheckpoint").write_bytes(EPOCHS)
        (classic / each / "brokerIdentity").write_text(f"DefaultCluster#b0#{number + 1}")
        with (classic / f"{each}.conf").open("a") as conf:
            conf.write("enableControllerMode=true\ncontrollerAddr=127.0.0.1:1\n")
    code, out, _ = run(f"check {SHOWN} --details")
    assert code == 0, out
    if data.count(b"2-"):
        data = data.replace(b"2\n0\n0", b"3\n0\n0")
    (classic / member / name).write_bytes(data)
    code, out, _ = run(f"check {SHOWN} --details")
    assert code == 2 and told in " ".join(out.split()), out


def test_a_group_file_leads_a_lagging_group_to_the_controller(
    lagging: Path, run: RunUpgrade
) -> None:
    """The commands of the printed runbook that no broker takes part in, as they are."""
    assert run("init n0.conf n1.conf n2.conf")[0] == 0
    code, out, _ = run("switch --to controller --runbook java")
    lines = [line for line in out.splitlines() if line.startswith("rmqpy upgrade")]
    assert code == 0 and "switch --to controller" in lines[-1]
    for line in lines:
        verb = line.removeprefix("rmqpy upgrade ").partition("||")[0]
        if "--until" not in verb:
            assert run(verb.replace("CONTROLLERS", "127.0.0.1:1"))[0] in (0, 2), line
    code, out, _ = run("status")
    assert code == 0 and "handed-over" in out and "--peers" not in out
    assert "one member, and the others when it is the master" in out, "the next step"
    code, out, _ = run("check")
    assert code == 0 and out.startswith("READY for starting ")
    assert run("rollback")[0] == 0
    assert "handed-over" not in run("status")[1]


def test_a_group_that_works_with_its_controller_is_led_to_the_end_of_the_runbook(
    classic: Path,
    run: RunUpgrade,
    holders: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And back, where the master that the controller has elected is stopped last."""
    assert run("init n0.conf n1.conf n2.conf")[0] == 0
    holders(classic)
    assert run("switch --to controller --controllers 127.0.0.1:1")[0] == 0
    assert run("next --yes")[0] == 0, "the brokers are started"
    code, out, _ = run("status")
    assert code == 0 and "group b0: controller;" in out and "next: rmqpy upgrade verify" in out
    code, out, _ = run("verify")
    assert code == 0 and "group b0: controller-verified;" in out
    assert "next: rmqpy upgrade finalize" in out
    code, out, _ = run("finalize")
    assert code == 0 and "group b0: controller-final;" in out and "next: nothing" in out
    monkeypatch.setattr(
        "rmqpy.cli.upgrade.group.turning.running_roles", lambda file, view: {"n1": "master"}
    )
    code, out, _ = run("next --back --yes --format json")
    assert code == 0 and json.loads(out)["result"] == {"stop": ["n0", "n2", "n1"]}


def test_the_printed_runbooks_lead_a_dledger_group_to_the_controller(
    joined: Path, run: RunUpgrade
) -> None:
    """One after the other, without a start of the brokers in between."""
    assert run("init n0.conf n1.conf n2.conf")[0] == 0
    code, _, err = run("run --until stopped --yes")
    assert code == 1 and "found the group halted" in err and "rmqpy upgrade leave, then" in err
    done, shown = [], []
    for words in ("leave", "switch --to controller --controllers 127.0.0.1:1"):
        code, out, _ = run(f"{words} --runbook java")
        assert code == 0 and "BROKERNAME" not in out
        for line in out.splitlines():
            if line.startswith("rmqpy upgrade") and "returned" not in line:
                code, printed, err = run(line.removeprefix("rmqpy upgrade ").partition("||")[0])
                assert code == 0, (line, printed, err)
                done.append(line.split()[2])
        shown.append(run("status")[1])
    assert "getSyncStateSet -a 127.0.0.1:1 -b b0" in out
    assert out.splitlines()[-1] == "# rmqpy upgrade finalize"
    assert done[-5:] == ["check", "plan", "apply", "check", "switch"]
    assert facts_of(joined / "n2") == ControllerFacts(epochs=(Epoch(0, 0),))
    assert "they stay stopped, and plan, apply, and switch --to controller" in shown[0]
    assert "handed-over" in shown[1]


class _Controller(socketserver.StreamRequestHandler):
    """A controller that gives every request the answer of its server."""

    def handle(self) -> None:
        decoder = FrameDecoder()
        while data := self.request.recv(1 << 16):
            for command in decoder.receive(data):
                answer = self.server.answer  # type: ignore[attr-defined]
                code, body = ResponseCode.SUCCESS, answer
                if not answer:
                    code = ResponseCode.SYSTEM_ERROR
                response = RemotingCommand.response_to(command, code)
                response.body = body
                self.request.sendall(encode_command(response))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b'{"replicasInfoTable":{"b0":{"notInSyncReplicas":[{"brokerId":1},{"brokerId":2}]}}}', 2),
        (b'{"replicasInfoTable":{"b9":{"inSyncReplicas":[{"brokerId":1}]}}}', 0),
        (b"[[[[", 0),
        (b"", 0),
    ],
)
def test_a_controller_that_knows_the_group_is_refused(
    classic: Path, run: RunUpgrade, answer: bytes, code: int
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Controller) as server:
        server.answer = answer  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        found, _, err = run(SWITCH.replace("127.0.0.1:1;127.0.0.1:2", address) + " --dry-run")
        server.shutdown()
    assert found == code, err
    if code:
        assert f"the controller at {address}: found b0 with" in err
        assert "new controllerStorePath" in err
