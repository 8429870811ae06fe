"""The choice of the master when name servers answer, do not answer, or answer wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.replication.master_discovery import FRESH_PERIODS, MasterAddress, MasterDiscovery
from rmqpy.broker.services.registration import RegistrationAnswer
from rmqpy.config.loading import (
    BrokerConfiguration,
    BrokerSettings,
    RemotingSettings,
    StoreSettings,
)

SERVERS = ("10.0.0.7:9876", "10.0.0.8:9876", "10.0.0.9:9876")
A = MasterAddress("10.0.1.1:10911", "10.0.1.1:10912")
B = MasterAddress("10.0.1.2:10911", "10.0.1.2:10912")
PERIOD_MS = 30_000


def discovery_of(**store: Any) -> MasterDiscovery:
    configuration = BrokerConfiguration(
        broker=BrokerSettings(namesrv_addr=";".join(SERVERS), broker_id=1),
        remoting=RemotingSettings(listen_port=10911),
        store=StoreSettings(**store),
    )
    return MasterDiscovery(BrokerContext.from_configuration(configuration, "10.0.0.2"))


def answer(
    discovery: MasterDiscovery, server: int, master: MasterAddress | None, now_ms: int = 0
) -> None:
    found = RegistrationAnswer(master.ha_address, master.address) if master else None
    discovery.on_registration_answer(SERVERS[server], found or RegistrationAnswer("", ""), now_ms)


def test_no_master_is_known_at_first() -> None:
    discovery = discovery_of()
    assert discovery.candidates(0) == []
    answer(discovery, 0, None)
    assert discovery.candidates(0) == []


def test_the_master_that_most_name_comes_first() -> None:
    discovery = discovery_of()
    answer(discovery, 0, A)
    answer(discovery, 1, B)
    answer(discovery, 2, B)
    assert discovery.candidates(0) == [B, A]
    assert discovery.current_master(0) == "; ".join(
        f"{server} names {master.address}"
        for server, master in zip(SERVERS, (A, B, B), strict=True)
    )


def test_the_followed_master_stays_first() -> None:
    """With one dead and one stale name server, the slave does not alternate between masters."""
    discovery = discovery_of()
    discovery.follow(A)
    for round_ms in range(0, 10 * PERIOD_MS, PERIOD_MS):
        answer(discovery, 0, A, round_ms)
        answer(discovery, 2, B, round_ms)  # The stale name server.
        assert discovery.candidates(round_ms) == [A, B]
        answer(discovery, 2, None, round_ms)
        assert discovery.candidates(round_ms) == [A]


def test_the_followed_master_comes_before_a_named_one() -> None:
    discovery = discovery_of()
    discovery.follow(A)
    answer(discovery, 0, B)
    assert discovery.candidates(0) == [A, B]


def test_the_followed_master_stays_while_no_master_is_named() -> None:
    discovery = discovery_of()
    discovery.follow(A)
    answer(discovery, 0, None)
    assert discovery.candidates(0) == [A]
    assert discovery.current_master(0) == ""


def test_an_old_answer_gives_way_to_fresh_ones() -> None:
    discovery = discovery_of()
    answer(discovery, 0, A)
    answer(discovery, 1, B, 5)
    assert set(discovery.candidates(FRESH_PERIODS * PERIOD_MS)) == {A, B}
    assert discovery.candidates(FRESH_PERIODS * PERIOD_MS + 1) == [B]
    # With all name servers dead, the last answers still count.
    assert set(discovery.candidates(FRESH_PERIODS * PERIOD_MS + 6)) == {A, B}


@pytest.mark.parametrize("address", ["", "nonsense", "10.0.1.1:0", "10.0.0.2:10911"])
def test_an_answer_without_the_address_of_another_broker_is_ignored(address: str) -> None:
    discovery = discovery_of()
    discovery.on_registration_answer(SERVERS[0], RegistrationAnswer("10.0.1.1:10912", address), 0)
    assert discovery.candidates(0) == []


def test_a_fixed_address_excludes_all_others() -> None:
    discovery = discovery_of(ha_master_address="10.0.1.1:10912")
    assert discovery.candidates(0) == [A]
    answer(discovery, 0, B)
    assert discovery.candidates(0) == [A]


def test_a_fixed_address_of_a_second_network_belongs_to_the_broker_that_registers_it() -> None:
    discovery = discovery_of(ha_master_address="192.168.0.1:10912")
    answer(discovery, 0, MasterAddress("10.0.1.1:10911", "192.168.0.1:10912"))
    assert discovery.candidates(0) == [MasterAddress("10.0.1.1:10911", "192.168.0.1:10912")]


def test_a_newly_named_master_is_notified() -> None:
    discovery = discovery_of()
    counts: list[int] = []
    discovery.subscribe(lambda: counts.append(len(discovery.candidates(0))))
    answer(discovery, 0, A)
    answer(discovery, 1, A)
    answer(discovery, 2, B)
    assert counts == [1, 2]


def test_of_two_masters_named_as_often_the_later_one_comes_first() -> None:
    discovery = discovery_of()
    answer(discovery, 0, A, 10)
    answer(discovery, 1, B, 20)
    assert discovery.candidates(20) == [B, A]
