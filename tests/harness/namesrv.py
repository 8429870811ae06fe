"""A name server in virtual time, with files and channels in memory."""

from __future__ import annotations

from attrs import define, field

from rmqpy.config.loading import NamesrvConfiguration, NamesrvSettings
from rmqpy.namesrv import NameServer, NamesrvLimits
from rmqpy.remoting.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
    body_crc32,
)
from rmqpy.remoting.command import CURRENT_VERSION, RemotingCommand
from rmqpy.remoting.headers import RegisterBrokerRequestHeader
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

KV_PATH = "/ns/kvConfig.json"

SETTINGS_PATH = "/ns/namesrv.properties"


@define(eq=False)
class NameServerHarness:
    """A started name server with its files, its scheduler and a channel."""

    files: MemoryFiles = field(factory=MemoryFiles)
    scheduler: ManualScheduler = field(factory=ManualScheduler)
    order_message_enable: bool = False
    limits: NamesrvLimits = field(factory=NamesrvLimits)
    channel: MemoryChannel = field(factory=MemoryChannel)
    server: NameServer = field(init=False)
    _opaque: int = 0
    _brokers: dict[str, MemoryChannel] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        settings = NamesrvSettings(
            kv_config_path=KV_PATH,
            config_store_path=SETTINGS_PATH,
            order_message_enable=self.order_message_enable,
        )
        self.server = NameServer(
            NamesrvConfiguration(namesrv=settings), self.scheduler, self.files, limits=self.limits
        )
        self.server.start()

    def request(
        self, code: int, body: bytes = b"", version: int = CURRENT_VERSION, /, **ext: str
    ) -> RemotingCommand:
        """Return the answer to a request whose ext fields are ``ext``."""
        return self.send(RemotingCommand(code, version=version, ext_fields=ext, body=body))

    def send(
        self, command: RemotingCommand, channel: MemoryChannel | None = None
    ) -> RemotingCommand:
        """Return the answer to ``command``, which gets the next opaque."""
        channel = channel or self.channel
        self._opaque += 1
        command.opaque = self._opaque
        self.server.handle(channel, [command])
        self.server.turn_ended()
        self.scheduler.run_until_idle()
        answer = channel.take_one()
        assert answer.opaque == self._opaque
        assert answer.flag == 1
        return answer

    def register(
        self,
        address: str = "10.0.0.1:10911",
        *topics: str | TopicConfig,
        channel: MemoryChannel | None = None,
        counter: int = 0,
        name: str = "broker-a",
        broker_id: int = 0,
        cluster: str = "C",
        filter_servers: tuple[str, ...] = (),
        compressed: bool = False,
        expiry_ms: int | None = None,
    ) -> RemotingCommand:
        """Return the answer to the registration of a broker with ``topics``."""
        configs = [each if isinstance(each, TopicConfig) else TopicConfig(each) for each in topics]
        wrapper = TopicConfigSerializeWrapper(
            DataVersion(1_700_000_000_000, counter), {each.topic_name: each for each in configs}
        )
        registration = RegisterBrokerBody(wrapper, list(filter_servers))
        body = registration.encode_compressed() if compressed else registration.encode()
        host = address.partition(":")[0]
        if channel is None:
            channel = self._brokers.get(address)
            if channel is None or channel.closed:
                channel = self._brokers[address] = MemoryChannel()
        header = RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=address,
            cluster_name=cluster,
            ha_server_addr=f"{host}:10912",
            broker_id=broker_id,
            compressed=compressed,
            body_crc32=body_crc32(body),
            heartbeat_timeout_millis=expiry_ms,
        )
        return self.send(RemotingCommand.request(103, header, body), channel)

    def find_route(self, topic: str) -> TopicRouteData | None:
        """Return the route of ``topic``, or None if the name server has none."""
        answer = self.request(105, topic=topic)
        if answer.code == 17:
            return None
        assert answer.code == 0, answer
        return TopicRouteData.decode(answer.body)

    def route(self, topic: str) -> TopicRouteData:
        """Return the route of ``topic``, which must exist."""
        route = self.find_route(topic)
        assert route is not None, f"there is no route of {topic}"
        return route

    def addresses(self, topic: str) -> dict[str, dict[int, str]]:
        """Return the addresses by id of each broker in the route of ``topic``."""
        route = self.find_route(topic)
        return {each.broker_name: each.broker_addrs for each in route.broker_datas} if route else {}


def remark_of(answer: RemotingCommand) -> str:
    assert answer.remark is not None
    return answer.remark
