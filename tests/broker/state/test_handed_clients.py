"""Clients that another broker relays: known without a connection until they register themselves."""

from __future__ import annotations

import pytest

from rmqpy.broker.assembly.leave.relay import handed_clients
from rmqpy.broker.state import clients as clients_module
from rmqpy.broker.state.clients import CLIENT_LIVE_MS, SCAN_PERIOD_MS
from rmqpy.broker.state.handed_clients import HandedClient, connected_clients
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import SubscriptionData
from rmqpy.testing.harness import BrokerHarness, BuildBroker, memory_broker
from rmqpy.testing.memory_channel import MemoryChannel

HALF = {"client": "c", "host": "h", "heartbeat": "{}", "port": 1, "language": 0}


def of_another_broker(*client_ids: str) -> list[HandedClient]:
    """Return clients that are consumers of CG and producers of PG on another broker."""
    other = memory_broker()
    for client_id in client_ids:
        other.heartbeat(MemoryChannel(), client_id, "CG", (SubscriptionData(topic="T"),), "PG")
    table = other.broker.clients
    found = [each.handed(table) for each in connected_clients(table).values()]
    return [HandedClient.decode(each.encode()) for each in found]


def ids(harness: BrokerHarness) -> list[str]:
    group = harness.broker.clients.consumer_group("CG")
    return [] if group is None else sorted(group.client_ids)


def test_a_client_is_known_once_however_it_is_known(build: BuildBroker) -> None:
    harness = build()
    handed = harness.broker.handed_clients
    handed.take(of_another_broker("c1", "c2"), [])
    assert ids(harness) == ["c1", "c2"]
    group = harness.broker.clients.consumer_group("CG")
    assert group is not None and group.subscription("T") is not None
    harness.heartbeat(client_id="c1")
    handed.take(of_another_broker("c1"), [])
    assert ids(harness) == ["c1", "c2"]
    handed.take([], ["c1", "c2"])
    assert ids(harness) == ["c1"]
    assert len(harness.broker.clients.producers("PG")) == 0


def test_a_client_of_which_nothing_is_heard_is_forgotten(build: BuildBroker) -> None:
    harness = build()
    harness.broker.handed_clients.take(of_another_broker("c1"), [])
    harness.scheduler.advance(CLIENT_LIVE_MS + 2 * SCAN_PERIOD_MS)
    assert ids(harness) == []
    harness.broker.handed_clients.take(of_another_broker("c1"), [])
    assert ids(harness) == ["c1"]


def test_too_many_clients_are_not_taken(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients_module, "STAND_INS_LIMIT", 1)
    harness = build()
    bad = HandedClient("c0", ("h", 1), 0, 0, b"[]")
    harness.broker.handed_clients.take([bad], ["c0"])
    assert "client c0 is not taken" in caplog.text
    harness.broker.handed_clients.take([], ["c0"])
    harness.broker.handed_clients.take(of_another_broker("c1", "c2"), [])
    assert ids(harness) == ["c1"]
    assert "client c2 is not taken: too many are relayed" in caplog.text


@pytest.mark.parametrize(
    "body", [{"clients": 1}, {"gone": "c"}, {"clients": [1]}, {"clients": [HALF]}]
)
def test_a_request_that_names_no_clients_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(RequestRejectedError, match="expected"):
        handed_clients(body)
