"""A broker as a member of a DLedger group: its settings become those of the core, and the core
determines its role.

All dependencies are arguments: a simulator creates a member with virtual time, memory files and a
network of its own through the same :func:`start_dledger_member` as
:mod:`rmqpy.broker.assembly.process`.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.broker.assembly.join_checks import MetadataReadyCheck, PeerCertificateCheck
from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.replication.group_status import GroupStatusProcessor
from rmqpy.broker.replication.role import GroupRole, RoleChange
from rmqpy.config.loading import BrokerConfiguration, FlushDiskType, StoreSettings
from rmqpy.dledger.member import Membership, RaftOptions, RandomBelow
from rmqpy.dledger.state import Role
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.context import TICK_MS, DriverDependencies
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.remoting.channel import Network
from rmqpy.store.message_store import MessageStore


@define(slots=True, frozen=True, kw_only=True)
class DLedgerDependencies:
    """The dependencies of a member. ``network`` carries the requests to other members,
    ``rng(n)`` returns a random number below n, and ``tick_ms`` is the period of the state loop.
    ``on_role`` is called with every new role of the core.
    ``serves_client`` returns whether DLedger's own clients at an address may read and append;
    ``admission`` decides which connections speak for members; ``is_open`` returns whether there is
    a connection to an address.
    """

    scheduler: Scheduler
    network: Network
    rng: RandomBelow
    on_role: Callable[[Role], None] = lambda _role: None
    serves_client: Callable[[str], bool] = lambda _address: True
    admission: PeerAdmission = field(factory=PeerAdmission)
    is_open: Callable[[str], bool] = lambda _address: True
    tick_ms: int = TICK_MS


def start_dledger_member(
    broker: Broker, store: MessageStore, deps: DLedgerDependencies
) -> DLedgerDriver | None:
    """Return the driver of this member, not started, or None for a broker without a DLedger log.
    The driver answers the requests at the peers' port. The broker accepts no messages until the
    driver reports that it leads.
    """
    log = store.opened.dledger
    if log is None:
        return None
    configuration = broker.identity.configuration
    settings = configuration.store
    store.set_role(slave=True)
    change = RoleChange(
        broker.identity, store, broker.registration, broker.services, broker.server.leadership_lost
    )
    membership = membership_of(settings)
    role = GroupRole(change, log.entries, deps.scheduler, slave_id_of(membership.self_id))

    def changed(new: Role) -> None:
        role.changed(new)
        deps.on_role(new)

    metadata = MetadataReadyCheck(broker.metadata_sync, broker.tables.topics)
    metadata.start(store)
    driver = DLedgerDriver(
        membership,
        options_of(configuration, deps.rng),
        DriverDependencies(
            log=log,
            store=store,
            scheduler=deps.scheduler,
            network=deps.network,
            store_host=broker.identity.store_host,
            on_role=changed,
            flush=broker.log_flusher.begin,
            on_excluded=broker.identity.note_diverged,
            vouch=PeerCertificateCheck.of(store, lambda: driver.introduce()),
            lacks_tables=metadata.is_missing_metadata,
            serves_client=deps.serves_client,
            admission=deps.admission,
            is_open=deps.is_open,
            tick_ms=deps.tick_ms,
        ),
    )
    status = GroupStatusProcessor(driver)
    broker.server.register_handlers(
        {
            RequestCode.RMQPY_DLEDGER_STATUS: status.answer,
            RequestCode.RMQPY_ELECTIONS: status.elections,
        }
    )
    return driver


def membership_of(settings: StoreSettings) -> Membership:
    """Return the membership in the settings: group, own id and the ids of all members."""
    assert settings.dledger_self_id is not None and settings.dledger_group is not None
    peers = tuple(peer.peer_id for peer in settings.dledger_members)
    return Membership(settings.dledger_group, settings.dledger_self_id, peers)


def slave_id_of(self_id: str) -> int:
    """Return the broker id of a member that does not lead: its number plus 1, as in Java."""
    return int(self_id[1:]) + 1


def options_of(configuration: BrokerConfiguration, rng: RandomBelow) -> RaftOptions:
    """Return the settings as options of the core."""
    store, timers = configuration.store, configuration.dledger
    preferred = store.preferred_leader_id or ""
    return RaftOptions(
        rng=rng,
        addresses={peer.peer_id: peer.address for peer in store.dledger_members},
        election=timers.enable_leader_elector,
        heartbeat_interval_ms=timers.heart_beat_time_interval_ms,
        max_heartbeat_leak=timers.max_heart_beat_leak,
        min_vote_interval_ms=timers.min_vote_interval_ms,
        max_vote_interval_ms=timers.max_vote_interval_ms,
        min_take_leadership_vote_interval_ms=timers.min_take_leadership_vote_interval_ms,
        max_take_leadership_vote_interval_ms=timers.max_take_leadership_vote_interval_ms,
        pending_limit=timers.max_pending_requests_num,
        ack_timeout_ms=timers.max_wait_ack_time_ms,
        push_timeout_ms=timers.max_push_time_out_ms,
        batch_push=store.is_enable_batch_push,
        batch_push_bytes=timers.max_batch_push_size,
        throttle_point_bytes=timers.peer_push_throttle_point,
        push_quota_bytes=timers.peer_push_quota,
        preferred_leader_ids=tuple(filter(None, map(str.strip, preferred.split(";")))),
        transfer_wait_index=timers.max_leadership_transfer_wait_index,
        transfer_wait_ms=timers.leadership_transfer_wait_timeout,
        ack_after_sync=store.flush_disk_type is FlushDiskType.SYNC_FLUSH,
    )
