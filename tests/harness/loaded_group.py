"""A group of broker processes with a producer of plain, delayed, and half messages."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import define, field

from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, Site

LEVELS = "1s 2s 3s 4s 5s 6s"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01half"
WAIT_S = 60.0


@define(eq=False)
class LoadedGroup:
    """The brokers, and a producer that sends to whichever accepts messages. ``acknowledged`` is the
    number of its messages that were.
    """

    root: Path
    settings: tuple[Mapping[str, str], ...]
    """The settings of each member, in addition to those of the messages."""
    environment: Mapping[str, str] = field(factory=dict)
    wait_s: float = WAIT_S
    """The time for a start, and for each wait."""
    interval_s: float = 0.001
    """The time between two messages. Without any, the producer and its brokers take all cores."""
    others: Mapping[int, Site] = field(factory=dict)
    """Who makes the brokers, by number, that are not of rmqpy."""
    blocks: list[PortBlock] = field(factory=list)
    servers: list[ServerProcess] = field(factory=list)
    acknowledged: int = 0
    longest_gap_s: float = 0.0
    """The longest time between two acknowledgements."""
    _ended: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, count: int | None = None) -> None:
        """Start the name server and the first ``count`` brokers; all by default."""
        site = RmqpySite(self.root, environment=self.environment)
        names = site.namesrv("namesrv", self._block(1).first)
        self.servers.append(names.start())
        for number, settings in enumerate(self.settings):
            spec = BrokerSpec(
                port=self._block(BROKER_PORT_COUNT).broker_port,
                namesrv=names.address,
                settings={
                    **settings,
                    "messageDelayLevel": LEVELS,
                    "transactionCheckInterval": "300",
                    "transactionTimeOut": "100",
                    # The disk of a machine may be so full that files go before their time.
                    "cleanFileForciblyEnable": "false",
                },
            )
            maker = self.others.get(number, site)
            self.servers.append(maker.broker(f"n{number}", spec))
            self.servers[-1].ready_timeout_s = self.wait_s
        with ThreadPoolExecutor() as starts:
            list(starts.map(ServerProcess.start, self.brokers[:count]))
        self.wait_for_registration(count)

    def wait_for_registration(self, count: int | None = None) -> None:
        """Wait until the name server knows the first ``count`` brokers."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        with BlockingConnection(self.servers[0].address) as names:
            deadline, unknown = time.monotonic() + self.wait_s, self.brokers[:count]
            while unknown:
                assert time.monotonic() < deadline, [each.printed()[-2000:] for each in unknown]
                table = names.call(request).body.decode()
                unknown = [each for each in unknown if f'"{each.address}"' not in table]
                self._ended.wait(0.01)

    @property
    def brokers(self) -> list[ServerProcess]:
        return self.servers[1:]

    def load(self) -> None:
        """Start to send to whichever member accepts messages."""
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        self.wait_for(100)

    def wait_for(self, acknowledged: int) -> None:
        """Wait until so many messages were acknowledged."""
        deadline = time.monotonic() + self.wait_s
        while self.acknowledged < acknowledged:
            assert time.monotonic() < deadline, [each.printed()[-2000:] for each in self.brokers]
            self._ended.wait(0.01)

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for server in self.servers:
            server.kill()
        for block in self.blocks:
            block.release()

    def _send(self) -> None:
        last_s = time.monotonic()
        for server in itertools.cycle(self.brokers):
            if self._ended.wait(0.01):
                return
            with contextlib.suppress(NetworkError), BlockingConnection(server.address) as member:
                while not self._ended.is_set() and member.call(self._message()).code == 0:
                    self.acknowledged += 1
                    self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - last_s)
                    last_s = time.monotonic()
                    self._ended.wait(self.interval_s)

    def _message(self) -> RemotingCommand:
        """Return the next request: every other message is delayed, every tenth is a half one."""
        number = self.acknowledged
        if number % 10 == 0:
            request = send_request("T", 0, [b"half %d" % number], HALF)
            request.ext_fields["f"] = "4"
            return request
        delay = f"\x02DELAY\x01{number % 6 + 1}" if number % 2 else ""
        return send_request("T", 0, [b"%d" % number], f"UNIQ_KEY\x01U{number}{delay}")

    def _block(self, count: int) -> PortBlock:
        self.blocks.append(free_port_block(count))
        return self.blocks[-1]
