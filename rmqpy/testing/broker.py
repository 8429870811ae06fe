"""A broker for tests, in this process or in another one, with faults and a clock.

::

    with Broker(topics=["orders"]) as broker:
        broker.send("orders", b"order 7")
        broker.kill()
        broker.start()
        assert [message.body for message in broker.messages("orders")] == [b"order 7"]

Both kinds are the same servers and obey the same commands (:mod:`rmqpy.testing.dev.commands`). In
this process, each server has a thread and an event loop of its own, so ``async with`` works in any
loop, and the broker serves while a test blocks.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.client import MessageExt, ProducerSettings, SendResult
    from rmqpy.client.blocking import BlockingProducer
    from rmqpy.testing.dev.backends import Backend

PRODUCER_GROUP = "rmqpy-testing-producer"
CONSUMER_GROUP = "rmqpy-testing-consumer"
SEND_MS = 20_000
"""Several test runs at once on a small machine may need some elections in a row."""


class BrokerClosedError(RmqError):
    """A broker for tests was used before its start, or after its end."""


class DevServers:
    """The servers of a plan, in this process or in another one: a context manager, also an
    asynchronous one. :meth:`open` and :meth:`close` do the same.
    """

    def __init__(self, plan: Mapping[str, Any], *, process: bool) -> None:
        self._plan = plan
        self._process = process
        self._known: dict[str, Any] | None = None
        self._backend: Backend | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    def open(self) -> Self:
        """Start the servers; clients can use them, and all topics, when this returns."""
        if self._backend is not None:
            raise BrokerClosedError("found servers that run already; close them first")
        from rmqpy.testing.dev.backends import start_backend

        given = self._plan.get("name_server")
        address = given.address if isinstance(given, NameServer) else given
        plan = {**self._plan, "name_server": address}
        self._backend, self._known = start_backend(plan, process=self._process)
        # A test that ends without close leaves no server and no folder.
        self._finalizer = weakref.finalize(self, self._backend.close)
        return self

    def close(self) -> None:
        """End the servers. Idempotent."""
        backend, self._backend, self._known = self._backend, None, None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if backend is not None:
            backend.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.open)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        if self._known is None:
            return f"{type(self).__name__}(closed)"
        brokers = "".join(f", {name} {at}" for name, at in self._known["brokers"].items())
        return f"{type(self).__name__}(name server {self._known['name_server']}{brokers})"

    @property
    def _addresses(self) -> dict[str, Any]:
        if self._known is None:
            raise BrokerClosedError("found servers that do not run; use them in a with block")
        return self._known

    def _run(self, do: str, **arguments: object) -> dict[str, Any]:
        """Run one command of :mod:`rmqpy.testing.dev.commands`. Raises DevError if it fails."""
        if self._backend is None:
            raise BrokerClosedError(f"{do}: found servers that do not run; use a with block")
        from rmqpy.testing.dev.nodes import DevError

        answer = self._backend.run({"do": do, **arguments})
        if not answer["ok"]:
            raise DevError(answer["error"])
        return answer


class NameServer(DevServers):
    """A name server for tests, which several brokers can share; ``address`` is ``host:port``.

    With ``process`` it runs in a process of its own. A context manager, also an asynchronous one;
    :meth:`open` and :meth:`close` do the same.
    """

    def __init__(self, *, process: bool = False, root: Path | None = None) -> None:
        super().__init__({"members": 0, "root": root}, process=process)

    @property
    def address(self) -> str:
        address: str = self._addresses["name_server"]
        return address

    def start(self) -> None:
        """Start again after :meth:`stop`."""
        self._run("start", node="namesrv")

    def stop(self) -> None:
        """Stop the name server; its brokers keep running."""
        self._run("stop", node="namesrv")

    def pause(self) -> None:
        """Keep all connections open, and answer nothing."""
        self._run("pause", node="namesrv")

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self._run("resume", node="namesrv")


class Broker(DevServers):
    """A broker for tests, or a DLedger group with ``members`` above 1, and its name server.

    * ``topics``: topics to create, as ``name`` or ``name:queues``; others are created by the first
      message that is sent to them.
    * ``settings``, ``config``: keys of broker.conf, and a file with such keys.
    * ``name_server``: a :class:`NameServer`, or the address of one, to use instead of an own one.
    * ``dledger``: whether a single broker has a DLedger log.
    * ``process``: whether the servers run in a process of their own instead of threads.
    * ``stores``: store directories to open and change, by the name of the broker; the name of the
      only one is ``broker``.
    * ``root``: the folder for all files, which remains; otherwise a temporary one is used.

    A context manager, also an asynchronous one; :meth:`open` and :meth:`close` do the same. The
    methods that take ``node`` need it only in a group, whose members are ``n0``, ``n1``, and so on;
    the name server is ``namesrv``. They return when the effect is there, and block: in a coroutine,
    ``await asyncio.to_thread(broker.advance, 3600)`` keeps the loop free.
    """

    def __init__(
        self,
        *,
        topics: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        config: Path | None = None,
        name_server: NameServer | str | None = None,
        dledger: bool = False,
        members: int = 1,
        process: bool = False,
        stores: Mapping[str, Path] | None = None,
        root: Path | None = None,
    ) -> None:
        plan = {
            "members": members,
            "dledger": dledger,
            "topics": tuple(topics),
            "settings": dict(settings or {}),
            "config": config,
            "name_server": name_server,
            "stores": dict(stores or {}),
            "root": root,
        }
        super().__init__(plan, process=process)
        self._clients = ExitStack()
        self._producer: BlockingProducer | None = None

    # -- life

    def close(self) -> None:
        """Close the clients of this object and end the servers. Idempotent."""
        try:
            self._clients.close()
        finally:
            self._producer = None
            super().close()

    # -- where it is

    @property
    def name_server(self) -> str:
        """The address of the name server, for clients."""
        address: str = self._addresses["name_server"]
        return address

    @property
    def address(self) -> str:
        """The address of the broker; of a group, that of its leader, for which it waits."""
        addresses = self.addresses
        if len(addresses) == 1:
            return next(iter(addresses.values()))
        return addresses[self.leader()]

    @property
    def addresses(self) -> dict[str, str]:
        """The address of every broker by its name."""
        return dict(self._addresses["brokers"])

    @property
    def stores(self) -> dict[str, Path]:
        """The store directory (``storePathRootDir``) of every broker by its name."""
        found = self._addresses["stores"]
        return {name: Path(path) for name, path in found.items()}

    @property
    def store(self) -> Path:
        """The store directory of the only broker."""
        (store,) = self.stores.values()
        return store

    def leader(self) -> str:
        """Return the name of the master or leader, once the name server knows it."""
        name: str = self._run("leader")["node"]
        return name

    def status(self) -> dict[str, Any]:
        """Return the state of every server, by its name."""
        nodes: dict[str, Any] = self._run("status")["nodes"]
        return nodes

    # -- faults and the clock

    def stop(self, node: str | None = None) -> None:
        """Stop a server in an orderly way."""
        self._run("stop", node=node)

    def start(self, node: str | None = None) -> None:
        """Start a server again after :meth:`stop` or :meth:`kill`."""
        self._run("start", node=node)
        if node != "namesrv":
            self.leader()

    def kill(self, node: str | None = None) -> None:
        """End a server as kill -9 would: nothing is written any more, and nobody is told."""
        self._run("kill", node=node)

    def pause(self, node: str | None = None) -> None:
        """Keep the connections of a server open, and let it read and do nothing."""
        self._run("pause", node=node)

    def resume(self, node: str | None = None) -> None:
        """Let a server continue after :meth:`pause`."""
        self._run("resume", node=node)

    def partition(self, *nodes: str) -> None:
        """Separate these servers from all others; clients still reach all of them."""
        self._run("partition", nodes=list(nodes))

    def heal(self) -> None:
        """End the partition."""
        self._run("heal")

    def slow_disk(self, seconds: float, node: str | None = None) -> None:
        """Let every sync of the disk take ``seconds``; 0 ends it."""
        self._run("slow_disk", node=node, seconds=seconds)

    @contextmanager
    def paused(self, node: str | None = None) -> Iterator[None]:
        """Pause a server in a block."""
        self.pause(node)
        try:
            yield
        finally:
            self.resume(node)

    def advance(self, seconds: float) -> None:
        """Advance the clock of all brokers: delayed messages are delivered, transactions are
        checked, and files expire as after that time. Connections keep the real time.
        """
        self._run("advance", seconds=seconds)

    # -- topics and messages

    def create_topic(self, name: str, queues: int = 4) -> None:
        """Create a topic, which has a route when this returns."""
        self._run("topic", name=name, queues=queues)

    def producer(
        self, group: str = PRODUCER_GROUP, settings: ProducerSettings | None = None
    ) -> BlockingProducer:
        """Return a started producer, which is closed with the broker.

        Without ``settings`` a send waits up to ``SEND_MS`` for an election.
        """
        from rmqpy.client import ProducerSettings
        from rmqpy.client.blocking import BlockingProducer

        settings = settings or ProducerSettings(timeout_ms=SEND_MS)
        producer = BlockingProducer(group, self.name_server, settings=settings)
        return self._clients.enter_context(producer)

    def send(self, topic: str, body: bytes, **fields: Any) -> SendResult:
        """Send one message; ``fields`` are further fields of :class:`rmqpy.client.Message`."""
        from rmqpy.client import Message

        if self._producer is None:
            self._producer = self.producer()
        return self._producer.send(Message(topic=topic, body=body, **fields))

    def messages(self, topic: str) -> list[MessageExt]:
        """Return all messages of a topic, queue by queue, without consuming them."""
        from rmqpy.client import PullStatus
        from rmqpy.client.blocking import BlockingPullConsumer

        found: list[MessageExt] = []
        with BlockingPullConsumer(CONSUMER_GROUP, self.name_server) as consumer:
            for queue in consumer.queues(topic):
                page = consumer.pull(queue, consumer.min_offset(queue))
                while page.status is PullStatus.FOUND:
                    found += page.messages
                    page = consumer.pull(queue, page.next_begin_offset)
        return found
