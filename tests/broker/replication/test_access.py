"""The addresses that may fetch the log, in both security modes."""

from __future__ import annotations

import pytest

from rmqpy.broker.replication.access import ReplicationAllowList
from rmqpy.config.loading import SecuritySettings
from rmqpy.config.security import SecurityMode


def test_the_compatible_mode_warns_once_per_address_and_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    allowed = ReplicationAllowList.from_settings(SecuritySettings())
    assert [allowed.allows(address) for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2")] == [
        True
    ] * 3
    assert len(caplog.records) == 2
    assert allowed.runtime_info() == {"replicationStrangers": "3"}


def test_an_address_list_is_enforced() -> None:
    allowed = ReplicationAllowList.from_settings(
        SecuritySettings(replication_addresses="10.0.0.1;10.1.*.*")
    )
    assert allowed.allows("10.1.7.7")
    assert not allowed.allows("10.0.0.2")


def test_the_secure_mode_allows_only_members_of_the_group() -> None:
    secure = SecuritySettings(security_mode=SecurityMode.SECURE)
    assert not ReplicationAllowList.from_settings(secure).allows("127.0.0.1")
    allowed = ReplicationAllowList.from_settings(secure, ["127.0.0.1", "localhost"])
    assert allowed.allows("127.0.0.1")
    assert not allowed.allows("127.0.0.2")
