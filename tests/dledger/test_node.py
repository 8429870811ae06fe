"""Tests of the interface between a node and its caller, and of a group of one."""

from __future__ import annotations

import pytest
from simulator.memory_log import MemoryLog

from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import (
    Answered,
    DiskReport,
    Node,
    Proposal,
    ProposalRejected,
    Received,
    Reply,
    Send,
    Stored,
    Synced,
)
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    HeartBeatRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from rmqpy.dledger.state import DiskState, HardState, LedgerEnd, Role
from rmqpy.model.ids import LedgerIndex, Term

ALONE = Membership("g", "n0", ("n0",))
THREE = Membership("g", "n0", ("n0", "n1", "n2"))
At, T = LedgerIndex, Term


def log_to(end: LedgerEnd) -> MemoryLog:
    log = MemoryLog()
    if end.index >= 0:
        log.propose(end.term, At(0), [b"body"] * (end.index + 1))
    return log


def alone(log: MemoryLog, state: HardState, committed: int = -1, limit: int = 3) -> Node:
    node = Node(ALONE, state, log, At(committed), RaftOptions(pending_limit=limit))
    node.tick(0)
    return node


@pytest.mark.parametrize(
    ("end", "state", "after"),
    [
        (LedgerEnd(), HardState(), HardState(T(0), "n0")),
        (LedgerEnd(At(4), T(2)), HardState(T(2), "n0"), None),
        (LedgerEnd(At(4), T(2)), HardState(T(2), None), HardState(T(2), "n0")),
        (LedgerEnd(At(4), T(2)), HardState(T(0), None), HardState(T(2), "n0")),
        (LedgerEnd(At(4), T(2)), HardState(T(3), "n7"), HardState(T(4), "n0")),
    ],
)
def test_a_group_of_one_leads_at_its_first_tick(
    end: LedgerEnd, state: HardState, after: HardState | None
) -> None:
    ready = alone(log_to(end), state).ready()
    assert ready is not None
    assert ready.hard_state == after and ready.role is Role.LEADER
    assert ready.committed_index == (end.index if end.index >= 0 else None), (
        "the tail is committed at once"
    )
    assert not ready.messages and ready.marker is None


def test_a_group_of_one_commits_stored_entries() -> None:
    log = MemoryLog()
    node = alone(log, HardState())
    node.ready()
    assert node.grant() == (Proposal(T(0), At(0)), 4)
    assert node.propose(2) == Proposal(T(0), At(0))
    assert node.propose(2) == Proposal(T(0), At(2))
    assert node.propose(1) is ProposalRejected.LEADER_PENDING_FULL
    assert node.grant() == (Proposal(T(0), At(4)), 0)
    assert node.ready() is None
    log.propose(T(0), At(0), [b"a", b"b", b"c"])
    node.step(Stored(At(2)))
    ready = node.ready()
    assert ready is not None and ready.committed_index == 2
    assert node.ready() is None
    assert node.propose(1) == Proposal(T(0), At(4))
    node.tick(100_000)
    assert node.role is Role.LEADER and node.ready() is None


def test_waiters_of_a_group_of_one_are_acknowledged() -> None:
    log = MemoryLog()
    node = alone(log, HardState())
    node.ready()
    node.propose(2)
    node.wait(At(1), token=7)
    assert node.ready() is None
    log.propose(T(0), At(0), [b"a", b"b"])
    node.step(Stored(At(1)))
    ready = node.ready()
    assert ready is not None
    acknowledged = [(each.token, each.index, each.code) for each in ready.acknowledged]
    assert acknowledged == [(7, 1, DLedgerResponseCode.SUCCESS)]


def three(log: MemoryLog | None = None, state: HardState | None = None) -> Node:
    return Node(
        THREE,
        state or HardState(),
        log or MemoryLog(),
        At(-1),
        RaftOptions(rng=lambda below: 0),
    )


def votes(node: Node) -> list[Send]:
    ready = node.ready()
    assert ready is not None
    return [message for message in ready.messages if isinstance(message, Send)]


def test_a_member_that_does_not_lead_proposes_nothing() -> None:
    node = three()
    assert node.propose(1) is ProposalRejected.NOT_LEADER
    assert node.grant()[1] == 0


def test_time_must_not_go_back() -> None:
    node = three()
    node.tick(5)
    with pytest.raises(AssertionError):
        node.tick(4)


def test_a_member_that_lets_another_one_lead_asks_for_no_votes_for_that_time() -> None:
    node = three()
    node.let_another_lead(0, 1000)
    asked_ms = []
    for now_ms in range(0, 3000, 10):
        node.tick(now_ms)
        ready = node.ready()
        if ready is not None and any(isinstance(each, Send) for each in ready.messages):
            asked_ms.append(now_ms)
    assert 1000 < asked_ms[0] < 2000


def test_an_unanswered_request_counts_as_unanswered_after_the_rpc_timeout() -> None:
    node = three()
    node.tick(0)
    first, second = votes(node)
    node.step(Answered(first.ticket, None))
    node.tick(1999)
    assert node.ready() is None
    node.tick(2000)
    node.tick(2300)
    assert len(votes(node)) == 2, "another round in the same term"
    assert node.term == 0
    node.step(Answered(second.ticket, VoteResponse(result=VoteResult.ACCEPT, term=T(0))))
    assert node.role is Role.CANDIDATE, "the answer belongs to an earlier round"


def test_an_answer_of_the_wrong_kind_or_without_a_request_is_ignored() -> None:
    node = three()
    node.tick(0)
    send = votes(node)[0]
    node.step(Answered(999, VoteResponse(result=VoteResult.ACCEPT)))
    request = HeartBeatRequest()
    node.step(Answered(send.ticket, request))  # type: ignore[arg-type]  # no response at all
    node.step(Answered(send.ticket, VoteResponse(result=VoteResult.ACCEPT)))
    assert node.role is Role.CANDIDATE


def test_a_sync_of_a_truncated_entry_is_ignored() -> None:
    log = MemoryLog()
    log.propose(T(1), At(0), [b"a", b"b"])
    node = three(log, HardState(T(1), None))
    node.step(Synced(At(1), T(0)))
    node.step(Synced(At(5), T(1)))
    assert node.ready() is None


def test_hard_state_precedes_the_vote_in_one_ready() -> None:
    node = three()
    request = VoteRequest(group="g", remote_id="n0", leader_id="n1", term=T(0))
    node.step(Received(1, request))
    ready = node.ready()
    assert ready is not None
    assert ready.hard_state == HardState(T(0), "n1")
    reply = ready.messages[0]
    assert isinstance(reply, Reply) and isinstance(reply.response, VoteResponse)
    assert reply.response.result is VoteResult.ACCEPT
    names = [name for name in type(ready).__slots__ if not name.startswith("__")]
    order = ["hard_state", "truncate_from", "begin_again", "entries", "messages"]
    assert names[:5] == order and names[5:7] == ["committed_index", "role"]


def test_a_member_with_a_failed_disk_neither_votes_nor_is_elected() -> None:
    node = three()
    node.step(DiskReport(DiskState.FAILED))
    node.tick(60_000)
    assert node.ready() is None
    assert node.propose(1) is ProposalRejected.DISK_ERROR
    node.step(DiskReport(DiskState.GOOD))
    node.tick(60_010)
    assert len(votes(node)) == 2


def test_a_node_without_elections_only_answers_requests() -> None:
    node = Node(THREE, HardState(), MemoryLog(), At(-1), RaftOptions(election=False))
    node.tick(100_000)
    assert node.ready() is None
    beat = HeartBeatRequest(group="g", remote_id="n0", leader_id="n1", term=T(0))
    node.step(Received(1, beat))
    node.ready()
    node.tick(200_000)
    assert node.ready() is None and node.role is Role.FOLLOWER
