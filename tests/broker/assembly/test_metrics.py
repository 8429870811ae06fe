"""The metrics page for Prometheus: the exporter's names, and the series of role, term, commit, and
lag.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from rmqpy.broker.assembly.resource_limits import SystemLimits, Usage
from rmqpy.broker.assembly.switch.requests import change_info
from rmqpy.broker.assembly.wiring import build_metrics
from rmqpy.broker.replication.switch_protocol import Phase
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.client import Message, Producer, PullConsumer
from rmqpy.net.unsent import UnsentBytes
from rmqpy.remoting.bodies.topics import TopicConfig
from rmqpy.testing.harness import BuildBroker
from rmqpy.testing.in_process import (
    broker_in_process,
    name_server_and_broker,
    name_server_in_process,
    registered,
)

aiohttp = pytest.importorskip("aiohttp")

from rmqpy.broker.assembly.metrics import (  # noqa: E402 - needs aiohttp
    LINES_OF_GROUP,
    LINES_OF_TOPIC,
    Metrics,
    MetricsText,
    Sample,
)

LINE = re.compile(r'(\w+)(\{(\w+="(\\.|[^"\\])*",?)*\})? (\S+)')
EXPORTER = (
    [f"rocketmq_broker_{name}" for name in ("tps", "qps")]
    + [f"rocketmq_producer_{name}" for name in ("tps", "offset", "message_size")]
    + [f"rocketmq_consumer_{name}" for name in ("tps", "offset", "message_size")]
    + ["rocketmq_group_diff", "rocketmq_group_count", "rocketmq_send_back_nums"]
    + [f"rocketmq_brokeruntime_{name}" for name in ("put_tps10", "getfound_tps600")]
    + [f"rocketmq_brokeruntime_{name}" for name in ("gettransfered_tps60", "gettotal_tps10")]
    + [f"rocketmq_brokeruntime_{name}" for name in ("getmiss_tps10", "pmdt_0ms", "pmdt_10stomore")]
    + [f"rocketmq_brokeruntime_{name}" for name in ("commitlog_maxoffset", "commitlog_disk_ratio")]
    + ["rocketmq_brokeruntime_dispatch_behind_bytes"]
    + ["rocketmq_brokeruntime_msg_put_total_today_now"]
    + ["rocketmq_brokeruntime_earliest_message_timestamp"]
    + ["rocketmq_brokeruntime_send_threadpool_queue_size"]
)


def read(text: str) -> dict[str, list[tuple[str, float]]]:
    """Return the labels and values of each name; every line must have the exposition format."""
    found: dict[str, list[tuple[str, float]]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.endswith(" gauge")
            continue
        match = LINE.fullmatch(line)
        assert match, line
        found.setdefault(match[1], []).append((match[2] or "", float(match[5])))
    return found


async def scraped(root: Path, settings: dict[str, str]) -> dict[str, list[tuple[str, float]]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = settings | {"metricsListenAddress": address}
    async with name_server_and_broker(root, settings) as running:
        async with Producer("writers", running.name_server) as producer:
            for number in range(5):
                sent = await producer.send(Message(topic="TBW102", body=b"%d" % number))
        async with PullConsumer("readers", running.name_server) as consumer:
            await consumer.pull(sent.queue, 0)
            await consumer.commit_offset(sent.queue, 0)
            await send_heartbeat(consumer)
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{address}/metrics") as response,
            ):
                assert response.status == 200
                assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                return read(await response.text())


async def send_heartbeat(consumer: PullConsumer) -> None:
    await consumer._open().send_heartbeats()


def test_the_page_of_a_classic_broker(tmp_path: Path) -> None:
    found = asyncio.run(scraped(tmp_path, {}))
    assert not set(EXPORTER) - found.keys()
    assert found["rmqpy_role"] == [('{broker="a",role="master"}', 1.0)]
    produced = dict(found["rocketmq_producer_offset"])
    assert produced['{cluster="DefaultCluster",broker="a",topic="TBW102"}'] == 5.0
    lags = found["rocketmq_group_diff"]
    assert next(value for labels, value in lags if 'group="readers"' in labels) >= 1.0
    assert "rmqpy_dledger_term" not in found and "rmqpy_divided_offset" not in found


def test_the_page_of_a_member_of_a_group(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        peer = f"n0-127.0.0.1:{probe.getsockname()[1]}"
    member = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerSelfId": "n0",
        "dLegerPeers": peer,
    }
    found = asyncio.run(scraped(tmp_path, member))
    assert found["rmqpy_role"] == [('{broker="a",role="leader"}', 1.0)]
    assert found["rmqpy_dledger_term"][0][1] >= 0.0
    assert found["rmqpy_dledger_fault"] == [('{broker="a"}', 0.0)]
    assert found["rmqpy_dledger_turned_away"] == [('{broker="a"}', 0.0)]
    assert found["rmqpy_replication_strangers"] == [('{broker="a"}', 0.0)]
    (committed,), (end,) = found["rmqpy_dledger_committed_index"], found["rmqpy_dledger_end_index"]
    assert committed[1] == end[1] >= 4.0


@pytest.mark.parametrize(("fault", "value"), [(None, 0), ("diverged from n0", 1)])
def test_a_member_that_cannot_follow_is_a_metric(
    build: BuildBroker, fault: str | None, value: int
) -> None:
    status = {"role": "FOLLOWER", "fault": fault}
    page = build_metrics(build().broker, UnsentBytes(), lambda: status).text()
    assert f'rmqpy_dledger_fault{{broker="broker-a"}} {value}\n' in page


def test_the_limits_of_the_system_are_metrics(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemLimits, "read", lambda: SystemLimits(mappings=65_530))
    monkeypatch.setattr(Usage, "read", lambda: Usage(mappings=700))
    harness = build()
    harness.scheduler.run_until_idle()
    page = build_metrics(harness.broker, UnsentBytes(), dict).text()
    labels = '{broker="broker-a",limit="mappings"}'
    assert f"rmqpy_limit_used{labels} 700\nrmqpy_limit_used" in page  # that of the disk follows
    assert f"rmqpy_limit{labels} 65530\n" in page


def with_topics(build: BuildBroker, count: int) -> Metrics:
    """Return the metrics of a broker with ``count`` topics, each read by one group."""
    harness = build()
    for number in range(count):
        harness.broker.topics.put(TopicConfig(topic_name=f"T{number}"))
        harness.broker.offsets.commit(f"G{number}", f"T{number}", 0, 1)
    return build_metrics(harness.broker, UnsentBytes(), dict)


def test_the_offsets_of_all_topics_are_read_in_one_pass(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = with_topics(build, 200)
    passes = []
    pairs = ConsumerOffsetTable.pairs

    def counted(table: ConsumerOffsetTable) -> Iterator[tuple[str, str]]:
        passes.append(table)
        return pairs(table)

    monkeypatch.setattr(ConsumerOffsetTable, "pairs", counted)
    found = read(metrics.text())
    assert len([labels for labels, _ in found["rocketmq_group_diff"] if '"G' in labels]) == 200
    assert len(passes) == 1


def test_a_page_is_made_in_small_steps(build: BuildBroker) -> None:
    metrics, page = with_topics(build, 200), MetricsText()
    counts = [page.count for _ in metrics.steps(page)]
    lines = [after - before for before, after in pairwise(counts)]
    assert len(lines) > 400 and max(lines) <= LINES_OF_TOPIC + LINES_OF_GROUP
    # Other work may remove topics and add offsets between two steps.
    steps = metrics.steps(MetricsText())
    next(steps)
    metrics.topics.delete("T7")
    metrics.offsets.commit("new", "T8", 0, 1)
    assert sum(1 for _ in steps) > 100


def test_a_page_ends_at_the_limit(build: BuildBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = with_topics(build, 200)
    whole = sum(map(len, read(metrics.text()).values()))
    examined: list[str] = []
    topic = Metrics._topic

    def recorded(metrics: Metrics, name: str, groups: Sequence[str]) -> Iterator[Sample]:
        examined.append(name)
        return topic(metrics, name, groups)

    monkeypatch.setattr(Metrics, "_topic", recorded)
    monkeypatch.setattr("rmqpy.broker.assembly.metrics.SERIES_MAX", whole - 500)
    found = read(metrics.text())
    assert sum(map(len, found.values())) == whole - 500 + 1
    assert found["rmqpy_series_left_out"][0][1] >= 500 - 1
    assert len(examined) < 150


def test_labels_are_escaped(build: BuildBroker) -> None:
    harness = build(broker_cluster_name='a "quoted" \\ name')
    line = next(
        line
        for line in build_metrics(harness.broker, UnsentBytes(), dict).text().splitlines()
        if "rocketmq_broker_tps{" in line
    )
    assert 'cluster="a \\"quoted\\" \\\\ name"' in line and LINE.fullmatch(line)


def test_the_last_change_of_the_log_is_a_metric(build: BuildBroker) -> None:
    broker = build().broker
    metrics = build_metrics(broker, UnsentBytes(), dict)
    assert "rmqpy_change" not in metrics.text()
    broker.replication.register_report(lambda: change_info("leave", Phase.COMPLETE, 12))
    page = metrics.text()
    assert 'rmqpy_change{broker="broker-a",change="leave",phase="complete"} 1\n' in page
    assert 'rmqpy_change_pause_ms{broker="broker-a",change="leave"} 12\n' in page


DEPLOY = Path(__file__).parents[3] / "deploy" / "monitoring"
NAME = re.compile(r"\b(?:rocketmq|rmqpy)_\w+")


async def scraped_group(root: Path) -> str:
    """Return the page of a master with a slave and a topic of dead letters."""
    async with name_server_in_process(root) as names:
        role = {"brokerRole": "ASYNC_MASTER"}
        slave = {"brokerRole": "SLAVE", "brokerId": "1", "storePathRootDir": str(root / "slave")}
        async with broker_in_process(root, names, role) as master:
            await registered(master)
            async with broker_in_process(root, names, slave):
                while not master.broker.replication.lags():
                    await asyncio.sleep(0.01)
                master.broker.topics.put(TopicConfig(topic_name="%DLQ%readers"))
                async with Producer("writers", names) as producer:
                    await producer.send(Message(topic="TBW102", body=b"1"))
                    await producer._open().send_heartbeats()
                    return build_metrics(master.broker, UnsentBytes(), dict).text()


def test_alerts_and_dashboard_name_series_that_exist(tmp_path: Path, build: BuildBroker) -> None:
    known = set(read(asyncio.run(scraped_group(tmp_path))))
    (tmp_path / "classic").mkdir()
    known |= set(asyncio.run(scraped(tmp_path / "classic", {})))
    status = {"role": "LEADER", "term": 1, "fault": None, "peers": [{"id": "n1", "lag": 2}]}
    known |= set(read(build_metrics(build().broker, UnsentBytes(), lambda: status).text()))
    rules = (DEPLOY / "alerts.yml").read_text()
    queries = re.findall(r"expr: (.*)", rules)
    assert len(queries) == rules.count("- alert:")
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    queries += [target["expr"] for panel in panels for target in panel.get("targets", ())]
    named = {name for query in queries for name in NAME.findall(query)}
    assert len(named) > 20
    assert named <= known, named - known


def test_lines_of_a_panel_have_different_names() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    for target in (target for panel in panels for target in panel.get("targets", ())):
        summed = re.search(r"sum by \(([^)]*)\)", target["expr"])
        # A master and its slaves share the name of the broker.
        labels = re.split(r",\s*", summed[1]) if summed else ["instance|peer|slave"]
        for label in labels:
            assert re.search(rf"{{{{({label})}}}}", target["legendFormat"]), target


def test_each_alert_is_tested() -> None:
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yml").read_text())
    tested = (DEPLOY / "alerts_test.yml").read_text()
    for alert in alerts:
        assert f"alertname: {alert} }}" in tested and f'alertname="{alert}"' in tested
