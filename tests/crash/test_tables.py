"""kill -9 while topics and groups are created and deleted: every change that was answered with code
0 is in effect after the restart.

RMQPY_CRASH_ROUNDS is the number of kills (default 6). RMQPY_CRASH_SEED repeats the random choices.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from harness.crash_target import crash_broker, repeatable_random, site_of

from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import DeleteSubscriptionGroupRequestHeader, DeleteTopicRequestHeader
from rmqpy.testing.blocking_connection import BlockingConnection, connect_when_ready, create_topic
from rmqpy.testing.processes import ServerProcess

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
CHANGES_BEFORE_A_KILL = (1, 40)
WAIT_SECONDS_MAX = 60


@pytest.fixture
def broker(target: str, tmp_path: Path) -> Iterator[ServerProcess]:
    with crash_broker(site_of(target, tmp_path), tmp_path / "store", {}) as server:
        yield server


class Changes:
    """Changes one after the other until the broker is killed, and their results so far."""

    def __init__(self, first: int) -> None:
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.uncertain: str | None = None
        """The name whose change was not answered."""
        self._first = first
        self._enough = threading.Event()

    def run(self, address: str, enough: int) -> None:
        try:
            with connect_when_ready(address) as connection:
                for number in count(self._first):
                    self._create(connection, f"n{number}")
                    if number % 3 == 0:
                        self._delete(connection, f"n{number}")
                    if number - self._first >= enough:
                        self._enough.set()
        except NetworkError:
            self._enough.set()

    def wait(self) -> None:
        assert self._enough.wait(WAIT_SECONDS_MAX)

    def _create(self, connection: BlockingConnection, name: str) -> None:
        self.uncertain = name
        create_topic(connection, name, 1)
        body = SubscriptionGroupConfig(group_name=name).encode()
        assert connection.call(RemotingCommand.request(200, body=body)).code == 0
        self.created.add(name)
        self.uncertain = None

    def _delete(self, connection: BlockingConnection, name: str) -> None:
        self.uncertain = name
        self.created.remove(name)
        topic = RemotingCommand.request(215, DeleteTopicRequestHeader(topic=name))
        assert connection.call(topic).code == 0
        header = DeleteSubscriptionGroupRequestHeader(group_name=name)
        assert connection.call(RemotingCommand.request(207, header)).code == 0
        self.deleted.add(name)
        self.uncertain = None


def test_an_answered_change_survives_a_kill(broker: ServerProcess, target: str) -> None:
    rng = repeatable_random()
    lost: list[str] = []
    created: set[str] = set()
    deleted: set[str] = set()
    for turn in range(ROUNDS):
        broker.start()
        changes = Changes(turn * 1_000_000)
        worker = threading.Thread(
            target=changes.run, args=(broker.address, rng.randint(*CHANGES_BEFORE_A_KILL))
        )
        worker.start()
        changes.wait()
        broker.kill()
        worker.join(WAIT_SECONDS_MAX)
        created |= changes.created
        deleted |= changes.deleted
        broker.start()
        with connect_when_ready(broker.address) as connection:
            topics = TopicConfigSerializeWrapper.decode(
                connection.call(RemotingCommand.request(21)).body
            ).topic_config_table
            groups = SubscriptionGroupWrapper.decode(
                connection.call(RemotingCommand.request(201)).body
            ).subscription_group_table
        for found in (set(topics), set(groups)):
            lost += (created - found) | (deleted & found)
        assert target == "java" or not lost, f"lost or back again: {sorted(lost)}"
        created -= set(lost)
        deleted -= set(lost)
        broker.kill()
    kept = f"{len(created)} created and {len(deleted)} deleted"
    print(f"{target}: {ROUNDS} kills, {kept} without loss, {len(lost)} changes lost")
