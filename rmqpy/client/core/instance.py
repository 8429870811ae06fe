"""ClientInstance: the state shared by the members of one process (Java: MQClientInstance).

* Name servers: one is chosen at random and kept while it answers; otherwise the next one is used.
* Routes: requested once and refreshed every 30 s, and at once (but at most every 500 ms) after a
  request to one of its brokers has failed.
* Heartbeats: every 30 s, and as soon as a broker becomes known, to every broker of every route
  (only to masters while there are no consumers). Groups are unregistered from all of them at the
  end.

Invariants: the last good route of a topic is kept while no name server answers; at most
``topics_max`` routes are kept; no task of an instance runs after ``close()``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from ipaddress import ip_address
from typing import Any, Protocol, Self, TypeAlias

from attrs import define, field

from rmqpy.acl.signature import Credentials
from rmqpy.client.core.quiet_log import QuietLog
from rmqpy.client.core.routes import broker_address, publish_queues, route_for_new_topic
from rmqpy.client.core.server_requests import ServerRequestHandler
from rmqpy.client.core.unique_id import UniqueIds
from rmqpy.config.keys import parse_addresses
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConfigError, NetworkError, RequestRejectedError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import check_group
from rmqpy.net.client import RemotingClient, parse_address
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.tls import TlsSide, client_tls
from rmqpy.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    MessageQueue,
    ProducerData,
    TopicRouteData,
)
from rmqpy.remoting.command import LANGUAGE_PYTHON, RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import GetRouteInfoRequestHeader, UnregisterClientRequestHeader
from rmqpy.remoting.request_template import Request

logger = logging.getLogger(__name__)


class Transport(Protocol):
    """The methods of ``net.client.RemotingClient`` that a client uses."""

    async def invoke(
        self, address: str, request: Request, timeout_ms: int = 3_000
    ) -> RemotingCommand: ...

    def invoke_ahead(
        self, address: str, request: Request, timeout_ms: int
    ) -> Awaitable[RemotingCommand] | None: ...

    async def invoke_oneway(self, address: str, request: Request) -> None: ...

    async def close(self) -> None: ...


def split_name_servers(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in ``a:1;b:2``, or in a sequence of such texts. Raises ConfigError if
    one is invalid.
    """
    text = given if isinstance(given, str) else ";".join(given)
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise ConfigError(f"name servers {text!r}: {error}; give host:port;host:port") from None


@define(frozen=True, kw_only=True)
class ClientSettings:
    """The settings of a client (Java: ClientConfig).

    * ``name_servers``: ``host:port;host:port``, or a sequence of such.
    * ``instance_name``: makes the client id unique on its host; the default is derived from the
      process id and a random number.
    * ``client_ip``: the address in the client id; the default is the local address that leads to
      the first name server.
    * ``request_timeout_ms``: the time for one request.
    * ``route_refresh_ms``, ``heartbeat_ms``: the periods of these tasks.
    * ``route_suspect_pause_ms``: the least time between two requests of a suspect route.
    * ``topics_max``: the largest number of routes that are kept.
    * ``credentials``: signs every request, for brokers with access control (Java:
      AclClientRPCHook).
    * ``tls``: encrypts all connections.
    """

    name_servers: tuple[str, ...] = field(converter=split_name_servers)
    instance_name: str | None = None
    client_ip: str | None = None
    request_timeout_ms: int = 3_000
    route_refresh_ms: int = 30_000
    route_suspect_pause_ms: int = 500
    heartbeat_ms: int = 30_000
    first_heartbeat_ms: int = 0
    """The delay of the first heartbeat. A tool that only reads, and ends before that, registers no
    group.
    """
    topics_max: int = 10_000
    credentials: Credentials | None = None
    tls: TlsSide | None = None


NameServers: TypeAlias = str | Sequence[str] | ClientSettings
"""Addresses, or all settings of a client."""


def settings_of(name_servers: NameServers) -> ClientSettings:
    """Return ``name_servers`` as settings, with defaults for everything but the addresses."""
    if isinstance(name_servers, ClientSettings):
        return name_servers
    return ClientSettings(name_servers=name_servers)


@define(frozen=True, kw_only=True)
class ClientDependencies:
    """The dependencies of an instance. ``pause`` waits for some ms, and ``ended`` is awaited after
    everything else has stopped.
    """

    transport: Transport
    clock: Clock
    randomness: random.Random
    client_ip: str
    process_id: int
    marker: bytes
    pause: Callable[[int], Awaitable[None]] | None = None
    ended: Callable[[], Coroutine[Any, Any, None]] | None = None


@define
class _Route:
    route: TopicRouteData
    loaded_ms: int
    suspect: bool = False
    provisional: bool = False
    publish_queues: list[MessageQueue] | None = None
    """The queues to send to; None before the first use."""


class ClientInstance:
    """The routes, connections, and heartbeats of one client.

    Open one with :meth:`open` and pass it to several producers and consumers as ``instance``;
    without it each member opens an instance for itself::

        instance = await ClientInstance.open(ClientSettings(name_servers="127.0.0.1:9876"))
        async with Producer("orders", instance=instance) as producer: ...
        await instance.close()

    A test passes :class:`ClientDependencies` to the constructor and calls :meth:`start`.
    """

    def __init__(self, settings: ClientSettings, deps: ClientDependencies) -> None:
        name = settings.instance_name or f"{deps.process_id}#{deps.marker.hex()}"
        self.client_id = f"{deps.client_ip}@{name}"
        self.transport = deps.transport
        self.clock = deps.clock
        self.randomness = deps.randomness
        self.unique_ids = UniqueIds(
            ip_address(deps.client_ip).packed,
            deps.process_id,
            deps.marker,
            deps.clock,
        )
        self.pushed = ServerRequestHandler()
        self.log = QuietLog(deps.clock)
        self.pause = deps.pause or _pause
        self._settings = settings
        self._on_closed = deps.ended
        self._name_servers = settings.name_servers
        self._name_server = self.randomness.randrange(len(settings.name_servers))
        self._routes: dict[str, _Route] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._route_lock = asyncio.Lock()
        self._producers: set[str] = set()
        self._consumers: dict[str, Callable[[], ConsumerData]] = {}
        self._heartbeat_addresses: set[str] = set()
        self._heartbeat_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, settings: ClientSettings) -> Self:
        """Return a started instance with its own connections on the running loop."""
        loop = asyncio.get_running_loop()
        handler = loop.get_exception_handler()
        scheduler = AsyncioScheduler(loop)
        # The exception handler of the application's loop must not change.
        loop.set_exception_handler(handler)
        transport = RemotingClient(
            scheduler,
            credentials=settings.credentials,
            tls=client_tls(settings.tls) if settings.tls is not None else None,
        )
        client_ip = settings.client_ip or await _address_towards(settings.name_servers[0])
        instance = cls(
            settings,
            ClientDependencies(
                transport=transport,
                clock=scheduler,
                randomness=random.Random(),
                client_ip=client_ip,
                process_id=os.getpid(),
                marker=secrets.token_bytes(4),
                ended=scheduler.close,
            ),
        )
        transport.handler = instance.pushed
        instance.start()
        return instance

    def start(self) -> None:
        """Start the tasks that refresh routes and send heartbeats."""
        assert not self._tasks, "started twice"
        self._tasks = [
            asyncio.create_task(self._refresh_routes_forever(), name="rmqpy-client-routes"),
            asyncio.create_task(self._send_heartbeats_forever(), name="rmqpy-client-heartbeats"),
        ]

    async def close(self) -> None:
        """Unregister every group from all brokers, then close all connections."""
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error("a background task of the client failed", exc_info=outcome)
        self._tasks = []
        for group in sorted(self._producers):
            await self.leave_producer(group)
        for group in sorted(self._consumers):
            await self.leave_consumer(group)
        await self.pushed.close()
        await self.transport.close()
        if self._on_closed is not None:
            await self._on_closed()

    # -- groups

    def join_producer(self, group: str) -> None:
        """Include this producer group in heartbeats from now on. Raises ConfigError if it has
        already joined.
        """
        check_group(group)
        if group in self._producers:
            raise ConfigError(f"the producer group {group} is already in use by this client")
        self._producers.add(group)
        self._heartbeat_due.set()

    def join_consumer(self, group: str, data: Callable[[], ConsumerData]) -> None:
        """Include ``data()`` of this consumer group in heartbeats from now on. Raises ConfigError
        if it has already joined.
        """
        check_group(group)
        if group in self._consumers:
            raise ConfigError(f"the consumer group {group} is already in use by this client")
        self._consumers[group] = data
        self._heartbeat_due.set()

    async def leave_producer(self, group: str) -> None:
        """Unregister this client's producer group from every broker."""
        self._producers.discard(group)
        await self._unregister(
            UnregisterClientRequestHeader(client_id=self.client_id, producer_group=group)
        )

    async def leave_consumer(self, group: str) -> None:
        """Unregister this client's consumer group from every broker."""
        self._consumers.pop(group, None)
        await self._unregister(
            UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=group)
        )

    # -- requests

    async def invoke(
        self,
        address: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """Send a request and return the response, whatever its code; raises NetworkError."""
        if timeout_ms is None:
            timeout_ms = self._settings.request_timeout_ms
        return await self.transport.invoke(address, self.request(code, header, body), timeout_ms)

    def request(
        self, code: RequestCode, header: CommandHeader | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return a request of this client, ready to send."""
        command = RemotingCommand.request(code, header, body)
        command.language = LANGUAGE_PYTHON
        return command

    async def invoke_namesrv(
        self, code: RequestCode, header: CommandHeader | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return the response of the current name server, or of the first after it that answers.

        Raises NetworkError, with the error of each name server, if none answers.
        """
        faults: list[str] = []
        for _ in self._name_servers:
            address = self._name_servers[self._name_server]
            try:
                return await self.invoke(address, code, header, body)
            except NetworkError as fault:
                faults.append(f"{address}: {fault}")
                self._name_server = (self._name_server + 1) % len(self._name_servers)
        raise NetworkError("no name server answers: " + "; ".join(faults))

    # -- routes

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of ``topic``; raises RequestRejectedError with TOPIC_NOT_EXIST if
        unknown.
        """
        return (await self._route(topic)).route

    async def publish_queues(
        self, topic: str, template_topic: str, queue_count: int
    ) -> list[MessageQueue]:
        """Return the queues to which messages of ``topic`` are sent, in order of rotation: those
        of its route, or of the route with which the topic will be created. The caller must not
        change the list.
        """
        known = await self._route_or_template(topic, template_topic, queue_count)
        if known.publish_queues is None:
            known.publish_queues = publish_queues(topic, known.route)
        return known.publish_queues

    def known_publish_queues(self, topic: str) -> list[MessageQueue] | None:
        """Return what :meth:`publish_queues` would return, or None if it has to look it up."""
        known = self._routes.get(topic)
        return known.publish_queues if known is not None and not known.suspect else None

    async def _route_or_template(self, topic: str, template_topic: str, queue_count: int) -> _Route:
        try:
            return await self._route(topic)
        except RequestRejectedError as refusal:
            if refusal.code != ResponseCode.TOPIC_NOT_EXIST or topic == template_topic:
                raise
            unknown = refusal
        try:
            template = await self.route(template_topic)
        except RequestRejectedError:
            raise unknown from None
        route = route_for_new_topic(template, queue_count)
        # Keep it only briefly: the first message makes the broker create and register the topic.
        known = _Route(route, self.clock.monotonic_ms(), suspect=True, provisional=True)
        self._keep(topic, known)
        return known

    def invalidate_route(self, topic: str) -> None:
        """Mark the route as suspect after an error, so that it is requested again before its next
        use.
        """
        known = self._routes.get(topic)
        if known is not None:
            known.suspect = True

    async def address(self, topic: str, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of ``broker_id`` of ``broker_name``, or of another broker of that
        name.
        """
        if not self._addresses.get(broker_name):
            self.invalidate_route(topic)
            await self.route(topic)
        found = broker_address(self._addresses.get(broker_name, {}), broker_id)
        if found is None:
            raise NetworkError(f"the broker {broker_name} is in no route of {topic}")
        return found

    def known_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of ``broker_id`` of ``broker_name`` (by default the master), or None
        if it has none at the moment.
        """
        return self._addresses.get(broker_name, {}).get(broker_id)

    async def refresh_routes(self) -> None:
        """Request every known route again; a route that cannot be refreshed keeps its last
        state.
        """
        for topic in list(self._routes):
            try:
                await self._load(topic)
            except RmqError as fault:
                self.log.warn(
                    logger,
                    "refreshing routes",
                    "the route of topic %s was not refreshed; keeping the last one: %s",
                    topic,
                    fault,
                )

    async def _route(self, topic: str) -> _Route:
        known = self._routes.get(topic)
        if known is not None and not self._is_due(known):
            return known
        async with self._route_lock:
            known = self._routes.get(topic)
            if known is not None and not self._is_due(known):
                return known
            try:
                return await self._load(topic)
            except RmqError as fault:
                if known is None or known.provisional:
                    raise
                known.loaded_ms = self.clock.monotonic_ms()
                self.log.warn(
                    logger,
                    "refreshing routes",
                    "the route of topic %s was not refreshed; using the last one: %s",
                    topic,
                    fault,
                )
                return known

    def _is_due(self, known: _Route) -> bool:
        age_ms = self.clock.monotonic_ms() - known.loaded_ms
        return known.suspect and age_ms >= self._settings.route_suspect_pause_ms

    async def _load(self, topic: str) -> _Route:
        response = await self.invoke_namesrv(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic)
        )
        if response.code != ResponseCode.SUCCESS:
            raise RequestRejectedError(response.code, response.remark or f"no route of {topic}")
        loaded = _Route(TopicRouteData.decode(response.body), self.clock.monotonic_ms())
        self._keep(topic, loaded)
        before = self._known_addresses()
        for broker in loaded.route.broker_datas:
            self._addresses[broker.broker_name] = dict(broker.broker_addrs)
        if self._known_addresses() - before:
            self._heartbeat_due.set()
        return loaded

    def _keep(self, topic: str, route: _Route) -> None:
        self._routes[topic] = route
        while len(self._routes) > self._settings.topics_max:
            del self._routes[next(iter(self._routes))]

    # -- heartbeats

    async def send_heartbeats(self) -> None:
        """Send one heartbeat to every broker that a route names."""
        in_routes = {
            broker.broker_name
            for known in self._routes.values()
            for broker in known.route.broker_datas
        }
        for broker_name in self._addresses.keys() - in_routes:
            del self._addresses[broker_name]
        addresses = self._known_addresses()
        self._heartbeat_addresses &= addresses
        if not self._producers and not self._consumers:
            return
        await asyncio.gather(*(self._send_heartbeat(address) for address in sorted(addresses)))

    async def _send_heartbeat(self, address: str) -> None:
        heartbeat = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group) for group in sorted(self._producers)],
            consumer_data_set=[data() for _, data in sorted(self._consumers.items())],
        )
        try:
            response = await self.invoke(address, RequestCode.HEART_BEAT, body=heartbeat.encode())
        except NetworkError as fault:
            cause = ("heartbeat", address)
            self.log.warn(logger, cause, "heartbeat to broker %s failed: %s", address, fault)
            return
        if response.code == ResponseCode.SUCCESS:
            self._heartbeat_addresses.add(address)
        else:
            self.log.warn(
                logger,
                ("heartbeat", address),
                "heartbeat to broker %s was refused: code %d, %s",
                address,
                response.code,
                response.remark,
            )

    def _known_addresses(self) -> set[str]:
        """Return the addresses of the brokers that receive heartbeats: all brokers if this client
        has consumers, otherwise the masters.
        """
        return {
            address
            for addresses in self._addresses.values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or self._consumers
        }

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        async def unregister(address: str) -> None:
            try:
                await self.invoke(address, RequestCode.UNREGISTER_CLIENT, header)
            except NetworkError as fault:
                logger.warning(
                    "could not unregister from broker %s, which will expire the client: %s",
                    address,
                    fault,
                )

        await asyncio.gather(
            *(unregister(address) for address in sorted(self._heartbeat_addresses))
        )

    # -- background

    async def _refresh_routes_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.route_refresh_ms / 1000)
            await self.refresh_routes()

    async def _send_heartbeats_forever(self) -> None:
        await asyncio.sleep(self._settings.first_heartbeat_ms / 1000)
        while True:
            try:
                async with asyncio.timeout(self._settings.heartbeat_ms / 1000):
                    await self._heartbeat_due.wait()
            except TimeoutError:
                pass
            self._heartbeat_due.clear()
            await self.send_heartbeats()


async def _pause(delay_ms: int) -> None:
    await asyncio.sleep(delay_ms / 1000)


async def _address_towards(name_server: str) -> str:
    """Return the local address from which ``name_server`` is reached, without sending anything."""
    host, port = parse_address(name_server)
    try:
        probe, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(host, port)
        )
    except OSError as error:
        logger.warning(
            "no route to name server %s; the client id uses 127.0.0.1: %s", name_server, error
        )
        return "127.0.0.1"
    try:
        address: str = probe.get_extra_info("sockname")[0]
    finally:
        probe.close()
    return address.partition("%")[0]
