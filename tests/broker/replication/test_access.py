"""The addresses that belong to a group, in both security modes."""

from __future__ import annotations

import pytest
from attrs import define, field

from rmqpy.broker.replication.access import CONNECT_PERIOD_MS, PERIOD_MS, GroupAddresses
from rmqpy.config.loading import SecuritySettings
from rmqpy.config.security import SecurityMode
from rmqpy.net.once_log import OncePerCauseLog
from rmqpy.testing.manual_scheduler import ManualScheduler

SECURE = SecuritySettings(security_mode=SecurityMode.SECURE)


@define
class Names:
    """A resolver whose answers a test changes."""

    addresses: dict[str, str] = field(factory=dict)
    asked: list[str] = field(factory=list)

    def resolve(self, host: str) -> frozenset[str]:
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError(f"{host} is not known")
        return frozenset({self.addresses[host]})


def group_of(
    settings: SecuritySettings, *hosts: str, scheduler: ManualScheduler | None = None
) -> GroupAddresses:
    scheduler = scheduler or ManualScheduler()
    return GroupAddresses.from_settings(settings, scheduler, "it counts as nobody", hosts)


def resolving(names: Names, scheduler: ManualScheduler, *hosts: str) -> GroupAddresses:
    """Return a group whose hosts are looked up, and resolved by ``names``."""
    group = GroupAddresses(
        (),
        False,
        scheduler,
        "it counts as nobody",
        OncePerCauseLog(scheduler),
        names.resolve,
        lambda found: found(hosts, True),
    )
    group.refresh()
    scheduler.advance(0)
    return group


def test_the_compatible_mode_warns_once_per_address_and_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = group_of(SecuritySettings())
    assert [group.allows(address) for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2")] == [True] * 3
    assert len(caplog.records) == 2
    assert "counts as nobody" in caplog.text and "replicationAddresses" in caplog.text
    assert group.runtime_info() == {"replicationStrangers": "3"}
    assert not group.knows("10.0.0.1")


def test_an_address_list_is_enforced() -> None:
    group = group_of(SecuritySettings(replication_addresses="10.0.0.1;10.1.*.*"))
    assert group.allows("10.1.7.7")
    assert not group.allows("10.0.0.2")


def test_the_secure_mode_allows_only_members_of_the_group() -> None:
    assert not group_of(SECURE).allows("127.0.0.1")
    group = group_of(SECURE, "10.0.0.1", "10.0.0.2")
    assert group.allows("10.0.0.1")
    assert not group.allows("10.0.0.3")


def test_members_on_one_host_know_each_other_by_every_loopback_address() -> None:
    """A connection from 127.0.0.1 to a member at 127.0.0.2 comes from 127.0.0.1."""
    group = group_of(SECURE, "127.0.0.2", "localhost")
    assert group.knows("127.0.0.1") and group.knows("::1") and group.knows("::ffff:127.0.0.1")
    assert not group.knows("10.0.0.1")


def test_a_member_that_has_moved_is_known_after_its_next_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = Names({"a": "10.0.0.1", "b": "10.0.0.2"})
    scheduler = ManualScheduler()
    group = resolving(names, scheduler, "a", "b")
    assert group.knows("10.0.0.1") and group.knows("10.0.0.2")
    names.addresses["b"] = "10.0.0.7"
    scheduler.advance(PERIOD_MS)
    assert group.allows("10.0.0.7") and not group.knows("10.0.0.7")
    scheduler.advance(0)
    assert group.knows("10.0.0.7"), "resolved again in the background"
    assert not caplog.messages and group.strangers == 0, "it is no stranger"
    assert not group.knows("10.0.0.2"), "the old address may belong to somebody else now"


def test_a_connection_of_an_unknown_address_is_looked_up_at_once() -> None:
    """A slave that connects just after a lookup must not wait for the next one."""
    names = Names({"a": "10.0.0.1"})
    scheduler = ManualScheduler()
    group = resolving(names, scheduler, "a")
    names.addresses["a"] = "10.0.0.2"
    scheduler.advance(CONNECT_PERIOD_MS)
    assert not group.knows("10.0.0.2")
    scheduler.advance(0)
    assert not group.knows("10.0.0.2"), "not by itself"
    group.allows("10.0.0.2")
    scheduler.advance(0)
    assert group.knows("10.0.0.2")


def test_a_slave_that_connects_before_its_group_has_registered_is_no_stranger_yet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names, hosts, scheduler = Names(), list[str](), ManualScheduler()
    group = resolving(names, scheduler)
    group.lookup = lambda found: found(hosts, True)
    for registers in (False, True):
        scheduler.advance(PERIOD_MS)
        assert group.allows("10.0.0.1") and not group.knows("10.0.0.1")
        scheduler.advance(0)
        assert ("10.0.0.1 belongs to no member" in caplog.text) == registers
        assert group.strangers == 2 * registers
    names.addresses["a"] = "10.0.0.1"
    hosts.append("a")
    scheduler.advance(PERIOD_MS)
    assert not group.knows("10.0.0.1")
    scheduler.advance(0)
    assert group.knows("10.0.0.1")


def test_strangers_do_not_cause_endless_queries_and_a_lost_name_keeps_its_address() -> None:
    names = Names({"a": "10.0.0.1"})
    scheduler = ManualScheduler()
    group = resolving(names, scheduler, "a")
    names.addresses.clear()
    names.asked.clear()
    for _ in range(100):
        group.knows("10.9.9.9")
        scheduler.advance(PERIOD_MS // 50)
    assert 1 <= len(names.asked) <= 2
    assert group.knows("10.0.0.1")
