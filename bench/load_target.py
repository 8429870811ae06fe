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
class LoadTarget:
    """One broker or a group; ``members[leader]`` receives the load."""

    members: list[ServerProcess]
    topics: Sequence[str]
    leader: int = 0
    credentials: Credentials | None = None
    _has_topics: bool = field(default=False, init=False)

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
    def cpu_seconds(self) -> float:
        """The CPU time that the members have used."""
        return sum(map(cpu_seconds, self.pids))

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
        """Wait until a member has stored a message, make it the leader, and return the seconds."""
        start = time.monotonic()
        while time.monotonic() - start < LEADER_SECONDS_MAX:
            for number, member in enumerate(self.members):
                if member.running and self._accepts_messages(member):
                    self.leader = number
                    self._has_topics = True
                    return time.monotonic() - start
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"{self.name} accepts no message; see {self.output}")

    def _accepts_messages(self, member: ServerProcess) -> bool:
        try:
            with BlockingConnection(
                member.address, PROBE_TIMEOUT_S, self.credentials
            ) as connection:
                if not self._has_topics:
                    for topic in self.topics:
                        create_topic(connection, topic, QUEUES)
                return connection.call(send_request(self.topics[0], 0, [b"probe"])).code == 0
        except RmqError:
            return False


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
