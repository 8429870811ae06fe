"""Frames generated and cut by Hypothesis, sent to both brokers. A difference is shrunk to the
shortest stream that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.fastpath import BrokerPair, MakeBrokerPair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.config.keys import FlushDiskType
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

FRAMES_MAX = 24

TEXTS = st.text(max_size=12)
SMALL = st.integers(-1, 5).map(str)
NUMBERS = SMALL | st.integers().map(str) | st.sampled_from(["", "x", "00", "+1", " 1", "1e3"])
NAMES = st.sampled_from(["WAIT", "TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "DELAY"]) | TEXTS
VALUES = st.sampled_from(["true", "false", "TagA", "a b"]) | TEXTS
PROPERTIES = st.lists(st.tuples(NAMES, VALUES).map("\x01".join), max_size=6).map("\x02".join)

SEND_FIELDS: dict[str, st.SearchStrategy[str]] = {
    "a": st.just("PG"),
    "b": st.sampled_from(["T", "T", "T", "U", "é", ""]),
    "c": st.just("TBW102"),
    "d": st.just("4"),
    "e": st.just("0") | NUMBERS,
    "f": st.just("0") | NUMBERS,
    "g": st.just("1700000000000") | NUMBERS,
    "h": st.just("0") | NUMBERS,
    "i": PROPERTIES | TEXTS,
}
SEND_OPTIONS: dict[str, st.SearchStrategy[str]] = {
    "j": st.just("0") | NUMBERS,
    "k": st.just("false"),
    "l": st.just("16") | NUMBERS,
    "m": st.sampled_from(["false", "true", "TRUE"]),
    "n": TEXTS,
    "zz": TEXTS,
}
PULL_FIELDS: dict[str, st.SearchStrategy[str]] = {
    "consumerGroup": st.sampled_from(["CG", "nobody"]),
    "topic": st.sampled_from(["T", "U"]),
    "queueId": st.just("0") | NUMBERS,
    "queueOffset": st.just("0") | SMALL | NUMBERS,
    "maxMsgNums": st.just("32") | SMALL,
    "sysFlag": st.sampled_from(["4", "5", "0"]) | SMALL,
    "commitOffset": st.just("0") | NUMBERS,
    "suspendTimeoutMillis": st.just("1000") | NUMBERS,
    "subVersion": st.just("0") | NUMBERS,
}
PULL_OPTIONS: dict[str, st.SearchStrategy[str]] = {
    "subscription": st.sampled_from(["*", "", "TagA", "a || b"]) | TEXTS,
    "expressionType": st.sampled_from(["TAG", "", "SQL92"]),
}
ITEMS = st.lists(
    st.builds(BatchItem, st.integers(0, 9), st.binary(max_size=40), PROPERTIES.map(str.encode)),
    min_size=1,
    max_size=4,
)
BODIES = st.binary(max_size=200) | ITEMS.map(encode_batch_body)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    pull = draw(st.integers(0, 3)) == 0
    fields = draw(
        st.fixed_dictionaries(
            PULL_FIELDS if pull else SEND_FIELDS,
            optional=PULL_OPTIONS if pull else SEND_OPTIONS,
        )
    )
    command = RemotingCommand(
        11 if pull else draw(st.sampled_from([310, 310, 320])),
        draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        flag=draw(st.sampled_from([0, 0, 0, 2, 4])),
        ext_fields=fields,
        body=b"" if pull else draw(BODIES),
        serialize_type=draw(st.integers(0, 1)),
    )
    return bytes(encode_command(command))


@pytest.mark.slow
@given(
    some=st.lists(frames(), min_size=1, max_size=FRAMES_MAX),
    cuts=st.lists(st.integers(1, 700), max_size=12),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equal_on_generated_frames(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    some: list[bytes],
    cuts: list[int],
) -> None:
    both = pair()
    stream = b"".join(some)
    pieces = []
    for size in cuts:
        pieces.append(stream[:size])
        stream = stream[size:]
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for piece in [*pieces, stream]:
            if piece:
                side.receive(0, piece)
                side.end_turn()
    assert_same(both)
    both[1].feed.close()


HEADER = (
    b'{"code":310,"extFields":{"a":"PG","b":"T","c":"TBW102","d":"4","e":"0","f":"0",'
    b'"g":"1700000000000","h":"0","i":"UNIQ_KEY\\u0001k1\\u0002WAIT\\u0001true\\u0002","j":"0",'
    b'"k":"false","m":"false"},"flag":0,"language":"JAVA","opaque":77,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)
PULL_HEADER = (
    b'{"code":11,"extFields":{"consumerGroup":"G","topic":"T","queueId":"0","queueOffset":"0",'
    b'"maxMsgNums":"2","sysFlag":"6","commitOffset":"0","suspendTimeoutMillis":"10",'
    b'"subscription":"*","subVersion":"0","expressionType":"TAG"},"flag":0,"language":"JAVA",'
    b'"opaque":77,"serializeTypeCurrentRPC":"JSON","version":407}'
)
OTHER_BYTES = b'"\\,:{}0-\x01\xff'
DOUBLED = (
    b'"g":"5"',
    b'"i":"WAIT\\u0001true"',
    b'"x":"\\"g\\":\\"9\\""',
    b'"x":"g\\":\\"9"',
    b'"opaque":5',
)


def _frame(header: bytes, body: bytes = b"body") -> bytes:
    return b"".join(
        ((4 + len(header) + len(body)).to_bytes(4), len(header).to_bytes(4), header, body)
    )


def _changed_headers(header: bytes) -> list[bytes]:
    """Return variants of a known header: each byte in turn changed, missing, or doubled, and fields
    added that look like those which differ from message to message.
    """
    found = []
    for place in range(len(header)):
        before, after = header[:place], header[place + 1 :]
        byte = OTHER_BYTES[place % len(OTHER_BYTES) :][:1]
        twice = header[place : place + 1] * 2
        found += [before + byte + after, before + after, before + twice + after]
    for field in DOUBLED:
        found += [header.replace(at, field + b"," + at) for at in (b'"a":', b'"k":')]
        found += [b"{" + field + b"," + header[1:], header[:-1] + b"," + field + b"}"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("like", [HEADER, PULL_HEADER], ids=["send", "pull"])
def test_equal_on_headers_that_almost_match_a_known_one(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], like: bytes
) -> None:
    both = pair()
    known = _frame(like, b"" if like is PULL_HEADER else b"body")
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _frame(HEADER))
        side.end_turn()
        side.receive(0, known)
        side.end_turn()
        for number, header in enumerate(_changed_headers(like)):
            if side.channels[-1].closed:
                side.connect(("10.0.0.1", 2000 + number))
            side.receive(len(side.channels) - 1, known + _frame(header, b"%d" % number) + known)
            side.end_turn()
    assert_same(both)


PROPERTY_TEXTS = (
    r"UNIQ_KEY\u0001k%d\u0002WAIT\u0001true\u0002",
    r"UNIQ_KEY\u0001k%d\u0002TAGS\u0001Tag%d\u0002KEYS\u0001a%d b\u0002WAIT\u0001true",
    r"WAIT\u0001false\u0002UNIQ_KEY\u0001k%d",
    r"CLUSTER\u0001c%d\u0002UNIQ_KEY\u0001k%d\u0002",
    r"a\u0001%d\u0002b\u00012\u0002a\u0001%d\u0002",
    r"a\u0001%d\u0001more\u0002b\u0001%d",
    r"a\u0001%d\u0002b\u0001\u0002c\u0001%d",
    r"a\u0001%d\u0002\u0002b\u0001%d\u0002",
    r"a\u0001%d\u0002b\u0001\u65e5%d\u0002",
    "a\\u0001%d\\u0002\x01b\\u0001%d\x02\\u0002",
    "\u65e5\\u0001%d\\u0002b\\u0001\u65e5%d\\u0002",
    r"a\u0001%d\"\u0002b\u0001%d\n\u0002",
    r"DELAY\u0001%d\u0002",
    r"a\u0001%d",
    "".join(rf"n{number}\u0001%d\u0002" for number in range(14)),
    r"b\u0001%d\u0002Aa\u0001%d\u0002BB\u0001%d\u0002AaAa\u0001%d\u0002BBBB\u0001%d\u0002",
    "",
)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}])
def test_equal_on_properties_of_the_same_names(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], settings: dict[str, Any]
) -> None:
    """Sends whose properties differ only in their values share a buffer with other sends."""
    both = pair(**settings)
    plain = HEADER.split(b'"i":"')[0] + b'"i":"%b"' + b',"j"' + HEADER.split(b',"j"')[1]

    def frame(text: str, number: int) -> bytes:
        values = text % ((number,) * text.count("%d"))
        return _frame(plain % values.encode(), b"%d" % number)

    stream = [
        b"".join(frame(text, count) for count in (1, 22, 333) for _ in range(2))
        + frame(other, 4)
        + frame(text, 55555)
        for text in PROPERTY_TEXTS
        for other in (text, PROPERTY_TEXTS[0], PROPERTY_TEXTS[1])
    ]
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _frame(HEADER))
        side.end_turn()
        for piece in stream:
            side.receive(0, piece)
            side.end_turn()
    assert_same(both)
