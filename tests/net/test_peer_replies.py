"""The replies with entries of a DLedger member: how many a turn has, and to whom."""

from __future__ import annotations

import pytest
from harness.peer_wire import MEMBERS

from rmqpy.broker.assembly.group_member import PeerPort
from rmqpy.dledger.entries import Entry
from rmqpy.dledger.member import Membership
from rmqpy.dledger.node import Reply
from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import GetEntriesRequest, GetEntriesResponse
from rmqpy.net.dledger.replies import ENTRIES_PER_TURN, LITTLE, PeerReplies
from rmqpy.net.once_log import OncePerCauseLog
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel

REQUEST = GetEntriesRequest(begin_index=0, group="g", remote_id="n0")
COMMAND = RemotingCommand.request(REQUEST.CODE, body=encode(REQUEST))


@pytest.fixture
def replies() -> PeerReplies:
    clock = ManualScheduler()
    return PeerReplies(Membership("g", "n0", MEMBERS), clock, OncePerCauseLog(clock))


def answer(replies: PeerReplies, channel: MemoryChannel, size: int) -> None:
    entry = Entry.of(0, 1, 0, bytes(size))
    response = GetEntriesResponse(group="g", remote_id="n0", entries=(entry,))
    replies.reply(Reply(replies.expect(channel, COMMAND, REQUEST).ticket, response))


def fill(replies: PeerReplies, channel: MemoryChannel) -> None:
    while not replies.must_wait(channel, COMMAND):
        answer(replies, channel, LITTLE)


def fill_with_others(replies: PeerReplies) -> int:
    """Answer requests, each on a new connection, until they must wait. Return how many."""
    count = 0
    while not replies.must_wait(MemoryChannel(), COMMAND):
        answer(replies, MemoryChannel(), LITTLE)
        count += 1
    return count


def test_requests_for_entries_wait_for_the_next_turn(replies: PeerReplies) -> None:
    greedy = MemoryChannel()
    fill(replies, greedy)
    replies.turn_ended()
    assert not replies.must_wait(greedy, COMMAND)


def test_who_received_little_does_not_wait_for_who_received_much(replies: PeerReplies) -> None:
    greedy, modest = [MemoryChannel() for _ in range(3)], MemoryChannel()
    for channel in greedy:
        fill(replies, channel)
    replies.turn_ended()
    fill(replies, greedy[0])
    for _ in range(3):
        assert replies.must_wait(greedy[1], COMMAND)
        assert not replies.must_wait(modest, COMMAND)
        answer(replies, modest, 100)


def test_connections_that_received_little_share_a_turn_as_well(replies: PeerReplies) -> None:
    assert 1 <= fill_with_others(replies) <= ENTRIES_PER_TURN // LITTLE


def test_nobody_is_greedy_once_nobody_waits(replies: PeerReplies) -> None:
    greedy = MemoryChannel()
    fill(replies, greedy)
    replies.turn_ended()  # Somebody has waited in it.
    replies.turn_ended()
    fill_with_others(replies)
    assert replies.must_wait(greedy, COMMAND), "it is one of those who received little again"


def test_the_port_of_a_member_passes_the_end_of_a_turn_on() -> None:
    """Otherwise requests for entries wait for ever after the first 512 KiB."""

    class Driver:
        turns = 0

        def turn_ended(self) -> None:
            self.turns += 1

    port = PeerPort()
    port.turn_ended()
    driver = port.driver = Driver()  # type: ignore[assignment]
    port.turn_ended()
    assert driver.turns == 1
