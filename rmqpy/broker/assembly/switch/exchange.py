"""The exchange of the log of a running broker: a classic log continues as a DLedger log, in the
same process, with the same ports, connections, queues, tables, and offsets.

The broker must be quiet: it accepts no messages, and everything that it has accepted is confirmed
and on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from attrs import define

from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.config.loading import (
    BrokerConfiguration,
    configuration_text,
    parse_broker_configuration,
)
from rmqpy.config.properties_file import format_properties
from rmqpy.model.ids import Term
from rmqpy.store.ledger.classic_prefix import GrowingPrefix
from rmqpy.store.message_store import MessageStore

if TYPE_CHECKING:  # loaded only by a broker that switches
    from rmqpy.broker.replication.switch_protocol import SwitchPlan
    from rmqpy.net.dledger.driver import DLedgerDriver


def joined_configuration(
    configuration: BrokerConfiguration, plan: SwitchPlan, self_id: str
) -> BrokerConfiguration:
    """Return ``configuration`` as that of member ``self_id``. Raises ConfigError."""
    keys = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": plan.group,
        "dLegerPeers": plan.peers,
        "dLegerSelfId": self_id,
    }
    text = configuration_text(configuration)
    lines = [line for line in text.splitlines() if line.partition("=")[0] not in keys]
    whole = "\n".join([*lines, format_properties(keys)])
    return parse_broker_configuration(whole, "the switch").configuration


class ClassicSide(Protocol):
    """The part of a broker in its classic group."""

    @property
    def role(self) -> ClassicRole: ...

    def retire(self, reason: str) -> None:
        """Disconnect the slaves and the master, and refuse changes of the role, for good."""


class StandbyMember(Protocol):
    """The DLedger side of a broker, which stands ready beside its classic log."""

    @property
    def driver(self) -> DLedgerDriver:
        """The driver; available after :meth:`join`."""

    def open(self, opened: Callable[[str], None]) -> None:
        """Open the port of the group, then call ``opened`` with the reason why that failed, or an
        empty text; not after :meth:`close`.
        """

    def join(self, broker: Broker, store: MessageStore) -> None:
        """Create the driver, which is not started, for the DLedger log that ``store`` has now."""

    def joined(self) -> None:
        """Handle that the broker has become this member."""

    def close(self) -> None:
        """Close the port, which may take some time."""


@define(slots=True, frozen=True, eq=False, repr=False)
class SwitchingBroker:
    """The parts of a running classic broker that take part in the exchange."""

    broker: Broker
    store: MessageStore
    group: ClassicSide

    def is_quiet(self) -> bool:
        """Return whether the log can be exchanged now; see :func:`log_is_quiet`.

        A slave is quiet between two transfers of its master.
        """
        return log_is_quiet(self.broker, self.store)

    def exchange(
        self,
        configuration: BrokerConfiguration,
        prefix: GrowingPrefix,
        member: StandbyMember,
        leader: str,
    ) -> None:
        """Continue the log with the DLedger log of ``member``, whose driver is not started. Its
        vote of the first term is given to ``leader``, which therefore leads at once.

        Raises OSError or StoreError; call it again, then.
        """
        broker, store = self.broker, self.store
        from rmqpy.dledger.state import HardState  # Only a broker that switches needs it.

        store.join_dledger(configuration.store, prefix)
        entries = store.opened.entries
        assert entries is not None
        if configuration.store.dledger_self_id != leader:
            entries.member_files.save_hard_state(HardState(Term(0), leader))
        broker.settings.apply(configuration)
        broker.server.use_log()
        self.group.retire("this broker is a member of a DLedger group now")
        member.join(broker, store)


def log_is_quiet(broker: Broker, store: MessageStore) -> bool:
    """Return whether everything in a classic log is confirmed, on the disk, and dispatched; if not,
    start the flush that it waits for.
    """
    log = store.opened.classic
    assert log is not None
    if broker.gate.waiting or broker.fence.state().waiting or log.has_staged:
        return False
    if broker.log_flusher.running or broker.queue_flusher.running:
        return False
    if log.flushed_offset < log.max_offset:
        broker.log_flusher.begin()
        return False
    if store.dispatcher.behind_bytes:
        broker.server.dispatch()
        return False
    return store.health.failure is None


def log_is_durable(broker: Broker, store: MessageStore, end: int) -> bool:
    """Return whether everything before ``end`` in a classic log is on the disk and dispatched; if
    not, start the flush that it waits for. What this leaves for :func:`log_is_quiet` is little: the
    first flush after a start may take as long as the log is large.
    """
    log = store.opened.classic
    assert log is not None
    if log.flushed_offset < end:
        if not broker.log_flusher.running:
            broker.log_flusher.begin()
        return False
    return log.max_offset - store.dispatcher.behind_bytes >= end
