"""A running broker, as a process of its own or inside another one: the store, the sockets, the
DLedger driver and the broker.

Order of a start: settings are checked, the pages for monitoring are served, the store is opened
(locked, recovered, dispatched), the ports are opened, the broker registers; with DLedger the member
then takes its role. A stop is the reverse; the store is closed last.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import random
import resource
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs
from attrs import define

from rmqpy.broker.assembly.addresses import (
    Addresses,
    AddressSettings,
    choose_addresses,
    is_local,
)
from rmqpy.broker.assembly.ha_group import HaGroup, HaTransport, build_ha_group
from rmqpy.broker.assembly.leave.record import checked_configuration, leave_journal
from rmqpy.broker.assembly.leave.slave import LeavingSlave, TakingParts
from rmqpy.broker.assembly.member_modules import load_member_modules
from rmqpy.broker.assembly.readiness import BrokerProbes
from rmqpy.broker.assembly.switch.exchange import SwitchingBroker, log_is_durable
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.switch.live import LiveSwitch
from rmqpy.broker.assembly.switch.local import SwitchDependencies
from rmqpy.broker.assembly.switch.requests import JoinedMember, complete_switch
from rmqpy.broker.assembly.switch.standby import StandbyMembers
from rmqpy.broker.assembly.wiring import (
    Broker,
    BrokerDependencies,
    build_broker,
    build_metrics,
    install_fast_path,
    put_hooks_of,
)
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.codec import backend
from rmqpy.config.loading import BrokerConfiguration, LoadedConfiguration
from rmqpy.config.security import parse_credentials
from rmqpy.config.store import MEMORY_STORE
from rmqpy.model.clock import Scheduler
from rmqpy.model.errors import ConfigError
from rmqpy.model.files import FileSystem
from rmqpy.net.client import ClientLimits, RemotingClient, parse_address
from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.garbage import QuietCollection
from rmqpy.net.loop import AsyncioScheduler, run, stop_on_signals
from rmqpy.net.probes import open_status_pages
from rmqpy.net.server.server import ListenerSecurity, RemotingServer
from rmqpy.net.server.stall_detector import StallDetector
from rmqpy.net.service_manager import announced
from rmqpy.net.tls import tls_of
from rmqpy.net.unsent import UnsentBytes
from rmqpy.store.files.deferred_write import DeferredFileWriter
from rmqpy.store.files.disk import OsFileSystem, boot_id, physical_memory_bytes
from rmqpy.store.message_store import MessageStore, StoreContext, open_store

if TYPE_CHECKING:
    from rmqpy.acl.signature import Credentials
    from rmqpy.broker.assembly.group_member import DLedgerMember
    from rmqpy.broker.assembly.leave.member import LeavingMember
    from rmqpy.broker.assembly.memory_store import MemoryFolder
    from rmqpy.broker.assembly.metrics import MetricsPage
    from rmqpy.broker.assembly.slave_port import SlavePort
    from rmqpy.broker.processors.put_hooks import PutHook
    from rmqpy.net.status_pages import StatusPages

logger = logging.getLogger(__name__)


def run_broker(loaded: LoadedConfiguration, *, force_truncate: bool = False) -> None:
    """Run a broker until SIGTERM or SIGINT. Raises RmqError or OSError when it cannot start."""
    for note in loaded.notes:
        logger.warning("%s", note)
    run(lambda scheduler: _run_until_stopped(loaded, scheduler, force_truncate))


async def _run_until_stopped(
    loaded: LoadedConfiguration, scheduler: AsyncioScheduler, force_truncate: bool
) -> None:
    stopped = stop_on_signals()
    process = BrokerRuntime(
        loaded.configuration,
        scheduler,
        force_truncate=force_truncate,
        settings_file=_settings_file(loaded, scheduler),
    )
    await process.start()
    name = loaded.configuration.broker.broker_name
    print(f"ready: broker {name} {process.address}", flush=True)
    collection = QuietCollection(scheduler, process.turn_number)
    collection.start()
    try:
        with announced(f"broker {name} at {process.address}"):
            await stopped.wait()
    finally:
        collection.stop()
        await process.stop()


class BrokerRuntime:
    """A running broker. The properties are available after :meth:`start`.

    Connections and the DLedger group use ``scheduler``. Broker and store use ``clock``, if it is
    given, and ``files``: tests replace them.
    """

    def __init__(
        self,
        configuration: BrokerConfiguration,
        scheduler: AsyncioScheduler,
        *,
        force_truncate: bool = False,
        settings_file: SettingsFile | None = None,
        clock: Scheduler | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self._settings_file = settings_file
        self._configuration = configuration
        self._scheduler = scheduler
        self._clock: Scheduler = clock or scheduler
        self._files: FileSystem = files or OsFileSystem()
        self._force_truncate = force_truncate
        self._running: _Running | None = None
        self._memory: MemoryFolder | None = None
        self._probes = BrokerProbes()
        self._pages: StatusPages | None = None

    @property
    def address(self) -> str:
        return self._parts.broker.identity.address

    @property
    def store(self) -> MessageStore:
        return self._parts.store

    @property
    def broker(self) -> Broker:
        return self._parts.broker

    def turn_number(self) -> int:
        """Return a number that changes when requests are handled."""
        return sum(server.turns.number for server in self._parts.servers)

    async def start(self) -> None:
        """Start the broker. Raises ConfigError, StoreError or OSError (a port is in use); nothing
        runs after an error.
        """
        assert self._running is None
        if self._configuration.store.store_type == MEMORY_STORE:
            self._use_memory()
        self._probes = BrokerProbes()
        try:
            where = self._configuration.remoting.metrics_listen_address
            self._pages = await open_status_pages(where, self._probes, metrics=True)
            await self._start()
        except BaseException:
            await self._forget()
            raise

    def _use_memory(self) -> None:
        """Place the store in a new folder in memory, which :meth:`_forget` removes. Raises
        ConfigError if that is impossible.
        """
        from rmqpy.broker.assembly.memory_store import MemoryFolder  # for test groups only

        self._memory = memory = MemoryFolder.create()
        self._configuration = memory.placed(self._configuration)
        logger.info("the store is in memory: %s", memory.path)
        if self._settings_file is not None:
            shared = {**self._settings_file.shared, **memory.settings}
            self._settings_file = attrs.evolve(self._settings_file, shared=shared)

    async def _forget(self) -> None:
        """Close the pages, and remove a store in memory; any other remains."""
        if self._pages is not None:
            await self._pages.close()
            self._pages = None
        if self._memory is not None:
            self._memory.remove()
            self._memory = None

    async def _start(self) -> None:
        files = self._files
        journal = SwitchJournal(files, self._configuration.store.store_path_root_dir)
        leaves = leave_journal(files, self._configuration.store.store_path_root_dir)
        configuration = checked_configuration(leaves, journal.configuration(self._configuration))
        self._configuration = configuration
        if backend.implementation != "c":
            logger.warning(
                "the C core is not available (%s): every request is handled in Python, which is"
                " many times slower; unset RMQPY_PURE if it is set, otherwise install a C"
                " compiler and install rmqpy again",
                backend.reason,
            )
            if not faulthandler.is_enabled() and sys.__stderr__ is not None:
                # At least a traceback, if the disk cannot deliver a mapped page.
                faulthandler.enable(sys.__stderr__)
        addresses = _addresses(configuration)
        if addresses.warning:
            logger.warning("%s", addresses.warning)
        _raise_open_files_limit()
        hooks = put_hooks_of(configuration.store)
        store = await _opened(
            self._scheduler,
            StoreContext(
                configuration.store,
                files,
                self._clock,
                physical_memory_bytes(),
                self._force_truncate,
                boot_id(),
            ),
        )
        try:
            self._running = await self._start_parts(store, addresses, hooks, journal, leaves)
        except BaseException:
            store.shutdown()
            raise

    async def stop(self) -> None:
        """Unregister, send or fail pending replies, flush and close the store. Idempotent."""
        if self._running is None:
            return
        parts, self._running = self._running, None
        self._probes.is_stopping = True
        if parts.leaving is not None:
            parts.leaving.stop()
        if parts.switch is not None:
            parts.switch.stop()
        if parts.standby is not None:
            await parts.standby.finish()
        if parts.member is not None:
            parts.member.driver.stop()
        if parts.group is not None:
            await parts.group.close()
        signed_off = asyncio.Event()
        parts.broker.stop(signed_off.set)
        await signed_off.wait()
        await parts.close_sockets()
        parts.store.shutdown()
        await self._forget()
        logger.info("broker %s stopped", self._configuration.broker.broker_name)

    async def kill(self) -> None:
        """End as after kill -9: nothing is written or flushed any more, and no peer is notified.
        Idempotent.
        """
        if self._running is None:
            return
        parts, self._running = self._running, None
        self._probes.is_stopping = True
        parts.abort_connections()
        if parts.member is not None:
            parts.member.driver.stop()
        parts.store.close_without_flush()
        await parts.close_sockets()
        await self._forget()

    @property
    def _parts(self) -> _Running:
        assert self._running is not None, "the broker does not run"
        return self._running

    async def _start_parts(
        self,
        store: MessageStore,
        addresses: Addresses,
        hooks: Mapping[str, PutHook],
        journal: SwitchJournal,
        leaves: SwitchJournal,
    ) -> _Running:
        configuration = self._configuration
        for note in store.opened.notes:
            logger.info("%s", note)
        tls = tls_of(configuration.security, outgoing=configuration.remoting.use_tls)
        network = RemotingClient(
            self._scheduler,
            ClientLimits.from_settings(configuration.remoting),
            credentials=_own_credentials(configuration),
            tls=tls.client,
        )
        broker = build_broker(
            BrokerDependencies(
                configuration=configuration,
                host=addresses.told,
                store=store,
                scheduler=self._clock,
                network=network,
                files=self._files,
                pick_queue=random.SystemRandom().randrange,
                settings_file=self._settings_file,
                hooks=hooks,
            )
        )
        limits = ConnectionLimits.from_settings(configuration.remoting)
        group = build_ha_group(broker, store, self._scheduler, HaTransport(network, tls))
        main = _main_server(broker, store, self._scheduler, (limits, ListenerSecurity(tls.server)))
        fast = RemotingServer(
            broker.fast_port, self._scheduler, limits, ListenerSecurity(tls.server)
        )
        watch = StallDetector()
        for server in (main, fast):
            server.set_overload_filter(broker.fast_failure, watch)
        unsent = UnsentBytes()
        for server in (main, fast):
            server.turns.unsent = unsent

        def make_member(configuration: BrokerConfiguration) -> DLedgerMember:
            # Only a broker with a DLedger log imports the modules that it needs.
            from rmqpy.broker.assembly.group_member import DLedgerMember

            return DLedgerMember(configuration, self._scheduler, tls, unsent)

        host = _replication_host(configuration, addresses)
        running = _Running(
            store, broker, network, (main, fast), group, host, self._scheduler, leaves
        )
        if self._pages is not None:
            running.page = _metrics_page(broker, running.member_status, unsent)
            self._pages.metrics = running.page.body
        if group is None:
            running.member = make_member(configuration)
            running.member.join(broker, store)
            running.may_leave(running.member)
            broker.server.register_handlers(JoinedMember(journal).handlers())
            complete_switch(broker, journal)
        else:
            switching = SwitchingBroker(broker, store, group)
            running.leaving = LeavingSlave(
                TakingParts(
                    broker=broker,
                    store=store,
                    role=group.role,
                    is_durable=partial(log_is_durable, broker, store),
                    scheduler=self._scheduler,
                    network=network,
                    journal=leaves,
                    rate=group.rate,
                )
            )
            broker.server.register_handlers(running.leaving.handlers())
            running.standby = StandbyMembers(addresses.bind, make_member, running.joined)
            running.switch = LiveSwitch(
                SwitchDependencies(
                    running=switching,
                    scheduler=self._scheduler,
                    network=network,
                    journal=journal,
                    make_member=running.standby.prepare,
                    load_modules=load_member_modules,
                )
            )
            broker.server.register_handlers(running.switch.handlers())
            broker.replication.register_report(running.switch.runtime_info)
            broker.replication.register_report(running.leaving.runtime_info)
        try:
            await running.open_sockets(configuration, addresses)
        except BaseException:
            await running.close_sockets()
            raise
        broker.start()
        if running.leaving is not None:
            running.leaving.resume()
        if running.member is not None:
            running.member.driver.start()
        if running.switch is not None:
            running.switch.resume(journal.read())
        if group is not None:
            group.start()
        self._probes.broker, self._probes.member_status = broker, running.member_status
        logger.info(
            "broker %s at %s (codec: %s), log %d..%d%s",
            broker.identity.name,
            broker.identity.address,
            backend.implementation,
            store.log.min_offset,
            store.log.max_offset,
            ""
            if store.opened.divided_offset is None
            else f", dividedCommitlogOffset {store.opened.divided_offset}",
        )
        return running


async def _opened(scheduler: AsyncioScheduler, context: StoreContext) -> MessageStore:
    """Open the store in a thread, so that the loop answers health checks meanwhile."""
    opening: asyncio.Future[MessageStore] = asyncio.get_running_loop().create_future()

    def opened(store: MessageStore | None, error: BaseException | None) -> None:
        if error is not None:
            opening.set_exception(error)
        else:
            assert store is not None
            opening.set_result(store)

    scheduler.run_blocking(lambda: open_store(context), opened)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).shutdown()
        raise


def _metrics_page(
    broker: Broker, member_status: Callable[[], Mapping[str, object]], unsent: UnsentBytes
) -> MetricsPage:
    from rmqpy.broker.assembly.metrics import MetricsPage

    return MetricsPage(build_metrics(broker, unsent, member_status))


def _settings_file(loaded: LoadedConfiguration, scheduler: AsyncioScheduler) -> SettingsFile | None:
    if loaded.path is None:
        return None
    file = DeferredFileWriter(loaded.path, OsFileSystem(), scheduler)
    return SettingsFile(file, loaded.unknown, loaded.shared)


@define(slots=True, eq=False, repr=False)
class _Running:
    store: MessageStore
    broker: Broker
    network: RemotingClient
    servers: tuple[RemotingServer, RemotingServer]
    """The servers of the main port and of the fast port."""
    group: HaGroup | None
    replication_host: str
    """The address that the port for slaves listens on."""
    scheduler: AsyncioScheduler
    leaves: SwitchJournal
    leaving: LeavingMember | LeavingSlave | None = None
    member: DLedgerMember | None = None
    page: MetricsPage | None = None
    switch: LiveSwitch | None = None
    standby: StandbyMembers | None = None
    listening: asyncio.Future[None] | None = None
    """Keeps the task alive that opens or closes the ports of a member."""

    def member_status(self) -> Mapping[str, object]:
        """Return the status of a member of a DLedger group; empty outside of a group."""
        return {} if self.member is None else self.member.status()

    def joined(self, member: DLedgerMember) -> None:
        """Record that the broker has become a member, and serve slaves on the same port again."""
        self.member = member
        self.may_leave(member)
        if member.slave_port is not None:
            self.listening = asyncio.ensure_future(self._serve_slaves(member.slave_port))

    def may_leave(self, member: DLedgerMember) -> None:
        """Answer the requests of a leave as ``member``."""
        from rmqpy.broker.assembly.leave.member import LeavingMember, LeavingParts

        def left() -> None:
            self.member = None
            self.listening = asyncio.ensure_future(member.close())

        self.leaving = LeavingMember(
            LeavingParts(
                broker=self.broker,
                store=self.store,
                driver=member.driver,
                stream=member.slave_port,
                scheduler=self.scheduler,
                network=self.network,
                journal=self.leaves,
                left=left,
            )
        )
        self.broker.server.register_handlers(self.leaving.handlers())

    async def _serve_slaves(self, port: SlavePort) -> None:
        try:
            await port.listen(self.replication_host)
        except ConfigError as error:
            logger.error("classic slaves cannot follow this member until a restart: %s", error)

    async def open_sockets(self, configuration: BrokerConfiguration, addresses: Addresses) -> None:
        main, fast = self.servers
        await main.listen(addresses.bind, self.broker.identity.listen_port)
        await fast.listen(addresses.bind, self.broker.identity.fast_port)
        if self.member is not None:
            await self.member.listen(addresses.bind)
            if self.member.slave_port is not None:
                await self.member.slave_port.listen(self.replication_host)
        if self.group is not None:
            await self.group.listen(self.replication_host)

    def abort_connections(self) -> None:
        """Disconnect all peers, without the replies that wait for them."""
        for server in self.servers:
            server.abort_connections()
        if self.member is not None:
            self.member.server.abort_connections()

    async def close_sockets(self) -> None:
        if self.listening is not None:
            await self.listening
        if self.page is not None:
            self.page.close()
        if self.group is not None:
            await self.group.close()
        for server in self.servers:
            await server.close()
        await self.network.close()
        if self.member is not None:
            await self.member.close()


def _main_server(
    broker: Broker,
    store: MessageStore,
    scheduler: AsyncioScheduler,
    bounds: tuple[ConnectionLimits, ListenerSecurity],
) -> RemotingServer:
    """Return a server with the fast path if that is available, and otherwise, or with
    ``RMQPY_FAST=0`` in the environment, one without it.
    """
    if os.environ.get("RMQPY_FAST") == "0":
        return RemotingServer(broker.server, scheduler, *bounds)
    from rmqpy.net.server.feed_server import FastServer

    feed = install_fast_path(broker, store, broker.scheduler)
    if feed is None:
        return RemotingServer(broker.server, scheduler, *bounds)
    limits, security = bounds
    # A commit is written, flushed and, in a group, sent to every other member, so a turn waits for
    # more requests that can share it.
    return FastServer(broker.server, scheduler, limits, feed, security, patient=True)


def _addresses(configuration: BrokerConfiguration) -> Addresses:
    name_servers = configuration.broker.name_servers
    broker_ip1 = configuration.broker.broker_ip1
    candidates = {broker_ip1} if broker_ip1 else set()
    candidates.update(parse_address(server)[0] for server in name_servers)
    return choose_addresses(
        AddressSettings(
            broker_ip1=broker_ip1,
            bind_address=configuration.remoting.bind_address,
            name_servers=name_servers,
            local_addresses={host for host in candidates if is_local(host)},
        )
    )


def _replication_host(configuration: BrokerConfiguration, addresses: Addresses) -> str:
    """Return the address that the replication port listens on: ``brokerIP2``, if that is an address
    of this host and ``bindAddress`` is not set; otherwise that of the other ports.
    """
    broker_ip2 = configuration.broker.broker_ip2
    if broker_ip2 and not configuration.remoting.bind_address and is_local(broker_ip2):
        return broker_ip2
    return addresses.bind


def _raise_open_files_limit() -> None:
    """Raise the limit of open files to the hard limit: mapped files and connections need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            logger.warning("at most %d open files: %s", soft, error)


def _own_credentials(configuration: BrokerConfiguration) -> Credentials | None:
    """Return the credentials with which this broker signs its own requests, or None."""
    text = configuration.security.inner_client_authentication_credentials
    if text is None:
        return None
    from rmqpy.acl.signature import Credentials

    given = parse_credentials(text)
    return Credentials(given["accessKey"], given["secretKey"], given.get("securityToken"))
