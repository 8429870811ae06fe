"""Tests of the comparison of members by their handshakes."""

from __future__ import annotations

import pytest
from attrs import evolve

from rmqpy.dledger.handshake import PeerHello, compare, decode_introduction
from rmqpy.model.errors import RemoteProtocolError

OWN = PeerHello(
    group="g",
    member="n0",
    file_size=4096,
    divided_offset=8192,
    old_log_end=8000,
    old_log_digest="d1,d0",
    end_index=5,
    peers={"n0": "a:1", "n1": "b:1"},
)
OTHER = evolve(OWN, member="n1")


def test_a_handshake_is_decoded_as_it_was_encoded() -> None:
    body = OWN.encode()
    assert decode_introduction(body) == OWN
    assert body.startswith(b'{"divided_offset":8192,"end_index":5,"file_size":4096,"group":"g",')
    more = body[:-1] + b',"zone":"later"}'
    assert decode_introduction(more) == OWN


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"group":1}', OWN.encode()[:-2]])
def test_an_invalid_handshake_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a handshake"):
        decode_introduction(body)


def test_equal_members_are_compatible() -> None:
    found = compare(OWN, OTHER)
    assert not found.refusals and not found.notes


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (evolve(OTHER, group="h"), "it is a member of group h, this one of g"),
        (evolve(OTHER, file_size=8192), "its mappedFileSizeCommitLog is 8192, ours 4096"),
        (evolve(OTHER, divided_offset=4096), "its old commit log ends at 4096, ours at 8192"),
        (
            evolve(OTHER, divided_offset=-1, end_index=-1),
            "stop n1, then run rmqpy upgrade join DIR --from",
        ),
        (
            evolve(OTHER, old_log_end=7000),
            "differ from offset 7000 on; stop both, then run rmqpy upgrade plan",
        ),
        (evolve(OTHER, old_log_digest="d2"), "first in the file that begins at 4096;"),
        (evolve(OTHER, old_log_digest="d1,d2"), "first in the file that begins at 0;"),
        (evolve(OTHER, version=9, least_version=8), "its protocol version is 9"),
        (evolve(OTHER, version=0), "its protocol version is 0"),
    ],
)
def test_an_incompatible_member_is_refused_with_the_reason(other: PeerHello, sentence: str) -> None:
    (found,) = compare(OWN, other).refusals
    assert sentence in found


def test_harmless_differences_are_only_noted() -> None:
    one_file = evolve(OTHER, old_log_digest="d1")
    assert not compare(OWN, one_file).refusals, "the earlier file has expired"
    unknown = evolve(OTHER, old_log_end=-1, old_log_digest="")
    assert not compare(OWN, unknown).refusals, (
        "the old files had expired before their digests were stored"
    )
    expired = evolve(OTHER, divided_offset=-1, end_index=900)
    assert not compare(OWN, expired).refusals, "the old files have expired"
    assert not compare(OWN, evolve(OTHER, version=2)).refusals
    found = compare(OWN, evolve(OTHER, peers={"n0": "a:2", "n2": "c:1"}))
    assert not found.refusals
    assert found.notes == (
        "dLegerPeers: n0 is a:1 here, a:2 there",
        "dLegerPeers: n1 is b:1 here, absent there",
        "dLegerPeers: n2 is absent here, c:1 there",
    )


def test_a_long_introduction_is_refused_unread() -> None:
    with pytest.raises(RemoteProtocolError, match="bytes, expected at most 65536"):
        decode_introduction(b'{"group":"' + b"g" * 65536 + b'"}')
