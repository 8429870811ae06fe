"""The record of elections: votes with their reasons, bounded, and without effect on the core."""

from __future__ import annotations

import json
from collections.abc import Iterable

from harness.dledger_group import Group

from rmqpy.admin.elections import events_of, terms_of
from rmqpy.dledger.node import Answered, Received
from rmqpy.dledger.outbox import Reply, Send
from rmqpy.dledger.protocol.messages import VoteRequest, VoteResponse, VoteResult
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.ids import Term
from rmqpy.net.dledger import election_record
from rmqpy.net.dledger.election_record import (
    PENDING_MAX,
    RECORD_MAX,
    ElectionEvent,
    ElectionRecord,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.manual_scheduler import ManualScheduler


def lines(events: Iterable[ElectionEvent]) -> list[str]:
    return [
        f"{each.kind.value} {each.term} {each.peer} {each.result}{each.text}" for each in events
    ]


def request(term: int, candidate: str = "n1") -> VoteRequest:
    return VoteRequest(
        group="g",
        remote_id="n0",
        local_id=candidate,
        leader_id=candidate,
        term=Term(term),
        ledger_end_index=7,
        ledger_end_term=2,
    )


def test_the_members_of_a_group_record_an_election() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    assert leader.driver is not None
    found = lines(leader.driver.elections.events())
    term = leader.driver.node.term
    others = [each for each in group.members if each is not leader]
    for other in others:
        assert f"asked {term} {other.name} " in found
    assert any(f"received {term} {each.name} ACCEPT" in found for each in others)
    assert any(each.startswith(f"notice {term}  leads in term {term}") for each in found)
    voter = next(each for each in others if f"received {term} {each.name} ACCEPT" in found)
    assert voter.driver is not None
    given = lines(voter.driver.elections.events())
    assert f"answered {term} {leader.name} ACCEPT" in given
    assert any(f"follows {leader.name}" in each for each in given)


def test_the_record_is_an_answer_to_administrators() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    assert leader.driver is not None
    frame = group.ask(leader, RemotingCommand.request(RequestCode.RMQPY_ELECTIONS))
    assert frame.code == ResponseCode.SUCCESS
    body = json.loads(frame.body)
    assert (body["group"], body["self"]) == ("broker-a", leader.name)
    (latest, *_) = terms_of(events_of(body))
    assert latest.leader == leader.name and latest.term == leader.driver.node.term


def test_a_leader_that_is_cut_off_says_why_it_steps_down() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    group.cut.add(leader.number)
    group.run(30_000)
    assert leader.driver is not None
    found = lines(leader.driver.elections.events())
    assert any("stepping down" in each and "no quorum answers" in each for each in found)
    assert any(each.endswith(" ") and each.startswith("received") for each in found)
    assert len(found) < 40  # a minute of rounds without an answer is counted, not listed


def test_rounds_that_repeat_are_counted() -> None:
    scheduler = ManualScheduler()
    record = ElectionRecord(scheduler)
    for _ in range(1000):
        for peer in ("n1", "n2"):
            record.asked(Send(peer, 1, request(5)))
        scheduler.advance(100)
    events = list(record.events())
    assert [(each.peer, each.count) for each in events] == [("n1", 1000), ("n2", 1000)]
    assert events[0].last_ms - events[0].time_ms == 999 * 100


def test_the_record_and_what_it_waits_for_are_bounded() -> None:
    record = ElectionRecord(ManualScheduler())
    for number in range(2 * RECORD_MAX):
        record.request_came(Received(number, request(number)))
        record.asked(Send("n1", number, request(number)))
    assert len(list(record.events())) == RECORD_MAX
    response = VoteResponse(term=Term(1), result=VoteResult.ACCEPT)
    for number in range(2 * RECORD_MAX):
        record.answered(Reply(number, response))
    answered = [each for each in record.events() if each.kind.value == "answered"]
    assert len(answered) == PENDING_MAX


def test_other_messages_are_not_recorded() -> None:
    record = ElectionRecord(ManualScheduler())
    record.answer_came(Answered(1, None))
    record.answered(Reply(1, None))
    assert not list(record.events())


def test_an_answer_and_its_end_are_those_of_the_request() -> None:
    record = ElectionRecord(ManualScheduler())
    record.request_came(Received(1, request(5)))
    refused = VoteResponse(term=Term(9), result=VoteResult.REJECT_EXPIRED_VOTE_TERM)
    record.answered(Reply(1, refused))
    (event,) = record.events()
    assert (event.term, event.peer, event.end) == (5, "n1", (7, 2))
    assert election_record.ElectionEventKind.ANSWERED is event.kind
