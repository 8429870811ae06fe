"""Tests of reads by queue, key and time, and of the checks of a put."""

from __future__ import annotations

from itertools import pairwise
from typing import Unpack

import pytest
from harness.store import (
    FILE_SIZE,
    MemoryRig,
    MessageFields,
    entries_of,
    queue_of,
    read_all,
    record_at,
)

from rmqpy.codec.message import decode_message
from rmqpy.model.codes import GetMessageStatus, PutMessageStatus
from rmqpy.model.flags import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqpy.store.message_store import INDEX_RETRY_MS, MessageStore
from rmqpy.store.reader import Matcher
from rmqpy.store.results import Arrival, GetMessageResult

FOUND = GetMessageStatus.FOUND
V6 = bytes(range(16))


@pytest.fixture(params=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(
        flag=request.param == "dledger",
        changes={"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000},
    )


def fill(rig: MemoryRig, store: MessageStore, count: int, **changes: Unpack[MessageFields]) -> None:
    """Put messages, by default into queue 0."""
    changes.setdefault("queue_id", 0)
    rig.put(store, *range(count), **changes)


def get(
    store: MessageStore, offset: int, count: int = 32, matcher: Matcher | None = None
) -> GetMessageResult:
    return store.reader.get_message("Topic", 0, offset, count, matcher)


def test_a_pull_has_the_status_of_its_offset(rig: MemoryRig) -> None:
    store = rig.open()
    page = store.reader.get_message("Nowhere", 0, 3, 32, None)
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    fill(rig, store, 5)
    cases = [
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
        (0, FOUND, 5),
        (4, FOUND, 5),
        (5, GetMessageStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5),
        (1 << 60, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5),
    ]
    for offset, status, begin in cases:
        page = get(store, offset)
        assert (page.status, page.next_begin_offset) == (status, begin), offset
        assert (page.min_offset, page.max_offset) == (0, 5)
    page = get(store, 0, matcher=lambda code: False)
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 5)
    store.set_role(slave=True)
    assert get(store, 6).next_begin_offset == 6
    assert get(store, -1).next_begin_offset == -1
    store.shutdown()


def test_a_slave_may_check_offsets(rig: MemoryRig) -> None:
    rig.changes["offset_check_in_slave"] = True
    store = rig.open()
    fill(rig, store, 5)
    store.set_role(slave=True)
    assert get(store, 6).next_begin_offset == 5
    store.shutdown()


def test_a_page_ends_at_the_requested_count(rig: MemoryRig) -> None:
    store = rig.open()
    fill(rig, store, 50)
    for requested, found in ((1, 1), (5, 5), (32, 32), (40, 32)):
        page = get(store, 3, requested)
        assert (len(page.messages), page.next_begin_offset) == (found, 3 + found)
    store.shutdown()


def test_a_page_ends_before_the_byte_limit(rig: MemoryRig) -> None:
    size = 91 + 5 + 1000
    rig.changes["max_transfer_bytes_on_message_in_memory"] = 3 * size
    store = rig.open()
    fill(rig, store, 10, body=b"x" * 1000, properties=b"")
    page = get(store, 0)
    assert (len(page.messages), page.size, page.next_begin_offset) == (3, 3 * size, 3)
    store.shutdown()
    rig.changes["max_transfer_bytes_on_message_in_memory"] = 3 * size - 1
    store = rig.open()
    assert len(get(store, 0).messages) == 2
    store.shutdown()
    rig.changes["max_transfer_bytes_on_message_in_memory"] = 10
    store = rig.open()
    assert len(get(store, 0).messages) == 1, "the first message has no size limit"
    store.shutdown()


def test_messages_on_the_disk_are_pulled_in_small_pages(rig: MemoryRig) -> None:
    """A page has 8 messages and suggests pulling from a slave."""
    store = rig.open()
    fill(rig, store, 40)
    assert not get(store, 0).suggest_pulling_from_slave
    assert store.reader.in_memory("Topic", 0, 0)
    store.shutdown()
    rig.memory_bytes = 5000
    store = rig.open()
    page = get(store, 0)
    assert len(page.messages) == 8
    assert page.suggest_pulling_from_slave
    assert not store.reader.in_memory("Topic", 0, 0)
    assert store.reader.in_memory("Topic", 0, 39)
    assert not store.reader.in_memory("Topic", 0, 40)
    assert not get(store, 39).suggest_pulling_from_slave
    store.shutdown()


def test_a_filter_reads_at_most_800_units(rig: MemoryRig) -> None:
    store = rig.open()
    fill(rig, store, 1000, properties=b"", body=b"x")
    rig.put(store, 1000, queue_id=0, properties=b"TAGS\x01match", body=b"here")
    unit = queue_of(store, "Topic", 0).unit(1000)
    assert unit is not None and unit[2] != 0
    tags_code = unit[2]
    page = get(store, 0, 32, lambda code: code == tags_code)
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 800)
    page = get(store, 800, 32, lambda code: code == tags_code)
    # A page never crosses the end of a consume queue file, here at 1000.
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 1000)
    page = get(store, 1000, 32, lambda code: code == tags_code)
    assert [decode_message(view).body for view in page.messages] == [b"here"]
    store.shutdown()


def test_a_message_is_found_by_its_time(rig: MemoryRig) -> None:
    """Between two messages the nearer one is found, the earlier one on a tie."""
    store = rig.open()
    times = []
    for number in range(5):
        rig.put(store, number, queue_id=0)
        times.append(rig.clock.now_ms())
        rig.clock.advance(90)
    assert [later - earlier for earlier, later in pairwise(times)] == [100] * 4
    for number, time in enumerate(times):
        assert store.reader.offset_by_time("Topic", 0, time) == number
        assert store.reader.store_timestamp_at("Topic", 0, number) == time
    assert store.reader.offset_by_time("Topic", 0, times[1] + 49) == 1
    assert store.reader.offset_by_time("Topic", 0, times[1] + 50) == 1
    assert store.reader.offset_by_time("Topic", 0, times[1] + 51) == 2
    assert store.reader.offset_by_time("Topic", 0, 0) == 0
    assert store.reader.offset_by_time("Topic", 0, 1 << 60) == 4
    assert store.reader.offset_by_time("Nowhere", 0, times[2]) == 0
    assert store.reader.store_timestamp_at("Topic", 0, 5) == -1
    assert store.reader.earliest_store_timestamp() == times[0]
    store.shutdown()


def test_an_empty_store_has_no_messages(rig: MemoryRig) -> None:
    store = rig.open()
    assert store.reader.earliest_store_timestamp() == -1
    assert (
        store.reader.max_queue_offset("Topic", 0) == store.reader.min_queue_offset("Topic", 0) == 0
    )
    assert store.reader.message_at(0) is None and store.reader.message_at(-5) is None
    assert list(store.reader.queue_names()) == []
    assert store.reader.query_message("Topic", "key", 9, 0, 1 << 60).messages == []
    info = store.runtime_info()
    assert info["commitLogMinOffset"] == info["commitLogMaxOffset"] == "0"
    assert info["dispatchBehindBytes"] == "0"
    store.shutdown()


def test_only_the_offset_of_a_record_has_a_message(rig: MemoryRig) -> None:
    store = rig.open()
    offsets = rig.put(store, 1, 2, 3)
    for offset in range(offsets[0] - 48 if rig.flag else 0, store.log.max_offset + 10):
        record = store.reader.message_at(offset)
        assert (record is not None) == (offset in offsets)
    store.shutdown()


def test_messages_are_found_by_key_and_time(rig: MemoryRig) -> None:
    store = rig.open()
    rig.put(store, 1, properties=b"UNIQ_KEY\x01u\x02KEYS\x01a b  c")
    first = rig.clock.now_ms()
    rig.clock.advance(5000)
    rig.put(store, 2, properties=b"KEYS\x01b a")
    rig.put(store, 3, topic=b"Other", properties=b"KEYS\x01a")
    last = 1 << 60

    def bodies(topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> list[bytes]:
        result = store.reader.query_message(topic, key, limit, begin_ms, end_ms)
        return [decode_message(view).body for view in result.messages]

    one, two = rig.draft(1).body, rig.draft(2).body
    assert bodies("Topic", "u", 9, 0, last) == [one]
    assert bodies("Topic", "a", 9, 0, last) == [two, one]
    assert bodies("Topic", "a", 1, 0, last) == [two]
    assert bodies("Topic", "a", 0, 0, last) == []
    assert bodies("Topic", "c", 9, 0, last) == [one]
    assert bodies("Topic", "", 9, 0, last) == []
    assert bodies("Topic", "A", 9, 0, last) == []
    assert bodies("Topic", "a", 9, 0, first + 1000) == [one]
    assert bodies("Topic", "a", 9, first + 2000, last) == [two]
    assert bodies("Topic", "a", 9, last, last) == []
    result = store.reader.query_message("Topic", "a", 9, 0, last)
    assert result.index_last_update_timestamp_ms == rig.clock.now_ms()
    assert store.reader.message_at(result.index_last_update_physical_offset) is not None
    rig.changes["max_msgs_num_batch"] = 1
    store.shutdown()
    store = rig.open()
    assert len(store.reader.query_message("Topic", "a", 9, 0, last).messages) == 1
    store.shutdown()


def test_an_index_that_is_switched_on_is_built_from_the_log(rig: MemoryRig) -> None:
    rig.changes["message_index_enable"] = False
    store = rig.open()
    rig.put(store, 1, 2)
    assert store.reader.query_message("Topic", "key1", 9, 0, 1 << 60).messages == []
    assert not store.catch_up_index()
    store.shutdown()
    assert not any(path.startswith("index/") for path in rig.tree())
    del rig.changes["message_index_enable"]
    store = rig.open()
    assert len(store.reader.query_message("Topic", "key1", 9, 0, 1 << 60).messages) == 1
    store.shutdown()


def test_the_index_waits_at_a_damaged_entry(
    make_rig: type[MemoryRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member continues to serve and to dispatch."""
    rig = make_rig(changes={"message_index_enable": False}, flag=True)
    store = rig.open()
    fill(rig, store, 30)
    store.shutdown()
    rig.changes["message_index_enable"] = True
    with monkeypatch.context() as slow:
        slow.setattr("rmqpy.store.dispatcher.SMALL_LAG_BYTES", 0)
        store = rig.open()
    path = f"{rig.root}/dledger-n0/data/00000000000000000000"
    place = entries_of(store).entry(3)[0].position + 48 + 4
    rig.files.nodes[path].data[place] ^= 1
    assert store.catch_up_index()
    rig.put(store, 30)
    assert store.health.is_healthy and store.dispatcher.behind_bytes == 0
    rig.files.nodes[path].data[place] ^= 1
    assert store.catch_up_index(), "the entry is only read again after a pause"
    rig.clock.advance(INDEX_RETRY_MS)
    while store.catch_up_index():
        pass
    for number in (0, 3, 29, 30):
        assert len(store.reader.query_message("Topic", f"key{number}", 9, 0, 1 << 60).messages) == 1
    store.shutdown()


def test_a_stop_completes_an_index_that_lags_a_little(
    make_rig: type[MemoryRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(changes={"message_index_enable": False})
    store = rig.open()
    fill(rig, store, 60)
    store.shutdown()
    rig.changes["message_index_enable"] = True
    monkeypatch.setattr("rmqpy.store.dispatcher.SMALL_LAG_BYTES", 0)
    store = rig.open()
    assert store.dispatcher.index_behind_bytes
    store.shutdown()
    assert not store.dispatcher.index_behind_bytes
    store = rig.open()
    assert len(store.reader.query_message("Topic", "key59", 9, 0, 1 << 60).messages) == 1
    store.shutdown()


@pytest.mark.slow
def test_an_index_that_lags_far_catches_up_in_steps(
    make_rig: type[MemoryRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store serves in the meantime, a clean stop loses nothing, and every message is indexed
    once.
    """
    monkeypatch.setattr("rmqpy.store.message_store.INDEX_AT_STOP", 0)
    rig = make_rig(
        changes={
            "mapped_file_size_commit_log": 1 << 22,
            "mapped_file_size_consume_queue": 200_000,
            "max_index_num": 20_000,
            "message_index_enable": False,
        }
    )
    store = rig.open()
    count = 9000
    fill(rig, store, count, body=b"x" * 200)
    store.shutdown()
    rig.changes["message_index_enable"] = True
    store = rig.open()
    assert store.reader.query_message("Topic", "key8999", 9, 0, 1 << 60).messages == []
    rig.put(store, count, queue_id=0)
    assert store.catch_up_index()
    store.shutdown()
    store = rig.open()
    rig.put(store, count + 1, queue_id=0)
    steps = 0
    while store.catch_up_index():
        steps += 1
    assert steps >= 1
    rig.put(store, count + 2, queue_id=0)
    for number in (0, 4095, 4096, 8191, 8192, count - 1, count, count + 1, count + 2):
        found = store.reader.query_message("Topic", f"key{number}", 9, 0, 1 << 60).messages
        assert len(found) == 1, number
    assert store.index is not None
    assert sum(file.header.index_count - 1 for file in store.index._index_files) == 2 * (count + 3)
    store.shutdown()


# ------------------------------------------------------------------------------- kinds of messages


def test_half_and_rolled_back_messages_have_no_unit(rig: MemoryRig) -> None:
    """Their queue offset is 0; rolled back messages are not found by key either."""
    store = rig.open()
    fill(rig, store, 3)
    offsets = {}
    for number, kind in ((10, TRANSACTION_PREPARED), (11, TRANSACTION_ROLLBACK)):
        (offsets[kind],) = rig.put(store, number, queue_id=0, sys_flag=kind)
    rig.put(store, 12, queue_id=0, sys_flag=TRANSACTION_COMMIT)
    assert store.reader.max_queue_offset("Topic", 0) == 4
    for offset in offsets.values():
        assert decode_message(record_at(store, offset)).queue_offset == 0
    (view,) = get(store, 3).messages
    assert decode_message(view).queue_offset == 3
    keys = {
        number: len(store.reader.query_message("Topic", f"key{number}", 9, 0, 1 << 60).messages)
        for number in (10, 11, 12)
    }
    assert keys == {10: 1, 11: 0, 12: 1}
    store.shutdown()


def tags_code_at(store: MessageStore, topic: str, queue_offset: int) -> int:
    """Return the tags code of a unit of queue 0."""
    unit = queue_of(store, topic, 0).unit(queue_offset)
    assert unit is not None
    return unit[2]


def test_the_tags_code_of_a_delayed_message_is_its_delivery_time(rig: MemoryRig) -> None:
    rig.changes["message_delay_level"] = "1s 5s 1h"
    store = rig.open()
    arrivals: list[Arrival] = []
    store.dispatcher.subscribe(arrivals.append)
    topic = b"SCHEDULE_TOPIC_XXXX"
    expected = []
    for level, delay_ms in ((1, 1000), (2, 5000), (3, 3_600_000), (9, 3_600_000)):
        rig.put(store, level, topic=topic, queue_id=0, properties=b"DELAY\x01%d" % level)
        expected.append(rig.clock.now_ms() + delay_ms)
    rig.put(store, 9, topic=topic, queue_id=0, properties=b"TAGS\x01a\x02DELAY\x010")
    expected.append(97)
    rig.put(store, 9, topic=b"Topic", queue_id=0, properties=b"TAGS\x01a\x02DELAY\x012")
    assert [tags_code_at(store, topic.decode(), number) for number in range(5)] == expected
    assert tags_code_at(store, "Topic", 0) == 97
    assert [arrival.tags_code for arrival in arrivals] == [*expected, 97]
    store.shutdown()


@pytest.mark.parametrize("flag", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
def test_hosts_may_have_ipv6_addresses(rig: MemoryRig, flag: int) -> None:
    store = rig.open()
    born = (V6, 1) if flag & BORN_HOST_V6 else (b"\1\2\3\4", 1)
    stored = (V6, 2) if flag & STORE_HOST_V6 else (b"\5\6\7\x08", 2)
    (offset,) = rig.put(store, 7, queue_id=0, sys_flag=flag, born_host=born, store_host=stored)
    found = decode_message(record_at(store, offset))
    assert (found.born_host, found.store_host) == (born, stored)
    assert found.store_timestamp_ms == rig.clock.now_ms()
    assert store.reader.store_timestamp_at("Topic", 0, 0) == rig.clock.now_ms()
    store.close_without_flush()
    store = rig.open()
    assert bytes(get(store, 0).messages[0])[20:28] == bytes(8)
    assert decode_message(get(store, 0).messages[0]).physical_offset == offset
    store.shutdown()


def test_dispatch_reports_the_arrival_of_messages(rig: MemoryRig) -> None:
    store = rig.open()
    arrivals: list[Arrival] = []
    store.dispatcher.subscribe(arrivals.append)
    store.appender.put([rig.draft(3), rig.draft(5), rig.draft(7, sys_flag=TRANSACTION_PREPARED)])
    store.appender.commit()
    assert arrivals == []
    store.dispatch()
    assert [(a.topic, a.queue_id, a.queue_offset) for a in arrivals] == [
        ("Topic", 1, 0),
        ("Topic", 1, 1),
    ]
    assert arrivals[0].store_timestamp_ms == rig.clock.now_ms()
    assert store.reader.message_at(arrivals[1].physical_offset) is not None
    store.dispatch()
    assert len(arrivals) == 2
    store.shutdown()


# ------------------------------------------------------------------------------- put


def test_an_illegal_message_is_refused(rig: MemoryRig) -> None:
    rig.changes["max_message_size"] = 40_000
    store = rig.open()
    illegal = PutMessageStatus.MESSAGE_ILLEGAL
    cases: list[tuple[MessageFields, PutMessageStatus]] = [
        ({"topic": b"t" * 127}, PutMessageStatus.PUT_OK),
        ({"topic": b"t" * 128}, illegal),
        ({"topic": b""}, illegal),
        ({"topic": b".."}, illegal),
        ({"topic": b"a/b"}, illegal),
        ({"topic": b"a\0"}, illegal),
        ({"queue_id": -1}, illegal),
        ({"properties": b"a\x01" + b"b" * 32765}, PutMessageStatus.PUT_OK),
        ({"properties": b"a\x01" + b"b" * 32766}, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"body": b"x" * (40_000 - 91 - 5), "properties": b""}, PutMessageStatus.PUT_OK),
        ({"body": b"x" * (40_000 - 91 - 4), "properties": b""}, illegal),
        ({"body": b"x" * 40_001, "properties": b""}, illegal),
        ({"body": b"", "properties": b""}, PutMessageStatus.PUT_OK),
    ]
    drafts = [rig.draft(2, **changes) for changes, _ in cases]
    results = store.appender.put(drafts)
    assert [result.status for result in results] == [status for _, status in cases]
    assert all(result.remark for result in results if result.status is not PutMessageStatus.PUT_OK)
    assert all(len(result.physical_offsets) == (not result.remark) for result in results)
    store.appender.commit()
    store.dispatch()
    assert store.reader.max_queue_offset("Topic", 0) == 3
    store.shutdown()


def test_a_batch_is_put_or_refused_as_a_whole(rig: MemoryRig) -> None:
    rig.changes["max_message_size"] = 4000
    store = rig.open()
    drafts = [rig.draft(number, queue_id=0) for number in range(4)]
    (result,) = store.appender.put(drafts, batch=True)
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, 0)
    assert len(result.physical_offsets) == 4
    (refused,) = store.appender.put([*drafts, rig.draft(5, topic=b"t" * 128)], batch=True)
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    (refused,) = store.appender.put([rig.draft(1, body=b"x" * 2100)] * 2, batch=True)
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    store.appender.commit()
    store.dispatch()
    page = get(store, 0)
    assert [decode_message(view).queue_offset for view in page.messages] == [0, 1, 2, 3]
    offsets = tuple(decode_message(view).physical_offset for view in page.messages)
    assert offsets == result.physical_offsets
    (result,) = store.appender.put(drafts[:2], batch=True)
    assert result.queue_offset == 4
    store.shutdown()


def test_a_deleted_topic_starts_again_at_0(rig: MemoryRig) -> None:
    """This includes messages that were put but not dispatched."""
    store = rig.open()
    fill(rig, store, 5)
    rig.put(store, 1, topic=b"Other")
    store.appender.put([rig.draft(2)])
    store.delete_topic_queues("Topic")
    assert list(store.reader.queue_names()) == [("Other", 1)]
    assert not any("consumequeue/Topic" in path for path in rig.tree())
    assert get(store, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    store.delete_topic_queues("Nowhere")
    (result,) = store.appender.put([rig.draft(2)])
    assert result.queue_offset == 0
    store.appender.commit()
    store.dispatch()
    assert store.reader.max_queue_offset("Topic", 0) == 1
    store.shutdown()
    store = rig.open()
    assert store.reader.max_queue_offset("Topic", 0) == 1
    store.shutdown()


def test_min_offsets_follow_expired_log_files(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    store = rig.open()
    offsets = [rig.put(store, number, queue_id=0)[0] for number in range(80)]
    store.shutdown()
    folder = "/store/commitlog/"
    for path in [path for path in rig.files.nodes if path.startswith(folder)][:2]:
        del rig.files.nodes[path]
    store = rig.open()
    low = store.log.min_offset
    assert low == 2 * FILE_SIZE
    expired = sum(offset < low for offset in offsets)
    assert store.reader.min_queue_offset("Topic", 0) == expired > 20
    page = get(store, expired - 1)
    assert (page.status, page.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, expired)
    assert get(store, expired).status is FOUND
    assert store.reader.message_at(offsets[0]) is None
    assert store.reader.earliest_store_timestamp() == store.reader.store_timestamp_at(
        "Topic", 0, expired
    )
    store.shutdown()
    # A queue rebuilt from such a log begins with filler.
    for path in [path for path in rig.files.nodes if "/consumequeue/" in path]:
        del rig.files.nodes[path]
    store = rig.open()
    assert (
        store.reader.min_queue_offset("Topic", 0),
        store.reader.max_queue_offset("Topic", 0),
    ) == (expired, 80)
    assert len(read_all(store)["Topic", 0]) == 80 - expired
    store.shutdown()
