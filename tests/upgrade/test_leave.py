"""The step m0006_leave: entries become classic records, in place.

It can be resumed after a kill, and a rollback restores every byte.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import pytest
from harness.kills import kills_of
from harness.store import FILE_SIZE, CrashingFiles, KilledError
from harness.upgrade import LeaveOptions, MakeUpgradeRig, UpgradeRig, plan_leave

from rmqpy.codec.backend import scan_records
from rmqpy.codec.layout import MESSAGE_MAGIC_V2
from rmqpy.codec.message import decode_message
from rmqpy.codec.reframe import covered_entries, strip_reserved
from rmqpy.model.errors import StoreError
from rmqpy.model.flags import INNER_BATCH
from rmqpy.model.ids import QueueOffset
from rmqpy.upgrade.checks.ledger import agreed_index, read_ledger
from rmqpy.upgrade.plan.engine import apply_plan, finalize, roll_back
from rmqpy.upgrade.plan.journal import ROLLED_BACK, ROLLING_BACK, load_journal
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.plan import Plan

QueueRecords = dict[tuple[str, int], list[bytes]]
Kept = tuple[int, QueueOffset, int, bytes, str, bytes, int, int, int, int]
"""The content of a message that the step must not change, beginning with its physical offset."""


def upgraded(make_rig: MakeUpgradeRig, old: int = 30, new: int = 60) -> UpgradeRig:
    """Return a classic store of ``old`` messages to which a group of one has added ``new``."""
    rig = make_rig()
    rig.files.now_ms = 5000
    if old:
        rig.write(*range(old))
    joined = rig.with_flag(True)
    joined.write(*range(old, old + new))
    return joined


def leaving(
    rig: UpgradeRig,
    piece_bytes: int = 1000,
    cut_index: int | None = None,
    reads_version: int = 1,
) -> Plan:
    """Return the plan of a group of one; by default it cuts at the agreed end of the ledger."""
    context = rig.context()
    if cut_index is None:
        cut_index = agreed_index([read_ledger(context.files, context.settings)], 1)
    options = LeaveOptions(
        replica="n0", cut_index=cut_index, piece_bytes=piece_bytes, reads_version=reads_version
    )
    return Plan(steps=("m0006_leave",), nodes=(plan_leave(context, options),))


def kept_of(records: QueueRecords) -> dict[tuple[str, int], list[Kept]]:
    """Return what must be kept of each message.

    The first message of a DLedger file is expected at its offset less 48.
    """
    found = {}
    for queue, raw in records.items():
        rows = []
        for each in map(decode_message, raw):
            moved = each.physical_offset % FILE_SIZE == 48
            rows.append(
                (
                    each.physical_offset - (48 if moved else 0),
                    each.queue_offset,
                    each.body_crc,
                    each.body,
                    each.topic,
                    strip_reserved(each.raw_properties),
                    each.store_timestamp_ms,
                    each.born_timestamp_ms,
                    each.flag,
                    each.sys_flag,
                )
            )
        found[queue] = rows
    return found


@pytest.mark.slow
@pytest.mark.parametrize("old", [0, 30])
@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_every_message_is_kept(make_rig: MakeUpgradeRig, old: int, piece_bytes: int) -> None:
    joined = upgraded(make_rig, old)
    before = kept_of(joined.records())
    classic = joined.with_flag(False)
    apply_plan(classic.context(), leaving(joined, piece_bytes), "n0")
    assert not any(path.startswith("dledger") for path in classic.tree())
    assert kept_of(classic.records()) == before


def test_reserved_properties_cover_every_entry_once(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig, 0, 40)
    classic = joined.with_flag(False)
    apply_plan(classic.context(), leaving(joined), "n0")
    covered = []
    for raw in itertools.chain(*classic.records().values()):
        message = decode_message(raw)
        first = message.physical_offset % FILE_SIZE == 0
        grown = len(message.raw_properties) - len(strip_reserved(message.raw_properties))
        assert grown in ((48, 96) if first else (0, 48))
        assert message.properties["KEYS"].startswith("key")
        covered += [index for index, _ in covered_entries(message.raw_properties)]
    # Exactly one message holds each header.
    assert sorted(covered) == list(range(40))


def test_keys_and_ids_still_lead_to_the_messages(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig)
    classic = joined.with_flag(False)
    apply_plan(classic.context(), leaving(joined), "n0")
    store = classic.open()
    while store.catch_up_index():
        pass
    for number in range(90):
        found = store.reader.query_message("Topic", f"key{number}", 32, 0, 1 << 60).messages
        bodies = [decode_message(record).body for record in found]
        assert classic.draft(number).body in bodies, number
    store.shutdown()


def test_a_store_can_leave_and_switch_repeatedly(make_rig: MakeUpgradeRig) -> None:
    """Leave, write, switch again, write, and leave again."""
    rig = upgraded(make_rig)
    for turn in range(2):
        classic = rig.with_flag(False)
        before = kept_of(rig.records())
        apply_plan(classic.context(), leaving(rig), "n0")
        finalize(classic.context())
        classic.write(*range(1000 * turn + 100, 1000 * turn + 120))
        rig.write(*range(1000 * turn + 200, 1000 * turn + 240))
        after = kept_of(rig.records())
        for queue, rows in before.items():
            assert [row[1:] for row in after[queue][: len(rows)]] == [row[1:] for row in rows]
    assert sum(map(len, rig.records().values())) == 90 + 2 * 60


def test_entries_after_the_agreed_end_are_moved_aside(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig, 30, 60)
    classic = joined.with_flag(False)
    plan = leaving(joined, cut_index=20)
    tree = joined.tree()
    apply_plan(classic.context(), plan, "n0")
    records = classic.records()
    assert sum(map(len, records.values())) == 30 + 21
    roll_back_to(classic, tree)


def test_a_group_without_a_message_can_leave(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig()
    rig.write(*range(30))
    before = rig.records()
    joined = rig.with_flag(True)
    joined.open().shutdown()
    apply_plan(rig.context(), leaving(joined), "n0")
    assert rig.records() == before
    rig.write(30, 31)
    assert sum(map(len, rig.records().values())) == 32


def roll_back_to(rig: UpgradeRig, tree: dict[str, bytes]) -> None:
    roll_back(rig.context())
    now = rig.tree()
    assert now.keys() == tree.keys()
    assert [path for path in tree if tree[path] != now[path]] == []


def test_a_rollback_restores_every_byte(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig)
    tree, times = joined.tree(), joined.times()
    joined.files.now_ms = 9000
    apply_plan(joined.context(), leaving(joined), "n0")
    roll_back_to(joined, tree)
    assert joined.times() == times


def test_log_files_keep_their_times(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig)
    joined.files.now_ms = 9000
    plan = leaving(joined)
    apply_plan(joined.context(), plan, "n0")
    log = {path: time for path, time in joined.times().items() if "/commitlog/" in path}
    assert log and set(log.values()) == {5000}


@pytest.mark.slow
def test_a_plan_killed_at_any_operation_can_be_resumed(
    make_rig: MakeUpgradeRig,
) -> None:
    joined = upgraded(make_rig, 12, 40)
    original, plan = joined.files, leaving(joined)
    start = original.reopen(None)
    apply_plan(joined.after(start).context(), plan, "n0")
    expected, tree = joined.after(start).tree(), joined.tree()

    def act(files: CrashingFiles) -> None:
        apply_plan(joined.after(files).context(), plan, "n0")

    for dies_at, dying in kills_of(original, act, more_than=100):
        forward = joined.after(dying.reopen(None))
        apply_plan(forward.context(), plan, "n0")
        assert forward.tree() == expected, dies_at
        back = joined.after(dying.reopen(None))
        if back.files.exists(f"{back.root}/rmqpy/upgrade/journal.json"):
            roll_back(back.context())
        assert back.tree() == tree, dies_at


@pytest.mark.slow
def test_a_rollback_killed_at_any_operation_can_be_resumed(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig, 12, 20)
    plan, tree = leaving(joined), joined.tree()
    apply_plan(joined.context(), plan, "n0")
    left = joined.files

    def act(files: CrashingFiles) -> None:
        roll_back(joined.after(files).context())

    for dies_at, dying in kills_of(left, act, more_than=50):
        again = joined.after(dying.reopen(None))
        journal = load_journal(again.files, again.context().work)
        assert journal is not None
        state = journal.state
        if state == ROLLING_BACK:
            with pytest.raises(UpgradeRefusedError, match="being rolled back"):
                apply_plan(again.context(), plan, "n0")
        if state != ROLLED_BACK:
            roll_back(again.context())
        assert again.tree() == tree, dies_at


def test_no_broker_starts_on_a_half_done_plan(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig, 12, 40)
    plan = leaving(joined)
    dying = joined.files.reopen(60)
    with pytest.raises(KilledError):
        apply_plan(joined.after(dying).context(), plan, "n0")
    half = joined.after(dying.reopen(None))
    for flag in (True, False):
        with pytest.raises(StoreError, match="half done"):
            half.with_flag(flag).open()
    roll_back(half.context())
    assert half.records() == joined.records()


def test_turning_the_flag_off_is_refused(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig, 12, 4)
    with pytest.raises(StoreError, match="rmqpy upgrade leave"):
        joined.with_flag(False).open()


def test_a_plan_is_refused_after_an_unclean_stop(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig, 12, 4)
    joined.open().close_without_flush()
    with pytest.raises(UpgradeRefusedError, match="not clean"):
        leaving(joined)


def test_a_plan_is_refused_after_the_directory_has_changed(make_rig: MakeUpgradeRig) -> None:
    joined = upgraded(make_rig, 12, 4)
    plan = leaving(joined)
    joined.write(500)
    tree = joined.tree()
    with pytest.raises(UpgradeRefusedError, match="plan again"):
        apply_plan(joined.context(), plan, "n0")
    assert joined.tree() == tree


@pytest.mark.parametrize(("length", "fits"), [(32671, True), (32672, False)])
def test_too_long_properties_of_the_first_message_of_a_file_are_refused(
    make_rig: MakeUpgradeRig, length: int, fits: bool
) -> None:
    rig = make_rig(flag=True, changes={"mapped_file_size_commit_log": 1 << 17})
    rig.write(1, properties=b"K\x01" + b"v" * (length - 2))
    rig.write(2, 3)
    if fits:
        plan = leaving(rig)
        apply_plan(rig.context(), plan, "n0")
        assert sum(map(len, rig.with_flag(False).records().values())) == 3
    else:
        with pytest.raises(UpgradeRefusedError, match="offset 48 are too long"):
            leaving(rig)


@pytest.mark.parametrize("ending", [b"", b"\x02"])
@pytest.mark.parametrize("pairs", [b"", b"A\x01b"])
def test_properties_with_and_without_a_final_separator_are_kept(
    make_rig: MakeUpgradeRig, pairs: bytes, ending: bytes
) -> None:
    rig = make_rig(flag=True)
    rig.write(*range(10), properties=pairs + (ending if pairs else b""))
    before = kept_of(rig.records())
    apply_plan(rig.context(), leaving(rig), "n0")
    classic = rig.with_flag(False)
    assert kept_of(classic.records()) == before
    for raw in itertools.chain(*classic.records().values()):
        message = decode_message(raw)
        assert not message.raw_properties.startswith(b"\x02")
        assert b"\x02\x02" not in message.raw_properties
        if ending and pairs:
            assert message.raw_properties.endswith(b"\x02")


@pytest.mark.parametrize("host", [bytes(15) + b"\1", bytes([10, 0, 0, 1])])
def test_ipv4_and_ipv6_hosts_are_kept(make_rig: MakeUpgradeRig, host: bytes) -> None:
    rig = make_rig(flag=True)
    v6 = 0x10 | 0x20 if len(host) == 16 else 0
    rig.write(*range(30), born_host=(host, 1), store_host=(host, 2), sys_flag=v6)
    before = kept_of(rig.records())
    apply_plan(rig.context(), leaving(rig), "n0")
    assert kept_of(rig.with_flag(False).records()) == before


def test_a_reference_to_a_moved_half_message_is_updated(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig(flag=True)
    (half,) = rig.write(0)
    assert half == 48
    rig.write(1, prepared_transaction_offset=half)
    rig.write(2, prepared_transaction_offset=200)
    apply_plan(rig.context(), leaving(rig), "n0")
    prepared = {
        decode_message(raw).prepared_transaction_offset
        for raw in itertools.chain(*rig.with_flag(False).records().values())
    }
    assert prepared == {0, 200}


def test_a_group_is_cut_where_a_quorum_agrees(make_rig: MakeUpgradeRig) -> None:
    rig = upgraded(make_rig, 0, 9)
    full = read_ledger(rig.files, rig.settings())
    short = read_ledger(rig.files, rig.settings())
    short.end_index, short.committed_index, full.committed_index = 5, 3, 3
    assert agreed_index([full, full, short], 3) == 8
    assert agreed_index([full, short, short], 3) == 5
    with pytest.raises(UpgradeRefusedError, match="too few"):
        agreed_index([full], 3)


def test_what_a_missing_member_may_have_acknowledged_is_kept(make_rig: MakeUpgradeRig) -> None:
    rig = upgraded(make_rig, 0, 9)
    full = read_ledger(rig.files, rig.settings())
    short = read_ledger(rig.files, rig.settings())
    short.end_index, short.committed_index, full.committed_index = 5, 3, 3
    assert agreed_index([full, short], 3) == 8, "the third member and the first are a quorum"
    assert agreed_index([full, short, short], 5) == 8
    assert agreed_index([full, short, short, short], 5) == 5


def test_without_a_quorum_in_one_term_the_newest_log_is_kept(make_rig: MakeUpgradeRig) -> None:
    """An election would choose it; what was committed in the term before is in it."""
    rig = upgraded(make_rig, 0, 9)
    full = read_ledger(rig.files, rig.settings())
    older = read_ledger(rig.files, rig.settings())
    older.end_index, older.end_term = 12, full.end_term - 1
    older.committed_index = full.committed_index = 3
    assert agreed_index([full, older, older], 3) == 8


def patch_records(rig: UpgradeRig, patch: Callable[[bytearray, int, int], None]) -> None:
    """Call ``patch`` with each data file and the positions of a record and its properties in it."""
    folder = f"{rig.root}/dledger-n0/data/"
    for path, node in rig.files.nodes.items():
        if path.startswith(folder):
            assert isinstance(node.data, bytearray)
            base = int(path.rpartition("/")[2])
            scan = scan_records(memoryview(bytes(node.data)), base, dledger=True, check_crc=False)
            assert len(scan)
            for record, properties in zip(scan.offset, scan.properties_position, strict=True):
                patch(node.data, record - base, properties)


def as_version_2(data: bytearray, record: int, properties: int) -> None:
    """Write the length of the topic in two bytes, as 5.x does for long topics.

    The topic loses a letter, so that nothing moves.
    """
    topic = properties - 2 - len(b"\x05Topic")
    assert data[topic : topic + 6] == b"\x05Topic"
    data[topic : topic + 6] = b"\x00\x04Topi"
    data[record + 4 : record + 8] = MESSAGE_MAGIC_V2.to_bytes(4)


def with_checksum(data: bytearray, record: int, _properties: int) -> None:
    """Write the checksum of the record into its last property."""
    end = record + int.from_bytes(data[record : record + 4])
    data[end - 11 : end - 1] = checksum_of(bytes(data[record:end]))


def checksum_of(raw: bytes) -> bytes:
    return f"{zlib.crc32(raw[:-20]) & 0x7FFFFFFF:010d}"[::-1].encode()


def test_version_2_records_need_a_java_5_broker(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig(flag=True)
    rig.write(*range(40))
    patch_records(rig, as_version_2)
    for path in [path for path in rig.files.nodes if "/consumequeue/" in path]:
        rig.files.unlink(path)
    found = kept_of(rig.records())
    before = {queue: rows for queue, rows in found.items() if rows}
    assert {row[4] for rows in before.values() for row in rows} == {"Topi"}
    with pytest.raises(UpgradeRefusedError, match="version 2 records, which Java"):
        leaving(rig)
    apply_plan(rig.context(), leaving(rig, reads_version=2), "n0")
    classic = rig.with_flag(False)
    records = classic.records()
    assert kept_of(records) == before
    assert {decode_message(raw).version for raw in itertools.chain(*records.values())} == {2}


def test_a_record_checksum_stays_last_and_is_recomputed(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig(flag=True)
    rig.write(*range(40), properties=b"K\x01v\x02__CRC32#\x010000000000\x02")
    patch_records(rig, with_checksum)
    before = kept_of(rig.records())
    apply_plan(rig.context(), leaving(rig), "n0")
    classic = make_rig(files=rig.files, changes={"force_verify_prop_crc": True})
    records = classic.records()
    assert kept_of(records) == before
    for raw in itertools.chain(*records.values()):
        assert raw.endswith(b"\x02__CRC32#\x01" + checksum_of(raw) + b"\x02")


def test_an_inner_batch_stays_one_record(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig(flag=True)
    rig.write(*range(30), sys_flag=INNER_BATCH, properties=b"INNER_NUM\x013\x02")
    before = kept_of(rig.records())
    apply_plan(rig.context(), leaving(rig), "n0")
    after = rig.with_flag(False).records()
    assert kept_of(after) == before
    assert all(
        decode_message(raw).properties["INNER_NUM"] == "3"
        for raw in itertools.chain(*after.values())
    )
