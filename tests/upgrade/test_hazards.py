"""Each hazard of a switch, created on stores that Java wrote.

A check finds it, or the test shows that it cannot occur here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, Unpack

import attrs
import pytest
from harness.replicas import FILE, NOW_MS, Replicas
from harness.upgrade import GOLDEN_SIZES, MakeUpgradeRig

from rmqpy.codec.backend import scan_records
from rmqpy.codec.message import encode_blank
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.state import HardState
from rmqpy.model.ids import Term
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.ledger.member_state import MemberFiles
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import CHECKS, run_checks
from rmqpy.upgrade.checks.hazards import HAZARDS
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.survey import FileSpan, Survey

MEMBER = """enableDLegerCommitLog=true
dLegerGroup=b0
dLegerPeers=n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911
dLegerSelfId={self_id}
"""


@pytest.fixture
def pair(golden_copy: Callable[[str], Path]) -> Replicas:
    return Replicas(golden_copy("B-master-slave-v497"), ("master", "slave"), {})


@pytest.fixture
def joined(golden_copy: Callable[[str], Path]) -> Replicas:
    made = Replicas(golden_copy("C-upgraded-v497"), ("n0", "n1", "n2"), {})
    for number, name in enumerate(made.names):
        made.write_conf(name, MEMBER.format(self_id=name), 15911 + 10 * number)
    return made


def test_an_intact_group_has_no_findings(pair: Replicas, joined: Replicas) -> None:
    for name in pair.names:
        pair.write_conf(name, "brokerRole=SYNC_MASTER\n")
    assert pair.found() == set()
    assert joined.found() == set()


def test_every_hazard_names_its_checks() -> None:
    assert [hazard.number for hazard in HAZARDS] == [f"H{number}" for number in range(1, 29)]
    for hazard in HAZARDS:
        assert set(hazard.checks) <= set(CHECKS)
        assert hazard.checks or hazard.here
    assert all(check.__doc__ for check in CHECKS.values())


def test_h1_an_old_log_ends_in_an_earlier_file(pair: Replicas) -> None:
    pair.path("slave", FILE).unlink()
    assert {"same-log", "same-divide"} <= pair.found()


def test_h2_same_file_fewer_messages(pair: Replicas) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end - 300, bytes(300))
    assert "same-log" in pair.found()
    assert "same-divide" not in pair.found()


def test_h3_a_follower_is_longer_than_the_leader(pair: Replicas) -> None:
    pair.path("master", FILE).unlink()
    found = [each for each in run_checks(pair.group()) if each.check == "same-log"]
    assert [each.replica for each in found] == ["master"]


def test_h4_same_length_other_bytes(pair: Replicas) -> None:
    data = pair.path("slave", FILE).read_bytes()
    scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    pair.edit("slave", FILE, scan.offset[3] + 16, b"\x12\x34\x56\x78")
    (found,) = [each for each in run_checks(pair.group()) if each.check == "same-log"]
    assert f"from offset {196608 + scan.offset[3]} on" in found.text
    assert "--reference" in found.remedy


def test_h5_the_last_stop_was_not_clean(pair: Replicas) -> None:
    pair.path("master", "abort").touch()
    assert "clean-stop" in pair.found()


def test_h6_an_empty_file_after_a_closed_one(pair: Replicas) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end, encode_blank(65536 - end))
    pair.path("slave", "commitlog/00000000000000262144").write_bytes(bytes(65536))
    assert {"file-ahead", "same-divide"} <= pair.found()


def test_h7_another_file_size(pair: Replicas) -> None:
    pair.write_conf("master", "")
    pair.write_conf("slave", "")
    text = pair.confs["slave"].read_text().replace("65536", "131072")
    pair.confs["slave"].write_text(text)
    assert "same-sizes" in pair.found()
    os.truncate(pair.path("slave", FILE), 65535)
    assert "file-sizes" in pair.found()


def test_h8_bytes_after_the_last_message_are_a_note(pair: Replicas) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end, encode_blank(65536 - end))
    assert pair.found() == set()
    assert "tail-bytes" in pair.noted()


@pytest.mark.slow
@pytest.mark.parametrize("old_files", [True, False])
def test_h9_h10_the_flag_is_turned_off_again(joined: Replicas, old_files: bool) -> None:
    joined.write_conf("n0", MEMBER.format(self_id="n0").replace("true", "false"))
    if not old_files:
        shutil.rmtree(joined.path("n0", "commitlog"))
    assert {"switched", "flags-together"} <= joined.found()


def test_h9_the_filler_of_the_old_log_was_overwritten(joined: Replicas) -> None:
    data = joined.path("n0", FILE).read_bytes()
    end = scan_records(memoryview(data), 0, dledger=False, check_crc=False).end
    joined.edit("n0", FILE, end, bytes(8))
    assert "divide-fits" in joined.found()


def test_h11_only_one_is_switched(pair: Replicas) -> None:
    pair.write_conf("master", MEMBER.format(self_id="n0"))
    pair.write_conf("slave", "brokerRole=SLAVE\n")
    assert "flags-together" in pair.found()


def test_h12_a_group_without_consumers_has_no_table_of_them(pair: Replicas) -> None:
    """Java writes the tables of groups and offsets when it meets the first consumer."""
    names = ("subscriptionGroup.json", "consumerOffset.json")
    for replica in pair.names:
        for name in (*names, *(f"{name}.bak" for name in names)):
            pair.path(replica, f"config/{name}").unlink(missing_ok=True)
    assert "tables-there" not in pair.found()
    assert "tables-there" in pair.noted()
    for replica in pair.names:
        for name in ("topics.json", "topics.json.bak"):
            pair.path(replica, f"config/{name}").unlink(missing_ok=True)
    assert "tables-there" in pair.found()


def test_h12_tables_differ_or_are_missing(pair: Replicas) -> None:
    path = pair.path("slave", "config/consumerOffset.json")
    path.write_text(path.read_text().replace("22", "20"))
    assert "tables-agree" in pair.found()
    for name in ("topics.json", "topics.json.bak"):
        pair.path("slave", f"config/{name}").unlink()
    assert "tables-there" in pair.found()
    pair.path("slave", "config/topics.json").write_text("{ torn")
    assert "tables-readable" in pair.found()


def test_a_delay_offset_one_period_old_is_a_note(golden_copy: Callable[[str], Path]) -> None:
    """The last message of level 5 was due in the seconds before the log ends."""
    members = Replicas(golden_copy("D-dledger-v497"), ("n0", "n2"), {})
    members.path("n2", "config/delayOffset.json").write_text('{"offsetTable":{1:7,5:1}}')
    assert "tables-agree" not in members.found()
    assert "tables-agree" in members.noted()


def test_h13_a_consumer_offset_after_the_end_of_the_queue(pair: Replicas) -> None:
    for name in pair.names:
        path = pair.path(name, "config/consumerOffset.json")
        path.write_text(path.read_text().replace("22", "9000"))
    assert "offsets-in-range" in pair.found()


class SurveyChanges(TypedDict, total=False):
    """The fields of a survey that a test sets."""

    disk_free: int
    largest_record: int
    spans: tuple[FileSpan, ...]


class AlteredReplica(LocalReplica):
    """A replica whose survey has some fields replaced."""

    def __init__(self, replica: LocalReplica, changes: SurveyChanges) -> None:
        super().__init__(replica.files, replica.plan)
        self.changes = changes

    def survey(self) -> Survey:
        return attrs.evolve(super().survey(), **self.changes)


def found_if(pair: Replicas, **changes: Unpack[SurveyChanges]) -> set[str]:
    """Return the checks with findings if every survey of the pair had these fields."""
    replicas = []
    for replica in pair.group().replicas:
        assert isinstance(replica, LocalReplica)
        replicas.append(AlteredReplica(replica, changes))
    return {each.check for each in run_checks(Group(tuple(replicas))) if not each.is_note}


def test_h14_no_disk_space_until_the_old_files_expire(pair: Replicas) -> None:
    pair.write_conf("master", "fileReservedTime=48\n")
    spans = pair.group().survey("master").spans
    early = (
        attrs.evolve(spans[0], first_stored_ms=spans[0].first_stored_ms - 7_200_000),
        *spans[1:],
    )
    assert "retention" in found_if(pair, disk_free=1 << 20, spans=early)
    assert "retention" not in found_if(pair, disk_free=1 << 40, spans=early)


def test_h15_a_node_without_the_old_log(pair: Replicas) -> None:
    shutil.rmtree(pair.path("slave", "commitlog"))
    found = [each for each in run_checks(pair.group()) if each.check == "same-log"]
    assert [(each.replica, "has no old log" in each.text) for each in found] == [("slave", True)]


def test_h16_messages_too_large_for_an_entry(pair: Replicas) -> None:
    assert "message-size" in found_if(pair, largest_record=4 * 1024 * 1024 - 47)
    assert "message-size" not in found_if(pair, largest_record=4 * 1024 * 1024 - 48)


def test_h17_pending_transactions_are_a_note(pair: Replicas) -> None:
    found = [each for each in run_checks(pair.group()) if each.check == "half-messages"]
    assert [(each.is_note, each.replica) for each in found] == [(True, "master"), (True, "slave")]
    for each in found:
        assert each.text.split()[1:6] == ["prepared", "messages", "in", "the", "log;"]


@pytest.mark.slow
@pytest.mark.parametrize("self_id", ["broker-1", "n", "1", "no"])
def test_h18_an_id_that_java_cannot_read(pair: Replicas, self_id: str) -> None:
    pair.write_conf("master", MEMBER.format(self_id=self_id))
    assert "self-ids" in pair.found()


def test_h19_ports_and_peers(pair: Replicas) -> None:
    pair.write_conf("master", MEMBER.format(self_id="n0"), port=20910)
    pair.write_conf("slave", MEMBER.format(self_id="n1"), port=45911)
    assert "peers" in pair.found()
    assert any("outgoing" in str(each) for each in run_checks(pair.group()))
    pair.write_conf("slave", MEMBER.format(self_id="n1").replace("10.0.0.3", "10.0.0.4"))
    assert "same-group" in pair.found()


def test_h20_a_vote_survives_a_power_failure(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig(flag=True)
    store = rig.open()
    member_files_of(store).save_hard_state(HardState(Term(7), "n0"))
    store.close_without_flush()
    reopened = rig.after(rig.files.crash()).open()
    assert member_files_of(reopened).load_hard_state().current_term == 7
    reopened.close_without_flush()


def member_files_of(store: MessageStore) -> MemberFiles:
    assert store.opened.entries is not None
    return store.opened.entries.member_files


@pytest.mark.slow
@pytest.mark.parametrize(("committed", "is_finding"), [(100_000, True), (3, False)])
def test_h21_h22_the_committed_index(joined: Replicas, committed: int, is_finding: bool) -> None:
    path = joined.path("n1", "dledger-n1/checkpoint")
    path.write_text(f"committedIndex={committed}\nendIndex=280\n")
    assert ("committed" in joined.found()) is is_finding
    assert ("committed" in joined.noted()) is not is_finding


def test_h23_a_copy_with_a_new_time(pair: Replicas) -> None:
    assert "times" not in pair.noted()
    os.utime(pair.path("slave", "commitlog/00000000000000000000"), (NOW_MS // 1000,) * 2)
    assert "times" in pair.noted()


def test_h24_a_foreign_file_in_the_log(pair: Replicas) -> None:
    pair.path("slave", "commitlog/notes.txt").write_text("md5")
    assert "strays" in pair.found()


def test_h25_the_earliest_time_is_read_from_the_first_classic_record(joined: Replicas) -> None:
    settings = StoreSettings(
        store_path_root_dir=os.fspath(joined.root / "n0"),
        enable_dledger_commit_log=True,
        dledger_self_id="n0",
        dledger_group="b0",
        dledger_peers="n0-a:1",
        **GOLDEN_SIZES,
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


def test_h27_a_damaged_record_is_found_with_its_place(pair: Replicas) -> None:
    data = pair.path("slave", FILE).read_bytes()
    scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    pair.edit("slave", FILE, scan.offset[5] + 4, bytes(4))
    found = [each for each in run_checks(pair.group()) if each.check == "log-sound"]
    assert any(str(196608 + scan.offset[5]) in each.text for each in found)


def test_h28_batch_push(pair: Replicas) -> None:
    pair.write_conf("master", "isEnableBatchPush=true\n")
    assert "batch-push" in pair.noted()


def test_a_torn_tail_is_found(pair: Replicas) -> None:
    end = pair.end("slave")
    pair.edit("slave", FILE, end - 40, bytes(40))
    assert "tail" in pair.found()


def test_clocks_that_differ_are_found(pair: Replicas) -> None:
    class Late(LocalReplica):
        def clock_skew_ms(self) -> int:
            return 60_000

    group = pair.group()
    first, second = group.replicas
    assert isinstance(second, LocalReplica)
    late = Group((first, Late(second.files, second.plan)))
    assert "clocks" in {each.check for each in run_checks(late) if not each.is_note}


def test_a_survey_survives_encoding(pair: Replicas) -> None:
    survey = pair.group().survey("master")
    again = Survey.decode(survey.encode())
    assert again.encode() == survey.encode()
    assert json.loads(survey.encode())["format"] == 3
    assert again.manifest == survey.manifest


@pytest.mark.parametrize(
    ("offset", "check", "text"),
    [(0, "tables-agree", "level 1 is 0, not 7"), (9, "offsets-in-range", "level 1 is 9")],
)
def test_a_wrong_delay_offset_is_a_finding(
    pair: Replicas, offset: int, check: str, text: str
) -> None:
    table = pair.root / "slave/config/delayOffset.json"
    table.write_text(table.read_text().replace("1:7", f"1:{offset}"))
    (found,) = (
        each for each in run_checks(pair.group()) if not each.is_note and each.check == check
    )
    assert "delayOffset.json" in found.text and text in found.text
