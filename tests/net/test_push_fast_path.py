"""The fast path of granted pushes against the general path: the same frames give the same answers,
the same bytes on disk and the same state of the core.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from struct import pack
from typing import Protocol, Self, TypedDict

import pytest
from attrs import astuple, define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqpy.codec.backend import push_taker
from rmqpy.codec.entry import ENTRY_HEADER
from rmqpy.codec.message import encode_message
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
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.model.message import OutgoingMessage
from rmqpy.net.dledger.context import DriverDependencies
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.remoting.channel import Reply
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.ledger.member_state import MemberFiles
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

needs_c = pytest.mark.skipif(push_taker is None, reason="the C core is not available")

MEMBERS = ("n0", "n1", "n2")
FILE_SIZE = 8192
TERM = Term(3)
GROUP = "a%group"
HOST = (b"\x7f\0\0\1", 10911)
FOLDER = "/store/dledger-n1"
ADDRESSES = {name: f"10.0.0.{number}:40911" for number, name in enumerate(MEMBERS)}


class SilentNetwork:
    """A network that never answers."""

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Reply,
        pieces: Sequence[bytes] = (),
    ) -> None:
        pass

    def oneway(self, address: str, command: RemotingCommand) -> None:
        pass


@define(eq=False)
class Member:
    """A follower of n0 in term 3, with its store in memory."""

    driver: DLedgerDriver
    store: MessageStore
    files: MemoryFiles
    scheduler: ManualScheduler
    channel: MemoryChannel
    taken: int = 0
    """The number of frames that the fast path took."""

    opaque: int = 0

    @classmethod
    def of(cls, *, fast_path: bool, ack_after_sync: bool = False) -> Self:
        files, scheduler = MemoryFiles(), ManualScheduler()
        MemberFiles(files, FOLDER).save_hard_state(HardState(TERM, "n0"))
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
            network=SilentNetwork(),
            store_host=HOST,
            on_role=lambda role: store.set_role(slave=role is not Role.LEADER),
            flush=lambda: None,
        )
        driver = DLedgerDriver(
            Membership(GROUP, "n1", MEMBERS),
            RaftOptions(addresses=ADDRESSES, rng=lambda below: 0, ack_after_sync=ack_after_sync),
            deps,
        )
        if not fast_path:
            driver._push_fast_path._taker = None
        member = cls(driver, store, files, scheduler, MemoryChannel())
        driver.start()
        own = driver.introduce()
        member.give([introduction(own)])
        member.give([command(HeartBeatRequest(**LEADER_FIELDS))])
        assert driver.node.role is Role.FOLLOWER
        return member

    def give(self, commands: list[RemotingCommand]) -> None:
        """Handle the frames of one read, numbered on."""
        numbered = []
        for each in commands:
            self.opaque += 1
            numbered.append(evolve(each, opaque=self.opaque))
        counter = _TakenCounter(self)
        self.driver.handle(self.channel, numbered)
        counter.stop()

    def state(self) -> dict[str, object]:
        """Return everything that must not depend on the path."""
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


class _TakenCounter:
    """A wrapper of ``Node.on_appended`` that counts the frames that the fast path takes."""

    def __init__(self, member: Member) -> None:
        self.node = member.driver.node
        on_appended = self.node.on_appended

        def counted(last_index: LedgerIndex, commit_index: int) -> None:
            member.taken += 1
            on_appended(last_index, commit_index)

        vars(self.node)["on_appended"] = counted

    def stop(self) -> None:
        del vars(self.node)["on_appended"]


class LeaderFields(TypedDict):
    """The fields of ``DLedgerMessage`` in each request of the leader."""

    group: str
    remote_id: str
    local_id: str
    leader_id: str
    term: Term


LEADER_FIELDS = LeaderFields(group=GROUP, remote_id="n1", local_id="n0", leader_id="n0", term=TERM)


def command(request: Request) -> RemotingCommand:
    return RemotingCommand.request(request.CODE, body=encode(request))


def introduction(own: PeerHello) -> RemotingCommand:
    leader = evolve(own, member="n0")
    return RemotingCommand.request(RequestCode.RMQPY_DLEDGER_HANDSHAKE, body=leader.encode())


def log_of(sizes: list[tuple[int, int]]) -> list[Entry]:
    """Return a leader's log from ``(body size, step of the term)``; its last term is ``TERM``."""
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
    return bytes(encode_message(draft))


def push_request(
    entries: list[Entry], committed: int = -1, *, batch: bool = True
) -> PushEntryRequest:
    return PushEntryRequest(
        **LEADER_FIELDS, entries=tuple(entries), commit_index=committed, batch=batch
    )


def push(entries: list[Entry], committed: int = -1, *, batch: bool = True) -> RemotingCommand:
    return command(push_request(entries, committed, batch=batch))


def push_binary(entries: list[Entry], committed: int = -1) -> RemotingCommand:
    return in_binary(push_request(entries, committed))


def in_binary(request: PushEntryRequest) -> RemotingCommand:
    """Return the frame of a binary push, by the table of docs/reference/dledger.md."""
    names = b"".join(
        bytes([len(name)]) + name.encode()
        for name in (request.group, request.leader_id, request.remote_id)
        if name is not None
    )
    entries = b"".join(ENTRY_HEADER.pack(*astuple(e.header)) + e.body for e in request.entries)
    numbers = request.term, request.commit_index, request.first_index, len(request.entries)
    head = pack(">4siqqqii", b"RDP1", len(names), *numbers, len(entries))
    return RemotingCommand.request(RequestCode.RMQPY_PUSH_RUN, body=head + names + entries)


class Encoder(Protocol):
    """Encodes a batch push of entries with a committed index."""

    def __call__(self, entries: list[Entry], committed: int = -1) -> RemotingCommand: ...


each_form = pytest.mark.parametrize("encoder", [push, push_binary], ids=["text", "binary"])


def push_commit(committed: int) -> RemotingCommand:
    return command(evolve(push_request([], committed, batch=False), type=PushType.COMMIT))


def make_members(*, ack_after_sync: bool = False) -> tuple[Member, Member]:
    """Return a member with the fast path and one without."""
    return (
        Member.of(fast_path=True, ack_after_sync=ack_after_sync),
        Member.of(fast_path=False, ack_after_sync=ack_after_sync),
    )


def check_same(members: tuple[Member, Member], commands: list[RemotingCommand]) -> None:
    """Give both members the frames of one read, and check that their states are equal."""
    for member in members:
        member.give(commands)
    check_states(members)


def check_states(members: tuple[Member, Member]) -> None:
    fast, general = (member.state() for member in members)
    for name, value in fast.items():
        assert value == general[name], name


@needs_c
@each_form
def test_regular_pushes_take_the_fast_path_with_the_same_result(encoder: Encoder) -> None:
    members = make_members()
    log = log_of([(90, 1)] * 60)
    check_same(members, [encoder(log[:5])])
    for first in range(5, 60, 5):
        check_same(members, [encoder(log[first : first + 5], committed=first - 1)])
    # All but the first push and the one that rolls to a new file.
    assert members[0].taken == 10
    assert members[1].taken == 0
    assert members[0].driver.node.committed_index == 54


@needs_c
def test_the_form_of_a_push_may_change_at_any_time() -> None:
    """As while the members of a group are upgraded one after the other."""
    members = make_members()
    log = log_of([(20, 1)] * 30)
    check_same(members, [push_binary(log[:4])])
    for first in range(4, 28, 4):
        encoder = push if first % 8 else push_binary
        check_same(members, [encoder(log[first : first + 4], first - 1)])
    assert members[0].taken == 6
    assert members[0].driver.node.committed_index == 23


@needs_c
@pytest.mark.parametrize("place", range(40))
def test_a_binary_push_with_a_changed_head_is_rejected_as_a_whole(place: int) -> None:
    members = make_members()
    log = log_of([(20, 1)] * 30)
    check_same(members, [push_binary(log[:4])])
    good = push_binary(log[4:8], 3)
    body = bytearray(good.body)
    body[place] ^= 0x81
    check_same(members, [evolve(good, body=bytes(body))])
    is_commit_index = 16 <= place < 24
    assert members[0].driver.entries.end.index == (7 if is_commit_index else 3)
    check_same(members, [good])
    assert members[0].driver.entries.end.index == 7


@needs_c
def test_frames_of_one_read_keep_their_order() -> None:
    members = make_members()
    log = log_of([(20, 1)] * 30)
    check_same(members, [push(log[:4])])
    check_same(
        members, [push(log[4:8], 0), push_commit(9), push(log[8:12], 3), push(log[12:16], 11)]
    )
    assert members[0].channel.written == members[1].channel.written
    # After a frame that takes the general path, the rest of the read does, too.
    assert members[0].taken == 1
    check_same(members, [push(log[16:20], 9), push(log[20:24], 19), push(log[24:28], 30)])
    assert members[0].taken == 4
    assert members[0].driver.node.committed_index == 27


@needs_c
def test_nothing_is_granted_if_answers_wait_for_the_sync() -> None:
    members = make_members(ack_after_sync=True)
    log = log_of([(20, 1)] * 30)
    for first in range(0, 30, 5):
        check_same(members, [push(log[first : first + 5], 0)])
    assert members[0].taken == 0


@needs_c
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("part", ["/data/", "/index/"])
def test_an_answer_waits_for_the_write(code: int, part: str) -> None:
    members = make_members()
    log = log_of([(20, 1)] * 30)
    check_same(members, [push(log[:4]), push(log[4:6], 0)])
    for member in members:
        member.files.fail_write(part, code)
        before = len(member.channel.written)
        member.give([push(log[6:10], 9), push(log[10:14], 9)])
        assert len(member.channel.written) == before
        assert member.driver.carrier.dead is (code == errno.EIO)
        member.files.heal()
        member.scheduler.advance(50)
    first, second = members[0].state(), members[1].state()
    assert members[0].taken == 2
    if code == errno.ENOSPC:
        assert first == second
        check_same(members, [push(log[14:18], 13)])
    else:
        assert first["dead"] and second["dead"]
        assert first["answers"] == second["answers"]


FORMS: dict[str, Encoder] = {"": push, "binary ": push_binary}
BAD_FIELDS = ("term", "leader", "group", "remote", "position", "size", "index", "old term")
SIZES = st.tuples(st.integers(0, 400), st.sampled_from((0, 0, 0, 1)))


Step = tuple[str, int, int]
"""A kind and two numbers whose meaning depends on it."""


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Draw what a network makes of a leader's pushes."""
    form = draw(st.sampled_from(sorted(FORMS)))
    kinds = st.one_of(
        st.tuples(st.just(form + "next"), st.integers(1, 8), st.integers(0, 60)),
        st.tuples(st.just(form + "next"), st.integers(1, 8), st.integers(0, 60)),
        st.tuples(st.just(form + "again"), st.integers(1, 8), st.integers(1, 8)),
        st.tuples(st.just(form + "gap"), st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.just("single"), st.just(1), st.just(0)),
        st.tuples(st.just("commit"), st.integers(-1, 60), st.just(0)),
        st.tuples(st.just(form + "bad"), st.integers(0, len(BAD_FIELDS) - 1), st.integers(1, 4)),
        st.tuples(st.just(form + "cut"), st.integers(0, 4000), st.integers(1, 4)),
        st.tuples(st.just(form + "byte"), st.integers(0, 4000), st.integers(0, 255)),
        st.tuples(st.just("wait"), st.integers(1, 1500), st.just(0)),
    )
    return draw(st.lists(kinds, min_size=1, max_size=14))


def frame_of(kind: str, first: int, second: int, at: int, log: list[Entry]) -> RemotingCommand:
    """Return a frame of the leader for a member whose next entry is ``at``."""
    form = "binary " if kind.startswith("binary ") else ""
    kind, encoder = kind.removeprefix(form), FORMS[form]
    if kind == "next":
        return encoder(log[at : at + first] or log[-1:], second)
    if kind == "again":
        start = max(0, at - first)
        return encoder(log[start : start + second], 1)
    if kind == "gap":
        return encoder(log[at + first : at + first + second] or log[-1:], 1)
    if kind == "single":
        return push(log[at : at + 1] or log[-1:], batch=False)
    if kind == "commit":
        return push_commit(first)
    if kind == "bad":
        return bad_push(BAD_FIELDS[first], log[at : at + second] or log[-1:], encoder)
    whole = encoder(log[at : at + 3] or log[-1:], 1)
    body = bytearray(whole.body)
    if kind == "cut":
        del body[first % len(body) :][:second]
    else:
        body[first % len(body)] = second
    return evolve(whole, body=bytes(body))


def bad_push(field: str, entries: list[Entry], encoder: Encoder) -> RemotingCommand:
    """Return a push of ``entries`` in which ``field`` is wrong."""
    head, last = entries[0], entries[-1].header
    request = push_request(entries, 1)
    foreign = {
        "term": evolve(request, term=Term(TERM + 1)),
        "leader": evolve(request, leader_id="n2", local_id="n2"),
        "group": evolve(request, group="another"),
        "remote": evolve(request, remote_id="n2"),
    }
    if field in foreign:
        return command(foreign[field]) if encoder is push else in_binary(foreign[field])
    if field == "position":
        moved = [Entry(evolve(e.header, position=e.position + 8), e.body) for e in entries]
        return encoder(moved, 1)
    if field == "index":
        moved = [Entry.of(e.index + 1, e.term, e.position, e.body) for e in entries]
        return encoder(moved, 1)
    if field == "size":
        longer = evolve(last, size=last.size + 1)
        return encoder([*entries[:-1], Entry(longer, entries[-1].body)], 1)
    term = Term(max(0, head.term - 1))
    return encoder([Entry(evolve(head.header, term=term), head.body), *entries[1:]], 1)


@pytest.mark.slow
@needs_c
@settings(max_examples=20, deadline=None)
@given(
    st.lists(SIZES, min_size=8, max_size=60),
    st.lists(steps(), min_size=1, max_size=6),
)
def test_both_paths_have_the_same_result(
    sizes: list[tuple[int, int]], reads: list[list[Step]]
) -> None:
    members = make_members()
    log = log_of(sizes)
    check_same(members, [push(log[:2], 0)])
    for read in reads:
        at = members[0].driver.entries.end.index + 1
        frames = []
        for kind, first, second in read:
            if kind == "wait":
                for member in members:
                    member.scheduler.advance(first)
                    member.give([command(HeartBeatRequest(**LEADER_FIELDS))])
                check_states(members)
                continue
            frames.append(frame_of(kind, first, second, at, log))
            at += first if kind.endswith("next") else 0
            if kind.endswith("byte"):  # A stored entry is compared, one that is only staged is not.
                check_same(members, frames)
                frames = []
        if frames:
            check_same(members, frames)
