"""Consumer offsets: codes 14, 15, and 43, and the file."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.persistence import TableFile, TableWriter
from rmqpy.model.errors import StoreError
from rmqpy.model.steps import Steps, finish
from rmqpy.remoting.bodies import ConsumerOffsetSerializeWrapper
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.fastjson import quote
from rmqpy.remoting.headers import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

GOLDEN = Path(__file__).parents[2] / "golden"
FILE = "/store/config/consumerOffset.json"


def update(
    harness: BrokerHarness, offset: int, queue_id: int = 0, topic: str = "T", group: str = "CG"
) -> int:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    return int(harness.call(15, header).code)


def query(harness: BrokerHarness, queue_id: int = 0) -> tuple[int, str | None]:
    header = QueryConsumerOffsetRequestHeader(consumer_group="CG", topic="T", queue_id=queue_id)
    answer = harness.call(14, header)
    return answer.code, answer.ext_fields.get("offset")


def test_a_committed_offset_is_returned_even_if_it_is_smaller(harness: BrokerHarness) -> None:
    assert update(harness, 7) == 0
    assert query(harness) == (0, "7")
    assert update(harness, 3) == 0
    assert query(harness) == (0, "3")


def test_a_oneway_update_is_not_answered(harness: BrokerHarness) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="CG", topic="T", queue_id=0, commit_offset=5
    )
    command = RemotingCommand.request(15, header)
    command.flag |= FLAG_ONEWAY
    harness.deliver(command)
    assert harness.channel.take() == []
    assert harness.broker.offsets.get("CG", "T", 0) == 5


def test_an_unknown_offset_is_zero_if_the_queue_starts_in_memory(build: BuildBroker) -> None:
    harness = build()
    assert query(harness) == (0, "0"), "an empty queue"
    harness.send()
    assert query(harness) == (0, "0")
    harness = build(access_message_in_memory_max_ratio=0)
    for _ in range(3):
        harness.send()
    assert query(harness) == (22, None)


def test_names_and_numbers_are_checked(harness: BrokerHarness) -> None:
    assert update(harness, 1, topic="a@b") == 1
    assert update(harness, 1, group="../x") == 1
    assert update(harness, 1, queue_id=-1) == 1
    assert update(harness, 1, queue_id=1 << 20) == 1
    assert harness.call(43).body == b'{"offsetTable":{}}'


def test_all_offsets_are_returned_in_javas_form(harness: BrokerHarness) -> None:
    update(harness, 5)
    update(harness, 6, queue_id=1)
    assert harness.call(43).body == b'{"offsetTable":{"T@CG":{0:5,1:6}}}'


def test_offsets_are_saved_in_intervals_and_at_the_stop(build: BuildBroker) -> None:
    harness = build()
    update(harness, 5)
    assert FILE not in harness.files.nodes
    harness.scheduler.advance(5000)
    assert harness.files.read_bytes(FILE) == b'{\n\t"offsetTable":{\n\t\t"T@CG":{0:5\n\t\t}\n\t}\n}'
    update(harness, 6)
    stopped: list[bool] = []
    harness.broker.stop(lambda: stopped.append(True))
    for _, command, done in harness.network.take():
        if command.code == 104:
            done(RemotingCommand.response_to(command), None)
    assert stopped == [True]
    assert b"0:6" in harness.files.read_bytes(FILE)
    assert b"0:5" in harness.files.read_bytes(FILE + ".bak")
    harness.store.shutdown()
    again = build(files=harness.files)
    assert query(again) == (0, "6")


def test_unchanged_offsets_are_not_written(harness: BrokerHarness) -> None:
    update(harness, 5)
    harness.scheduler.advance(5000)
    harness.files.fail_write("consumerOffset")
    harness.scheduler.advance(50_000)
    harness.files.heal()


@pytest.mark.parametrize("version", ["config_v497", "config_v533"])
def test_javas_files_are_read(build: BuildBroker, version: str) -> None:
    files = MemoryFiles()
    for path in (GOLDEN / version).iterdir():
        files.replace_bytes(f"/store/config/{path.name}", path.read_bytes())
    harness = build(files=files, broker_name="golden", broker_cluster_name="JavaMQ")
    assert harness.broker.offsets.queues("CID_push", "Normal") == {0: 22, 1: 22, 2: 22, 3: 21}
    assert harness.broker.groups.get("CID_retry") is not None
    normal = harness.broker.topics.topics["Normal"]
    assert (normal.read_queue_nums, normal.write_queue_nums, normal.perm) == (4, 4, 6)
    assert harness.broker.topics.data_version.counter > 0


def test_javas_offset_table_is_written_back_byte_for_byte(build: BuildBroker) -> None:
    files = MemoryFiles()
    source = GOLDEN / "config_v497"
    for path in source.iterdir():
        files.replace_bytes(f"/store/config/{path.name}", path.read_bytes())
    harness = build(files=files, broker_name="golden", broker_cluster_name="JavaMQ", start=False)
    ours = ConsumerOffsetSerializeWrapper.decode(
        harness.broker.offsets.wrapper().encode(pretty=True)
    )
    theirs = ConsumerOffsetSerializeWrapper.decode((source / "consumerOffset.json").read_bytes())
    assert ours.offset_table == theirs.offset_table
    text = harness.broker.offsets.wrapper().encode(pretty=True)
    assert text == (source / "consumerOffset.json").read_bytes().rstrip(b"\n")


def saved(table: ConsumerOffsetTable) -> bytes:
    return b"".join(finish(table.file_steps()))


def test_the_text_is_that_of_the_wrapper_after_any_changes() -> None:
    table, choose = ConsumerOffsetTable(), Random(7)

    def check() -> None:
        assert saved(table) == table.wrapper().encode(pretty=True)
        assert table.encode() == table.wrapper().encode()

    check()
    table.restore(ConsumerOffsetSerializeWrapper(offset_table={'odd "\t\n"@g': {2: 1}, "e@g": {}}))
    check()
    received = ConsumerOffsetSerializeWrapper(offset_table={"T1@G1": {0: 5}, "T9@new": {1: 2**62}})
    for _ in range(200):
        what = choose.random()
        if what < 0.9:
            group, topic = f"G{choose.randrange(5)}", f"T{choose.randrange(5)}"
            table.commit(group, topic, choose.randrange(3), choose.randrange(1 << 40))
        elif what < 0.95:
            table.merge(received)
        else:
            table.remove_group(f"G{choose.randrange(5)}")
        if choose.random() < 0.3:
            check()
    check()


def test_only_changed_offsets_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ConsumerOffsetTable()
    for number in range(100):
        table.commit("G", f"T{number}", 0, 1)
    saved(table)
    encoded: list[str] = []

    def recorded(text: str) -> str:
        encoded.append(text)
        return quote(text)

    monkeypatch.setattr("rmqpy.broker.state.consumer_offsets.quote", recorded)
    table.commit("G", "T7", 0, 2)
    table.commit("G", "T7", 1, 2)
    table.merge(table.wrapper())
    saved(table)
    table.encode()
    assert encoded == ["T7@G"]


# ----------------------------------------------------------------------------------------- files


def load(files: MemoryFiles) -> str | None:
    def decode(content: bytes) -> str:
        if not content.startswith(b"good"):
            raise ValueError("not good")
        return content.decode()

    return TableFile(files, "/c/x.json").load(decode)


@pytest.mark.parametrize(
    ("main", "backup", "expected"),
    [
        (None, None, None),
        (b"", None, None),
        (b"good 1", b"good 2", "good 1"),
        (None, b"good 2", "good 2"),
        (b"", b"good 2", "good 2"),
        (b"bad", b"good 2", "good 2"),
    ],
)
def test_the_backup_replaces_an_unreadable_file(
    main: bytes | None, backup: bytes | None, expected: str | None
) -> None:
    files = MemoryFiles()
    if main is not None:
        files.replace_bytes("/c/x.json", main)
    if backup is not None:
        files.replace_bytes("/c/x.json.bak", backup)
    assert load(files) == expected


@pytest.mark.parametrize(
    ("main", "backup"), [(b"bad", None), (b"bad", b"bad too"), (None, b"bad"), (b"bad", b"")]
)
def test_two_unreadable_files_are_an_error_that_names_the_file(
    main: bytes | None, backup: bytes | None
) -> None:
    files = MemoryFiles()
    if main is not None:
        files.replace_bytes("/c/x.json", main)
    if backup is not None:
        files.replace_bytes("/c/x.json.bak", backup)
    with pytest.raises(StoreError, match=r"/c/x\.json"):
        load(files)


def text_of(value: object) -> Steps[list[bytes]]:
    yield
    return [str(value).encode()]


def test_one_write_at_a_time_and_the_last_state_wins() -> None:
    files, scheduler = MemoryFiles(), ManualScheduler(blocking_ms=10)
    state = [0]
    writer = TableWriter(TableFile(files, "/c/x"), scheduler, lambda: text_of(state[0]))
    for number in (1, 2, 3):
        state[0] = number
        writer.changed()
    scheduler.advance(10)
    assert files.read_bytes("/c/x") == b"1"
    scheduler.advance(10)
    assert (files.read_bytes("/c/x"), files.read_bytes("/c/x.bak")) == (b"3", b"1")
    assert scheduler.waiting == 0


def test_a_failed_write_is_repeated_with_the_next_one() -> None:
    files, scheduler = MemoryFiles(), ManualScheduler()
    writer = TableWriter(TableFile(files, "/c/x"), scheduler, lambda: text_of("content"))
    files.fail_write("/c/x")
    writer.changed()
    scheduler.run_until_idle()
    files.heal()
    writer.write()
    scheduler.run_until_idle()
    assert files.read_bytes("/c/x") == b"content"
