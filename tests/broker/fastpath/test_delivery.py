"""C delivers delayed messages as Python does, and leaves unusual ones to Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from harness.broker import flip_body, queue_messages
from harness.fastpath import BrokerPair, MakeBrokerPair

from rmqpy.config.keys import FlushDiskType
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

PROPERTIES = [
    "UNIQ_KEY\x01u{n}\x02WAIT\x01true\x02DELAY\x011",
    "DELAY\x011\x02TAGS\x01TagA\x02KEYS\x01k{n}\x02a\x01b\x02Aa\x011\x02BB\x012",
    "DELAY\x012\x02WAIT\x01false",
    "DELAY\x011\x02name\x01日本",
    "DELAY\x011\x02ключ\x01x",
    "TAGS\x01now",
]


def send(number: int, rng: random.Random) -> bytes:
    fields = {
        **{"a": "PG", "b": rng.choice(["T", "T", "T", "U"]), "c": "TBW102", "d": "4"},
        **{"e": str(rng.randrange(4)), "f": "0", "g": "1", "h": str(rng.choice([0, 7]))},
        "i": rng.choice(PROPERTIES).format(n=number),
        **{"j": "0", "k": "false", "m": "false"},
    }
    body = rng.randbytes(rng.choice([0, 1, 100, 900]))
    return encode_command(RemotingCommand(310, number, ext_fields=fields, body=body))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mapped_file_size_commit_log": 64 * 1024},
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        {
            "enable_dledger_commit_log": True,
            "dledger_group": "broker-a",
            "dledger_peers": "n0-127.0.0.1:40911",
            "dledger_self_id": "n0",
        },
    ],
    ids=["plain", "small files", "sync", "dledger"],
)
def test_deliveries_are_equal(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    settings: dict[str, Any],
) -> None:
    both = pair(**settings)
    feed: Any = both[1].feed
    delivered = []

    def deliver(messages: Sequence[tuple[int, int]]) -> tuple[int, int]:
        found: tuple[int, int] = type(feed).deliver(feed, messages)
        delivered.append(found)
        return found

    both[1].harness.broker.delivery.install_accelerator(_Spy(deliver))
    for side in both:
        rng = random.Random(7)
        side.harness.broker.delivery.start()  # the harness of a DLedger member does not
        side.connect(("10.0.0.1", 1234))
        side.connect(("2001:db8::5", 40000))
        for turn in range(12):
            frames = b"".join(send(n, rng) for n in range(turn * 40, turn * 40 + 40))
            side.receive(turn % 2, frames)
            side.end_turn()
            side.harness.scheduler.advance(rng.choice([5, 300]))
        side.harness.scheduler.advance(20_000)
        side.end_turn()
    assert_same(both)
    assert sum(count for count, _ in delivered) > 100
    for side in both:
        progress = side.harness.broker.delay_offsets
        assert progress.get(1) > 100 and progress.get(2) > 20


def test_a_damaged_message_is_left_to_python(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    """The copy would have a valid CRC."""
    both = pair()
    rng = random.Random(3)
    frames = b"".join(send(number, rng) for number in range(40))
    for side in both:
        side.harness.broker.delivery.start()
        side.connect(("10.0.0.1", 1234))
        side.receive(0, frames)
        side.end_turn()
        harness = side.harness
        offsets = [
            offset
            for queue_id in (0, 1)
            for offset, size, _ in harness.store.reader.queue_units(
                "SCHEDULE_TOPIC_XXXX", queue_id, 0, 99
            )
            if size > 400
        ]
        for offset in offsets[1::2]:
            flip_body(harness, offset)
        harness.scheduler.advance(20_000)
        side.end_turn()
        delays = harness.broker.delay_offsets
        assert delays.get(1) + delays.get(2) > 20
        bodies = [
            each.body
            for topic in ("T", "U")
            for queue_id in range(4)
            for each in queue_messages(harness.store, topic, queue_id)
        ]
        assert len(offsets) > 4 and len(bodies) == 40 - len(offsets[1::2])
    assert_same(both)


class _Spy:
    def __init__(self, deliver: Callable[..., tuple[int, int]]) -> None:
        self.deliver = deliver
