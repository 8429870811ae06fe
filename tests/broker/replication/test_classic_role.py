"""The role of a broker of a classic group."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.config.keys import BrokerRole
from rmqpy.model.ids import PhysicalOffset


def test_a_role_that_is_locked_while_the_tables_are_fetched_does_not_change() -> None:
    """The slave may have voted for a switch to DLedger meanwhile."""
    fetched: list[Callable[[], None]] = []
    reasons: list[str] = []
    nothing: Any = SimpleNamespace()
    slave: Any = SimpleNamespace(is_slave=True, role=BrokerRole.SLAVE)
    tables: Any = SimpleNamespace(fetch_now=fetched.append, faults=[])
    role = ClassicRole(
        identity=slave,
        change=nothing,
        masters=nothing,
        tables=tables,
        fence=nothing,
        log_end=lambda: PhysicalOffset(7),
        configure=lambda _configuration: None,
        make_follower=lambda: nothing,
        disconnect=lambda _reason: None,
    )
    role.become_master(BrokerRole.ASYNC_MASTER, PhysicalOffset(7), reasons.append)
    role.lock("it has voted")
    fetched[0]()
    assert reasons == ["it has voted"]
