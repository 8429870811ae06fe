"""Three whole brokers as a DLedger group in virtual time, with real stores, drivers, and wire
frames, and a network that can be cut.
"""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from harness.dledger_group import (
    FILE_SIZE,
    MEMBERS,
    Group,
    Member,
    RecordingNetwork,
    send_command,
)

from rmqpy.codec.message import decode_message
from rmqpy.config.loading import (
    FlushDiskType,
)
from rmqpy.dledger.node import Answered
from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    DLedgerResponseCode,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    MetadataRequest,
    MetadataResponse,
    VoteRequest,
)
from rmqpy.dledger.state import DiskState, Role
from rmqpy.model.ids import Term
from rmqpy.net.dledger import replies
from rmqpy.net.dledger.handshakes import PeerStatus
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    FenceRequestHeader,
    PullMessageRequestHeader,
)
from rmqpy.store.ledger.entry_scrub import REST_MS
from rmqpy.testing.memory_channel import MemoryChannel


@pytest.fixture
def group() -> Iterator[Group]:
    three = Group.of()
    three.start(0, 1, 2)
    yield three


def assert_equal_ledgers(group: Group) -> None:
    first, *others = [member.data() for member in group.members]
    for other in others:
        assert other == first


def test_three_members_elect_replicate_and_serve(group: Group) -> None:
    leader = group.elect()
    replies = group.send(leader, *(b"message %d" % number for number in range(40)))
    assert [reply.code for reply in replies] == [0] * 40
    assert [int(reply.ext_fields["queueOffset"]) for reply in replies] == list(range(40))
    group.run(3000)
    for member in group.members:
        assert group.read(member) == [b"message %d" % number for number in range(40)]
    assert_equal_ledgers(group)
    assert len(leader.data()) > 2, "several data files"
    ids = dict(group.registered)
    assert ids == {
        member.number: 0 if member is leader else member.number + 1 for member in group.members
    }


def test_a_follower_refuses_messages(group: Group) -> None:
    leader = group.elect()
    follower = next(member for member in group.members if member is not leader)
    (reply,) = group.send(follower, b"wrong")
    assert reply.code == 14


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(group: Group) -> None:
    leader = group.elect()
    assert [reply.code for reply in group.send(leader, b"a", b"b")] == [0, 0]
    group.kill(leader.number)
    second = group.elect()
    assert second is not leader
    assert [reply.code for reply in group.send(second, b"c")] == [0]
    group.start(leader.number)
    group.run(5000)
    for member in group.members:
        assert group.read(member) == [b"a", b"b", b"c"]
    assert_equal_ledgers(group)


def test_entries_without_a_quorum_are_truncated(group: Group) -> None:
    """The entries of a leader that is cut off never become readable, and its sender is refused."""
    leader = group.elect()
    assert [reply.code for reply in group.send(leader, b"a")] == [0]
    group.cut = {leader.number}
    bodies = [b"lost %d" % number * 30 for number in range(30)]
    replies = group.send(leader, *bodies, wait_ms=2000)
    assert replies == [], "no member has confirmed"
    second = group.elect()
    group.run(8000)
    assert {reply.code for reply in leader.channel.take()} == {1}, "broker busy: not in time"
    assert leader.broker is not None and leader.broker.identity.is_slave, "it stepped down"
    assert [reply.code for reply in group.send(second, b"b" * 300, b"c")] == [0, 0]
    group.cut = set()
    group.run(10_000)
    for member in group.members:
        assert group.read(member) == [b"a", b"b" * 300, b"c"]
    assert_equal_ledgers(group)
    again = group.leader()
    assert [reply.code for reply in group.send(again, b"d")] == [0]
    group.run(2000)
    for member in group.members:
        assert group.read(member) == [b"a", b"b" * 300, b"c", b"d"]


def test_an_old_tail_is_committed_by_a_marker_that_readers_do_not_see(group: Group) -> None:
    leader = group.elect()
    group.send(leader, b"a")
    others = [member.number for member in group.members if member is not leader]
    # The next message reaches both followers, but none learns that it is committed.
    group.send(leader, b"b", wait_ms=2)
    for number in range(3):
        group.kill(number)
    for number in others:
        group.start(number)
    second = group.elect()
    assert group.read(second) == [b"a", b"b"]
    entries = second.store.opened.entries if second.store is not None else None
    assert entries is not None
    assert entries.end.index == 2
    marker = decode_message(entries.entry(2)[1])
    assert marker.topic == "RMQPY_SYS_LEADER_MARKER" and b"of n" in marker.body
    assert [reply.code for reply in group.send(second, b"c")] == [0]
    assert group.read(second) == [b"a", b"b", b"c"]


def test_a_member_in_a_forged_term_says_so_at_its_start(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Older versions have believed such a term, and the disks still have it."""
    group.elect()
    group.kill(0)
    (path,) = [path for path in group.members[0].files.nodes if path.endswith("/currterm")]
    group.start(0)
    assert "forged" not in caplog.text
    group.kill(0)
    group.members[0].files.put(path, b"voteLeader=\ncurrTerm=%d\n" % (2**63 - 2))
    group.start(0)
    (text,) = [text for text in caplog.messages if "forged message" in text]
    assert f"n0 is in term {2**63 - 2}" in text and "lower currTerm" in text


def test_the_whole_group_restarts(group: Group) -> None:
    leader = group.elect()
    group.send(leader, *(b"%d" % number * 50 for number in range(30)))
    for number in range(3):
        group.kill(number)
    group.start(0, 1, 2)
    leader = group.elect()
    group.send(leader, b"more")
    group.run(3000)
    for member in group.members:
        assert group.read(member) == [*(b"%d" % number * 50 for number in range(30)), b"more"]
    assert_equal_ledgers(group)


def test_power_failures_lose_nothing_that_was_acknowledged_after_a_sync() -> None:
    group = Group.of(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    group.start(0, 1, 2)
    leader = group.elect()
    for turn in range(10):
        assert [reply.code for reply in group.send(leader, b"%d" % turn)] == [0]
    for number in range(3):
        group.kill(number, power=True)
    group.start(0, 1, 2)
    leader = group.elect()
    assert group.read(leader) == [b"%d" % turn for turn in range(10)]


def test_a_failed_disk_ends_leadership(group: Group) -> None:
    leader = group.elect()
    group.send(leader, b"a")
    assert leader.store is not None
    leader.store.health.fail("planted")
    group.run(20)
    assert leader.driver is not None and leader.driver.node.role is not Role.LEADER
    second = group.elect()
    assert second is not leader
    assert [reply.code for reply in group.send(second, b"b")] == [0]


def test_dledger_clients_are_served(group: Group) -> None:
    leader = group.elect()
    group.send(leader, b"a")
    assert leader.store is not None
    common = Destination(group="broker-a", remote_id=leader.name)
    found = group.request(leader, MetadataRequest(**common))
    assert isinstance(found, MetadataResponse)
    assert found.leader_id == leader.name and dict(found.peers or {}).keys() == set(MEMBERS)
    got = group.request(leader, GetEntriesRequest(begin_index=0, **common))
    assert isinstance(got, GetEntriesResponse)
    record = bytes(got.entries[0].body)
    assert decode_message(record).body == b"a"
    done = group.request(leader, AppendEntryRequest(body=record, **common))
    assert isinstance(done, AppendEntryResponse)
    assert (done.code, done.index) == (200, 1)
    assert group.read(leader) == [b"a", b"a"], "the message has the next offset in its queue"
    position = (
        leader.store.opened.entries.entry(1)[0].position if leader.store.opened.entries else -1
    )
    assert done.position == position
    damaged = bytearray(record)
    damaged[88] ^= 1
    for wrong in (b"no record", bytes(damaged), record[:-1]):
        refused = group.request(leader, AppendEntryRequest(body=wrong, **common))
        assert refused.code == DLedgerResponseCode.UNEXPECTED_ARGUMENT
    done = group.request(leader, AppendEntryRequest(batch_msgs=(record, record), **common))
    assert isinstance(done, AppendEntryResponse)
    assert (done.code, done.index) == (200, 3) and done.position > position
    assert group.read(leader) == [b"a"] * 4
    for empty in ((), (record, b"")):
        refused = group.request(leader, AppendEntryRequest(batch_msgs=empty, **common))
        assert refused.code == DLedgerResponseCode.REQUEST_WITH_EMPTY_BODYS
    half = group.request(leader, AppendEntryRequest(batch_msgs=(record, b"no record"), **common))
    assert half.code == DLedgerResponseCode.UNEXPECTED_ARGUMENT
    assert group.read(leader) == [b"a"] * 5, "the messages appended before stay"
    follower = next(member for member in group.members if member is not leader)
    common["remote_id"] = follower.name
    refused = group.request(follower, AppendEntryRequest(body=record, **common))
    assert refused.code == DLedgerResponseCode.NOT_LEADER
    assert group.read(leader) == [b"a"] * 5


def test_clients_without_an_account_can_neither_read_nor_append() -> None:
    """With access control the broker's port requires accounts, which DLedger does not know."""
    group = Group.of()
    group.serves_client = {"10.0.0.0", "10.0.0.1", "10.0.0.2"}.__contains__
    group.start(0, 1, 2)
    leader = group.elect()
    assert [reply.code for reply in group.send(leader, b"a")] == [0]
    assert leader.driver is not None
    common = Destination(group="broker-a", remote_id=leader.name)
    for request in (
        MetadataRequest(**common),
        GetEntriesRequest(begin_index=0, **common),
        AppendEntryRequest(body=b"x", **common),
    ):
        command = RemotingCommand.request(request.CODE, body=encode(request))
        channel = MemoryChannel(("10.0.0.7", 4711))
        leader.driver.handle(channel, [command])
        refused = channel.take_one()
        assert refused.code == 16 and "replicationAddresses" in (refused.remark or "")
        channel = MemoryChannel(("10.0.0.1", 4711))
        leader.driver.handle(channel, [command])
        group.run(200)
        assert channel.take_one().code == 200
    assert group.read(leader) == [b"a"]


def test_requests_for_entries_share_the_turns_of_the_loop(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of others do not wait until the entries of all connections are encoded."""
    monkeypatch.setattr(replies, "ENTRIES_PER_TURN", 2500)
    leader = group.elect()
    group.send(leader, bytes(1000))
    driver = leader.driver
    assert driver is not None
    common = Destination(group="broker-a", remote_id=leader.name)
    get = GetEntriesRequest(begin_index=driver.entries.end.index, **common)
    get_command = RemotingCommand.request(get.CODE, body=encode(get))
    metadata = MetadataRequest(**common)
    other = RemotingCommand.request(metadata.CODE, body=encode(metadata))
    channels = [MemoryChannel() for _ in range(8)]
    answered = [len(driver.handle(channel, [get_command])) == 0 for channel in channels]
    assert answered == [True] * 2 + [False] * 6
    assert list(driver.handle(channels[0], [other, get_command, other])) == [get_command, other]
    driver.turn_ended()
    assert list(driver.handle(channels[2], [get_command])) == []
    group.run(200)
    assert [len(channel.take()) for channel in channels] == [2, 1, 1, 0, 0, 0, 0, 0]


def test_one_forged_frame_with_a_larger_term_deposes_no_leader(group: Group) -> None:
    """Even from the address of a member, on which other programs may run."""
    leader = group.elect()
    assert leader.driver is not None
    term = leader.driver.node.term
    group.send(leader, b"a")
    for member in group.members:
        for other in group.members:
            if other is member:
                continue
            beat = HeartBeatRequest(
                group="broker-a",
                remote_id=member.name,
                local_id=other.name,
                leader_id=other.name,
                term=Term(term + 1),
            )
            vote = VoteRequest(
                group="broker-a",
                remote_id=member.name,
                local_id=other.name,
                leader_id=other.name,
                term=Term(term + 1),
                ledger_end_index=99,
                ledger_end_term=term,
            )
            for request in (vote, beat):
                group.request(member, request)
    group.run(10_000)
    assert group.leader() is leader and leader.driver.node.term == term
    assert [reply.code for reply in group.send(leader, b"b")] == [0]


def test_unreadable_frames_are_refused_and_logged_once(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    leader = group.elect()
    assert leader.driver is not None
    before = leader.data()
    caplog.clear()
    channel = MemoryChannel()
    push = b'{"group":"broker-a","type":"APPEND","entry":{"body":"aGk","index":0}}'
    for _ in range(3):
        leader.driver.handle(channel, [RemotingCommand.request(51004, body=push)])
    for answer in channel.take():
        assert b'"code":411' in answer.body
    assert sum("invalid Base64" in text for text in caplog.messages) == 1, "logged once"
    for code, expected in ((51003, 1), (51999, 3)):
        leader.driver.handle(channel, [RemotingCommand.request(code)])
        assert channel.take_one().code == expected
    strange = MetadataRequest(group="other", remote_id=leader.name)
    for _ in range(2):
        assert group.request(leader, strange).code == DLedgerResponseCode.UNKNOWN_GROUP
    assert sum("UNKNOWN_GROUP" in text for text in caplog.messages) == 1
    assert leader.data() == before


class Destination(TypedDict):
    """The fields that name the receiver of a request."""

    group: str
    remote_id: str


ENTRY = (
    b'{"body":"%b","bodyCrc":0,"chainCrc":0,"channel":0,"index":%d,"magic":1,"pos":%d,'
    b'"size":%d,"term":%d}'
)


def push_batch(
    *,
    body: bytes = b"aGk=",
    index: int = 0,
    pos: int = 0,
    size: int = 50,
    entry_term: int = 1,
    term: int = 1,
    group: bytes = b"broker-a",
    leader: bytes = b"n0",
    to: bytes = b"n1",
) -> bytes:
    """Return a batch of one entry as a leader sends it; the arguments can make it wrong."""
    entry = ENTRY % (body, index, pos, size, entry_term)
    return (
        b'{"batch":true,"batchEntry":[%b],"code":200,"commitIndex":-1,"count":1,'
        b'"firstEntryIndex":%d,"group":"%b","lastEntryIndex":%d,"leaderId":"%b","localId":"%b",'
        b'"remoteId":"%b","term":%d,"totalSize":%d,"type":"APPEND"}'
    ) % (entry, index, group, index, leader, leader, to, term, size)


@pytest.mark.parametrize(
    ("changes", "code", "log_lines"),
    [
        ({"body": b"aGk"}, 411, 1),  # incomplete Base64
        ({"body": b"aG=k"}, 411, 1),
        ({"size": 51}, 411, 1),
        ({"index": -1}, 411, 1),
        ({"group": b"other"}, 400, 1),
        ({"to": b"n9"}, 401, 1),
        ({"leader": b"n9"}, 406, 0),
        ({"term": 0}, 406, 0),
        ({"term": 99}, 406, 0),
        ({"entry_term": 99}, 406, 0),
        ({"pos": 8}, 406, 0),
        ({"pos": FILE_SIZE}, 406, 0),
    ],
    ids=str,
)
def test_a_wrong_push_is_refused_and_writes_nothing(
    group: Group,
    changes: dict[str, Any],
    code: int,
    log_lines: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader = group.elect()
    follower = next(member for member in group.members if member is not leader)
    assert follower.driver is not None
    before = follower.data()
    usual: dict[str, Any] = {
        "leader": leader.name.encode(),
        "to": follower.name.encode(),
        "term": follower.driver.node.term,
        "entry_term": follower.driver.node.term,
    }
    body = push_batch(**(usual | changes))
    caplog.clear()
    channel = MemoryChannel()
    for _ in range(3):
        follower.driver.handle(channel, [RemotingCommand.request(51004, body=body)])
    answers = channel.take()
    assert len(answers) == 3
    for answer in answers:
        assert b'"code":%d' % code in answer.body
    assert len(caplog.messages) == log_lines, caplog.messages
    assert follower.data() == before
    good = push_batch(**usual)  # The change was the only fault.
    follower.driver.handle(channel, [RemotingCommand.request(51004, body=good)])
    assert b'"code":200' in channel.take_one().body


def test_pulls_wait_for_the_quorum(group: Group) -> None:
    leader = group.elect()
    assert leader.broker is not None
    group.send(leader, b"a")
    header = PullMessageRequestHeader(
        consumer_group="CG",
        topic="T",
        queue_id=0,
        queue_offset=1,
        max_msg_nums=32,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        subscription="*",
        sub_version=0,
    )
    reader = MemoryChannel()
    leader.broker.server.handle(reader, [RemotingCommand.request(11, header)])
    leader.broker.server.turn_ended()
    group.cut = {member.number for member in group.members if member is not leader}
    group.send(leader, b"b", wait_ms=100)
    assert reader.take() == []
    group.cut = set()
    group.run(3000)
    assert leader.broker is not None
    (found,) = reader.take()
    assert b"b" in found.body


def test_members_with_other_file_sizes_are_refused_by_name(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    odd = Group.of()
    odd.members[2].changes["mapped_file_size_commit_log"] = 2 * FILE_SIZE
    odd.start(0, 1, 2)
    leader = odd.elect()
    assert leader.number in (0, 1)
    assert [reply.code for reply in odd.send(leader, b"a")] == [0]
    odd.run(30_000)
    assert odd.leader() is leader
    refused_member = odd.members[2].driver
    assert refused_member is not None and refused_member.node.role is Role.CANDIDATE
    assert odd.members[2].data() == {f"data/{0:020d}": b""}, "nothing was written"
    refused = [text for text in caplog.messages if "its mappedFileSizeCommitLog is 8192" in text]
    assert 1 <= len(refused) <= 2, "logged once by each member that connects to it"


def test_a_lost_handshake_stops_a_member_no_longer_than_a_lost_heartbeat(group: Group) -> None:
    leader = group.elect()
    assert leader.driver is not None
    link = next(iter(leader.driver.peers.handshakes.links.values()))
    leader.driver.peers.handshakes.failed(link)
    group.cut = {MEMBERS.index(link.name)}
    while not link.asking:
        group.run(10)
    group.run(10)
    group.cut = set()
    group.run(leader.driver.options.heartbeat_interval_ms + 100)
    assert link.standing is PeerStatus.VERIFIED
    assert group.leader() is leader


def test_java_members_are_accepted_and_receive_no_batches(group: Group) -> None:
    """A member that answers the handshake with code 3 receives every entry in a separate push."""
    leader = group.elect()
    assert leader.driver is not None
    ways = leader.driver.peers.handshakes.links
    assert {way.standing for way in ways.values()} == {PeerStatus.VERIFIED}
    command = RemotingCommand(3, flag=1)
    for way in ways.values():
        leader.driver.peers.handshakes._introduced(way, command, None)
    assert {way.standing for way in ways.values()} == {PeerStatus.JAVA}
    recording = leader.driver.peers.network = RecordingNetwork(leader.driver.peers.network)
    group.send(leader, *(b"%d" % number for number in range(20)))
    pushes = [sent.body for sent in recording.sent if sent.code == 51004]
    # An empty follower gets the first one by TRUNCATE.
    assert len([push for push in pushes if b'"type":"APPEND"' in push]) == 2 * 19
    assert all(b'"batchEntry":[]' in push for push in pushes)


@pytest.mark.slow
def test_a_restarted_member_without_an_old_log_needs_no_certificate(group: Group) -> None:
    """Its log starts at 0, or later if files have expired; it joins Java members in both cases."""
    leader = group.elect()
    group.send(leader, *(b"x" * 700 + b"%d" % number for number in range(20)))
    for expired in (False, True):
        assert leader.store is not None and leader.store.opened.entries is not None
        if expired:
            file = leader.store.opened.entries.release_first_file()
            leader.files.unlink(file.path)
        group.kill(leader.number)
        group.start(leader.number)
        assert leader.driver is not None
        assert (leader.driver.entries.base_offset > 0) == expired
        for way in leader.driver.peers.handshakes.links.values():
            leader.driver.peers.handshakes._introduced(way, RemotingCommand(3, flag=1), None)
            assert (way.standing, way.reason) == (PeerStatus.JAVA, "")
        leader = group.elect()


def test_the_status_of_a_member_is_served(group: Group) -> None:
    leader = group.elect()
    group.send(leader, b"a", b"b")
    group.run(2000)
    answer = group.ask(leader, RemotingCommand.request(71003))
    assert answer.code == 0
    status = json.loads(answer.body)
    assert (status["role"], status["leader"]) == ("LEADER", leader.name)
    assert (status["begin"], status["end"], status["committed"]) == (0, 1, 1)
    assert [peer["id"] for peer in status["peers"]] == list(MEMBERS)
    others = [peer for peer in status["peers"] if peer["id"] != leader.name]
    assert {(peer["state"], peer["match"], peer["lag"]) for peer in others} == {("APPEND", 1, 0)}
    assert {peer["handshake"] for peer in others} == {"verified"}
    assert "leads in term" in status["events"][-1]["text"]
    follower = next(member for member in group.members if member is not leader)
    status = json.loads(group.ask(follower, RemotingCommand.request(71003)).body)
    assert (status["role"], status["leader"]) == ("FOLLOWER", leader.name)
    assert f"follows {leader.name}" in status["events"][-1]["text"]


PLACES_IN_ENTRY = {
    "magic": 0, "size": 4, "index": 8, "term": 16, "pos": 24, "body length": 47, "record size": 51,
    "record magic": 52, "crc": 56, "body": 48 + 100,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("index", [3, 0], ids=["in the middle", "the first"])
@pytest.mark.parametrize("field", PLACES_IN_ENTRY)
def test_a_damaged_entry_found_at_the_start_is_fetched(
    group: Group, field: str, index: int, caplog: pytest.LogCaptureFixture
) -> None:
    leader = group.elect()
    group.send(leader, *(b"message %d" % number * 20 for number in range(20)))
    group.run(3000)
    victim = next(member for member in group.members if member is not leader)
    assert victim.store is not None and victim.store.opened.entries is not None
    position = victim.store.opened.entries.entry(index)[0].position
    group.kill(victim.number)
    name, place = divmod(position + PLACES_IN_ENTRY[field], FILE_SIZE)
    node = victim.files.nodes[f"/store/dledger-{victim.name}/data/{name * FILE_SIZE:020d}"]
    node.data[place] ^= 0x40
    assert [reply.code for reply in group.send(leader, b"one", b"more")] == [0, 0]
    group.start(victim.number)
    assert victim.driver is not None and victim.store is not None
    assert victim.driver.damaged == {index}
    assert victim.store.log.confirm_offset <= position
    assert any(f"entry {index} is damaged" in note for note in victim.store.opened.notes)
    group.run(100)
    assert victim.driver.disk is DiskState.DAMAGED
    group.run(15_000)
    assert victim.driver.damaged == frozenset()
    assert any(f"entry {index} was repaired" in text for text in caplog.messages)
    assert_equal_ledgers(group)
    for member in group.members:
        assert len(group.read(member)) == 22


@pytest.mark.slow
@pytest.mark.parametrize("field", PLACES_IN_ENTRY)
def test_a_damaged_last_entry_is_a_gap(group: Group, field: str) -> None:
    """The process was killed, so the entry was on the disk. If its term is wrong, the member
    continues after the previous entry: a term that is too large would make it leader without the
    entries of the others.
    """
    leader = group.elect()
    group.send(leader, *(b"message %d" % number * 20 for number in range(20)))
    group.run(3000)
    victim = next(member for member in group.members if member is not leader)
    assert victim.store is not None and victim.store.opened.entries is not None
    position = victim.store.opened.entries.entry(19)[0].position
    group.kill(victim.number)
    name, place = divmod(position + PLACES_IN_ENTRY[field], FILE_SIZE)
    node = victim.files.nodes[f"/store/dledger-{victim.name}/data/{name * FILE_SIZE:020d}"]
    node.data[place] ^= 0x40
    group.send(leader, b"one", b"more")
    group.start(victim.number)
    assert victim.driver is not None and victim.store is not None
    if field == "term":
        assert victim.driver.entries.end.index == 18
        assert any("torn bytes" in note for note in victim.store.opened.notes)
    else:
        assert victim.driver.entries.end.index == 19
        assert victim.driver.damaged == {19}
    group.run(5000)
    assert_equal_ledgers(group)
    for member in group.members:
        assert len(group.read(member)) == 22


@pytest.mark.slow
@pytest.mark.parametrize("field", ["term", "body"])
def test_no_leader_arises_without_an_entry_that_a_voter_has_lost(
    group: Group, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The last acknowledged message is on two members, and one of them loses it by a flipped bit.
    Its checkpoint shows that it had the entry, so it elects nobody without it. If the entry keeps
    its place, its end is that of the log.
    """
    holder = group.elect()
    absent, victim = (member for member in group.members if member is not holder)
    group.send(holder, *(b"message %d" % number for number in range(5)))
    group.run(2000)
    group.stop(absent.number)
    assert [reply.code for reply in group.send(holder, b"acknowledged")] == [0]
    group.run(2000)
    assert victim.store is not None and victim.store.opened.entries is not None
    last = victim.store.opened.entries.end.index
    position = victim.store.opened.entries.entry(last)[0].position
    group.stop(victim.number, holder.number)
    name, place = divmod(position + PLACES_IN_ENTRY[field], FILE_SIZE)
    node = victim.files.nodes[f"/store/dledger-{victim.name}/data/{name * FILE_SIZE:020d}"]
    node.data[place] ^= 0x40
    for _ in range(2):  # What the member had is not forgotten at the next start.
        group.start(absent.number, victim.number)
        group.run(30_000)
        assert victim.driver is not None and absent.driver is not None
        roles = {victim.driver.node.role, absent.driver.node.role}
        assert roles == {Role.CANDIDATE}
        assert victim.driver.introduce().end_index == last, "it is no member without entries"
        fault = f"but entry {last} was committed" if field == "term" else "an entry is damaged"
        assert fault in (victim.driver.node.fault or "")
        assert field != "term" or any(fault in text for text in caplog.messages)
        status = json.loads(group.ask(victim, RemotingCommand.request(71003)).body)
        assert status["fault"] == victim.driver.node.fault
        group.stop(victim.number, absent.number)
    group.start(0, 1, 2)
    assert group.elect() is holder
    group.run(15_000)
    assert victim.driver is not None and victim.driver.node.fault is None
    assert_equal_ledgers(group)
    for member in group.members:
        assert b"acknowledged" in group.read(member)


@pytest.mark.slow
def test_a_member_with_a_committed_entry_that_the_leader_lacks_says_so(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """A power failure under ASYNC_FLUSH takes an acknowledged message from the majority, and both
    elect a leader before the third member returns. The group remains idle.
    """
    keeper = group.elect()
    others = [member for member in group.members if member is not keeper]
    group.send(keeper, b"durable")
    group.run(4000)
    for member in others:
        assert member.broker is not None
        member.broker.log_flusher.stop(lambda: None)
    assert [reply.code for reply in group.send(keeper, b"lost by two")] == [0]
    for member in others:
        group.kill(member.number, power=True)
    group.stop(keeper.number)
    group.start(*(member.number for member in others))
    leader = group.elect()
    group.start(keeper.number)
    group.run(10_000)
    assert keeper.driver is not None and leader.driver is not None
    assert "diverged from" in (keeper.driver.node.fault or "")
    assert any("diverged from" in text for text in caplog.messages)
    assert any(f"{keeper.name} refuses to drop" in text for text in caplog.messages)
    status = json.loads(group.ask(keeper, RemotingCommand.request(71003)).body)
    assert status["fault"] == keeper.driver.node.fault
    group.requests = 0
    group.run(10_000)
    assert group.requests < 100, "heartbeats, commits, and a comparison every half second"
    assert [reply.code for reply in group.send(leader, b"with two members")] == [0]
    assert b"lost by two" in group.read(keeper)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_group_starts_after_all_members_lose_power(flush: FlushDiskType, seed: int) -> None:
    """Of the pages that were not synced, any may be on the disk. With SYNC_FLUSH, nothing that was
    acknowledged is lost.
    """
    group = Group.of(flush_disk_type=flush)
    rng = random.Random(seed)
    group.start(0, 1, 2)
    kept: list[bytes] = []
    for round_number in range(4):
        leader = group.elect()
        bodies = [b"%d %d " % (round_number, n) * rng.randint(1, 40) for n in range(30)]
        for first in range(0, 20, 5):
            some = bodies[first : first + 5]
            replies = group.send(leader, *some, wait_ms=rng.randint(20, 100))
            if flush is FlushDiskType.SYNC_FLUSH and len(replies) == 5:
                kept += [body for body, reply in zip(some, replies, strict=True) if not reply.code]
            if len(replies) < 5:
                break  # The other replies would mix with those to the next messages.
        group.send(leader, *bodies[20:], wait_ms=rng.randint(0, 12))
        for member in group.members:
            group.kill(member.number, power=True, pages=rng)
        order = rng.sample(range(3), 3)
        group.start(*order[:2])
        group.run(rng.randint(0, 8000))
        group.start(order[2])
        leader = group.elect()
        assert set(kept) <= set(group.read(leader))
    group.run(20_000)
    following = [
        member
        for member in group.members
        if member.driver is not None and member.driver.node.fault is None
    ]
    assert len(following) == 3
    assert_equal_ledgers(group)


def test_every_member_flushes_its_log_every_ten_milliseconds(group: Group) -> None:
    """Java's DLedger does, whatever flushDiskType and flushIntervalCommitLog say."""
    leader = group.elect()
    group.send(leader, b"first")
    for _ in range(3):
        assert [reply.code for reply in group.send(leader, b"more", wait_ms=30)] == [0]
        group.run(10)
        for member in group.members:
            assert member.driver is not None
            assert member.driver.entries.flushed_offset == member.driver.entries.end_offset


@pytest.mark.slow
def test_a_leader_with_a_full_disk_hands_over(group: Group) -> None:
    """It takes part again when there is space."""
    full = group.elect()
    assert [reply.code for reply in group.send(full, b"before")] == [0]
    assert full.store is not None
    full.files.fail_write("/data/", errno.ENOSPC)
    assert [reply.code for reply in group.send(full, b"refused")] == [14]
    group.run(5000)
    leader = group.leader()
    assert leader is not full
    assert [reply.code for reply in group.send(leader, b"accepted")] == [0]
    group.run(20_000)
    assert group.leader() is leader
    full.files.heal()
    group.run(10_000)
    assert_equal_ledgers(group)


@pytest.mark.slow
def test_a_member_with_a_damaged_entry_does_not_lead(group: Group) -> None:
    """It has the longest log, but waits until another member leads and sends it the entry."""
    leader = group.elect()
    group.send(leader, *(b"message %d" % number * 20 for number in range(20)))
    group.run(3000)
    assert leader.store is not None and leader.store.opened.entries is not None
    header, _ = leader.store.opened.entries.entry(3)
    for member in group.members:
        group.kill(member.number)
    name, place = divmod(header.position + 48 + 100, FILE_SIZE)
    node = leader.files.nodes[f"/store/dledger-{leader.name}/data/{name * FILE_SIZE:020d}"]
    node.data[place] ^= 0x40
    group.start(leader.number)
    group.run(20_000)
    assert leader.driver is not None and leader.driver.damaged == {3}
    assert leader.driver.node.role is not Role.LEADER
    group.start(*(member.number for member in group.members if member is not leader))
    group.run(30_000)
    assert leader.driver.damaged == frozenset()
    assert_equal_ledgers(group)


def test_members_with_damaged_entries_repair_each_other_without_a_leader(group: Group) -> None:
    """Neither of the two may lead, so none would ever send an intact copy as the leader."""
    leader = group.elect()
    group.send(leader, *(b"message %d" % number * 20 for number in range(20)))
    group.run(3000)
    absent, *damaged = group.members
    for member, index in zip(damaged, (3, 7), strict=True):
        assert member.store is not None and member.store.opened.entries is not None
        header, _ = member.store.opened.entries.entry(index)
        name, place = divmod(header.position + 48 + 100, FILE_SIZE)
        node = member.files.nodes[f"/store/dledger-{member.name}/data/{name * FILE_SIZE:020d}"]
        node.data[place] ^= 0x40
    for member in group.members:
        group.kill(member.number)
    group.start(*(member.number for member in damaged))
    for member, index in zip(damaged, (3, 7), strict=True):
        assert member.driver is not None and member.driver.damaged == {index}
    leader = group.elect()
    assert [reply.code for reply in group.send(leader, b"more")] == [0]
    group.start(absent.number)
    group.run(5000)
    assert_equal_ledgers(group)


@pytest.mark.parametrize("young", [False, True], ids=["committed", "younger than the checkpoint"])
def test_a_damaged_last_entry_is_fetched_without_a_leader(group: Group, young: bool) -> None:
    """The only other member with the entry lacks tables, so neither may lead before the repair. It
    may not know that the entry is committed.
    """
    leader = group.elect()
    group.send(leader, *(b"message %d" % number * 20 for number in range(20)))
    group.run(4000)
    absent, *others = [leader, *(member for member in group.members if member is not leader)]
    victim, holder = others
    if young:
        group.send(leader, b"one more")
    assert victim.store is not None and victim.store.opened.entries is not None
    assert holder.store is not None
    last = victim.store.opened.entries.end.index
    header, _ = victim.store.opened.entries.entry(last)
    holder.store.queue_ends.request()
    for member in group.members:
        group.kill(member.number)
    name, place = divmod(header.position + PLACES_IN_ENTRY["crc"], FILE_SIZE)
    node = victim.files.nodes[f"/store/dledger-{victim.name}/data/{name * FILE_SIZE:020d}"]
    node.data[place] ^= 0x40
    group.start(victim.number, holder.number)
    assert victim.driver is not None and victim.driver.damaged == {last}
    assert group.elect() is victim
    assert victim.driver.damaged == frozenset()
    assert [reply.code for reply in group.send(victim, b"more")] == [0]
    group.start(absent.number)
    group.run(5000)
    assert_equal_ledgers(group)


@pytest.mark.slow
@pytest.mark.parametrize("victim_role", ["leader", "follower"])
def test_a_damaged_entry_is_fetched_again(
    group: Group, victim_role: str, caplog: pytest.LogCaptureFixture
) -> None:
    leader = group.elect()
    group.send(leader, *(b"message %d" % number * 20 for number in range(20)))
    group.run(3000)
    victim = leader
    if victim_role == "follower":
        victim = next(member for member in group.members if member is not leader)
    assert victim.store is not None and victim.store.opened.entries is not None
    header, _ = victim.store.opened.entries.entry(3)
    name, place = divmod(header.position + 48 + 100, FILE_SIZE)
    node = victim.files.nodes[f"/store/dledger-{victim.name}/data/{name * FILE_SIZE:020d}"]
    node.data[place] ^= 0x40
    assert victim.driver is not None
    for _ in range((REST_MS + 1000) // 100):
        if victim.driver.damaged:
            break
        group.run(100)
    assert victim.driver.damaged == {3}
    assert victim.driver.node.role is not Role.LEADER
    group.run(15_000)
    assert victim.driver.damaged == frozenset()
    assert any("entry 3 is damaged" in text for text in caplog.messages)
    assert any("entry 3 was repaired" in text for text in caplog.messages)
    again = group.leader()
    assert [reply.code for reply in group.send(again, b"more")] == [0]
    group.run(3000)
    assert_equal_ledgers(group)
    for member in group.members:
        assert len(group.read(member)) == 21


@pytest.mark.slow
def test_granted_entries_are_proposed_before_answers_are_handled(group: Group) -> None:
    """Answers may end the leadership, but entries that C has appended meanwhile were granted
    before.
    """
    leader = group.elect()
    assert [reply.code for reply in group.send(leader, b"a")] == [0]
    group.run(2000)
    assert leader.driver is not None
    driver = leader.driver
    granted, room = driver.grant()
    assert room > 0
    driver._planned = True
    driver._inbox.append(Answered(-1, None))
    proposed = driver.propose(1)
    assert proposed == granted
    assert driver._inbox, "the answer waits for the next turn"
    assert not driver._granted


def test_a_put_without_a_grant_handles_answers_first(group: Group) -> None:
    leader = group.elect()
    group.send(leader, b"a")
    group.run(2000)
    assert leader.driver is not None
    driver = leader.driver
    driver._planned = True
    driver._inbox.append(Answered(-1, None))
    driver.propose(1)
    assert not driver._inbox


def fence_all(group: Group, seconds: int | None) -> list[dict[str, Any]]:
    command = RemotingCommand.request(71005, FenceRequestHeader(seconds=seconds))
    return [json.loads(group.ask(member, command).body) for member in group.members]


def send_delayed(group: Group, leader: Member, count: int) -> None:
    assert leader.broker is not None
    commands = [send_command(b"delayed %d" % number) for number in range(count)]
    for command in commands:
        command.ext_fields["i"] = "DELAY\x012"
    leader.broker.server.handle(leader.channel, commands)
    leader.broker.server.turn_ended()
    group.run(200)
    assert {answer.code for answer in leader.channel.take()} == {0}


@pytest.mark.parametrize("order", ["leader first", "leader last"])
@pytest.mark.parametrize("fenced", [True, False])
def test_fenced_members_stop_at_the_same_entry(fenced: bool, order: str) -> None:
    """Without a fence, the leader writes a delayed message after a member has stopped."""
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    send_delayed(group, leader, 30)
    states = fence_all(group, 60) if fenced else []
    group.run(2_000)
    if fenced:
        states = fence_all(group, None)
        assert all(state["drained"] for state in states), states
        assert len({state["end"] for state in states}) == 1
    followers = [member.number for member in group.members if member is not leader]
    stops = [*followers, leader.number] if order == "leader last" else [leader.number, *followers]
    for number in stops:
        group.stop(number)
        group.run(8_000)
    data = [member.data() for member in group.members]
    assert (data[0] == data[1] == data[2]) is fenced


def test_a_fenced_member_that_becomes_leader_writes_nothing(group: Group) -> None:
    leader = group.elect()
    send_delayed(group, leader, 3)
    fence_all(group, 30)
    group.run(2_000)
    group.kill(leader.number)
    second = group.elect()
    assert second.store is not None
    end = second.store.log.max_offset
    assert [reply.code for reply in group.send(second, b"refused")] == [14]
    group.run(10_000)
    assert second.store.log.max_offset == end
    group.run(30_000)
    assert sorted(group.read(second)) == [b"delayed 0", b"delayed 1", b"delayed 2"]
