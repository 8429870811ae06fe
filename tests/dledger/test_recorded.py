"""Tests of a node against recorded Java members: in the same situation, it answers with the same
bytes.
"""

from __future__ import annotations

import json

from harness.recorded import recorded_dledger
from simulator.memory_log import MemoryLog

from rmqpy.dledger.entries import as_singletons
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import Answered, Node, Received, Reply, Send
from rmqpy.dledger.protocol.json_bodies import decode_request, encode
from rmqpy.dledger.protocol.messages import HeartBeatRequest, Request, VoteResponse, VoteResult
from rmqpy.dledger.state import HardState, LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term

PEERS = ("n0", "n1", "n2")


def bodies(to: str, code: int, kind: str) -> list[bytes]:
    return [
        frame.command.body
        for frame in recorded_dledger()
        if (frame.to, frame.code, frame.type) == (to, code, kind)
    ]


def member(name: str, state: HardState, log: MemoryLog | None = None) -> Node:
    options = RaftOptions(
        rng=lambda below: 0,
        addresses={"n0": "127.0.0.1:21900", "n1": "127.0.0.1:22901", "n2": "127.0.0.1:22902"},
    )
    node = Node(
        Membership("wire", name, PEERS), state, log or MemoryLog(), LedgerIndex(-1), options
    )
    return node


def answer(node: Node, request: Request) -> bytes:
    node.ready()
    node.step(Received(1, request))
    ready = node.ready()
    assert ready is not None
    replies = [message for message in ready.messages if isinstance(message, Reply)]
    assert len(replies) == 1 and replies[0].response is not None
    return encode(replies[0].response)


def test_votes_are_answered_as_by_java() -> None:
    requests, recorded = bodies("n0", 51001, "request"), bodies("n0", 51001, "response")
    voted = member("n0", HardState(Term(0), "n0"))
    assert answer(voted, decode_request(51001, requests[0])) == recorded[0]
    assert answer(voted, decode_request(51001, requests[1])) == recorded[1]
    assert b"REJECT_ALREADY_VOTED" in recorded[0] and b"REJECT_TERM_NOT_READY" in recorded[1]
    led = member("n1", HardState(Term(1), "n1"))
    assert (
        answer(led, decode_request(51001, bodies("n1", 51001, "request")[0]))
        == bodies("n1", 51001, "response")[0]
    )


def test_heartbeats_are_answered_as_by_java() -> None:
    request = decode_request(51002, bodies("n0", 51002, "request")[0])
    node = member("n0", HardState(Term(0), "n0"))
    assert answer(node, request) == bodies("n0", 51002, "response")[0] == b'{"code":416,"term":-1}'
    node.tick(10)
    assert answer(node, request) == bodies("n1", 51002, "response")[0] == b'{"code":200,"term":-1}'


def test_an_empty_follower_answers_pushes_as_java_does() -> None:
    node = member("n1", HardState(Term(2), "n0"))
    answer(node, HeartBeatRequest(group="wire", remote_id="n1", leader_id="n0", term=Term(2)))
    recorded = bodies("n1", 51004, "response")
    pushes = [decode_request(51004, body) for body in bodies("n1", 51004, "request")]
    by_type = {b"COMPARE": recorded[0], b"TRUNCATE": recorded[1]}
    for name, expected in by_type.items():
        push = next(p for p, raw in zip(pushes, bodies("n1", 51004, "request"), strict=True)
                    if b'"type":"' + name in raw and b'"firstEntryIndex":0,' in raw)  # fmt: skip
        assert answer(node, push) == expected


def test_a_transfer_is_refused_before_the_leader_is_known() -> None:
    node = member("n0", HardState(Term(1), None))
    request = decode_request(51005, bodies("n0", 51005, "request")[0])
    assert answer(node, request) == bodies("n0", 51005, "response")[0]


def test_a_successful_transfer_is_answered_as_by_java() -> None:
    node = member("n0", HardState(Term(1), None))
    beat = HeartBeatRequest(group="wire", remote_id="n0", leader_id="n1", term=Term(1))
    answer(node, beat)
    node.step(Received(1, decode_request(51005, bodies("n0", 51005, "request")[0])))
    node.tick(10)
    node.tick(50)
    ready = node.ready()
    assert ready is not None
    sends = [message for message in ready.messages if isinstance(message, Send)]
    assert encode(sends[0].request) == bodies("n1", 51001, "request")[2], "the VOTE of term 2"
    node.step(Answered(sends[0].ticket, VoteResponse(result=VoteResult.ACCEPT, term=Term(2))))
    ready = node.ready()
    assert ready is not None
    reply = next(message for message in ready.messages if isinstance(message, Reply))
    assert reply.response is not None
    assert encode(reply.response) == bodies("n0", 51005, "response")[1] == b'{"code":200,"term":2}'


def test_clients_are_answered_as_by_java() -> None:
    follower = member("n1", HardState(Term(2), "n0"))
    answer(follower, HeartBeatRequest(group="wire", remote_id="n1", leader_id="n0", term=Term(2)))
    request = decode_request(50002, bodies("n1", 50002, "request")[0])
    assert answer(follower, request) == bodies("n1", 50002, "response")[0]
    recorded = json.loads(
        answer(follower, decode_request(50000, bodies("n1", 50000, "request")[0]))
    )
    java = json.loads(bodies("n1", 50000, "response")[0])
    assert list(recorded) == list(java) and recorded["leaderId"] == java["leaderId"] == "n0"
    assert list(recorded["peers"]) == list(java["peers"]) and recorded["term"] == java["term"] == -1


def test_an_entry_from_java_is_stored_with_the_bytes_of_java() -> None:
    get = json.loads(bodies("n0", 50002, "response")[0])
    log = MemoryLog()
    node = member("n1", HardState(Term(2), "n0"), log)
    answer(node, HeartBeatRequest(group="wire", remote_id="n1", leader_id="n0", term=Term(2)))
    truncate = next(raw for raw in bodies("n1", 51004, "request") if b'"TRUNCATE"' in raw)
    node.step(Received(1, decode_request(51004, truncate)))
    ready = node.ready()
    assert ready is not None
    (entry,) = as_singletons(ready.entries)
    assert entry.encode_header() + bytes(entry.body)[:8] == bytes.fromhex(
        "00000001" "0000014b" "0000000000000000" "0000000000000002" "0000000000000000"
        "00000000" "00000000" "00000000" "0000011b" "0000011bdaa320a7"
    )  # fmt: skip
    assert get["entries"][0]["size"] == entry.size == 331
    assert log.end == LedgerEnd()
