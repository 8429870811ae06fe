"""Brokers of rmqpy or Java for tests that kill them, and what consumers receive from them."""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define, field

from harness.kill_load import Place
from rmqpy.codec.message import decode_message
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError, RequestRejectedError, RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import GetMaxOffsetRequestHeader
from rmqpy.testing.blocking_connection import (
    BlockingConnection,
    create_topic,
    pull_request,
    send_request,
)
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import (
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    Site,
    dledger_settings,
)
from rmqpy.testing.store_reader import FoundMessage

SETTLE_SECONDS_MAX = 90
DISPATCH_SECONDS_MAX = 10
ID_BYTES = 16
"""The length of the id with which the body of each message begins (tests/crash/sender.py)."""


def site_of(target: str, root: Path, environment: Mapping[str, str] | None = None) -> Site:
    """Return the site of "rmqpy" or "java". Skip the test if Java is not available."""
    if target != "java":
        return RmqpySite(root, environment=environment or {})
    reason = JavaHome().missing()
    if reason is not None:
        pytest.skip(reason)
    return JavaSite(root, JavaHome(), environment=environment or {})


@contextmanager
def crash_broker(
    site: Site, store: Path, settings: Mapping[str, str], *, dledger: bool = False
) -> Iterator[ServerProcess]:
    """Yield a broker that is not started, with a name server that is: alone, or the only member of
    a DLedger group.
    """
    names, ports, peer = free_port_block(1), free_port_block(BROKER_PORT_COUNT), free_port_block(1)
    if dledger:
        settings = {**settings, **dledger_settings("broker-a", peer.first)}
    with RmqpySite(site.root).namesrv("namesrv", names.first) as namesrv:
        spec = BrokerSpec(
            port=ports.broker_port, namesrv=namesrv.address, settings=settings, store=store
        )
        broker = site.broker("broker", spec)
        try:
            yield broker
        finally:
            broker.kill()


def repeatable_random() -> random.Random:
    """Return a source of random choices, with the seed RMQPY_CRASH_SEED or one that is printed."""
    seed = int(os.environ.get("RMQPY_CRASH_SEED", "0")) or int.from_bytes(os.urandom(3))
    print(f"RMQPY_CRASH_SEED={seed}")
    return random.Random(seed)


def wait_for_leader(brokers: Sequence[ServerProcess], topic: str, queues: int) -> ServerProcess:
    """Return the broker that accepts a message, with ``topic`` created, once that message is in its
    queue: everything before it has then been dispatched. Each call uses another topic, because
    Java's queues may not accept new messages after a power cut. If Java does not dispatch at all
    any more, its consumers do not receive what comes after it.
    """
    settled = f"settled-{time.monotonic_ns()}"
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        for broker in brokers:
            assert broker.running, f"a broker ended on its own: {broker.printed()[-3000:]}"
            try:
                with BlockingConnection(broker.address) as connection:
                    create_topic(connection, settled, 1)
                    if _is_settled(connection, settled):
                        create_topic(connection, topic, queues)
                        return broker
            except (NetworkError, RequestRejectedError):
                continue
        printed = "\n".join(broker.printed()[-2000:] for broker in brokers)
        assert time.monotonic() < deadline, f"no broker accepts messages:\n{printed}"
        time.sleep(0.1)


def _is_settled(connection: BlockingConnection, topic: str) -> bool:
    response = connection.call(send_request(topic, 0, [b"settled"]))
    if response.code != 0:
        return False
    sent = int(response.ext_fields["queueOffset"])
    dispatched_by = time.monotonic() + DISPATCH_SECONDS_MAX
    while _queue_end(connection, topic, 0) <= sent and time.monotonic() < dispatched_by:
        time.sleep(0.02)
    return True


@define
class Served:
    """The ids of the messages that consumers receive, by place, and what is wrong with them."""

    ids: dict[Place, str] = field(factory=dict)
    problems: list[str] = field(factory=list)

    def missing(self, wanted: Mapping[Place, str]) -> set[Place]:
        """Return the places of ``wanted`` that have no message or another one."""
        return {place for place, name in wanted.items() if self.ids.get(place) != name}


def read_served(broker: ServerProcess, topic: str, queues: int) -> Served:
    """Read all queues as a consumer does: from where each response says, or the next offset."""
    served = Served()
    with BlockingConnection(broker.address) as connection:
        for queue_id in range(queues):
            _read_queue(connection, topic, queue_id, served)
    if len(set(served.ids.values())) < len(served.ids):
        served.problems.append("a message is stored twice")
    return served


def _read_queue(connection: BlockingConnection, topic: str, queue_id: int, served: Served) -> None:
    offset, end = 0, _queue_end(connection, topic, queue_id)
    while offset < end:
        response = connection.call(pull_request(topic, queue_id, offset))
        following = int(response.ext_fields.get("nextBeginOffset", offset))
        found = list(_intact_messages(response.body, topic, queue_id))
        served.ids |= {(queue_id, place): name for place, name in found}
        wanted = range(offset, max(following, offset + 1))
        if [place for place, _ in found] != list(wanted):
            served.problems.append(f"queue {queue_id} from {offset}: {response}, {found}")
        offset = wanted.stop


def _intact_messages(body: bytes, topic: str, queue_id: int) -> Iterator[tuple[int, str]]:
    """Yield the queue offsets and ids of the messages of a pulled body that are in their queue and
    intact.
    """
    view, position = memoryview(body), 0
    while position < len(view):
        try:
            message = decode_message(view, position)
        except (RmqError, ValueError):
            return
        crc = zlib.crc32(message.body) & 0x7FFFFFFF
        if (message.topic, message.queue_id, message.body_crc) == (topic, queue_id, crc):
            yield message.queue_offset, _id(message.body)
        position += message.size


def _queue_end(connection: BlockingConnection, topic: str, queue_id: int) -> int:
    header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
    response = connection.call(RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header))
    return int(response.ext_fields["offset"])


def places_of(messages: Sequence[FoundMessage], topic: str) -> dict[Place, str]:
    """Return the ids of the messages of a topic, by place."""
    return {
        (message.queue_id, message.queue_offset): _id(message.body)
        for message in messages
        if message.topic == topic
    }


def _id(body: bytes) -> str:
    return bytes(body[:ID_BYTES]).decode("latin-1")


def at_least(count: int) -> Callable[[int], bool]:
    return lambda acknowledged: acknowledged >= count
