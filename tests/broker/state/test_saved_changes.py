"""A change of topics or groups is answered after it is on disk, so it survives a kill."""

from __future__ import annotations

import pytest
from attrs import define, field

from rmqpy.broker.base.scheduling import SLICE_MS
from rmqpy.broker.state.persistence import TableFile, TableWriter
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.steps import Steps
from rmqpy.remoting.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from rmqpy.testing.harness import BrokerHarness
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

CONFIG = "/store/config"


def topic_request(topic: str) -> RemotingCommand:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=4,
        write_queue_nums=4,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    return RemotingCommand.request(17, header)


def saved_topics(files: MemoryFiles) -> set[str]:
    """Return the topics that the next process finds."""
    path = f"{CONFIG}/topics.json"
    found = files.read_bytes(path) if files.exists(path) else b'{"dataVersion":{"timestamp":0}}'
    return set(TopicConfigSerializeWrapper.decode(found).topic_config_table)


def saved_groups(files: MemoryFiles) -> set[str]:
    path = f"{CONFIG}/subscriptionGroup.json"
    found = files.read_bytes(path) if files.exists(path) else b'{"dataVersion":{"timestamp":0}}'
    return set(SubscriptionGroupWrapper.decode(found).subscription_group_table)


def answer_name_servers(harness: BrokerHarness) -> None:
    harness.scheduler.run_until_idle()
    for _, command, done in harness.network.take():
        done(RemotingCommand.response_to(command), None)


def test_a_topic_is_answered_after_it_is_saved(harness: BrokerHarness) -> None:
    harness.scheduler.blocking_ms = 20
    harness.deliver(topic_request("New"))
    answer_name_servers(harness)
    assert harness.channel.take() == []
    assert "New" not in saved_topics(harness.files.kill())
    harness.scheduler.advance(20)
    answer_name_servers(harness)
    assert harness.channel.take_one().code == 0
    assert "New" in saved_topics(harness.files.kill())


def test_a_deleted_topic_is_answered_after_the_table_is_saved(harness: BrokerHarness) -> None:
    harness.deliver(topic_request("Old"))
    harness.scheduler.advance(2000)
    answer_name_servers(harness)
    harness.channel.take()
    harness.scheduler.blocking_ms = 20
    harness.deliver(RemotingCommand.request(215, DeleteTopicRequestHeader(topic="Old")))
    harness.scheduler.run_until_idle()
    assert harness.channel.take() == []
    harness.scheduler.advance(20)
    assert harness.channel.take_one().code == 0
    assert "Old" not in saved_topics(harness.files.kill())


def test_groups_are_answered_after_they_are_saved(harness: BrokerHarness) -> None:
    harness.scheduler.blocking_ms = 20
    for name in ("G1", "G2"):
        body = SubscriptionGroupConfig(group_name=name).encode()
        harness.deliver(RemotingCommand.request(200, body=body))
    harness.scheduler.run_until_idle()
    assert harness.channel.take() == []
    harness.scheduler.advance(40)
    assert [command.code for command in harness.channel.take()] == [0, 0]
    assert saved_groups(harness.files.kill()) >= {"G1", "G2"}
    header = DeleteSubscriptionGroupRequestHeader(group_name="G1", remove_offset=True)
    harness.deliver(RemotingCommand.request(207, header))
    assert harness.channel.take() == []
    harness.scheduler.advance(40)
    assert harness.channel.take_one().code == 0
    assert "G1" not in saved_groups(harness.files.kill())


def test_a_failed_write_is_not_answered_with_success(harness: BrokerHarness) -> None:
    harness.files.fail_write("topics.json")
    harness.deliver(topic_request("New"))
    answer_name_servers(harness)
    response = harness.channel.take_one()
    assert response.code == 1 and "not on disk" in str(response.remark)


@define
class Saves:
    """A writer of one value, and the answers of those who wait for it."""

    files: MemoryFiles = field(factory=MemoryFiles)
    scheduler: ManualScheduler = field(factory=lambda: ManualScheduler(blocking_ms=10))
    value: int = 0
    steps: int = 0
    saved: list[int] = field(factory=list)
    """The values that were on disk when a waiting change was reported."""

    def writer(self) -> TableWriter:
        return TableWriter(TableFile(self.files, "/c/x"), self.scheduler, self.encode)

    def encode(self) -> Steps[list[bytes]]:
        for _ in range(self.steps):
            self.scheduler.advance(SLICE_MS)  # Each step takes all of a slice.
            yield
        return [b"%d" % self.value]

    def change(self, writer: TableWriter) -> None:
        self.value += 1
        writer.changed()
        writer.when_saved(lambda _error: self.saved.append(int(self.files.read_bytes("/c/x"))))


def test_changes_during_a_write_share_the_next_one() -> None:
    saves = Saves()
    writer = saves.writer()
    for _ in range(5):
        saves.change(writer)
    saves.scheduler.advance(10)
    assert saves.saved == [1]
    saves.scheduler.advance(10)
    assert saves.saved == [1, 5, 5, 5, 5]
    writer.when_saved(lambda _error: saves.saved.append(0))
    assert saves.saved[-1] == 0, "nothing has changed since"


def test_the_last_write_of_a_broker_reports_those_who_wait() -> None:
    saves = Saves()
    writer = saves.writer()
    saves.change(writer)
    saves.change(writer)
    writer.close(lambda: None)
    saves.scheduler.advance(10)
    assert saves.saved == [1, 2]


def test_the_number_of_waiting_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqpy.broker.state.persistence.WAITING_MAX", 3)
    saves = Saves()
    writer = saves.writer()
    for _ in range(4):
        writer.check_not_full()
        saves.change(writer)
    with pytest.raises(RequestRejectedError, match="waiting for /c/x"):
        writer.check_not_full()


def test_a_table_is_encoded_in_slices() -> None:
    """What changes between them is in the file, too, and is reported after the next write."""
    saves = Saves(steps=2)
    writer = saves.writer()
    saves.change(writer)
    assert saves.saved == [] and not saves.files.exists("/c/x")
    saves.change(writer)
    writer.close(lambda: None)
    saves.scheduler.advance(60)
    assert saves.saved == [2, 2]


def test_a_table_that_cannot_be_encoded_is_reported_and_written_later() -> None:
    errors: list[BaseException | None] = []
    saves = Saves()

    def fails() -> Steps[list[bytes]]:
        saves.scheduler.advance(SLICE_MS)
        yield
        raise ValueError("no text")

    encoders = [fails, saves.encode]
    writer = TableWriter(TableFile(saves.files, "/c/x"), saves.scheduler, lambda: encoders.pop(0)())
    writer.changed()
    writer.when_saved(errors.append)
    saves.scheduler.advance(10)
    assert [str(error) for error in errors] == ["no text"]
    writer.write()
    saves.scheduler.advance(100)  # after the rest of a slow run
    assert saves.files.read_bytes("/c/x") == b"0"
