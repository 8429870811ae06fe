"""The target of a load: one broker, or the three members of a DLedger group on one core."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import define, field

from rmqpy.acl.signature import Credentials
from rmqpy.model.errors import RmqError
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic, send_request
from rmqpy.testing.processes import ServerProcess

QUEUES = 4
LEADER_SECONDS_MAX = 180
PROBE_TIMEOUT_S = 1.0
POLL_SECONDS = 0.02


@define(eq=False)
class Served:
    """The brokers of a target; ``members[leader]`` receives the load."""

    members: list[ServerProcess]
    topics: Sequence[str]
    leader: int = 0
    credentials: Credentials | None = None
    _found: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        return self.members[0].name

    @property
    def output(self) -> Path:
        return self.members[self.leader].output

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.members]

    @property
    def port(self) -> int:
        return self.members[self.leader].port

    @property
    def address(self) -> str:
        return self.members[self.leader].address

    def start(self) -> None:
        """Start the members and wait until one of them accepts messages."""
        for member in self.members:
            member.launch()
        self.find_leader()

    def pause(self) -> None:
        for member in self.members:
            os.kill(member.pid, signal.SIGSTOP)

    def resume(self) -> None:
        for member in self.members:
            if member.running:
                os.kill(member.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.resume()
        for member in self.members:
            member.kill()

    def find_leader(self) -> float:
        """Return the seconds until a member has stored a message, which is the leader from now
        on.
        """
        began = time.monotonic()
        while time.monotonic() - began < LEADER_SECONDS_MAX:
            for number, member in enumerate(self.members):
                if member.running and self._takes_messages(member):
                    self.leader = number
                    self._found = True
                    return time.monotonic() - began
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"{self.name} accepts no message; see {self.output}")

    def _takes_messages(self, member: ServerProcess) -> bool:
        try:
            with BlockingConnection(
                member.address, PROBE_TIMEOUT_S, self.credentials
            ) as connection:
                if not self._found:
                    for topic in self.topics:
                        create_topic(connection, topic, QUEUES)
                return connection.call(send_request(self.topics[0], 0, [b"probe"])).code == 0
        except RmqError:
            return False
