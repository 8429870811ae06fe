"""Who may fetch the log, in both modes."""

from __future__ import annotations

import pytest

from rmqpy.broker.replication.access import ReplicationAllowList
from rmqpy.config.loading import SecuritySettings
from rmqpy.config.security import SecurityMode


def test_the_compatible_mode_warns_once_per_address_and_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = ReplicationAllowList.from_settings(SecuritySettings())
    assert [door.allows(address) for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2")] == [True] * 3
    assert len(caplog.records) == 2
    assert door.runtime_info() == {"replicationStrangers": "3"}


def test_an_address_list_is_enforced() -> None:
    door = ReplicationAllowList.from_settings(
        SecuritySettings(replication_addresses="10.0.0.1;10.1.*.*")
    )
    assert door.allows("10.1.7.7")
    assert not door.allows("10.0.0.2")


def test_the_secure_mode_allows_only_members_of_the_group() -> None:
    secure = SecuritySettings(security_mode=SecurityMode.SECURE)
    assert not ReplicationAllowList.from_settings(secure).allows("127.0.0.1")
    door = ReplicationAllowList.from_settings(secure, ["127.0.0.1", "localhost"])
    assert door.allows("127.0.0.1")
    assert not door.allows("127.0.0.2")
