"""Each hazard of a switch is made on stores that Java wrote, and found by a check with its name; or
it is shown that it cannot be made here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import define
from harness.upgrade import MakeUpgradeRig

from rmqpy.codec.backend import scan_records
from rmqpy.codec.message import encode_blank
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.state import HardState
from rmqpy.model.ids import Term
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import CHECKS, run_checks
from rmqpy.upgrade.checks.hazards import HAZARDS
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.survey import Survey, SurveyPlan

NOW_MS = 1_800_000_000_000
FILE = "commitlog/00000000000000196608"
CONF = """brokerClusterName=DefaultCluster
brokerName=b0
listenPort={port}
mappedFileSizeCommitLog=65536
storePathRootDir={root}
{more}"""
MEMBER = """enableDLegerCommitLog=true
dLegerGroup=b0
dLegerPeers=n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911
dLegerSelfId={self_id}
"""


@define
class Pair:
    """Two replicas on the disk; ``conf`` writes a broker.conf for one of them."""

    root: Path
    names: tuple[str, ...]
    confs: dict[str, Path]

    def conf(self, name: str, more: str, port: int = 15911) -> None:
        path = self.root / f"{name}.conf"
        path.write_text(CONF.format(port=port, root=self.root / name, more=more))
        self.confs[name] = path

    def path(self, name: str, file: str) -> Path:
        return self.root / name / file

    def edit(self, name: str, file: str, position: int, data: bytes) -> None:
        with self.path(name, file).open("r+b") as opened:
            opened.seek(position)
            opened.write(data)

    def end(self, name: str) -> int:
        """Position behind the last record of the last file."""
        data = self.path(name, FILE).read_bytes()
        return scan_records(memoryview(data), 0, dledger=False, check_crc=False).end

    def group(self) -> Group:
        replicas = []
        for name in self.names:
            conf = self.confs.get(name)
            plan = SurveyPlan(
                name=name,
                root=os.fspath(self.root / name),
                config_path=os.fspath(conf) if conf else None,
                now_ms=lambda: NOW_MS,
            )
            replicas.append(LocalReplica(OsFileSystem(), plan))
        return Group(tuple(replicas))

    def found(self) -> set[str]:
        return {each.check for each in run_checks(self.group()) if not each.is_note}

    def noted(self) -> set[str]:
        return {each.check for each in run_checks(self.group()) if each.is_note}


@pytest.fixture
def pair(golden_copy: Callable[[str], Path]) -> Pair:
    return Pair(golden_copy("B-master-slave-v497"), ("master", "slave"), {})


@pytest.fixture
def joined(golden_copy: Callable[[str], Path]) -> Pair:
    made = Pair(golden_copy("C-upgraded-v497"), ("n0", "n1", "n2"), {})
    for number, name in enumerate(made.names):
        made.conf(name, MEMBER.format(self_id=name), 15911 + 10 * number)
    return made


def test_a_group_by_the_book_has_no_findings(pair: Pair, joined: Pair) -> None:
    for name in pair.names:
        pair.conf(name, "brokerRole=SYNC_MASTER\n")
    assert pair.found() == set()
    assert joined.found() == set()


def test_every_check_of_the_table_exists() -> None:
    assert [hazard.number for hazard in HAZARDS] == [f"H{number}" for number in range(1, 29)]
    for hazard in HAZARDS:
        assert set(hazard.checks) <= set(CHECKS)
        assert hazard.checks or hazard.here
    assert all(check.__doc__ for check in CHECKS.values())


def test_h1_an_old_log_ends_in_an_earlier_file(pair: Pair) -> None:
    pair.path("slave", FILE).unlink()
    assert {"same-log", "same-divide"} <= pair.found()


def test_h2_same_file_fewer_messages(pair: Pair) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end - 300, bytes(300))
    assert "same-log" in pair.found()
    assert "same-divide" not in pair.found()


def test_h3_a_follower_is_longer_than_the_leader(pair: Pair) -> None:
    pair.path("master", FILE).unlink()
    found = [each for each in run_checks(pair.group()) if each.check == "same-log"]
    assert [each.replica for each in found] == ["master"]


def test_h4_same_length_other_bytes(pair: Pair) -> None:
    data = pair.path("slave", FILE).read_bytes()
    scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    pair.edit("slave", FILE, scan.offset[3] + 16, b"\x12\x34\x56\x78")
    (found,) = [each for each in run_checks(pair.group()) if each.check == "same-log"]
    assert f"from offset {196608 + scan.offset[3]} on" in found.text
    assert "--reference" in found.remedy


def test_h5_the_last_stop_was_not_clean(pair: Pair) -> None:
    pair.path("master", "abort").touch()
    assert "clean-stop" in pair.found()


def test_h6_an_empty_file_behind_a_closed_one(pair: Pair) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end, encode_blank(65536 - end))
    pair.path("slave", "commitlog/00000000000000262144").write_bytes(bytes(65536))
    assert {"file-ahead", "same-divide"} <= pair.found()


def test_h7_another_file_size(pair: Pair) -> None:
    pair.conf("master", "")
    pair.conf("slave", "")
    text = pair.confs["slave"].read_text().replace("65536", "131072")
    pair.confs["slave"].write_text(text)
    assert "same-sizes" in pair.found()
    os.truncate(pair.path("slave", FILE), 65535)
    assert "file-sizes" in pair.found()


def test_h8_bytes_behind_the_last_message_are_a_note(pair: Pair) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end, encode_blank(65536 - end))
    assert pair.found() == set()
    assert "tail-bytes" in pair.noted()


@pytest.mark.slow
@pytest.mark.parametrize("old_files", [True, False])
def test_h9_h10_the_flag_is_turned_off_again(joined: Pair, old_files: bool) -> None:
    joined.conf("n0", MEMBER.format(self_id="n0").replace("true", "false"))
    if not old_files:
        shutil.rmtree(joined.path("n0", "commitlog"))
    assert {"switched", "flags-together"} <= joined.found()


def test_h9_the_old_log_was_written_over(joined: Pair) -> None:
    data = joined.path("n0", FILE).read_bytes()
    end = scan_records(memoryview(data), 0, dledger=False, check_crc=False).end
    joined.edit("n0", FILE, end, bytes(8))
    assert "divide-fits" in joined.found()


def test_h11_only_one_is_switched(pair: Pair) -> None:
    pair.conf("master", MEMBER.format(self_id="n0"))
    pair.conf("slave", "brokerRole=SLAVE\n")
    assert "flags-together" in pair.found()


def test_h12_tables_differ_or_are_missing(pair: Pair) -> None:
    path = pair.path("slave", "config/consumerOffset.json")
    path.write_text(path.read_text().replace("22", "20"))
    assert "tables-agree" in pair.found()
    for name in ("topics.json", "topics.json.bak"):
        pair.path("slave", f"config/{name}").unlink()
    assert "tables-there" in pair.found()
    pair.path("slave", "config/topics.json").write_text("{ torn")
    assert "tables-readable" in pair.found()


def test_a_delay_offset_one_period_old_is_a_note(pair: Pair) -> None:
    pair.path("slave", "config/delayOffset.json").write_text('{"offsetTable":{1:6}}')
    assert pair.found() == set()
    assert "tables-agree" in pair.noted()


def test_h13_a_consumer_offset_behind_the_queue(pair: Pair) -> None:
    for name in pair.names:
        path = pair.path(name, "config/consumerOffset.json")
        path.write_text(path.read_text().replace("22", "9000"))
    assert "offsets-in-range" in pair.found()


class _Told(LocalReplica):
    """A replica whose survey tells what is set."""

    changes: dict[str, Any] = {}  # noqa: RUF012

    def survey(self) -> Survey:
        return attrs.evolve(super().survey(), **self.changes)


def told(pair: Pair, **changes: Any) -> set[str]:
    group = pair.group()
    replicas = []
    for replica in group.replicas:
        assert isinstance(replica, LocalReplica)
        made = _Told(replica.files, replica.plan)
        made.changes = changes
        replicas.append(made)
    return {each.check for each in run_checks(Group(tuple(replicas))) if not each.is_note}


def test_h14_no_room_while_old_files_live(pair: Pair) -> None:
    pair.conf("master", "fileReservedTime=48\n")
    spans = pair.group().survey("master").spans
    early = (
        attrs.evolve(spans[0], first_stored_ms=spans[0].first_stored_ms - 7_200_000),
        *spans[1:],
    )
    assert "retention" in told(pair, disk_free=1 << 20, spans=early)
    assert "retention" not in told(pair, disk_free=1 << 40, spans=early)


def test_h15_a_node_without_the_old_log(pair: Pair) -> None:
    shutil.rmtree(pair.path("slave", "commitlog"))
    found = [each for each in run_checks(pair.group()) if each.check == "same-log"]
    assert [(each.replica, "has no old log" in each.text) for each in found] == [("slave", True)]


def test_h16_messages_too_large_for_an_entry(pair: Pair) -> None:
    assert "message-size" in told(pair, largest_record=4 * 1024 * 1024 - 47)
    assert "message-size" not in told(pair, largest_record=4 * 1024 * 1024 - 48)


def test_h17_pending_transactions_are_told(pair: Pair) -> None:
    assert "half-messages" in pair.noted()


@pytest.mark.slow
@pytest.mark.parametrize("self_id", ["broker-1", "n", "1", "no"])
def test_h18_an_id_that_java_cannot_read(pair: Pair, self_id: str) -> None:
    pair.conf("master", MEMBER.format(self_id=self_id))
    assert "self-ids" in pair.found()


def test_h19_ports_and_peers(pair: Pair) -> None:
    pair.conf("master", MEMBER.format(self_id="n0"), port=20910)
    pair.conf("slave", MEMBER.format(self_id="n1"), port=45911)
    assert "peers" in pair.found()
    assert any("outgoing" in str(each) for each in run_checks(pair.group()))
    pair.conf("slave", MEMBER.format(self_id="n1").replace("10.0.0.3", "10.0.0.4"))
    assert "same-group" in pair.found()


def test_h20_our_vote_survives_a_loss_of_power(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig(flag=True)
    store = rig.open()
    store.opened.entries.member_files.save_hard_state(HardState(Term(7), "n0"))
    store.close_without_flush()
    after = rig.on(rig.files.crash())
    opened = after.open()
    assert opened.opened.entries.member_files.load_hard_state().current_term == 7
    opened.close_without_flush()


@pytest.mark.slow
@pytest.mark.parametrize(("committed", "is_finding"), [(100_000, True), (3, False)])
def test_h21_h22_the_committed_index(joined: Pair, committed: int, is_finding: bool) -> None:
    path = joined.path("n1", "dledger-n1/checkpoint")
    path.write_text(f"committedIndex={committed}\nendIndex=280\n")
    assert ("committed" in joined.found()) is is_finding
    assert ("committed" in joined.noted()) is not is_finding


def test_h23_a_copy_with_a_new_time(pair: Pair) -> None:
    assert "times" not in pair.noted()
    os.utime(pair.path("slave", "commitlog/00000000000000000000"), (NOW_MS // 1000,) * 2)
    assert "times" in pair.noted()


def test_h24_something_foreign(pair: Pair) -> None:
    pair.path("slave", "commitlog/notes.txt").write_text("md5")
    assert "strays" in pair.found()


def test_h25_the_earliest_time_is_read_where_the_record_stands(joined: Pair) -> None:
    from rmqpy.store.message_store import StoreContext, open_store
    from rmqpy.testing.manual_scheduler import ManualScheduler

    settings = StoreSettings(
        store_path_root_dir=os.fspath(joined.root / "n0"),
        enable_dledger_commit_log=True,
        dledger_self_id="n0",
        dledger_group="b0",
        dledger_peers="n0-a:1",
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    store = open_store(StoreContext(settings, OsFileSystem(), ManualScheduler(), 1 << 34))
    first = joined.path("n0", "commitlog/00000000000000000000").read_bytes()
    assert store.reader.earliest_store_timestamp() == int.from_bytes(first[56:64])
    store.close_without_flush()


def test_h26_both_modes_store_the_same_properties(make_rig: MakeUpgradeRig) -> None:
    stored = []
    for flag in (False, True):
        rig = make_rig(flag=flag)
        rig.write(*range(5), properties=b"CLUSTER\x01c\x02A\x01b")
        records = rig.records()
        stored.append({queue: [r[-14:] for r in raw] for queue, raw in records.items()})
    assert stored[0] == stored[1]


def test_h27_a_damaged_record_is_found_with_its_place(pair: Pair) -> None:
    data = pair.path("slave", FILE).read_bytes()
    scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    pair.edit("slave", FILE, scan.offset[5] + 4, bytes(4))
    found = [each for each in run_checks(pair.group()) if each.check == "log-sound"]
    assert any(str(196608 + scan.offset[5]) in each.text for each in found)


def test_h28_batch_push(pair: Pair) -> None:
    pair.conf("master", "isEnableBatchPush=true\n")
    assert "batch-push" in pair.noted()


def test_a_torn_tail(pair: Pair) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end - 40, bytes(40))
    assert "tail" in pair.found()


def test_the_clocks(pair: Pair) -> None:
    class Late(LocalReplica):
        def clock_skew_ms(self) -> int:
            return 60_000

    group = pair.group()
    first, second = group.replicas
    assert isinstance(second, LocalReplica)
    late = Group((first, Late(second.files, second.plan)))
    assert "clocks" in {each.check for each in run_checks(late) if not each.is_note}


def test_a_survey_travels(pair: Pair) -> None:
    survey = pair.group().survey("master")
    again = Survey.decode(survey.encode())
    assert again.encode() == survey.encode()
    assert json.loads(survey.encode())["format"] == 1
    assert again.manifest == survey.manifest
