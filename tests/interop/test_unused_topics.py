"""Request 316 (cleanUnusedTopic) deletes the same queues as Java's, except those of system topics
and of messages that consumers still wait for.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.golden import extract
from harness.interop import InteropServers

from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import connect_when_ready
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec

pytestmark = pytest.mark.interop

ORDINARY = {"Keyed", "Retry"}
WAITED_FOR = {"%RETRY%CID_retry", "%DLQ%CID_retry"}
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


def test_the_same_queues_are_deleted_except_those_still_needed(
    servers: InteropServers, tmp_path: Path
) -> None:
    """Java deletes half messages, too, if its table does not have their topic: before its first
    check of transactions, or after a topic table was lost.
    """
    deleted = {}
    for kind in ("java", "rmqpy"):
        folder = tmp_path / kind
        folder.mkdir()
        store = extract("A-classic-clean-v497", folder) / "store"
        table = store / "config" / "topics.json"
        content = json.loads(table.read_text())
        for topic in ORDINARY | WAITED_FOR | {HALF}:
            content["topicConfigTable"].pop(topic, None)
        table.write_text(json.dumps(content))
        before = topics_with_queues(store)
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=servers.namesrv("rmqpy", f"unused-{kind}-namesrv").address,
            broker_name="golden",
            store=store,
        )
        with servers.take(servers.site(kind).broker(f"unused-{kind}", spec)) as broker:
            with connect_when_ready(broker.address) as connection:
                request = RemotingCommand.request(RequestCode.CLEAN_UNUSED_TOPIC)
                assert connection.call(request).code == 0
            deleted[kind] = before - topics_with_queues(store)
    assert deleted["java"] == ORDINARY | WAITED_FOR | {HALF}
    assert deleted["rmqpy"] == ORDINARY


def topics_with_queues(store: Path) -> set[str]:
    files = (store / "consumequeue").glob("*/*/*")
    return {path.parent.parent.name for path in files}
