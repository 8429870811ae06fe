"""Which members receive pushes in binary, as text, and how that follows a rolling upgrade."""

from __future__ import annotations

from attrs import evolve
from harness.peer_wire import Side, Wire, hello_of

from rmqpy.codec.backend import run_units
from rmqpy.dledger.entries import Entry, EntryRun
from rmqpy.dledger.node import Send
from rmqpy.dledger.protocol.json_bodies import decode_request
from rmqpy.dledger.protocol.messages import PushEntryRequest
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.ids import Term
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.handshakes import PeerStatus
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel

BINARY, TEXT = RequestCode.RMQPY_PUSH_RUN, RequestCode.PUSH


def push_of() -> PushEntryRequest:
    entry = Entry.of(7, 3, 100, b"hi")
    data = entry.encode_header() + b"hi"
    found = run_units(memoryview(data), 7, 100)
    assert found is not None
    return PushEntryRequest(
        group="g",
        remote_id="n1",
        local_id="n0",
        leader_id="n0",
        term=Term(3),
        entries=EntryRun(found[0], data),
        batch=True,
    )


class Forms:
    """The codes of the pushes that a member receives."""

    def __init__(self, side: Side, *, knows: bool = True) -> None:
        self.seen: list[int] = []
        self.knows = knows
        """False: the member is of a version that does not know binary pushes."""
        side.takes = self.take

    def take(self, command: RemotingCommand) -> RemotingCommand | None:
        if command.code in (BINARY, TEXT):
            self.seen.append(command.code)
            assert decode_request(command.code, command.body) == push_of()
        if command.code == BINARY and not self.knows:
            unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return RemotingCommand.response_to(command, unknown, "")
        return None


def push(leader: Side) -> int:
    """Push to n1 and return the code of the answer, 0 without one."""
    leader.tickets += 1
    leader.transport.send(Send("n1", leader.tickets, push_of()))
    leader.wire.scheduler.advance(50)
    (answer,) = [each.response for each in leader.answers if each.ticket == leader.tickets]
    return 0 if answer is None else answer.code


def test_a_member_of_this_version_receives_binary_pushes() -> None:
    wire = Wire()
    leader, follower = wire.add("n0"), wire.add("n1")
    forms = Forms(follower)
    assert push(leader) == 200
    assert forms.seen == [BINARY]
    assert follower.received == [push_of()]


def test_members_with_the_secret_exchange_binary_pushes() -> None:
    wire = Wire()
    leader = wire.add("n0", admission=PeerAdmission(secret=b"0123456789abcdef"))
    follower = wire.add("n1", admission=PeerAdmission(secret=b"0123456789abcdef"))
    forms = Forms(follower)
    assert push(leader) == 200
    assert forms.seen == [BINARY]


def test_a_member_of_version_1_receives_text() -> None:
    wire = Wire()
    leader, follower = wire.add("n0"), wire.add("n1", hello=evolve(hello_of("n1"), version=1))
    forms = Forms(follower, knows=False)
    assert push(leader) == 200
    assert forms.seen == [TEXT]


def test_an_earlier_leader_is_accepted() -> None:
    wire = Wire()
    leader, follower = wire.add("n0", hello=evolve(hello_of("n0"), version=1)), wire.add("n1")
    assert push(leader) == 200
    assert follower.status("n0") is PeerStatus.VERIFIED


def test_a_java_member_receives_text() -> None:
    wire = Wire()
    leader, follower = wire.add("n0"), wire.add("n1")
    forms = Forms(follower)
    take = forms.take

    def answer(command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.RMQPY_DLEDGER_HANDSHAKE:
            unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return RemotingCommand.response_to(command, unknown, "")
        return take(command)

    follower.takes = answer
    assert push(leader) == 200
    assert forms.seen == [TEXT]
    assert leader.status("n1") is PeerStatus.JAVA


def test_the_form_follows_a_rolling_upgrade_there_and_back() -> None:
    wire = Wire()
    leader, follower = wire.add("n0"), wire.add("n1", hello=evolve(hello_of("n1"), version=1))
    forms = Forms(follower, knows=False)
    for version, form in ((1, TEXT), (2, BINARY), (1, TEXT)):
        follower.hello, forms.knows = evolve(hello_of("n1"), version=version), version > 1
        wire.reconnect()
        assert push(leader) == 200
        assert forms.seen[-1] == form
    assert len(forms.seen) == 3


def test_a_member_that_was_replaced_unnoticed_is_asked_again() -> None:
    """An earlier version listens before the loss of the connection is noticed."""
    wire = Wire()
    leader, follower = wire.add("n0"), wire.add("n1")
    forms = Forms(follower)
    assert push(leader) == 200
    follower.hello, forms.knows = evolve(hello_of("n1"), version=1), False
    assert push(leader) == 0
    assert push(leader) == 200
    assert forms.seen == [BINARY, BINARY, TEXT]


def test_a_stranger_is_answered_before_its_push_is_read() -> None:
    wire = Wire()
    follower = wire.add("n1")
    channel = MemoryChannel(("10.9.9.9", 4711))
    follower.handle(channel, RemotingCommand.request(BINARY, body=b"RDP1" + b"\xff" * 99))
    answer = channel.take_one()
    assert answer.body[:8] == b"RDA1" + (402).to_bytes(4)
    assert not follower.received
