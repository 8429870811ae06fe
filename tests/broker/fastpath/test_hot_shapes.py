"""What the hot path in Python takes for known, and what it leaves alone."""

from __future__ import annotations

import pytest
from harness.fastpath import MakeBrokerPair

from rmqpy.broker.fastpath.hot_shapes import SHAPE_BYTES_MAX, PropertyPlans, cut_header
from rmqpy.codec.hashes import java_hash_of_bytes
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

HEADER = (
    b'{"code":310,"extFields":{"a":"PG","e":"0","g":"17","h":"0","i":"WAIT","j":"0"},'
    b'"flag":0,"language":"JAVA","opaque":77,"version":407}'
)


def test_a_header_is_cut_at_its_three_values() -> None:
    parts = cut_header(HEADER)
    assert parts is not None
    front, middle, gap, back = parts
    assert b"".join((front, b"17", middle, b"WAIT", gap, b"77", back)) == HEADER


@pytest.mark.parametrize(
    "header",
    [
        HEADER.replace(b'"g"', b'"q"'),
        HEADER.replace(b'"i"', b'"q"'),
        HEADER.replace(b'"opaque":77,', b""),
        b'{"opaque":77,' + HEADER.replace(b'"opaque":77,', b"")[1:],
        HEADER.replace(b"PG", b"P" * SHAPE_BYTES_MAX),
        b"",
    ],
)
def test_other_headers_have_no_shape(header: bytes) -> None:
    assert cut_header(header) is None


def test_properties_as_they_are_stored() -> None:
    plans = PropertyPlans("C", wait_false_is_hot=False)
    text = b"TAGS\\u0001A\\u0002UNIQ_KEY\\u0001U\\u0002WAIT\\u0001true\\u0002KEYS\\u0001k\\u0002"
    assert plans.read(text) == (
        b"KEYS\x01k\x02UNIQ_KEY\x01U\x02CLUSTER\x01C\x02TAGS\x01A",
        java_hash_of_bytes(b"A"),
        b"U",
        b"k",
    )
    assert plans.read(b"WAIT\\u0001true") == (b"CLUSTER\x01C", 0, b"", b"")


@pytest.mark.parametrize(
    "text",
    [
        b"WAIT\\u0001false",
        b"DELAY\\u00011",
        b"TRAN_MSG\\u0001true",
        b"CLUSTER\\u0001x",
        b"a\\u0001b\\u0002a\\u0001c",
        b"a\\u0001",
        b"a",
        b"",
        b"a\\u0001\\n",
        "a\\u0001é".encode(),
    ],
)
def test_other_properties_are_for_the_ordinary_way(text: bytes) -> None:
    plans = PropertyPlans("C", wait_false_is_hot=False)
    for _ in range(2):
        assert plans.read(text) is None


def test_what_is_known_is_not_learned_again(
    pair: MakeBrokerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed messages of a known shape go the ordinary way each time, for no more than that."""
    hot = pair()[1]
    if hot.implementation == "c":
        return
    hot.connect(("10.0.0.1", 1234))
    learned = []
    learn = hot.feed._plain_header
    monkeypatch.setattr(hot.feed, "_plain_header", lambda given: learned.append(1) or learn(given))
    fields = {**dict(zip("abcdefgh", ("PG", "T", "TBW102", "4", "0", "0", "1", "0"), strict=True))}
    for properties in ("WAIT\x01true", *["DELAY\x011"] * 5):
        fields = {**fields, "i": properties, "j": "0"}
        hot.receive(0, encode_command(RemotingCommand(310, ext_fields=fields, body=b"x")))
        hot.end_turn()
    assert hot.handed_back[310] == 6
    assert len(learned) <= 2, "once, and once more when the delay topic has come"
