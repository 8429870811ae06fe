"""A broker as a process or inside one: the store, the sockets, the DLedger driver and the broker,
put together.

Order of a start: settings are checked, the store is opened (locked, recovered, dispatched), the
ports listen, the broker registers; with DLedger the member then takes its role. A stop is the
reverse; the store is closed last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import socket

from attrs import define

from rmqpy.broker.addresses import Addresses, AddressSettings, choose_addresses
from rmqpy.broker.role import RoleChange
from rmqpy.broker.service import Broker, BrokerSurroundings
from rmqpy.codec import chosen
from rmqpy.dledger.member import Membership, Role
from rmqpy.model.config import BrokerConfiguration, BrokerRole, LoadedConfiguration
from rmqpy.model.errors import ConfigFault
from rmqpy.net.channels import ConnectionLimits
from rmqpy.net.client import ClientLimits, RemotingClient, parse_address
from rmqpy.net.dledger_driver import DLedgerDriver
from rmqpy.net.loop import AsyncioScheduler, run, stop_on_signals
from rmqpy.net.server import RemotingServer
from rmqpy.store.disk import Disk, physical_memory_bytes
from rmqpy.store.message_store import MessageStore, StoreContext, open_store

_log = logging.getLogger(__name__)


def run_broker(loaded: LoadedConfiguration, *, force_truncate: bool = False) -> None:
    """Run a broker until SIGTERM or SIGINT. Raises RmqError or OSError when it cannot start."""
    for note in loaded.notes:
        _log.warning("%s", note)
    run(lambda scheduler: _run_until_stopped(loaded.configuration, scheduler, force_truncate))


async def _run_until_stopped(
    configuration: BrokerConfiguration, scheduler: AsyncioScheduler, force_truncate: bool
) -> None:
    stopped = stop_on_signals()
    process = BrokerProcess(configuration, scheduler, force_truncate=force_truncate)
    await process.start()
    print(f"ready: broker {configuration.broker.broker_name} {process.address}", flush=True)
    try:
        await stopped.wait()
    finally:
        await process.stop()


class BrokerProcess:
    """A running broker. ``address`` and ``store`` are there after :meth:`start`."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        scheduler: AsyncioScheduler,
        *,
        force_truncate: bool = False,
    ) -> None:
        self._configuration = configuration
        self._scheduler = scheduler
        self._force_truncate = force_truncate
        self._running: _Running | None = None

    @property
    def address(self) -> str:
        return self._parts.broker.identity.address

    @property
    def store(self) -> MessageStore:
        return self._parts.store

    @property
    def broker(self) -> Broker:
        return self._parts.broker

    async def start(self) -> None:
        """Raises ConfigFault, StoreFault or OSError (a port that is in use); nothing runs then."""
        assert self._running is None
        configuration = self._configuration
        _refuse_replication(configuration)
        if chosen.implementation != "c":
            _log.warning("running without the C core, slower: %s", chosen.reason)
        addresses = _addresses(configuration)
        if addresses.warning:
            _log.warning("%s", addresses.warning)
        _raise_open_files_limit()
        store = open_store(
            StoreContext(
                configuration.store,
                Disk(),
                self._scheduler,
                physical_memory_bytes(),
                self._force_truncate,
            )
        )
        try:
            self._running = await self._start_parts(store, addresses)
        except BaseException:
            store.shutdown()
            raise

    async def stop(self) -> None:
        """Sign off, let replies leave, make everything durable. Harmless twice."""
        if self._running is None:
            return
        parts, self._running = self._running, None
        if parts.driver is not None:
            parts.driver.stop()
        signed_off = asyncio.Event()
        parts.broker.stop(signed_off.set)
        await signed_off.wait()
        await parts.close_sockets()
        parts.store.shutdown()
        _log.info("broker %s stopped", self._configuration.broker.broker_name)

    @property
    def _parts(self) -> _Running:
        assert self._running is not None, "the broker does not run"
        return self._running

    async def _start_parts(self, store: MessageStore, addresses: Addresses) -> _Running:
        configuration = self._configuration
        for note in store.opened.notes:
            _log.info("%s", note)
        network = RemotingClient(self._scheduler, ClientLimits.of(configuration.remoting))
        broker = Broker(
            BrokerSurroundings(
                configuration=configuration,
                host=addresses.told,
                store=store,
                scheduler=self._scheduler,
                network=network,
                files=Disk(),
                pick_queue=random.SystemRandom().randrange,
            )
        )
        limits = ConnectionLimits.of(configuration.remoting)
        main = _main_server(broker, store, self._scheduler, limits)
        fast = RemotingServer(broker.fast_port, self._scheduler, limits)
        running = _Running(
            store, broker, network, (main, fast), _driver(broker, store, self._scheduler)
        )
        try:
            await main.listen(addresses.bind, broker.identity.listen_port)
            await fast.listen(addresses.bind, broker.identity.fast_port)
        except BaseException:
            await running.close_sockets()
            raise
        broker.start()
        if running.driver is not None:
            running.driver.start()
        _log.info(
            "broker %s at %s (codec: %s), log %d..%d%s",
            broker.identity.name,
            broker.identity.address,
            chosen.implementation,
            store.min_physical_offset,
            store.max_physical_offset,
            ""
            if store.divided_offset is None
            else f", dividedCommitlogOffset {store.divided_offset}",
        )
        return running


@define(slots=True, frozen=True)
class _Running:
    store: MessageStore
    broker: Broker
    network: RemotingClient
    servers: tuple[RemotingServer, ...]
    driver: DLedgerDriver | None

    async def close_sockets(self) -> None:
        for server in self.servers:
            await server.close()
        await self.network.close()


def _main_server(
    broker: Broker, store: MessageStore, scheduler: AsyncioScheduler, limits: ConnectionLimits
) -> RemotingServer:
    """The server of the hot path where C is there, the ordinary one otherwise (or with
    ``RMQPY_FAST=0`` in the environment).
    """
    if chosen.implementation != "c" or os.environ.get("RMQPY_FAST") == "0":
        return RemotingServer(broker, scheduler, limits)
    from rmqpy.broker.hot_setup import accelerate
    from rmqpy.net.fast_server import FastServer

    return FastServer(broker, scheduler, limits, accelerate(broker, store, scheduler))


def _driver(
    broker: Broker, store: MessageStore, scheduler: AsyncioScheduler
) -> DLedgerDriver | None:
    """The DLedger side of the broker; it is slave until the driver says that it leads."""
    log = store.dledger
    if log is None:
        return None
    settings = broker.identity.store
    assert settings.dledger_self_id is not None and settings.dledger_group is not None
    self_id = settings.dledger_self_id
    peers = tuple(peer.peer_id for peer in settings.dledger_members)
    change = RoleChange(
        broker.identity, store, broker.registration, broker.services, broker.leadership_lost
    )
    store.become(slave=True)

    def role_changed(role: Role) -> None:
        if role is Role.LEADER:
            change.become_master()
        else:
            change.become_slave(int(self_id[1:]) + 1)

    return DLedgerDriver(
        log, Membership(settings.dledger_group, self_id, peers), scheduler, role_changed
    )


def _refuse_replication(configuration: BrokerConfiguration) -> None:
    """What needs another broker must not start as if it had one."""
    store = configuration.store
    if not store.enable_dledger_commit_log and store.broker_role is BrokerRole.SLAVE:
        raise ConfigFault(
            "brokerRole=SLAVE: this version does not replicate from a master, and a slave that"
            " does not would serve old messages; run a Java slave, or start a copy of its store"
            " as ASYNC_MASTER"
        )
    if store.enable_dledger_commit_log and len(store.dledger_members) > 1:
        raise ConfigFault(
            f"dLegerPeers={store.dledger_peers}: groups of several members are not supported by"
            " this version;"
            f" name this member alone: the part that begins with {store.dledger_self_id}-"
        )


def _addresses(configuration: BrokerConfiguration) -> Addresses:
    name_servers = configuration.broker.name_servers
    told = configuration.broker.broker_ip1
    candidates = {told} if told else set()
    candidates.update(parse_address(server)[0] for server in name_servers)
    return choose_addresses(
        AddressSettings(
            broker_ip1=told,
            bind_address=configuration.remoting.bind_address,
            name_servers=name_servers,
            local_addresses={host for host in candidates if _is_local(host)},
        )
    )


def _is_local(host: str) -> bool:
    """Whether a socket can be bound to ``host``: true for this machine's own addresses only."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _raise_open_files_limit() -> None:
    """Every mapped file and every connection is an open file: take what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            _log.warning("at most %d open files: %s", soft, error)
