"""A whole broker in memory: real store, virtual time, channels and servers that only remember."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, evolve, field

from rmqpy.broker.assembly.server import BrokerServer
from rmqpy.config.loading import (
    BrokerConfiguration,
    BrokerSettings,
    RemotingSettings,
    StoreSettings,
)
from rmqpy.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmqpy.remoting.channel import Reply
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

ROOT = "/store"

NAME_SERVERS = "10.0.0.8:9876;10.0.0.9:9876"

PORT = 10911


@define
class MemoryNetwork:
    """Outgoing requests, kept for the test to look at and to answer."""

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
        if pieces:
            command = evolve(command, body=b"".join(pieces))
        self.requests.append((address, command, done))

    def oneway(self, address: str, command: RemotingCommand) -> None:
        self.oneways.append((address, command))

    def take(self) -> list[tuple[str, RemotingCommand, Reply]]:
        taken, self.requests = self.requests, []
        return taken


@define
class BrokerHarness:
    """The broker and everything around it."""

    scheduler: ManualScheduler
    files: MemoryFiles
    network: MemoryNetwork
    store: MessageStore
    broker: BrokerServer
    channel: MemoryChannel
    picked_queue: list[int]

    def ask(
        self,
        code: int,
        header: CommandHeader | None = None,
        body: bytes = b"",
        channel: MemoryChannel | None = None,
    ) -> RemotingCommand:
        """One request in a turn of its own, and its one answer."""
        channel = channel or self.channel
        self.tell(RemotingCommand.request(code, header, body), channel=channel)
        return channel.take_one()

    def tell(self, *commands: RemotingCommand, channel: MemoryChannel | None = None) -> None:
        """Requests in one turn; whatever they cause is left in the channels."""
        self.broker.handle(channel or self.channel, commands)
        self.broker.turn_ended()

    def send(self, body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        """A single message by V2."""
        self.tell(self.send_command(body, **fields))
        return self.channel.take_one()

    def send_command(self, body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        oneway = fields.pop("oneway", False)
        code = fields.pop("code", 310)
        form = SendMessageRequestHeader if code == 10 else SendMessageRequestHeaderV2
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
        return RemotingCommand.request(11, PullMessageRequestHeader(**{**values, **fields}))

    def pull(self, **fields: Any) -> RemotingCommand:
        """A pull that is answered at once."""
        self.tell(self.pull_command(**fields))
        return self.channel.take_one()

    def heartbeat(
        self,
        channel: MemoryChannel | None = None,
        client_id: str = "c1",
        group: str | None = "CG",
        subscriptions: tuple[SubscriptionData, ...] = (),
        **fields: Any,
    ) -> RemotingCommand:
        producer = fields.pop("producer", None)
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
        self.tell(RemotingCommand.request(34, None, data.encode()), channel=channel)
        answers = channel.take()
        return next(answer for answer in answers if answer.is_response)


BuildBroker = Callable[..., BrokerHarness]


def configured(values: dict[str, Any]) -> BrokerConfiguration:
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
    for name, value in values.items():
        if hasattr(broker, name):
            broker = evolve(broker, **{name: value})
        elif hasattr(store, name):
            store = evolve(store, **{name: value})
        else:
            remoting = evolve(remoting, **{name: value})
    return BrokerConfiguration(broker=broker, remoting=remoting, store=store)
