"""Wrong starts of a controller group with brokers of 5.3.3: what they do, what the checks say,
and that the way of docs/explanation/from-4.9-to-5.x.md repairs it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.controller import (
    LAGGING,
    SENT,
    WAIT_SECONDS_MAX,
    ControllerGroup,
    controller_group,
    epochs,
    hand_over,
    manifest,
    upgrade,
)
from harness.interop import InteropServers

from rmqpy.cli import main
from rmqpy.model.codes import ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.java.site import READY
from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

ROLES = [word for each in ("master=SYNC_MASTER", "slave=SLAVE") for word in ("--role", each)]
IDENTITY = "brokerIdentity"
EPOCHS = "epochFileCheckpoint"
UNCLEAN = "enableElectUncleanMaster"


@pytest.fixture
def group(
    servers: InteropServers, golden_copy: Callable[[str], Path], tmp_path: Path
) -> Iterator[ControllerGroup]:
    """A group that was handed over, and has not been started yet."""
    with controller_group(servers, golden_copy, LAGGING, tmp_path) as made:
        hand_over(made)
        yield made


def failed_checks(group: ControllerGroup, capsys: pytest.CaptureFixture[str]) -> set[str]:
    capsys.readouterr()
    main(["upgrade", "check", *group.replicas, "--format", "json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return {each["check"] for each in found}


def start_both(group: ControllerGroup) -> None:
    for count, member in enumerate(("master", "slave"), 1):
        group.start(member)
        group.await_sync(count)


def kill_both(group: ControllerGroup) -> None:
    for member in group.brokers:
        group.brokers[member].kill()
        (group.store(member) / "abort").unlink(missing_ok=True)


def members(group: ControllerGroup) -> list[dict[str, Any]]:
    """Return all replicas that the controller knows."""
    info = group.replicas_info()
    return [*info.get("inSyncReplicas", ()), *info.get("notInSyncReplicas", ())]


def alive(group: ControllerGroup) -> set[int]:
    """Return the ids of the replicas whose heartbeats the controller receives."""
    return {each["brokerId"] for each in members(group) if each["alive"]}


def await_master(group: ControllerGroup, member: str) -> None:
    """Wait for the election. Each attempt while nobody could be elected has taken an epoch."""
    address = group.brokers[member].address
    wait_until(lambda: group.replicas_info().get("masterAddress") == address)


def put(group: ControllerGroup, member: str, body: bytes = b"put") -> RemotingCommand:
    with BlockingConnection(group.brokers[member].address) as connection:
        return connection.call(send_request("Normal", 0, [body]))


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def is_in_log(group: ControllerGroup, member: str, text: str) -> Callable[[], bool]:
    """Return whether a broker has logged ``text``; its log is deleted before the start."""
    log = group.brokers[member].directory / "logs/broker.log"
    log.unlink(missing_ok=True)
    return lambda: log.exists() and text in log.read_text(errors="replace")


def test_the_store_of_another_group_gets_no_role(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    (group.store("slave") / IDENTITY).write_text("DefaultCluster#other#1")
    assert failed_checks(group, capsys) == {"identities"}
    group.start("master")
    group.await_sync(1)
    refused = is_in_log(group, "slave", "Register to broker failed")
    group.start("slave")
    wait_until(refused)
    assert put(group, "slave").code != ResponseCode.SUCCESS
    assert put(group, "master").code == ResponseCode.SUCCESS
    assert len(members(group)) == 1
    kill_both(group)
    (group.store("slave") / IDENTITY).unlink()
    start_both(group)


def test_a_copied_store_takes_the_place_of_its_original(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two masters: until the copy has an identity of its own."""
    start_both(group)
    group.stop_all()
    shutil.rmtree(group.store("slave"))
    shutil.copytree(group.store("master"), group.store("slave"))
    assert failed_checks(group, capsys) == {"identities"}
    kept = group.root / "kept"
    shutil.copytree(group.store("slave"), kept)
    group.start("master")
    group.await_sync(1)
    group.start("slave")
    await_master(group, "slave")
    answers = [put(group, member) for member in ("master", "slave")]
    assert [each.code for each in answers] == [ResponseCode.SUCCESS] * 2
    assert len({each.ext_fields["queueOffset"] for each in answers}) == 1, "given twice"
    kill_both(group)
    for member in group.brokers:
        shutil.rmtree(group.store(member))
        shutil.copytree(kept, group.store(member))
    (group.store("slave") / IDENTITY).unlink()
    assert not failed_checks(group, capsys)
    start_both(group)


def end_of(group: ControllerGroup, member: str) -> int:
    """Return the end of the last message in the log of a stopped replica."""
    last = read_store(group.store(member)).messages[-1]
    return last.physical_offset + last.size


def test_a_longer_replica_is_cut_to_what_the_master_has(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was started once without the controller, and its clients sent: two files more. 5.3.3 cuts
    the log, but neither the consume queues nor the key index.
    """
    end = end_of(group, "slave")
    with without_controller(group, "master"):
        for _ in range(SENT):
            assert put(group, "master", bytes(8192)).code == ResponseCode.SUCCESS
    longer = [*group.logs("master")]
    assert longer > [*group.logs("slave")] and end_of(group, "master") > end + SENT * 8192
    assert "same-log" in failed_checks(group, capsys)
    group.start("slave")
    group.await_sync(1)
    cut = is_in_log(group, "master", f"Truncate slave log to {end} success")
    group.start("master")
    wait_until(cut)
    group.await_sync(2)
    assert [*group.logs("master")] == [*group.logs("slave")], "whole files are gone"
    assert group.send(1000) == SENT
    group.await_level()
    group.stop_all()
    assert epochs(group, "master") == epochs(group, "slave")
    assert [each.start_offset for each in epochs(group, "master")] == [0, end]
    end = end_of(group, "slave")
    one, two = (b"".join(group.logs(member).values())[:end] for member in group.brokers)
    assert one == two
    found = failed_checks(group, capsys)
    assert found >= {"stale-tail", "queues-match"}, "its queues are not cut"
    assert "same-log" not in found
    # The remedy of `stale-tail`.
    (group.root / "moved").mkdir()
    group.store("master").rename(group.root / "moved/master")
    group.start("slave")
    group.await_sync(1)
    group.start("master")
    group.await_sync(2)
    group.await_level()
    group.stop_all()
    assert not failed_checks(group, capsys)


def test_a_damaged_epoch_file_lets_a_replica_keep_what_no_other_has(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """5.3.3 takes it for empty, compares nothing, and lets a longer replica into the SyncStateSet.
    With a copy of another replica's file, the replica is cut to what they have in common.
    """
    start_both(group)
    assert group.send(1000) == SENT
    group.await_level()
    group.stop_all()
    end = end_of(group, "master")
    with without_controller(group, "slave"):
        assert put(group, "slave", b"alone").code == ResponseCode.SUCCESS
    mine, sound = (group.store(name) / EPOCHS for name in ("slave", "master"))
    for path in mine.parent.glob(f"{EPOCHS}*"):
        path.write_bytes(path.read_bytes()[:-2])
    assert {"epochs", "same-log"} <= failed_checks(group, capsys)
    skipped = is_in_log(group, "slave", "Slave local epochCache is empty, skip truncate log")
    start_both(group)
    wait_until(skipped)
    group.brokers["slave"].kill()  # It does not end within a minute: it has more than is confirmed.
    (group.store("slave") / "abort").unlink()
    group.brokers["master"].stop()
    assert end_of(group, "slave") > end_of(group, "master") == end
    for path in mine.parent.glob(f"{EPOCHS}*"):
        path.unlink()
    shutil.copy(sound, mine)
    assert "epochs" not in failed_checks(group, capsys)
    cut = is_in_log(group, "slave", f"Truncate slave log to {end} success")
    start_both(group)
    wait_until(cut)
    assert group.send(2000) == SENT
    group.await_level()
    group.stop_all()
    assert epochs(group, "master") == epochs(group, "slave")
    end = end_of(group, "master")
    one, two = (b"".join(group.logs(member).values())[:end] for member in group.brokers)
    assert one == two


def test_a_former_master_that_went_on_replaces_acknowledged_messages_if_it_is_elected(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not, if the controller elects only replicas that were in sync, as it does by default:
    it waits for the one that was elected last, and is then cut.
    """
    start_both(group)
    group.brokers["master"].stop()
    await_master(group, "slave")
    assert group.send(1000) == SENT
    numbers = [each.number for each in epochs(group, "slave")]
    assert numbers == [0, 1], "5.3.3 does not record epoch 2, which begins where epoch 1 does"
    group.start("master")
    group.await_sync(2)
    group.brokers["slave"].stop()
    await_master(group, "master")
    assert group.send(2000) == SENT
    group.brokers["master"].stop()
    before = manifest(group.store("master"), group.root / "before.json")
    began = epochs(group, "master")[-1].start_offset
    with without_controller(group, "slave"):
        for _ in range(SENT):
            assert put(group, "slave").code == ResponseCode.SUCCESS
    assert {"epochs", "same-log"} <= failed_checks(group, capsys)
    main(["upgrade", "check", *group.replicas, "--details"])
    assert f"in master epoch 3 begins at {began}" in capsys.readouterr().out
    kept = group.root / "kept"
    for member in group.brokers:
        shutil.copytree(group.store(member), kept / member)

    waits = is_in_log(group, "slave", "Failed to elect a new master")
    cut = is_in_log(group, "slave", f"Truncate slave log to {began} success")
    group.brokers["slave"].launch()
    wait_until(waits)
    assert put(group, "slave").code != ResponseCode.SUCCESS
    group.start("master")
    group.await_sync(2)
    assert group.master() == "master" and cut()
    group.stop_all()
    end = end_of(group, "master")
    one, two = (b"".join(group.logs(member).values())[:end] for member in group.brokers)
    assert one == two
    upgrade("verify", f"master={group.store('master')}", "--before", before)

    # A controller that elects whoever asks loses what was acknowledged.
    for member in group.brokers:
        shutil.rmtree(group.store(member))
        shutil.copytree(kept / member, group.store(member))
    change_controller(group, f"{UNCLEAN}=false", f"{UNCLEAN}=true")
    lost = is_in_log(group, "master", f"Truncate slave log to {began} success")
    group.start("slave")
    await_master(group, "slave")
    group.start("master")
    wait_until(lost)
    assert group.master() == "slave"
    group.stop_all()
    assert main(["upgrade", "verify", *group.stores, "--before", before]) == 2
    assert "DIFFERENT" in capsys.readouterr().out


def hand_over_again(group: ControllerGroup) -> None:
    """Leave the controller, and prepare the replicas for it once more."""
    upgrade("leave", *group.replicas, *ROLES, "--reader", "5", "--apply")
    upgrade("switch", "--to", "controller", "--controllers", group.addresses, *group.replicas)


@contextmanager
def without_controller(group: ControllerGroup, member: str) -> Iterator[ServerProcess]:
    """Run a broker as a master that knows no controller, and stop it cleanly."""
    broker, text = group.brokers[member], group.conf(member).read_text()
    keys = "enableControllerMode", "controllerAddr", "namesrvAddr"
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in keys]
    kept += ["brokerRole=ASYNC_MASTER", "brokerId=0"]
    group.conf(member).write_text("\n".join(kept) + "\n")
    yield broker.start()
    assert broker.stop() in (0, 143)
    assert not (group.store(member) / "abort").exists()
    group.conf(member).write_text(text)


def stop_cleanly_once(group: ControllerGroup) -> None:
    """Start and stop each broker without the controller: one that gets no role leaves ``abort``."""
    for member, broker in group.brokers.items():
        assert broker.stop() in (0, 143)
        assert (group.store(member) / "abort").exists()
        with without_controller(group, member):
            pass


def start_with_data(group: ControllerGroup, *, kept: bool) -> None:
    """Start the controller, with its data or without."""
    group.controller.stop()
    if not kept:
        shutil.rmtree(group.controller.directory / "controller")
    group.controller.start()


def start_with_new_path(group: ControllerGroup) -> None:
    """Start the controller with a new ``controllerStorePath``: it knows nobody."""
    path = group.controller.directory / "controller"
    change_controller(group, f"controllerStorePath={path}", f"controllerStorePath={path}-new")


def change_controller(group: ControllerGroup, old: str, new: str) -> None:
    """Change a line of the configuration of the controller, and start it again."""
    group.controller.stop()
    conf = Path(group.controller.argv[-1])
    lines = conf.read_text().splitlines()
    lines[lines.index(old)] = new
    conf.write_text("\n".join(lines) + "\n")
    group.controller.start()


def test_a_controller_that_lost_its_data_gives_no_role(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    before = manifest(group.store("master"), group.root / "before.json")
    start_both(group)
    assert group.send(1000) == SENT
    group.await_level()
    group.stop_all()
    start_with_data(group, kept=False)
    refused = is_in_log(group, "master", "Register to broker failed")
    for broker in group.brokers.values():
        broker.launch()
    wait_until(refused)
    assert group.replicas_info() == {}
    stop_cleanly_once(group)
    switch = "switch", "--to", "controller", "--controllers", group.addresses
    assert main(["upgrade", *switch, *group.replicas]) == 2
    assert "leave takes that back" in capsys.readouterr().err
    hand_over_again(group)
    start_both(group)
    group.stop_all()
    assert group.logs("master") == group.logs("slave")
    upgrade("verify", *group.stores, "--before", before)


def test_a_controller_with_its_data_of_before_elects_nobody(group: ControllerGroup) -> None:
    """It waits for replicas that are gone for good. While it is stopped, ``switch`` cannot ask."""
    before = manifest(group.store("master"), group.root / "before.json")
    start_both(group)
    group.stop_all()
    group.controller.stop()
    hand_over_again(group)
    start_with_data(group, kept=True)
    no_master = is_in_log(group, "slave", "Failed to elect a new master")
    for member in group.brokers:
        group.brokers[member].launch()
    wait_until(lambda: no_master() and alive(group) == {3, 4} and len(members(group)) == 4)
    assert group.replicas_info().get("masterBrokerId") is None
    assert ResponseCode.SUCCESS not in {put(group, member).code for member in group.brokers}
    stop_cleanly_once(group)
    start_with_new_path(group)
    hand_over_again(group)
    start_both(group)
    assert group.send(1000) == SENT
    group.await_level()
    group.stop_all()
    assert group.logs("master") == group.logs("slave")
    upgrade("verify", *group.stores, "--before", before)


def test_contradicting_keys_end_the_broker_or_its_replication(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    with group.conf("master").open("a") as conf:
        conf.write("enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId=n0\n")
        conf.write("dLegerPeers=n0-127.0.0.1:1\n")
    assert "controller-flags" in failed_checks(group, capsys)
    broker = group.brokers["master"]
    broker.launch()
    wait_until(lambda: not broker.running)
    assert broker.stop() == 256 - 4
    assert READY.search(broker.output.read_bytes()) is None
