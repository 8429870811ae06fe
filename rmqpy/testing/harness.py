"""A whole broker in one object: real store, virtual time, and no socket, thread, or disk.

:func:`memory_broker` builds a :class:`BrokerHarness`. A test sends it one request after the other,
advances its time with ``harness.scheduler.advance``, reads the broker's own requests from
``harness.network``, and starts a second broker on ``harness.files`` to test a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, evolve, field

from rmqpy.broker.assembly.wiring import (
    Broker,
    BrokerDependencies,
    build_broker,
    put_hooks_of,
)
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.config.loading import (
    BrokerConfiguration,
    BrokerSettings,
    RemotingSettings,
    StoreSettings,
)
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmqpy.remoting.channel import Reply
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rmqpy.store.files.deferred_write import DeferredFileWriter
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

ROOT = "/store"
"""The storePathRootDir of every broker in memory."""

NAME_SERVERS = "10.0.0.8:9876;10.0.0.9:9876"

PORT = 10911

MEMORY_BYTES = 1 << 30
"""The physical memory of the simulated machine in bytes."""


@define
class MemoryNetwork:
    """An outgoing network that keeps the broker's requests, for the test to inspect and answer."""

    requests: list[tuple[str, RemotingCommand, Reply]] = field(factory=list)
    oneways: list[tuple[str, RemotingCommand]] = field(factory=list)

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Reply,
        pieces: Sequence[bytes] = (),
    ) -> None:
        """Keep a request and its reply callback; ``pieces`` become its body."""
        if pieces:
            command = evolve(command, body=b"".join(pieces))
        self.requests.append((address, command, done))

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Keep a request that expects no answer."""
        self.oneways.append((address, command))

    def take(self) -> list[tuple[str, RemotingCommand, Reply]]:
        """Return the requests sent since the last call."""
        requests, self.requests = self.requests, []
        return requests


@define
class BrokerHarness:
    """A broker and its environment.

    ``channel`` is the connection of the calling client. ``picked_queue`` has the numbers of queues
    among which the broker chose one at random; the harness always picks the last.
    """

    scheduler: ManualScheduler
    files: MemoryFiles
    network: MemoryNetwork
    store: MessageStore
    broker: Broker
    channel: MemoryChannel
    picked_queue: list[int]

    def call(
        self,
        code: int,
        header: CommandHeader | None = None,
        body: bytes = b"",
        channel: MemoryChannel | None = None,
    ) -> RemotingCommand:
        """Send one request in a separate turn and return its response, which may wait for a write
        of the broker.
        """
        channel = channel or self.channel
        before = len(channel.written)
        self.deliver(RemotingCommand.request(code, header, body), channel=channel)
        if len(channel.written) == before:
            self.scheduler.run_until_idle()
        return channel.take_one()

    def deliver(self, *commands: RemotingCommand, channel: MemoryChannel | None = None) -> None:
        """Deliver requests in one turn; responses stay in the channels."""
        self.broker.server.handle(channel or self.channel, commands)
        self.broker.server.turn_ended()

    def send(self, body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        """Send a message and return the response; ``fields`` are passed to ``send_command``."""
        self.deliver(self.send_command(body, **fields))
        return self.channel.take_one()

    def send_command(
        self,
        body: bytes = b"hello",
        *,
        code: int = RequestCode.SEND_MESSAGE_V2,
        oneway: bool = False,
        **fields: Any,
    ) -> RemotingCommand:
        """Return a request that sends ``body`` to queue 0 of topic T; ``fields`` override the
        defaults of its header.
        """
        form = (
            SendMessageRequestHeader
            if code == RequestCode.SEND_MESSAGE
            else SendMessageRequestHeaderV2
        )
        values: dict[str, Any] = {
            "producer_group": "PG",
            "topic": "T",
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": 1_600_000_000_000,
            "flag": 0,
            "properties": "UNIQ_KEY\x01U1",
        }
        command = RemotingCommand.request(code, form(**{**values, **fields}), body)
        if oneway:
            command.flag |= FLAG_ONEWAY
        return command

    def pull_command(self, **fields: Any) -> RemotingCommand:
        """Return a request that pulls queue 0 of topic T from offset 0; ``fields`` override the
        defaults of its header.
        """
        values: dict[str, Any] = {
            "consumer_group": "CG",
            "topic": "T",
            "queue_id": 0,
            "queue_offset": 0,
            "max_msg_nums": 32,
            "sys_flag": 4,
            "commit_offset": 0,
            "suspend_timeout_millis": 15_000,
            "subscription": "*",
            "sub_version": 0,
        }
        header = PullMessageRequestHeader(**{**values, **fields})
        return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)

    def pull(self, **fields: Any) -> RemotingCommand:
        """Pull and return the response. A pull that the broker holds fails the test."""
        self.deliver(self.pull_command(**fields))
        return self.channel.take_one()

    def heartbeat(
        self,
        channel: MemoryChannel | None = None,
        client_id: str = "c1",
        group: str | None = "CG",
        subscriptions: tuple[SubscriptionData, ...] = (),
        producer: str | None = None,
        **fields: Any,
    ) -> RemotingCommand:
        """Register a member of consumer group ``group`` and of producer group ``producer``, each
        unless it is None, and return the response; ``fields`` are passed to ``ConsumerData``.
        """
        consumers = []
        if group is not None:
            values: dict[str, Any] = {
                "consume_type": "CONSUME_PASSIVELY",
                "message_model": "CLUSTERING",
                "consume_from_where": "CONSUME_FROM_LAST_OFFSET",
                "subscription_data_set": list(subscriptions),
            }
            consumers.append(ConsumerData(group, **{**values, **fields}))
        data = HeartbeatData(
            client_id=client_id,
            producer_data_set=[ProducerData(producer)] if producer else [],
            consumer_data_set=consumers,
        )
        channel = channel or self.channel
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, data.encode())
        self.deliver(command, channel=channel)
        return next(answer for answer in channel.take() if answer.is_response)


BuildBroker = Callable[..., BrokerHarness]
"""The type of :func:`memory_broker`, for fixtures that return it."""


def memory_broker(
    files: MemoryFiles | None = None,
    scheduler: ManualScheduler | None = None,
    start: bool = True,
    host: str = "10.0.0.2",
    settings_path: str | None = None,
    **settings: Any,
) -> BrokerHarness:
    """Build a broker, and start it unless ``start`` is False.

    ``settings`` are attributes of ``BrokerSettings``, ``StoreSettings``, or ``RemotingSettings``,
    for example ``flush_disk_type``. ``files`` and ``scheduler`` of another harness let two brokers
    share a disk or a clock; ``settings_path`` is the file that UPDATE_BROKER_CONFIG rewrites.
    """
    scheduler = scheduler or ManualScheduler()
    files = files or MemoryFiles()
    settings_file = None
    if settings_path is not None:
        writer = DeferredFileWriter(settings_path, files, scheduler)
        settings_file = SettingsFile(writer, {"own": "1"})
    configuration = memory_configuration(settings)
    store = open_store(StoreContext(configuration.store, files, scheduler, MEMORY_BYTES))
    network = MemoryNetwork()
    picked: list[int] = []

    def pick(count: int) -> int:
        picked.append(count)
        return count - 1

    broker = build_broker(
        BrokerDependencies(
            configuration=configuration,
            host=host,
            store=store,
            scheduler=scheduler,
            network=network,
            files=files,
            pick_queue=pick,
            settings_file=settings_file,
            hooks=put_hooks_of(configuration.store),
        )
    )
    if start:
        broker.start()
    channel = MemoryChannel(peer=("10.0.0.1", 1234))
    return BrokerHarness(scheduler, files, network, store, broker, channel, picked)


def memory_configuration(settings: dict[str, Any]) -> BrokerConfiguration:
    """Return the configuration of a broker with small files, changed by ``settings``."""
    broker = BrokerSettings(
        broker_name="broker-a", broker_cluster_name="C", namesrv_addr=NAME_SERVERS
    )
    store = StoreSettings(
        store_path_root_dir=ROOT,
        mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=20 * 1000,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    remoting = RemotingSettings(listen_port=PORT)
    for name, value in settings.items():
        if hasattr(broker, name):
            broker = evolve(broker, **{name: value})
        elif hasattr(store, name):
            store = evolve(store, **{name: value})
        else:
            remoting = evolve(remoting, **{name: value})
    return BrokerConfiguration(broker=broker, remoting=remoting, store=store)
