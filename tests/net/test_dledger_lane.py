"""The short way of granted pushes against the ordinary one: the same frames give the same answers,
the same bytes on the disk and the same state of the core.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqpy.codec.backend import push_taker
from rmqpy.codec.message import encode_messages
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.entry_log import frame
from rmqpy.dledger.handshake import PeerHello
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import (
    Entry,
    HeartBeatRequest,
    PushEntryRequest,
    PushType,
    Request,
)
from rmqpy.dledger.state import HardState, Role
from rmqpy.model.codes import RequestCode
from rmqpy.model.ids import Term
from rmqpy.model.message import OutgoingMessage
from rmqpy.net.dledger.context import DriverDependencies
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.ledger.member_state import MemberFiles
from rmqpy.store.message_store import StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

needs_c = pytest.mark.skipif(push_taker is None, reason="there is no C core")

MEMBERS = ("n0", "n1", "n2")
FILE_SIZE = 8192
TERM = 3
GROUP = "a%group"
HOST = (b"\x7f\0\0\1", 10911)
FOLDER = "/store/dledger-n1"
ADDRESSES = {name: f"10.0.0.{number}:40911" for number, name in enumerate(MEMBERS)}


class Nobody:
    """A network without an answer."""

    def request(self, *_arguments: Any) -> None:
        pass

    def oneway(self, *_arguments: Any) -> None:
        pass


@define(eq=False)
class Member:
    """A follower of n0 in term 3, with its store in memory."""

    driver: DLedgerDriver
    store: Any
    files: MemoryFiles
    scheduler: ManualScheduler
    channel: MemoryChannel
    taken: int = 0
    """Frames that went the short way."""

    opaque: int = 0

    @classmethod
    def of(cls, *, lane: bool, **options: Any) -> Member:
        files, scheduler = MemoryFiles(), ManualScheduler()
        MemberFiles(files, FOLDER).save_hard_state(HardState(Term(TERM), "n0"))
        store_settings = StoreSettings(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=FILE_SIZE,
            enable_dledger_commit_log=True,
            dledger_group=GROUP,
            dledger_self_id="n1",
            dledger_peers=";".join(f"{name}-{ADDRESSES[name]}" for name in MEMBERS),
        )
        store = open_store(StoreContext(store_settings, files, scheduler, 1 << 34))
        assert store.opened.dledger is not None
        deps = DriverDependencies(
            log=store.opened.dledger,
            store=store,
            scheduler=scheduler,
            network=Nobody(),
            store_host=HOST,
            on_role=lambda role: store.set_role(slave=role is not Role.LEADER),
            flush=lambda: None,
        )
        driver = DLedgerDriver(
            Membership(GROUP, "n1", MEMBERS),
            RaftOptions(addresses=ADDRESSES, rng=lambda below: 0, **options),
            deps,
        )
        if not lane:
            driver._lane._taker = None
        member = cls(driver, store, files, scheduler, MemoryChannel())
        driver.start()
        own = driver.introduce()
        member.give([introduction(own)])
        member.give([command(HeartBeatRequest(**of_leader()))])
        assert driver.node.role is Role.FOLLOWER
        return member

    def give(self, commands: list[RemotingCommand]) -> None:
        """What comes in with one read."""
        numbered = []
        for each in commands:
            self.opaque += 1
            numbered.append(evolve(each, opaque=self.opaque))
        count = _Counted(self)
        self.driver.handle(self.channel, numbered)
        count.end()

    def seen(self) -> dict[str, Any]:
        """All that must not depend on the way."""
        node, entries = self.driver.node, self.driver.entries
        follower = node._follower
        return {
            "answers": sorted(self.channel.take(), key=lambda answer: answer.opaque),
            "files": {
                path: bytes(content.content().rstrip(b"\0"))
                for path, content in self.files.nodes.items()
                if path.startswith(FOLDER)
            },
            "entries": (entries.end, entries.stored_index, entries.begin_index),
            "state": list(entries.staging.state),
            "committed": (node.committed_index, entries.committed_index, entries.committed.value),
            "role": (node.role, node.term, node.leader_id),
            "matched": (follower._matched, follower._matched_term, follower.matched_index),
            "held": sorted(follower._held),
            "dead": self.driver.carrier.dead,
            "store": (self.store.health.failure, self.store.health.disk_full_reason),
        }


class _Counted:
    """Counts the frames that the lane takes while it is there."""

    def __init__(self, member: Member) -> None:
        self.lane = member.driver._lane
        self.real = self.lane._node.on_appended

        def took(*arguments: Any) -> None:
            member.taken += 1
            self.real(*arguments)

        vars(self.lane._node)["on_appended"] = took

    def end(self) -> None:
        del vars(self.lane._node)["on_appended"]


def of_leader() -> dict[str, Any]:
    return {
        "group": GROUP, "remote_id": "n1", "local_id": "n0", "leader_id": "n0", "term": Term(TERM),
    }  # fmt: skip


def command(request: Request) -> RemotingCommand:
    return RemotingCommand.request(request.CODE, body=encode(request))


def introduction(own: PeerHello) -> RemotingCommand:
    leader = evolve(own, member="n0")
    return RemotingCommand.request(RequestCode.RMQPY_DLEDGER_HANDSHAKE, body=leader.encode())


def log_of(sizes: list[tuple[int, int]]) -> list[Entry]:
    """A leader's log: bodies of these sizes, terms that rise by these steps, at most to its own."""
    entries: list[Entry] = []
    end, term = 0, 0
    for index, (size, step) in enumerate(sizes):
        term = min(TERM, term + step)
        body = record(bytes([index % 251]) * size)
        entries.append(Entry.of(index, term, frame(end, 48 + len(body), FILE_SIZE), body))
        end = entries[-1].end_offset
    return entries


def record(body: bytes) -> bytes:
    draft = OutgoingMessage(
        topic=b"T",
        queue_id=1,
        body=body,
        properties=b"",
        born_timestamp_ms=5,
        born_host=HOST,
        store_host=HOST,
    )
    return bytes(encode_messages([draft])[0])


def push(entries: list[Entry], committed: int = -1, **changes: Any) -> RemotingCommand:
    values = of_leader() | {"entries": tuple(entries), "commit_index": committed, "batch": True}
    return command(PushEntryRequest(**(values | changes)))


def pair(**options: Any) -> tuple[Member, Member]:
    return Member.of(lane=True, **options), Member.of(lane=False, **options)


def same(members: tuple[Member, Member], commands: list[RemotingCommand]) -> None:
    for member in members:
        member.give(commands)
    agree(members)


def agree(members: tuple[Member, Member]) -> None:
    short, ordinary = (member.seen() for member in members)
    for name, value in short.items():
        assert value == ordinary[name], name


@needs_c
def test_usual_pushes_go_the_short_way_and_leave_the_same() -> None:
    members = pair()
    log = log_of([(90, 1)] * 60)
    same(members, [push(log[:5])])
    for first in range(5, 60, 5):
        same(members, [push(log[first : first + 5], committed=first - 1)])
    assert members[0].taken == 10  # not the first one, not the one that rolls to a new file
    assert members[1].taken == 0
    assert members[0].driver.node.committed_index == 54


@needs_c
def test_frames_of_one_read_keep_their_order() -> None:
    members = pair()
    log = log_of([(20, 1)] * 30)
    same(members, [push(log[:4])])
    commit = push([], 9, type=PushType.COMMIT, batch=False)
    same(members, [push(log[4:8], 0), commit, push(log[8:12], 3), push(log[12:16], 11)])
    assert members[0].channel.written == members[1].channel.written
    assert members[0].taken == 1  # behind a frame that has to be decided about all are
    same(members, [push(log[16:20], 9), push(log[20:24], 19), push(log[24:28], 30)])
    assert members[0].taken == 4
    assert members[0].driver.node.committed_index == 27


@needs_c
def test_nothing_is_granted_where_an_answer_waits_for_the_sync() -> None:
    members = pair(ack_after_sync=True)
    log = log_of([(20, 1)] * 30)
    for first in range(0, 30, 5):
        same(members, [push(log[first : first + 5], 0)])
    assert members[0].taken == 0


@needs_c
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("part", ["/data/", "/index/"])
def test_an_answer_waits_for_the_write(code: int, part: str) -> None:
    members = pair()
    log = log_of([(20, 1)] * 30)
    same(members, [push(log[:4]), push(log[4:6], 0)])
    for member in members:
        member.files.fail_write(part, code)
        before = len(member.channel.written)
        member.give([push(log[6:10], 9), push(log[10:14], 9)])
        assert len(member.channel.written) == before
        assert member.driver.carrier.dead is (code == errno.EIO)
        member.files.heal()
        member.scheduler.advance(50)
    first, second = members[0].seen(), members[1].seen()
    assert members[0].taken == 2
    if code == errno.ENOSPC:
        assert first == second
        same(members, [push(log[14:18], 13)])
    else:
        assert first["dead"] and second["dead"]
        assert first["answers"] == second["answers"]


BAD = st.sampled_from(
    ["term", "leader", "group", "remote", "position", "size", "index", "old term"]
)
SIZES = st.tuples(st.integers(0, 400), st.sampled_from((0, 0, 0, 1)))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """What a network makes of a leader's pushes."""
    kinds = st.one_of(
        st.tuples(st.just("next"), st.integers(1, 8), st.integers(0, 60)),
        st.tuples(st.just("next"), st.integers(1, 8), st.integers(0, 60)),
        st.tuples(st.just("again"), st.integers(1, 8), st.integers(1, 8)),
        st.tuples(st.just("gap"), st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.just("single"), st.just(1), st.just(0)),
        st.tuples(st.just("commit"), st.integers(-1, 60), st.just(0)),
        st.tuples(st.just("bad"), BAD, st.integers(1, 4)),
        st.tuples(st.just("cut"), st.integers(0, 4000), st.integers(1, 4)),
        st.tuples(st.just("byte"), st.integers(0, 4000), st.integers(0, 255)),
        st.tuples(st.just("wait"), st.integers(1, 1500), st.just(0)),
    )
    return draw(st.lists(kinds, min_size=1, max_size=14))


def frame_of(kind: str, first: Any, second: int, at: int, log: list[Entry]) -> RemotingCommand:
    """A frame of the leader for a member whose next entry is ``at``."""
    if kind == "next":
        return push(log[at : at + first] or log[-1:], second)
    if kind == "again":
        begin = max(0, at - first)
        return push(log[begin : begin + second], 1)
    if kind == "gap":
        return push(log[at + first : at + first + second] or log[-1:], 1)
    if kind == "single":
        return push(log[at : at + 1] or log[-1:], batch=False)
    if kind == "commit":
        return push([], first, type=PushType.COMMIT, batch=False)
    if kind == "bad":
        return bad_push(first, log[at : at + second] or log[-1:])
    whole = push(log[at : at + 3] or log[-1:], 1)
    body = bytearray(whole.body)
    if kind == "cut":
        del body[first % len(body) :][:second]
    else:
        body[first % len(body)] = second
    return evolve(whole, body=bytes(body))


def bad_push(what: str, entries: list[Entry]) -> RemotingCommand:
    head, last = entries[0], entries[-1].header
    changes: dict[str, dict[str, Any]] = {
        "term": {"term": Term(TERM + 1)},
        "leader": {"leader_id": "n2", "local_id": "n2"},
        "group": {"group": "another"},
        "remote": {"remote_id": "n2"},
    }
    if what in changes:
        return push(entries, 1, **changes[what])
    if what == "position":
        moved = [Entry(evolve(e.header, position=e.position + 8), e.body) for e in entries]
        return push(moved, 1)
    if what == "index":
        moved = [Entry.of(e.index + 1, e.term, e.position, e.body) for e in entries]
        return push(moved, 1)
    if what == "size":
        longer = evolve(last, size=last.size + 1)
        return push([*entries[:-1], Entry(longer, entries[-1].body)], 1)
    term = Term(max(0, head.term - 1))
    return push([Entry(evolve(head.header, term=term), head.body), *entries[1:]], 1)


@pytest.mark.slow
@needs_c
@settings(max_examples=20, deadline=None)
@given(
    st.lists(SIZES, min_size=8, max_size=60),
    st.lists(steps(), min_size=1, max_size=6),
)
def test_both_ways_do_the_same(
    sizes: list[tuple[int, int]], reads: list[list[tuple[Any, ...]]]
) -> None:
    members = pair()
    log = log_of(sizes)
    same(members, [push(log[:2], 0)])
    for read in reads:
        at = members[0].driver.entries.end.index + 1
        frames = []
        for kind, first, second in read:
            if kind == "wait":
                for member in members:
                    member.scheduler.advance(first)
                    member.give([command(HeartBeatRequest(**of_leader()))])
                agree(members)
                continue
            frames.append(frame_of(kind, first, second, at, log))
            at += first if kind == "next" else 0
            if kind == "byte":  # an entry that is stored is looked at, one on its way is not
                same(members, frames)
                frames = []
        if frames:
            same(members, frames)
