"""A stranger, who sends frames to the peers' ports in the names of members.

Its requests are well-formed: votes, heartbeats and pushes in the current term, in a slightly larger
one and in terms that no group reaches, and handshakes with other file sizes. Its address is that of
no member, so nothing of this may have an effect.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from attrs import define, evolve

from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import (
    Entry,
    HeartBeatRequest,
    PushEntryRequest,
    PushType,
    Request,
    VoteRequest,
)
from rmqpy.model.codes import RequestCode
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.remoting.command import RemotingCommand
from simulator.broker_host import BrokerHost
from simulator.host import LEDGER_PORT
from simulator.network import NetworkClient
from simulator.plan import GROUP_NAME

TIMEOUT_MS = 1000
LARGEST_TERM = (1 << 63) - 1
BODY = b"forged" * 30


@define(slots=True, eq=False, repr=False)
class Stranger:
    """A machine that is not part of the group."""

    client: NetworkClient
    hosts: Mapping[str, BrokerHost]
    rng: random.Random

    def send(self) -> None:
        """Send one forged request to a member, in the name of another one."""
        names = list(self.hosts)
        if len(names) < 2:
            return
        victim, name = self.rng.sample(names, 2)
        host, other = self.hosts[victim], self.hosts[name]
        if host.node is None:
            return
        if self.rng.random() < 0.2 and other.running is not None:
            command = self._handshake(other)
        else:
            request = self._request(host, name)
            command = RemotingCommand.request(int(request.CODE), body=encode(request))
        address = f"{host.machine.host}:{LEDGER_PORT}"
        self.client.request(address, command, TIMEOUT_MS, lambda _answer, _fault: None)

    def _request(self, host: BrokerHost, name: str) -> Request:
        node = host.node
        assert node is not None
        term = self.rng.choice((node.term, node.term + 1, node.term + 3, LARGEST_TERM))
        leader = name if self.rng.random() < 0.5 else node.leader_id or name
        header: dict[str, Any] = {
            "group": GROUP_NAME,
            "remote_id": host.name,
            "local_id": leader,
            "leader_id": leader,
            "term": Term(term),
        }
        kind = self.rng.randrange(4)
        if kind == 0:
            end = node.committed_index + 1000
            return VoteRequest(**header, ledger_end_index=end, ledger_end_term=term)
        if kind == 1:
            return HeartBeatRequest(**header)
        commit_index = node.committed_index + 1
        if kind == 2:
            return PushEntryRequest(**header, type=PushType.COMMIT, commit_index=commit_index)
        running = host.running
        assert running is not None and running.store.opened.entries is not None
        position = running.store.opened.entries.end_offset
        index = LedgerIndex(running.store.opened.entries.end.index + 1)
        entry = Entry.of(index, Term(min(term, node.term)), position, BODY)
        kinds = PushType.APPEND, PushType.TRUNCATE, PushType.COMPARE
        kind_of_push = self.rng.choice(kinds)
        return PushEntryRequest(
            **header, type=kind_of_push, commit_index=commit_index, entries=(entry,)
        )

    @staticmethod
    def _handshake(other: BrokerHost) -> RemotingCommand:
        assert other.running is not None and other.running.driver is not None
        hello = other.running.driver.introduce()
        body = evolve(hello, file_size=2 * hello.file_size, nonce="forged").encode()
        return RemotingCommand.request(RequestCode.RMQPY_DLEDGER_HANDSHAKE, body=body)
