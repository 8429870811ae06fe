"""The output of mqadmin 4.9.7 for every combination of name server and broker."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from harness.interop import InteropCluster

pytestmark = pytest.mark.interop


def table(output: str) -> list[list[str]]:
    """Return the rows below a line of #column names, as lists of words."""
    lines = output.strip().splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("#"))
    return [line.split() for line in lines[head + 1 :] if line.strip()]


class Fields(dict[str, str]):
    """The lines ``Name:   value`` and ``name   : value`` of a command that shows one object."""

    def __init__(self, output: str) -> None:
        pairs = (line.split(":", 1) for line in output.splitlines() if ":" in line)
        super().__init__({name.strip(): value.strip() for name, value in pairs})
        self.output = output

    def __missing__(self, name: str) -> str:
        raise AssertionError(f"no {name} in {self.output}")


def fastjson(text: str) -> Any:
    """Parse the output of fastjson, which writes map keys that are numbers without quotes."""
    return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))


@pytest.fixture
def topic(cluster: InteropCluster) -> str:
    """A topic with two queues and nine messages."""
    name = cluster.topic(queues=2)
    cluster.send(name, count=9, keys="bill-", tags="paid,open")
    return name


def test_cluster_list(cluster: InteropCluster) -> None:
    cluster.send(cluster.topic(), count=1)
    output = cluster.admin.run("clusterList")
    deadline = time.monotonic() + 30
    while "NoSuchElementException" in output and time.monotonic() < deadline:
        # Java's broker cannot answer before its first statistics sample, after a second.
        output = cluster.admin.run("clusterList")
    rows = table(output)
    assert len(rows) == 1, output
    row = rows[0]
    assert row[:5] == ["DefaultCluster", "broker-a", "0", cluster.broker.address, "V4_9_7"]


def test_topic_route(cluster: InteropCluster, topic: str) -> None:
    route = fastjson(cluster.admin.run("topicRoute", "-t", topic))
    assert route["brokerDatas"] == [
        {
            "brokerAddrs": {"0": cluster.broker.address},
            "brokerName": "broker-a",
            "cluster": "DefaultCluster",
        }
    ]
    assert route["queueDatas"] == [
        {
            "brokerName": "broker-a",
            "perm": 6,
            "readQueueNums": 2,
            "topicSysFlag": 0,
            "writeQueueNums": 2,
        }
    ]
    assert route["filterServerTable"] == {}


def test_topic_status(cluster: InteropCluster, topic: str) -> None:
    rows = table(cluster.admin.run("topicStatus", "-t", topic))
    assert [row[:4] for row in rows] == [
        ["broker-a", "0", "0", "5"],
        ["broker-a", "1", "0", "4"],
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", " ".join(r[4:])) for r in rows)


def test_topic_list_has_the_topic(cluster: InteropCluster, topic: str) -> None:
    assert topic in cluster.admin.run("topicList").split()


def test_message_by_offset_id(cluster: InteropCluster, topic: str) -> None:
    message = cluster.dump(topic)[3]
    shown = Fields(cluster.admin.run("queryMsgById", "-i", message["offsetMsgId"]))
    assert shown["OffsetID"] == message["offsetMsgId"]
    assert shown["Topic"] == topic
    assert shown["Keys"] == "[bill-3]"
    assert shown["Tags"] == "[open]"
    assert shown["Queue ID"] == "1"
    assert shown["Queue Offset"] == "1"
    assert shown["CommitLog Offset"] == str(message["commitLogOffset"])
    assert shown["Store Host"] == cluster.broker.address
    assert f"UNIQ_KEY={message['msgId']}" in shown["Properties"]


def test_message_by_unique_key(cluster: InteropCluster, topic: str) -> None:
    message = cluster.dump(topic)[4]
    shown = Fields(cluster.admin.run("queryMsgByUniqueKey", "-t", topic, "-i", message["msgId"]))
    assert shown["Topic"] == topic
    assert shown["Keys"] == "[bill-4]"
    assert shown["CommitLog Offset"] == str(message["commitLogOffset"])


def test_message_by_key(cluster: InteropCluster, topic: str) -> None:
    message = cluster.dump(topic)[5]
    rows = table(cluster.admin.run("queryMsgByKey", "-t", topic, "-k", "bill-5"))
    assert rows == [[message["msgId"], "1", "2"]]


def test_message_by_queue_offset(cluster: InteropCluster, topic: str) -> None:
    output = cluster.admin.run(
        "queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "4"
    )
    shown = Fields(output)
    assert shown["Keys"] == "[bill-8]"
    assert shown["Queue Offset"] == "4"


def test_update_topic_creates_and_changes_a_topic(cluster: InteropCluster) -> None:
    topic = f"by-mqadmin-{cluster.broker.port}"
    for queues, perm in (("3", "6"), ("5", "4")):
        command = ["updateTopic", "-t", topic, "-b", cluster.broker.address]
        output = cluster.admin.run(*command, "-r", queues, "-w", queues, "-p", perm)
        assert f"create topic to {cluster.broker.address} success" in output
        route = fastjson(cluster.admin.run("topicRoute", "-t", topic))
        (data,) = route["queueDatas"]
        assert (data["readQueueNums"], data["writeQueueNums"]) == (int(queues), int(queues))
        assert data["perm"] == int(perm)


def test_delete_topic_removes_it_from_broker_and_name_server(
    cluster: InteropCluster, topic: str
) -> None:
    output = cluster.admin.run("deleteTopic", "-t", topic, "-c", "DefaultCluster")
    assert "delete topic" in output and "success" in output
    assert topic not in cluster.admin.run("topicList").split()
    assert "No topic route info" in cluster.admin.run("topicRoute", "-t", topic)


def test_broker_status(cluster: InteropCluster, topic: str) -> None:
    shown = Fields(cluster.admin.run("brokerStatus", "-b", cluster.broker.address))
    assert shown["brokerVersionDesc"] == "V4_9_7"
    assert shown["brokerVersion"] == "407"
    assert int(shown["bootTimestamp"]) > 0
    assert int(shown["msgPutTotalTodayNow"]) >= 9
    end = max(m["commitLogOffset"] + m["storeSize"] for m in cluster.dump(topic))
    assert int(shown["commitLogMaxOffset"]) >= end
    assert int(shown["commitLogMinOffset"]) == 0
    for name in ("runtime", "putTps", "getTotalTps", "dispatchBehindBytes", "commitLogDiskRatio"):
        assert name in shown


def test_broker_config_shows_what_was_configured(cluster: InteropCluster) -> None:
    output = cluster.admin.run("getBrokerConfig", "-b", cluster.broker.address)
    shown = Fields(output.replace("=", ":"))
    assert shown["brokerName"] == "broker-a"
    assert shown["listenPort"] == str(cluster.broker.port)
    assert shown["mappedFileSizeCommitLog"] == "65536"


def test_consumer_progress(cluster: InteropCluster) -> None:
    topic = cluster.topic(queues=1)
    cluster.send(topic, count=9)
    cluster.probe.run("consume", topic=topic, group="progress", max=9)
    cluster.send(topic, count=2)
    rows = table(cluster.admin.run("consumerProgress", "-g", "progress"))
    mine = [row for row in rows if row[0] == topic]
    assert [row[:6] for row in mine] == [[topic, "broker-a", "0", "11", "9", "2"]]
