"""A machine that runs a whole broker.

The broker is the production one, assembled as ``broker.assembly`` does, with simulated sockets,
files and threads.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.broker.assembly.dledger_group import DLedgerDependencies, start_dledger_member
from rmqpy.broker.assembly.wiring import (
    Broker,
    BrokerDependencies,
    build_broker,
    install_fast_path,
)
from rmqpy.config.keys import BrokerRole, FlushDiskType
from rmqpy.config.loading import (
    BrokerConfiguration,
    BrokerSettings,
    DLedgerSettings,
    RemotingSettings,
    StoreSettings,
)
from rmqpy.dledger.node import Node
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from simulator.disks import SimulatedDisk
from simulator.earlier_version import EarlierVersion, is_earlier
from simulator.fast_path import FastPathReceiver
from simulator.host import LEDGER_PORT, Host, ledger_address, member_host
from simulator.name_servers import name_server_addresses
from simulator.network import NetworkClient
from simulator.plan import GROUP_NAME
from simulator.virtual_time import ProcessLifetime

ROOT = "/store"
PORT = 10911
MEMORY_BYTES = 1 << 30
UNITS_IN_FILE = 300
RESERVED_HOURS = 1
REGISTER_MS = 10_000
CLEAN_MS = 2000


@define(slots=True, eq=False, repr=False)
class Running:
    """The parts of a running broker."""

    life: ProcessLifetime
    store: MessageStore
    broker: Broker
    driver: DLedgerDriver | None

    @property
    def node(self) -> Node | None:
        return self.driver.node if self.driver is not None else None


@define(slots=True, eq=False, repr=False)
class BrokerHost(Host):
    """A machine that runs a broker."""

    disk: SimulatedDisk = field(factory=SimulatedDisk, init=False)
    running: Running | None = field(default=None, init=False)
    receiver: FastPathReceiver | None = field(default=None, init=False)
    _answered_before: int = 0
    """The number of requests that the fast path of earlier processes has answered."""

    stopping: bool = False
    stopped: bool = False
    """Whether the last process has ended with an orderly shutdown."""

    @property
    def node(self) -> Node | None:
        return self.running.node if self.running is not None else None

    @property
    def answered_in_c(self) -> int:
        """The number of requests that the fast path has answered."""
        now = self.receiver.answered if self.receiver is not None else 0
        return self._answered_before + now

    @property
    def needs_restart(self) -> bool:
        if self.running is None:
            return False
        # A sync that began on a failing disk may fail later.
        failed = self.disk.syncs_fail or self.running.store.health.failure is not None
        return self.stopping or failed

    @property
    def address(self) -> str:
        return f"{self.machine.host}:{PORT}"

    @property
    def slave_id(self) -> int:
        """The broker id of this member when it does not lead."""
        return self.number + 1

    @property
    def queue_file_size(self) -> int:
        return 20 * UNITS_IN_FILE

    @property
    def ledger_folder(self) -> str:
        return f"{ROOT}/dledger-{self.name}"

    def __attrs_post_init__(self) -> None:
        Host.__attrs_post_init__(self)
        self.disk.scattered = self.plan.scattered

    def start(self, *, force: bool = False) -> None:
        life = self.begin_life()
        self.stopped = False
        self.disk.now_ms = life.now_ms()
        configuration = self.configuration(self.plan.dledger)
        client = NetworkClient(self.network, self.machine, life)
        boot_id = str(self.disk.power_failures)
        store = open_store(
            StoreContext(configuration.store, self.disk, life, MEMORY_BYTES, force, boot_id)
        )
        broker = build_broker(
            BrokerDependencies(
                configuration=configuration,
                host=self.machine.host,
                store=store,
                scheduler=life,
                network=client,
                files=self.disk,
                pick_queue=self.rng.randrange,
            )
        )
        deps = DLedgerDependencies(
            scheduler=life,
            network=client,
            rng=self.rng.randrange,
            admission=PeerAdmission(set(map(member_host, range(self.plan.members))).__contains__),
            tick_ms=self.plan.tick_ms,
            is_open=client.links.__contains__,
        )
        driver = start_dledger_member(broker, store, deps)
        self.client = client
        self.running = Running(life, store, broker, driver)
        self.receiver = self._receiver(broker, store, life)
        self.network.listen(
            self.machine, PORT, broker.server, self.receiver, gathers=self.plan.comparable
        )
        self.network.listen(self.machine, broker.identity.fast_port, broker.fast_port)
        if driver is not None:
            earlier = is_earlier(self.plan, self.number, self.starts)
            port = EarlierVersion(driver) if earlier else driver
            self.network.listen(self.machine, LEDGER_PORT, port)
        self.assembled(self.running)
        broker.start()
        if self.running.driver is not None:
            self.running.driver.start()

    def _receiver(
        self, broker: Broker, store: MessageStore, life: ProcessLifetime
    ) -> FastPathReceiver | None:
        """Return the receiver of a process with the fast path."""
        feed = install_fast_path(broker, store, life) if self.plan.fast_path else None
        return FastPathReceiver(broker.server, feed) if feed is not None else None

    def assembled(self, running: Running) -> None:
        """Add parts to the broker before it starts."""

    @property
    def expiry_lag_ms(self) -> int:
        """The time by which the clock may be behind that of a round of cleaning in progress, which
        reads the clock when it starts.
        """
        return self.set_back_ms(CLEAN_MS + 2 * self.plan.pause_ms)

    def stop(self, then: Callable[[], None] = lambda: None) -> None:
        """Start an orderly shutdown; it is complete when ``then`` is called."""
        running = self.running
        assert running is not None
        self.stopping = True
        if running.driver is not None:
            running.driver.stop()

        def closed() -> None:
            running.store.shutdown()
            self.end_life()
            self.stopped = True
            then()

        running.broker.stop(closed)

    def end_life(self) -> None:
        self.running = None
        self.stopping = False
        if self.receiver is not None:
            self._answered_before = self.answered_in_c
            self.receiver.close()
            self.receiver = None
        Host.end_life(self)

    def configuration(self, dledger: bool) -> BrokerConfiguration:
        plan = self.plan
        flush = FlushDiskType.SYNC_FLUSH if plan.sync_flush else FlushDiskType.ASYNC_FLUSH
        peers = ";".join(f"n{number}-{ledger_address(number)}" for number in range(plan.members))
        store = StoreSettings(
            store_path_root_dir=ROOT,
            store_path_commit_log=f"{ROOT}/commitlog",
            mapped_file_size_commit_log=plan.file_size,
            mapped_file_size_consume_queue=self.queue_file_size,
            max_hash_slot_num=50,
            max_index_num=200,
            max_message_size=min(4096, plan.file_size // 2),
            flush_disk_type=flush,
            enable_dledger_commit_log=dledger,
            dledger_group=GROUP_NAME if dledger else None,
            dledger_peers=peers if dledger else None,
            dledger_self_id=self.name if dledger else None,
            broker_role=BrokerRole.ASYNC_MASTER,
            preferred_leader_id=f"n{plan.preferred}" if plan.preferred >= 0 else None,
            file_reserved_time=RESERVED_HOURS,
            delete_when=tuple(range(24)),
            clean_resource_interval=CLEAN_MS,
            delete_commit_log_files_interval=20,
        )
        broker = BrokerSettings(
            broker_name="broker-a",
            broker_ip1=self.machine.host,
            default_topic_queue_nums=plan.queues,
            slave_read_enable=not plan.comparable,
            namesrv_addr=";".join(name_server_addresses(plan.name_servers)) or None,
            register_name_server_period=REGISTER_MS,
            transaction_time_out=1000,
            transaction_check_interval=2000,
            transaction_check_max=1000,
        )
        beat_ms = plan.heartbeat_ms
        timers = DLedgerSettings(
            heart_beat_time_interval_ms=beat_ms,
            min_vote_interval_ms=min(300, beat_ms // 2),
            max_vote_interval_ms=min(1000, beat_ms),
            max_push_time_out_ms=min(1000, beat_ms),
        )
        return BrokerConfiguration(
            broker=broker,
            remoting=RemotingSettings(listen_port=PORT),
            store=store,
            dledger=timers,
        )
