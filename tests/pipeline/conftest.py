"""One Spark session for the suite; what a Java consumer got; live brokers."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rmqpy.audit.facts.reader import read_facts
from rmqpy.model.errors import ConfigError
from rmqpy.model.flags import COMPRESSED
from rmqpy.model.names import is_system_topic
from rmqpy.pipeline.spark.session import SessionPlan, check_needs, spark_session
from rmqpy.store.files.disk import OsFileSystem


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on two cores; the tests that ask for it are skipped where it cannot start."""
    import os

    for name, found in check_needs(os.environ):
        if isinstance(found, ConfigError):
            pytest.skip(f"{name}: {found}")
    with spark_session(SessionPlan(master="local[2,4]", light=True)) as session:
        from rmqpy.pipeline.datasource.source import register

        register(session)
        yield session


@pytest.fixture
def arrow() -> Any:
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed; pip install 'rmqpy[spark]'")
    import pyarrow

    return pyarrow


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


SAME_NAME = (
    *("topic", "queueId", "queueOffset", "flag", "reconsumeTimes"),
    "preparedTransactionOffset",
)

Row = dict[str, Any]


@pytest.fixture
def check_rows(
    manifest: Callable[[str], Row], store_of: Callable[[str], Path]
) -> Callable[[str, list[Row]], None]:
    """Rows of a node, of all topics but the system's, are what a Java consumer got."""

    def check(node: str, rows: list[Row]) -> None:
        told = manifest(node.partition("/")[0])
        end = read_facts(OsFileSystem(), str(store_of(node))).end
        wanted = [
            found
            for found in told["messages"]
            if not is_system_topic(found["topic"]) and found["commitLogOffset"] < end
        ]
        ends = {
            (topic, queue["queueId"]): queue["max"]
            for topic, queues in told["queues"].items()
            for queue in queues
        }
        # What was delivered behind the consumer's look is in the store alone.
        rows = [row for row in rows if row["queueOffset"] < ends[row["topic"], row["queueId"]]]
        got = {row["physicalOffset"]: row for row in rows}
        assert len(got) == len(rows) == len(wanted) > 200
        for found in wanted:
            check_row(got[found["commitLogOffset"]], found)

    return check


def check_row(row: Row, found: Row) -> None:
    for column in SAME_NAME:
        assert row[column] == found[column], column
    assert row["sysFlag"] | COMPRESSED == found["sysFlag"] | COMPRESSED  # 5.3 clears it
    assert row["size"] == found["storeSize"]
    assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(found["bornTimestamp"])
    assert row["storeTimestamp"].timestamp() * 1000 == pytest.approx(found["storeTimestamp"])
    assert f"/{row['bornHost']}" == found["bornHost"]
    assert f"/{row['storeHost']}" == found["storeHost"]
    assert dict(row["properties"]) == found["props"]
    assert row["tags"] == found["props"].get("TAGS")
    assert row["keys"] == found["props"].get("KEYS")
    assert row["bodyCrc"] == found["bodyCRC"] and row["crcOk"] is True
    assert len(row["body"]) == found["bodyLen"]
    assert zlib.crc32(row["body"]) & 0x7FFFFFFF == found["crc"]


class Live:
    """A name server and a broker, ours or Java's, and what a test does with them."""

    def __init__(
        self, kind: str, root: Path, settings: dict[str, str] | None = None, wait: bool = True
    ) -> None:
        from rmqpy.testing.java import JavaHome, JavaSite
        from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
        from rmqpy.testing.processes import BrokerSpec, RmqpySite

        reason = JavaHome().missing() if kind == "java" else None
        if reason is not None:
            pytest.skip(reason)
        self._blocks = [free_port_block(1), free_port_block(BROKER_PORT_COUNT)]
        self.site = JavaSite(root / "java", JavaHome()) if kind == "java" else RmqpySite(root)
        self.namesrv = RmqpySite(root).namesrv("namesrv", self._blocks[0].first).start()
        self.spec = BrokerSpec(
            port=self._blocks[1].broker_port,
            namesrv=self.namesrv.address,
            settings=settings or {},
        )
        broker = self.site.broker("broker", self.spec)
        self.broker = broker.start() if wait else broker.launch()
        self._topics = 0

    def close(self) -> None:
        self.broker.kill()
        self.namesrv.kill()

    def topic(self, queues: int = 4, name: str | None = None) -> str:
        from rmqpy.testing.blocking_connection import connect_when_ready, create_topic

        self._topics += 1
        topic = name or f"stream-{self._topics}"
        with connect_when_ready(self.broker.address) as connection:
            create_topic(connection, topic, queues)
        return topic

    def send(self, topic: str, bodies: list[bytes], tags: str | None = None) -> None:
        """Tries again until all are acknowledged; none is stored twice unless an answer is lost."""
        import time

        from rmqpy.client import Message, SendStatus
        from rmqpy.client.blocking import BlockingProducer
        from rmqpy.model.errors import RmqError

        deadline = time.monotonic() + 60
        with BlockingProducer("sender", self.namesrv.address) as producer:
            for body in bodies:
                while True:
                    try:
                        message = Message(topic=topic, body=body, keys=body.decode(), tags=tags)
                        assert producer.send(message).status in SendStatus
                        break
                    except RmqError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.1)


@pytest.fixture(scope="session")
def live_form() -> type[Live]:
    """For tests that start brokers of their own."""
    return Live


@pytest.fixture(scope="session", params=["rmqpy", pytest.param("java", marks=pytest.mark.interop)])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = Live(request.param, tmp_path_factory.mktemp(f"live-{request.param}"))
    yield made
    made.close()
