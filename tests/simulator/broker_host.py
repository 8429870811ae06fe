"""One machine with a broker on it: the disk that it keeps for ever, and the broker while it lives.

The broker is the production one, put together as ``broker.process`` does, with simulated
surroundings in the place of sockets, files and threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import define, field

from rmqpy.broker.assembly.dledger_group import DLedgerDependencies, start_dledger_member
from rmqpy.broker.assembly.wiring import Broker, BrokerDependencies, build_broker
from rmqpy.config.keys import BrokerRole, FlushDiskType
from rmqpy.config.loading import (
    BrokerConfiguration,
    BrokerSettings,
    DLedgerSettings,
    RemotingSettings,
    StoreSettings,
)
from rmqpy.dledger.node import Node
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from simulator.disks import SimulatedDisk
from simulator.name_servers import name_server_addresses
from simulator.network import Machine, MachineNetwork, SimulatedNetwork
from simulator.plan import GROUP_NAME, SimulationPlan
from simulator.virtual_time import ProcessLifetime, Timeline

ROOT = "/store"
PORT = 10911
LEDGER_PORT = 40911
MEMORY_BYTES = 1 << 30
UNITS_IN_FILE = 300
RESERVED_HOURS = 1
REGISTER_MS = 10_000
CLEAN_MS = 2000


@define(slots=True, eq=False, repr=False)
class Running:
    """The parts of a broker that lives."""

    life: ProcessLifetime
    network: MachineNetwork
    store: MessageStore
    broker: Broker
    driver: DLedgerDriver | None

    @property
    def node(self) -> Node | None:
        return self.driver.node if self.driver is not None else None


@define(slots=True, eq=False, repr=False)
class BrokerHost:
    """``watch`` is called after each of its events, ``died`` when one raised
    ``MachineCrashError``."""

    plan: SimulationPlan
    number: int
    timeline: Timeline
    wires: SimulatedNetwork
    rng: random.Random
    watch: Callable[[BrokerHost], None]
    died: Callable[[BrokerHost], None]
    name: str = field(init=False)
    machine: Machine = field(init=False)
    disk: SimulatedDisk = field(factory=SimulatedDisk)
    running: Running | None = None
    life: ProcessLifetime | None = None
    skew_ms: int = 0
    starts: int = 0

    def __attrs_post_init__(self) -> None:
        self.name = f"n{self.number}"
        self.machine = Machine(self.name, f"10.0.0.{self.number + 1}")

    @property
    def address(self) -> str:
        return f"{self.machine.host}:{PORT}"

    @property
    def number_as_slave(self) -> int:
        """Broker id of a member that does not lead."""
        return self.number + 1

    @property
    def queue_file_size(self) -> int:
        return 20 * UNITS_IN_FILE

    @property
    def ledger_folder(self) -> str:
        return f"{ROOT}/dledger-{self.name}"

    def start(self, *, force: bool = False) -> None:
        """A new life on the same disk. Raises StoreError as a start does."""
        assert self.life is None
        self.starts += 1
        life = self.life = self.machine.life = ProcessLifetime(
            self.timeline,
            lambda: self.watch(self),
            lambda: self.died(self),
            lambda: 1 + self.rng.randrange(self.plan.sync_ms),
            self.disk,
            self.skew_ms,
        )
        self.disk.now_ms = life.now_ms()
        configuration = self.configuration(self.plan.dledger)
        network = MachineNetwork(self.wires, self.machine, life)
        store = open_store(StoreContext(configuration.store, self.disk, life, MEMORY_BYTES, force))
        broker = build_broker(
            BrokerDependencies(
                configuration=configuration,
                host=self.machine.host,
                store=store,
                scheduler=life,
                network=network,
                files=self.disk,
                pick_queue=self.rng.randrange,
            )
        )
        deps = DLedgerDependencies(
            scheduler=life,
            network=network,
            rng=self.rng.randrange,
            tick_ms=self.plan.tick_ms,
        )
        driver = start_dledger_member(broker, store, deps)
        self.running = Running(life, network, store, broker, driver)
        self.wires.listen(self.machine, PORT, broker.server)
        if driver is not None:
            self.wires.listen(self.machine, LEDGER_PORT, driver)
        broker.start()
        if self.running.driver is not None:
            self.running.driver.start()

    def stop(self) -> None:
        """An orderly end; the caller lets time pass until ``running`` is None."""
        running = self.running
        assert running is not None
        if running.driver is not None:
            running.driver.stop()

        def closed() -> None:
            running.store.shutdown()
            self._end(running)

        running.broker.stop(closed)

    def kill(self) -> None:
        """The process ends here; what it wrote stays."""
        self._stop_life()
        self.disk.process_ended()

    def lose_power(self) -> None:
        """The process ends, and what was not synced is in doubt."""
        self._stop_life()
        self.disk.lose_power(self.rng)

    def _stop_life(self) -> None:
        assert self.life is not None
        if self.running is not None:
            self._end(self.running)
        else:  # it died while it started
            self.life.alive = False
            self.life = self.machine.life = None

    def _end(self, running: Running) -> None:
        running.life.alive = False
        self.running = self.life = self.machine.life = None
        self.wires.machine_down(self.machine)
        self.wires.life_ended([running.network])

    def configuration(self, dledger: bool) -> BrokerConfiguration:
        plan = self.plan
        flush = FlushDiskType.SYNC_FLUSH if plan.sync_flush else FlushDiskType.ASYNC_FLUSH
        peers = ";".join(
            f"n{number}-10.0.0.{number + 1}:{LEDGER_PORT}" for number in range(plan.members)
        )
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
            slave_read_enable=True,
            namesrv_addr=";".join(name_server_addresses(plan.name_servers)) or None,
            register_name_server_period=REGISTER_MS,
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
