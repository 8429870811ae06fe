"""Which connections speak for the members of a group: by address, by confirmation, by secret."""

from __future__ import annotations

from typing import Final

import pytest
from attrs import evolve
from harness.peer_wire import BEAT_MS, MEMBERS, RPC_TIMEOUT_MS, Wire, hello_of

from rmqpy.dledger.handshake import PeerHello, decode_introduction, proof_of
from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    HeartBeatRequest,
    LeadershipTransferRequest,
    PushEntryRequest,
    Request,
    VoteRequest,
)
from rmqpy.model.codes import RequestCode
from rmqpy.model.ids import Term
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.handshakes import REFUSED_MS, PeerStatus
from rmqpy.net.dledger.repeated_requests import REPEAT_MS
from rmqpy.net.once_log import LINES_MAX
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel

SECRET: Final = b"0123456789abcdef"


def introduction(hello: PeerHello) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.RMQPY_DLEDGER_HANDSHAKE, body=hello.encode())


def forged(kind: type[Request]) -> RemotingCommand:
    request = kind(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=Term(7))
    return RemotingCommand.request(kind.CODE, body=encode(request))


# ------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "kind", [VoteRequest, HeartBeatRequest, PushEntryRequest, LeadershipTransferRequest]
)
def test_a_request_of_a_member_is_taken_only_from_a_known_address(
    kind: type[Request], caplog: pytest.LogCaptureFixture
) -> None:
    n0 = Wire().add("n0")
    for _ in range(3):
        refused = n0.ask(forged(kind), "10.9.9.9")
        assert f'"code":{DLedgerResponseCode.UNEXPECTED_MEMBER.value}'.encode() in refused.body
    assert not n0.received
    (line,) = caplog.messages
    assert f"10.9.9.9 sends a {kind.__name__}" in line, "found"
    assert "n1 10.0.0.1:40911, n2 10.0.0.2:40911" in line, "expected"
    assert "add the address to replicationAddresses" in line, "remedy"
    assert n0.admission.runtime_info()["dledgerRequestsTurnedAway"] == "3"
    assert n0.admission.runtime_info()["dledgerLastTurnedAway"] == line
    n0.ask(forged(HeartBeatRequest), "10.0.0.1")
    assert len(n0.received) == 1


def test_a_stranger_neither_introduces_itself_nor_reads_the_ends_of_the_queues() -> None:
    n0 = Wire().add("n0")
    for command in (
        introduction(hello_of("n1")),
        introduction(evolve(hello_of("n1"), nonce="a")),
        RemotingCommand.request(RequestCode.RMQPY_QUEUE_ENDS),
    ):
        refused = n0.ask(command, "10.9.9.9")
        assert refused.code == 16 and "replicationAddresses" in (refused.remark or "")
    assert n0.status("n1") is PeerStatus.UNKNOWN


def test_many_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    n0 = Wire().add("n0")
    for number in range(1000):
        n0.ask(forged(VoteRequest), f"10.9.{number >> 8}.{number & 255}")
    assert len(caplog.messages) <= LINES_MAX + 1
    n0.transport.once.warn("role", "leads in term 7")
    assert caplog.messages[-1] == "leads in term 7", "what the member itself does is logged"
    assert n0.admission.turned_away == 1000


def test_members_with_other_addresses_confirm_their_connections() -> None:
    """Behind NAT all connections come from the address of a gateway."""
    wire = Wire()
    n0 = wire.add("n0", source="172.17.0.1")
    n1 = wire.add("n1", source="172.17.0.1")
    assert n0.beat("n1") and n1.beat("n0")
    assert n0.status("n1") is n1.status("n0") is PeerStatus.VERIFIED
    n0.ask(forged(HeartBeatRequest), "172.17.0.1")
    assert n0.admission.turned_away == 1
    assert len(n0.received) == 1, "another connection from the gateway is not confirmed"
    wire.reconnect()
    assert n1.beat("n0"), "a new connection begins with a handshake"


def test_a_member_does_not_confirm_the_handshake_of_a_stranger() -> None:
    wire = Wire()
    n0, _n1 = wire.add("n0"), wire.add("n1")
    refused = n0.ask(introduction(evolve(hello_of("n1"), nonce="00" * 16)), "10.9.9.9")
    assert refused.code == 16
    assert n0.status("n1") is PeerStatus.UNKNOWN


# ------------------------------------------------------------------------------------- handshakes


def test_an_introduction_in_the_name_of_a_member_is_checked_at_its_address() -> None:
    """Whoever can use an address of the group must not be able to separate two members."""
    wire = Wire()
    n0, n1 = wire.add("n0"), wire.add("n1")
    assert n0.beat("n1") and n1.beat("n0")
    n0.ask(introduction(evolve(hello_of("n1"), file_size=8192)), "10.0.0.1")
    assert n0.status("n1") is PeerStatus.VERIFIED
    assert n0.beat("n1") and n1.beat("n0")


def test_a_member_with_other_files_is_refused_by_what_its_address_says() -> None:
    wire = Wire()
    n0, n1 = wire.add("n0"), wire.add("n1", hello=evolve(hello_of("n1"), file_size=8192))
    assert not n1.beat("n0")
    assert n0.status("n1") is n1.status("n0") is PeerStatus.REFUSED
    n0.ask(introduction(hello_of("n1")), "10.0.0.1")
    assert n0.status("n1") is PeerStatus.REFUSED, "a forged introduction that fits opens nothing"
    n1.hello = hello_of("n1")
    wire.scheduler.advance(REFUSED_MS)
    assert n0.beat("n1") and n1.beat("n0")


REPEATED_MS = min(BEAT_MS, REPEAT_MS)


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("lost", [1, 2, 100])
def test_a_lost_handshake_is_repeated_as_often_as_a_heartbeat(
    lost: int, secret: bytes | None
) -> None:
    """A leader that waits for a lost handshake until it times out loses its follower meanwhile."""
    wire = Wire()
    n0, n1 = (wire.add(name, admission=PeerAdmission(secret=secret)) for name in ("n0", "n1"))
    n1.loses = lost
    n0.start_beat("n1")
    n0.wait(lost * REPEATED_MS if lost < 100 else RPC_TIMEOUT_MS - 10)
    assert not n0.answers
    n0.wait(50)
    assert n0.beats_answered() == [lost < 100]
    sent = lost - n1.loses
    assert sent == min(lost, RPC_TIMEOUT_MS // REPEATED_MS), "not more often, and not for ever"
    n0.wait(2 * RPC_TIMEOUT_MS)
    assert lost - n1.loses == sent, "nobody waits for it any more"


def test_a_lost_question_whether_a_connection_is_a_members_own_is_repeated() -> None:
    wire = Wire()
    n0 = wire.add("n0", source="172.17.0.1")
    n1 = wire.add("n1", source="172.17.0.1")
    n0.loses = 1
    n0.start_beat("n1")
    for _ in range(BEAT_MS // 10 + 5):
        n0.wait(10)
        n1.transport.handshakes.repeated.tick()
    assert n0.beats_answered() == [True]
    assert not n1.admission.turned_away, "a repeated introduction is not that of a stranger"


# ------------------------------------------------------------------------------------- the secret


def test_a_repeated_introduction_does_not_invalidate_the_proof_for_the_first() -> None:
    """A member that answers after more than a heartbeat is admitted by one proof."""
    wire = Wire()
    n0, n1 = (wire.add(name, admission=with_secret()) for name in ("n0", "n1"))
    n1.answer_delay_ms = BEAT_MS + 100
    n0.start_beat("n1")
    n0.wait(RPC_TIMEOUT_MS)
    assert n0.beats_answered() == [True]
    assert not n1.admission.turned_away


def with_secret(secret: bytes | None = SECRET) -> PeerAdmission:
    return PeerAdmission(secret=secret)


def test_members_with_the_secret_meet_and_need_no_known_address() -> None:
    wire = Wire()
    members = [
        wire.add(name, admission=PeerAdmission(lambda _address: False, SECRET)) for name in MEMBERS
    ]
    for member in members:
        assert all(member.beat(other) for other in MEMBERS if other != member.name)
    assert not any(member.admission.turned_away for member in members)


def test_a_new_connection_proves_the_secret_again() -> None:
    wire = Wire()
    n0, n1 = (wire.add(name, admission=with_secret()) for name in ("n0", "n1"))
    assert n0.beat("n1")
    wire.reconnect()
    assert n0.beat("n1")
    assert len(n1.received) == 2 and not n1.admission.turned_away


@pytest.mark.parametrize("other", [None, b"another secret 16"])
def test_a_member_without_the_secret_is_refused(
    other: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire()
    n0 = wire.add("n0", admission=with_secret())
    n1 = wire.add("n1", admission=with_secret(other))
    assert not n0.beat("n1") and not n1.beat("n0")
    assert not n0.received and not n1.received
    assert n0.status("n1") is PeerStatus.REFUSED
    assert "set the same rmqpyGroupSecret" in caplog.text
    assert SECRET.decode() not in caplog.text and SECRET.hex() not in caplog.text


def test_a_java_member_is_refused_by_a_group_with_a_secret() -> None:
    wire = Wire()
    n0, n1 = wire.add("n0", admission=with_secret()), wire.add("n1")
    n1.takes = lambda _command: RemotingCommand(3, flag=1)
    assert not n0.beat("n1")
    assert n0.status("n1") is PeerStatus.REFUSED
    assert "Java cannot join a group with a secret" in n0.transport.handshakes.links["n1"].reason
    assert b'"code":200' not in n0.ask(forged(VoteRequest), "10.0.0.1").body
    assert not n0.received


def test_a_proof_is_of_no_use_again_on_another_connection_or_to_another_member() -> None:
    wire = Wire()
    n0, n2 = (wire.add(name, admission=with_secret()) for name in ("n0", "n2"))
    channel = MemoryChannel(("10.0.0.1", 4711))
    first = evolve(hello_of("n1"), nonce="01" * 16)
    asked = decode_introduction(n0.ask_on(channel, introduction(first)).body)
    proof = evolve(first, challenge=asked.nonce)
    proof = evolve(proof, proof=proof_of(SECRET, proof, "n0", answers=False))
    other = MemoryChannel(("10.0.0.1", 4712))
    n0.ask_on(other, introduction(first))
    assert n0.ask_on(other, introduction(proof)).code == 16, "another connection"
    third = MemoryChannel(("10.0.0.1", 4713))
    n2.ask_on(third, introduction(first))
    assert n2.ask_on(third, introduction(proof)).code == 16, "another member"
    assert n0.ask_on(channel, introduction(proof)).code == 200
    assert n0.ask_on(channel, introduction(proof)).code == 16, "the second time"


def test_the_proof_of_the_other_side_does_not_prove_anything() -> None:
    """A stranger lets the member itself compute a proof, and sends it back."""
    n0 = Wire().add("n0", admission=with_secret())
    channel = MemoryChannel(("10.0.0.1", 4711))
    first = evolve(hello_of("n1"), nonce="01" * 16)
    asked = decode_introduction(n0.ask_on(channel, introduction(first)).body)
    for reflected in (
        asked,
        evolve(first, challenge=asked.nonce, proof=asked.proof),
        evolve(first, challenge=asked.nonce, proof="\ud800"),
    ):
        assert n0.ask_on(channel, introduction(reflected)).code == 16
        n0.ask_on(channel, introduction(first))
    assert not n0.admission.admits(channel)


def test_a_stranger_at_the_address_of_a_member_is_refused() -> None:
    """It answers the handshake, but cannot prove the secret for the random number of this one."""
    wire = Wire()
    n0, n1 = wire.add("n0", admission=with_secret()), wire.add("n1")
    recorded: list[PeerHello] = []

    def answer(command: RemotingCommand) -> RemotingCommand:
        asked = decode_introduction(command.body)
        if not recorded:
            hello = evolve(hello_of("n1"), nonce="02" * 16, challenge=asked.nonce)
            proof = proof_of(SECRET, hello, "n0", answers=True)
            recorded.append(evolve(hello, proof=proof))
        return RemotingCommand.response_to(command, 200, body=recorded[0].encode())

    n1.takes = answer
    n0.beat("n1")
    n0.transport.handshakes.failed(n0.transport.handshakes.links["n1"])
    assert not n0.beat("n1"), "the answer of before proves nothing"
    assert n0.status("n1") is PeerStatus.REFUSED


def test_the_secret_is_in_no_text() -> None:
    wire = Wire()
    n0 = wire.add("n0", admission=with_secret())
    for thing in (n0.admission, n0.transport, n0.transport.handshakes):
        assert SECRET.decode() not in repr(thing)
