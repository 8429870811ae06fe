"""Three whole brokers as a DLedger group in virtual time, with a network that can be cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, evolve, field

from rmqpy.broker.assembly.dledger_group import DLedgerDependencies, start_dledger_member
from rmqpy.broker.assembly.wiring import Broker, BrokerDependencies, build_broker
from rmqpy.codec.message import decode_message
from rmqpy.config.loading import (
    BrokerConfiguration,
    BrokerSettings,
    RemotingSettings,
    StoreSettings,
)
from rmqpy.dledger.protocol.json_bodies import decode_response, encode
from rmqpy.dledger.protocol.messages import (
    Request,
    Response,
)
from rmqpy.model.errors import NetworkError
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.remoting.channel import Network, Reply
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    SendMessageRequestHeaderV2,
)
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

MEMBERS = ("n0", "n1", "n2")
PEERS = ";".join(f"{name}-10.0.0.{number}:40911" for number, name in enumerate(MEMBERS))
FILE_SIZE = 4096
QUEUE_FILE_SIZE = 20_000
"""A thousand units: every start looks for the last one that is not zero."""


@define(eq=False)
class Member:
    """One broker, and its files, which outlive it."""

    number: int
    files: MemoryFiles
    changes: dict[str, Any]
    store: MessageStore | None = None
    broker: Broker | None = None
    driver: DLedgerDriver | None = None
    channel: MemoryChannel = field(factory=MemoryChannel)

    @property
    def name(self) -> str:
        return MEMBERS[self.number]

    def settings(self) -> StoreSettings:
        values: dict[str, Any] = {
            "store_path_root_dir": "/store",
            "mapped_file_size_commit_log": FILE_SIZE,
            "mapped_file_size_consume_queue": QUEUE_FILE_SIZE,
            "enable_dledger_commit_log": True,
            "dledger_group": "broker-a",
            "dledger_self_id": self.name,
            "dledger_peers": PEERS,
        }
        return StoreSettings(**(values | self.changes))

    def data(self) -> dict[str, bytes]:
        """Return the entries and index units on the disk, by file."""
        prefix = f"/store/dledger-{self.name}/"
        return {
            path.removeprefix(prefix): node.content().rstrip(b"\0")
            for path, node in self.files.nodes.items()
            if path.startswith((f"{prefix}data/", f"{prefix}index/"))
        }


@define
class Group:
    scheduler: ManualScheduler = field(factory=ManualScheduler)
    members: list[Member] = field(factory=list)
    cut: set[int] = field(factory=set)
    """The members that are cut off from the network."""

    rng: random.Random = field(factory=lambda: random.Random(1))
    serves_client: Callable[[str], bool] = lambda _address: True
    requests: int = 0
    """The number of requests between members."""

    registered: list[tuple[int, int]] = field(factory=list)
    """The member and the broker id of each registration."""

    @classmethod
    def of(cls, **changes: Any) -> Group:
        group = cls()
        for number in range(3):
            group.members.append(Member(number, MemoryFiles(), dict(changes)))
        return group

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self._start(self.members[number])

    def _start(self, member: Member) -> None:
        configuration = BrokerConfiguration(
            broker=BrokerSettings(broker_name="broker-a", namesrv_addr="10.0.0.9:9876"),
            remoting=RemotingSettings(listen_port=10911),
            store=member.settings(),
        )
        boot_id = str(member.files.power_failures)
        store = open_store(
            StoreContext(
                configuration.store, member.files, self.scheduler, 1 << 34, boot_id=boot_id
            )
        )
        network = MemberNetwork(self, member)
        broker = build_broker(
            BrokerDependencies(
                configuration=configuration,
                host=f"10.0.0.{member.number}",
                store=store,
                scheduler=self.scheduler,
                network=network,
                files=member.files,
                pick_queue=lambda below: 0,
            )
        )
        deps = DLedgerDependencies(
            scheduler=self.scheduler,
            network=network,
            rng=self.rng.randrange,
            serves_client=self.serves_client,
            admission=PeerAdmission(self.serves_client),
        )
        driver = start_dledger_member(broker, store, deps)
        assert driver is not None
        member.store, member.broker, member.driver = store, broker, driver
        member.channel = MemoryChannel()
        broker.start()
        driver.start()

    def kill(self, number: int, *, power: bool = False, pages: random.Random | None = None) -> None:
        """End the process; with ``power``, unsynced data is lost too, or with ``pages`` a random
        part of it.
        """
        member = self.members[number]
        assert member.store and member.driver and member.broker
        member.driver.stop()
        member.broker.periodic.stop()
        member.store.close_without_flush()
        if pages is not None:
            member.files = member.files.tear(pages)
        else:
            member.files = member.files.crash() if power else member.files.kill()
        member.store = member.broker = member.driver = None

    def stop(self, *numbers: int) -> None:
        """End processes cleanly."""
        for number in numbers:
            member = self.members[number]
            assert member.store and member.driver and member.broker
            member.driver.stop()
            member.broker.periodic.stop()
            member.store.shutdown()
            member.files = member.files.kill()
            member.store = member.broker = member.driver = None

    def run(self, delay_ms: int) -> None:
        self.scheduler.advance(delay_ms)

    def leader(self) -> Member:
        """Return the member whose broker is a master."""
        (found,) = [
            member
            for member in self.members
            if member.broker is not None and not member.broker.identity.is_slave
        ]
        return found

    def elect(self) -> Member:
        for _ in range(60):
            self.run(500)
            masters = [
                member
                for member in self.members
                if member.number not in self.cut
                and member.broker is not None
                and not member.broker.identity.is_slave
            ]
            if masters:
                return masters[0]
        raise AssertionError("no leader within 30 s")

    def ask(self, member: Member, command: RemotingCommand, wait_ms: int = 200) -> RemotingCommand:
        assert member.broker is not None
        member.broker.server.handle(member.channel, [command])
        member.broker.server.turn_ended()
        self.run(wait_ms)
        return member.channel.take_one()

    def send(self, member: Member, *bodies: bytes, wait_ms: int = 200) -> list[RemotingCommand]:
        assert member.broker is not None
        member.broker.server.handle(member.channel, [send_command(body) for body in bodies])
        member.broker.server.turn_ended()
        self.run(wait_ms)
        return member.channel.take()

    def read(self, member: Member) -> list[bytes]:
        """Return the bodies that a reader receives from queue 0 of topic T."""
        assert member.store is not None
        found: list[bytes] = []
        while True:
            page = member.store.reader.get_message("T", 0, len(found), 32, None)
            if not page.messages:
                return found
            found += [decode_message(message).body for message in page.messages]

    def request(self, member: Member, request: Request) -> Response:
        """Return the response to a request of DLedger's own protocol."""
        assert member.driver is not None
        channel = MemoryChannel()
        member.driver.handle(channel, [RemotingCommand.request(request.CODE, body=encode(request))])
        member.driver.turn_ended()
        self.run(200)
        answer = channel.take_one()
        assert answer.code == 200
        return decode_response(type(request), answer.body)


@define(eq=False)
class MemberNetwork:
    """The network of one member, with a delay of a millisecond."""

    group: Group
    member: Member

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
        scheduler = self.group.scheduler
        if address.endswith(":9876"):
            broker_id = int(command.ext_fields.get("brokerId", "-1"))
            self.group.registered.append((self.member.number, broker_id))
            scheduler.call_later(1, lambda: done(None, NetworkError("no name server")))
            return
        target = self.group.members[int(address.split(":")[0][-1])]
        self.group.requests += 1

        def arrive() -> None:
            if self._is_cut_off(target) or target.driver is None:
                scheduler.call_later(
                    timeout_ms if self._is_cut_off(target) else 1,
                    lambda: done(None, NetworkError(f"{address} is not reached")),
                )
                return
            channel = MemoryChannel((f"10.0.0.{self.member.number}", 50000))
            target.driver.handle(channel, [command])
            target.driver.turn_ended()
            self._watch(channel, target, done, timeout_ms)

        scheduler.call_later(1, arrive)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        pass

    def _is_cut_off(self, target: Member) -> bool:
        return bool({target.number, self.member.number} & self.group.cut)

    def _watch(self, channel: MemoryChannel, target: Member, done: Reply, left_ms: int) -> None:
        answers = channel.take()
        if answers and not self._is_cut_off(target):
            self.group.scheduler.call_later(1, lambda: done(answers[0], None))
        elif left_ms <= 0:
            done(None, NetworkError("no answer"))
        else:
            self.group.scheduler.call_later(
                5, lambda: self._watch(channel, target, done, left_ms - 5)
            )


@define
class RecordingNetwork:
    """A network that records the requests that are sent."""

    network: Network
    sent: list[RemotingCommand] = field(factory=list)

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
        self.sent.append(command)
        self.network.request(address, command, timeout_ms, done)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        self.network.oneway(address, command)


def send_command(body: bytes) -> RemotingCommand:
    header = SendMessageRequestHeaderV2(
        producer_group="PG",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_600_000_000_000,
        flag=0,
        properties="",
    )
    return RemotingCommand.request(310, header, body)
