"""Scenarios of nodes as text: ``scenarios/*.txt`` contain commands and, below ``----``, their
expected results.

RMQPY_REWRITE=1 writes the actual results instead; review the difference before you commit it.

==================================  ============================================================
command                             does
==================================  ============================================================
boot n0 peers=n0,n1 log=1,1,2 …     start a member with one entry of each given term; also term,
                                    vote, committed, required, begin (first index), dice (the random
                                    number), and options by name
tick n0 100                         let 100 ms pass for n0
receive n0 vote from=n1 term=2 …    deliver a request; kinds: vote, beat, append, commit, compare,
                                    truncate, transfer, get, put, metadata. ``entries=3/2,4/2`` are
                                    index/term
answer n0 n1 push code=SUCCESS …    answer the oldest unanswered push of n0 to n1; ``none``: no
                                    answer; kinds: vote, beat, push, transfer
propose n0 2                        put two entries
disk n0 FULL                        report the state of the disk; also GOOD, FAILED
synced n0                           report the log of n0 as durable
drop n0 n1 [push]                   lose the messages in flight from n0 to n1, of that kind
settle                              deliver all messages until none is left
show n0                             print its state
fault n0                            print why it must not lead or cannot follow
verdict n0                          print how its vote rounds ended, and when the next may start
==================================  ============================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from attrs import define, evolve, field, fields_dict
from simulator.memory_log import MemoryLog

from rmqpy.dledger.election import VoteParseResult
from rmqpy.dledger.entries import as_singletons
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import (
    Answered,
    DiskReport,
    Node,
    Proposal,
    ProposalRejected,
    Ready,
    Received,
    Send,
    Stored,
    Synced,
)
from rmqpy.dledger.protocol.messages import (
    RESPONSES,
    AppendEntryRequest,
    DLedgerMessage,
    DLedgerResponseCode,
    Entry,
    GetEntriesRequest,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MetadataRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from rmqpy.dledger.state import DiskState, HardState
from rmqpy.model.ids import LedgerIndex, Term

SCENARIOS = Path(__file__).parent / "scenarios"
GROUP = "g"
KINDS: dict[str, type[Request]] = {
    "vote": VoteRequest,
    "beat": HeartBeatRequest,
    "push": PushEntryRequest,
    "transfer": LeadershipTransferRequest,
}
ENTRY_SPACE = 64
"""The size of each entry of a scenario in bytes, header included."""


@define
class Member:
    """A node, its log, and its clock."""

    node: Node
    log: MemoryLog
    now_ms: int = 0


Message = Send | tuple[int, Response]
"""A request, or the ticket of a request and its response."""


@define
class Stage:
    """The members of a scenario, and the undelivered messages between them."""

    members: dict[str, Member] = field(factory=dict)
    in_flight: list[tuple[str, str, Message]] = field(factory=list)
    """Sender, receiver, and message."""

    requested: dict[int, tuple[str, int]] = field(factory=dict)
    """The waiting member and its ticket, by the ticket of the delivered request."""

    tickets: int = 100
    token: int = 0
    out: list[str] = field(factory=list)

    def run(self, line: str) -> None:
        words = line.split()
        values = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        getattr(self, f"do_{words[0]}")(*plain, **values)

    def do_boot(self, name: str, peers: str, **values: str) -> None:
        self.in_flight = [sent for sent in self.in_flight if name not in sent[:2]]
        log = MemoryLog()
        terms = [int(term) for term in values.pop("log", "").split(",") if term]
        begin = int(values.pop("begin", "0"))
        for number, term in enumerate(terms):
            log.append([entry_at(begin + number, term)])
        log.sync()
        state = HardState(Term(int(values.pop("term", "0"))), values.pop("vote", None))
        committed = LedgerIndex(int(values.pop("committed", "-1")))
        required = LedgerIndex(int(values.pop("required", "-1")))
        rng = int(values.pop("dice", "0"))
        options = RaftOptions(rng=lambda below: min(rng, below - 1))
        for key, value in values.items():
            kind = type(getattr(options, key))
            assert key in fields_dict(RaftOptions), f"{key} is no option"
            new: Any = tuple(value.split(",")) if kind is tuple else int(value)
            options = evolve(options, **{key: new})
        members = tuple(peers.split(","))
        node = Node(Membership(GROUP, name, members), state, log, committed, options, required)
        self.members[name] = Member(node, log)

    def do_tick(self, name: str, delay_ms: str) -> None:
        member = self.members[name]
        member.now_ms += int(delay_ms)
        member.node.tick(member.now_ms)
        self.carry_out(name)

    def do_receive(self, name: str, kind: str, **values: str) -> None:
        self.tickets += 1
        self.requested[self.tickets] = "", 0
        self.members[name].node.step(Received(self.tickets, request_of(name, kind, values)))
        self.carry_out(name)

    def do_answer(self, name: str, peer: str, kind: str, *none: str, **values: str) -> None:
        send = self.take(name, peer, KINDS[kind])
        response = None if none else response_to(send.request, values)
        self.members[name].node.step(Answered(send.ticket, response))
        self.carry_out(name)

    def do_propose(self, name: str, count: str) -> None:
        member = self.members[name]
        proposal = member.node.propose(int(count))
        if isinstance(proposal, ProposalRejected):
            self.out.append(f"refused {proposal.name}")
            return
        self.own_entries(member, proposal, int(count))
        self.token += 1
        member.node.wait(member.log.end.index, self.token)
        self.carry_out(name)

    def do_disk(self, name: str, disk: str) -> None:
        self.members[name].node.step(DiskReport(DiskState(disk)))
        self.carry_out(name)

    def do_synced(self, name: str) -> None:
        end = self.members[name].log.sync()
        self.members[name].node.step(Synced(end.index, end.term))
        self.carry_out(name)

    def do_drop(self, sender: str, to: str, kind: str | None = None) -> None:
        def is_lost(origin: str, goal: str, message: Message) -> bool:
            request = message.request if isinstance(message, Send) else None
            is_kind = kind is None or isinstance(request, KINDS[kind])
            return (origin, goal) == (sender, to) and is_kind

        self.in_flight = [sent for sent in self.in_flight if not is_lost(*sent)]

    def do_settle(self) -> None:
        while self.in_flight:
            sender, to, message = self.in_flight.pop(0)
            self.deliver(sender, to, message)

    def do_show(self, name: str) -> None:
        node, log = self.members[name].node, self.members[name].log
        terms = ",".join(str(entry.term) for entry in log.entries)
        self.out.append(
            f"{name} {node.role.value} term={node.term} leader={node.leader_id}"
            f" log={log.begin_index}:{terms} committed={node.committed_index}"
        )
        for peer, (state, match, following) in node.progress.items():
            self.out.append(f"  {peer} {state} match={match} next={following}")

    def do_fault(self, name: str) -> None:
        self.out.append(f"{name} fault: {self.members[name].node.fault}")

    def do_verdict(self, name: str) -> None:
        member = self.members[name]
        counts, next_ms = member.node.rounds
        ended = ", ".join(f"{count} {verdict.name}" for verdict, count in counts.items())
        self.out.append(f"{name} rounds: {ended}; next in {next_ms - member.now_ms} ms")

    def take(self, sender: str, to: str, kind: type[Request]) -> Send:
        for number, (origin, goal, message) in enumerate(self.in_flight):
            if (origin, goal) == (sender, to) and isinstance(message, Send):
                if isinstance(message.request, kind):
                    del self.in_flight[number]
                    return message
        raise AssertionError(f"no {kind.__name__} in flight from {sender} to {to}")

    def deliver(self, sender: str, to: str, message: Message) -> None:
        node = self.members[to].node
        if isinstance(message, Send):
            self.tickets += 1
            self.requested[self.tickets] = sender, message.ticket
            node.step(Received(self.tickets, message.request))
        else:
            node.step(Answered(*message))
        self.carry_out(to)

    def carry_out(self, name: str) -> None:
        member = self.members[name]
        while (ready := member.node.ready()) is not None:
            self.out += self.describe(name, ready)
            if ready.begin_again:
                member.log.begin_again()
            elif ready.truncate_from is not None:
                member.log.truncate_from(ready.truncate_from)
            member.log.append(as_singletons(ready.entries))
            for message in ready.messages:
                if isinstance(message, Send):
                    self.in_flight.append((name, message.to, message))
                    continue
                to, ticket = self.requested.pop(message.ticket)
                if to and message.response is not None:
                    self.in_flight.append((name, to, (ticket, message.response)))
            if ready.marker is not None:
                self.own_entries(member, ready.marker, 1)

    def own_entries(self, member: Member, proposal: Proposal, count: int) -> None:
        first = proposal.first_index
        for index in range(first, first + count):
            member.log.append([entry_at(index, proposal.term)])
        member.node.step(Stored(member.log.end.index))

    def describe(self, name: str, ready: Ready) -> Iterator[str]:
        """Yield one line for each action of a Ready."""
        if ready.hard_state is not None:
            state = ready.hard_state
            yield f"{name} persists term={state.current_term} vote={state.voted_for}"
        if ready.begin_again:
            yield f"{name} resets its log"
        if ready.truncate_from is not None:
            yield f"{name} truncates from {ready.truncate_from}"
        if ready.entries:
            yield f"{name} stores {shown(as_singletons(ready.entries))}"
        for message in ready.messages:
            if isinstance(message, Send):
                yield f"{name} -> {message.to} {shown_message(message.request)}"
            elif message.response is None:
                yield f"{name} answers nothing"
            else:
                yield f"{name} answers {shown_message(message.response)}"
        if ready.committed_index is not None:
            yield f"{name} commits {ready.committed_index}"
        if ready.role is not None:
            yield f"{name} is {ready.role.value}"
        if ready.marker is not None:
            yield f"{name} requests a marker {ready.marker.first_index}/{ready.marker.term}"
        for append in ready.appends:
            yield f"{name} forwards a put of {sum(map(len, append.bodies))} bytes"
        for waiter in ready.acknowledged:
            yield f"{name} answers the waiter of {waiter.index}: {waiter.code.name}"
        for notice in ready.notices:
            yield f"{name} notices: {notice}"


def entry_at(index: int, term: int) -> Entry:
    body = f"entry {index} {term}".encode().ljust(ENTRY_SPACE - 48, b".")
    per_file = (4096 - 8) // ENTRY_SPACE
    position = index // per_file * 4096 + index % per_file * ENTRY_SPACE
    return Entry.of(index, term, position, body)


class Header(TypedDict):
    """The fields of every request."""

    group: str
    remote_id: str
    local_id: str | None
    leader_id: str | None
    term: Term


def request_of(to: str, kind: str, values: dict[str, str]) -> Request:
    base: Header = {
        "group": values.get("group", GROUP),
        "remote_id": values.get("to", to),
        "local_id": values.get("from"),
        "leader_id": values.get("from"),
        "term": Term(int(values.get("term", "-1"))),
    }
    if kind == "vote":
        index, term = map(int, values.get("end", "-1/-1").split("/"))
        return VoteRequest(**base, ledger_end_index=index, ledger_end_term=term)
    if kind == "beat":
        return HeartBeatRequest(**base)
    if kind == "metadata":
        return MetadataRequest(**base)
    if kind == "get":
        return GetEntriesRequest(**base, begin_index=int(values["index"]))
    if kind == "put":
        return AppendEntryRequest(**base, body=b"." * int(values["size"]))
    if kind == "transfer":
        return LeadershipTransferRequest(
            **base,
            transfer_id=values["giver"],
            transferee_id=values["taker"],
            take_leadership_ledger_index=int(values.get("index", "-1")),
        )
    pairs = [pair.split("/") for pair in values.get("entries", "").split(",") if pair]
    entries = tuple(entry_at(int(index), int(term)) for index, term in pairs)
    if "shift" in values:
        entries = tuple(
            Entry.of(e.index, e.term, e.position + int(values["shift"]), e.body) for e in entries
        )
    return PushEntryRequest(
        **base,
        type=PushType(kind.upper()),
        commit_index=int(values.get("commit", "-1")),
        entries=entries,
        batch=len(entries) > 1,
    )


def response_to(request: Request, values: dict[str, str]) -> Response:
    code = DLedgerResponseCode[values.get("code", "SUCCESS")]
    kind = RESPONSES[type(request)]
    term = Term(int(values.get("term", "-1")))
    if kind is VoteResponse:
        return VoteResponse(code=code, term=term, result=VoteResult[values["result"]])
    if kind is PushEntryResponse:
        assert isinstance(request, PushEntryRequest)
        begin, end = map(int, values.get("has", "0..0").split(".."))
        return PushEntryResponse(
            code=code,
            term=term,
            index=int(values.get("index", request.first_index)),
            count=int(values.get("count", len(request.entries))),
            begin_index=begin,
            end_index=end,
        )
    return kind(code=code, term=term)


def shown(entries: Iterable[Entry]) -> str:
    return ",".join(f"{entry.index}/{entry.term}" for entry in entries)


def shown_message(message: DLedgerMessage) -> str:
    name = type(message).__name__
    parts = [name.removesuffix("Request").removesuffix("Response")]
    if isinstance(message, Response) and not isinstance(message, VoteResponse):
        parts.append(DLedgerResponseCode(message.code).name)
    if isinstance(message, VoteResponse):
        parts.append(message.result.name)
        if message.code != DLedgerResponseCode.SUCCESS:
            parts.append(DLedgerResponseCode(message.code).name)
    if isinstance(message, PushEntryRequest):
        parts.append(f"{message.type.value}{' batch' if message.batch else ''}")
        parts += [shown(message.entries)] if message.entries else []
        parts.append(f"commit={message.commit_index}")
    if isinstance(message, PushEntryResponse):
        parts.append(f"index={message.index} count={message.count}")
        parts.append(f"has={message.begin_index}..{message.end_index}")
    if isinstance(message, VoteRequest):
        parts.append(f"end={message.ledger_end_index}/{message.ledger_end_term}")
    if isinstance(message, LeadershipTransferRequest):
        parts.append(f"take={message.take_leadership_ledger_index}")
    if message.term >= 0:
        parts.append(f"term={message.term}")
    return " ".join(parts)


def perform(text: str) -> str:
    """Run a scenario and return it with the actual results of its commands."""
    stage = Stage()
    done = []
    for block in text.rstrip("\n").split("\n\n"):
        commands = block.split("\n----")[0]
        stage.out = []
        lines = [line for line in commands.splitlines() if line and not line.startswith("#")]
        for line in lines:
            stage.run(line)
        results = "".join(f"\n{line}" for line in stage.out)
        done.append(f"{commands}\n----{results}" if lines else commands)
    return "\n\n".join(done) + "\n"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_scenario_has_the_expected_results(path: Path) -> None:
    text = path.read_text()
    actual = perform(text)
    if os.environ.get("RMQPY_REWRITE"):
        path.write_text(actual)
    else:
        assert actual == text


def test_every_vote_result_and_every_replication_state_occurs_in_a_scenario() -> None:
    everything = "\n".join(path.read_text() for path in SCENARIOS.glob("*.txt"))
    for result in VoteResult:
        if result is not VoteResult.UNKNOWN:  # Only other implementations answer UNKNOWN.
            assert f"answers Vote {result.name}" in everything, result
        assert f"result={result.name}" in everything, result
    for verdict in VoteParseResult:
        assert f"rounds: 1 {verdict.name};" in everything, verdict
    for kind in PushType:
        assert f"PushEntry {kind.value}" in everything, kind
    for state in ("COMPARE match", "TRUNCATE match", "APPEND match"):
        assert state in everything, state
    for refused in ProposalRejected:
        assert f"refused {refused.name}" in everything, refused
