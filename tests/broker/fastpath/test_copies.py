"""C ends transactions and stores messages that consumers send back as Python does, and leaves
unusual ones to Python.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import define, field
from harness.broker import flip_body, queue_messages
from harness.fastpath import BrokerPair, MakeBrokerPair

from rmqpy.config.keys import BrokerRole, FlushDiskType
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import SubscriptionGroupConfig
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.store.message_store import MessageStore

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
RETRY = "%RETRY%CG"
END, BACK, SEND = (
    int(RequestCode.END_TRANSACTION),
    int(RequestCode.CONSUMER_SEND_MSG_BACK),
    int(RequestCode.SEND_MESSAGE_V2),
)
TURNS = 30
FRAMES = 12

DLEDGER: dict[str, Any] = {
    "enable_dledger_commit_log": True,
    "dledger_group": "broker-a",
    "dledger_peers": "n0-127.0.0.1:40911",
    "dledger_self_id": "n0",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small files": {"mapped_file_size_commit_log": 1 << 13, "mapped_file_size_consume_queue": 400},
    "sync": {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    "slave": {"broker_role": BrokerRole.SYNC_MASTER, "region_id": 'Ré"gion'},
    "no transactions": {"reject_transaction_message": True, "message_delay_level": "1s 5s"},
    "dledger": DLEDGER,
    "dledger, small files": {**DLEDGER, "mapped_file_size_commit_log": 1 << 13},
    "dledger, few entries": {**DLEDGER, "pending_limit": 5},
}
PROPERTIES = (
    "UNIQ_KEY\x01u{n}\x02WAIT\x01true",
    "TAGS\x01TagA\x02KEYS\x01k{n}\x02a\x01b\x02Aa\x011\x02BB\x012\x02WAIT\x01false",
    "UNIQ_KEY\x01u{n}",
    "ORIGIN_MESSAGE_ID\x01 id{n}\x02RETRY_TOPIC\x01U",
    "ORIGIN_MESSAGE_ID\x01id{n}\x02DELAY\x011\x02REAL_TOPIC\x01U\x02REAL_QID\x0107",
    "RETRY_TOPIC\x01nowhere\x02name\x01日本",
    "".join(f"p{number}\x01{{n}}\x02" for number in range(16)),
)


@define
class Clients:
    """A generator of requests about what a store contains, repeatable by its seed."""

    rng: random.Random
    store: MessageStore
    opaque: int = 0
    sent: Counter[int] = field(factory=Counter)
    levels: tuple[str, ...] = field(default=("0", "0", "1", "3", "99"))

    def frames(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            kind = self.rng.random()
            if kind < 0.2:
                yield self.send()
            elif kind < 0.4:
                yield self.half()
            elif kind < 0.65:
                yield self.end()
            elif kind < 0.9:
                yield self.back()
            elif kind < 0.97:
                yield self.retried()
            else:
                yield self.group()

    def send(self, topic: str = "", properties: str = "", **fields: str) -> bytes:
        rng = self.rng
        header = {
            **{"a": "PG", "b": topic or rng.choice(["T", "T", "U"]), "c": "TBW102", "d": "4"},
            **{"e": str(rng.randrange(2)), "f": "0", "g": "1", "h": str(rng.choice([0, 7]))},
            "i": properties or rng.choice(PROPERTIES).format(n=self.opaque),
            **{"j": "0", "k": "false", "m": "false"},
            **fields,
        }
        return self._encode(SEND, header, rng.randbytes(rng.choice([0, 1, 100, 700])))

    def half(self) -> bytes:
        more = self.rng.choice(["", "", "", "\x02DELAY\x011", "\x02name\x01ü", "\x02KEYS\x01k"])
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01u{self.opaque}{more}"
        return self.send(properties=properties, f="4")

    def retried(self) -> bytes:
        rng = self.rng
        fields = {"j": str(rng.choice([0, 1, 3, 16, 17]))}
        if rng.random() < 0.7:
            fields["l"] = rng.choice(["16", "2", "0", "-1"])
        properties = rng.choice(["", "DELAY\x011\x02TRAN_MSG\x01true", "DELAY\x013"])
        return self.send(rng.choice([RETRY, RETRY, "%RETRY%other"]), properties, **fields)

    def end(self) -> bytes:
        rng = self.rng
        units = self.store.reader.queue_units(HALF, 0, 0, 10_000)
        number = rng.randrange(len(units) + 1)
        fields = {
            "producerGroup": "PG",
            "tranStateTableOffset": str(number),
            "commitLogOffset": str(units[number][0] if number < len(units) else rng.randrange(999)),
            "commitOrRollback": rng.choice(["8", "8", "8", "12"]),
            "fromTransactionCheck": rng.choice(["true", "false"]),
            "msgId": "id",
            "transactionId": "id",
        }
        self._spoil(fields)
        return self._encode(END, fields)

    def back(self) -> bytes:
        rng = self.rng
        places = [("T", 0), ("T", 1), ("U", 0), (RETRY, 0)]
        units = self.store.reader.queue_units(*rng.choice(places), 0, 10_000)
        fields = {
            "offset": str(rng.choice(units)[0] if units else rng.randrange(999)),
            "group": "CG",
            "delayLevel": rng.choice(self.levels),
            "originMsgId": "id",
            "originTopic": "T",
            "unitMode": "false",
            "maxReconsumeTimes": rng.choice(["16", "16", "2"]),
        }
        if rng.random() < 0.2:
            del fields["maxReconsumeTimes"]
        self._spoil(fields)
        return self._encode(BACK, fields)

    def group(self) -> bytes:
        rng = self.rng
        config = SubscriptionGroupConfig(
            group_name="CG",
            retry_queue_nums=rng.choice([1, 1, 1, 0, 3]),
            retry_max_times=rng.choice([16, 16, 1]),
        )
        return self._encode(200, {}, config.encode())

    def _spoil(self, fields: dict[str, str]) -> None:
        rng = self.rng
        if rng.random() < 0.08:
            name = rng.choice([*fields])
            fields[name] = rng.choice(["", "-1", "x", "07", "99999999999", "\\"])
        if rng.random() < 0.03:
            del fields[rng.choice([*fields])]

    def _encode(self, code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
        rng = self.rng
        self.opaque += 1
        self.sent[code] += 1
        command = RemotingCommand(code, self.opaque, ext_fields=fields, body=body)
        command.version = rng.choice([407, 407, 407, 120])
        command.serialize_type = int(rng.random() < 0.4)
        command.flag = rng.choice([0, 0, 0, 2])
        return bytes(encode_command(command))


def sent_back(side: Any) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = side.harness.broker.statistics.messages_sent_back
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_copies_are_equal(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    settings: dict[str, Any],
) -> None:
    both = pair(**settings)
    both[1].feed.core.fallback_capacity = 1  # only the frame itself falls back
    rng = random.Random(len(settings))
    clients = Clients(rng, both[0].harness.store)
    for side in both:
        side.harness.broker.delivery.start()  # the harness of a DLedger member does not
        side.connect(("10.0.0.1", 1234))
        side.connect(("2001:db8::5", 40000))
    for turn in range(TURNS):
        data = b"".join(clients.frames(FRAMES))
        wait_ms = rng.choice([1, 5, 2_000])
        for side in both:
            side.receive(turn % 2, data)
            side.end_turn()
            side.harness.scheduler.advance(wait_ms)
    for side in both:
        side.harness.scheduler.advance(60_000)
        side.end_turn()
    assert_same(both)
    assert sent_back(both[0]) == sent_back(both[1])
    by_c = clients.sent - both[1].handed_back
    assert by_c[BACK] > 0 and (by_c[END] > 0 or "reject_transaction_message" in settings)


def single_requests(pair: MakeBrokerPair, **settings: Any) -> tuple[BrokerPair, Clients]:
    """Return two brokers that have answered one request of each kind, and their clients."""
    both = pair(**settings)
    clients = Clients(random.Random(5), both[0].harness.store)
    for side in both:
        side.connect(("10.0.0.1", 1234))
    for _ in range(3):
        send_to_both(both, clients.send("T", "UNIQ_KEY\x01u", e="0"))
        send_to_both(both, clients.send("T", "TRAN_MSG\x01true\x02PGROUP\x01PG", e="0", f="4"))
    return both, clients


def send_to_both(both: BrokerPair, *frames: bytes) -> None:
    for side in both:
        for frame in frames:
            side.receive(0, frame)
            side.end_turn()


def end(offset: int, number: int, **fields: str) -> bytes:
    header = {
        "producerGroup": "PG",
        "tranStateTableOffset": str(number),
        "commitLogOffset": str(offset),
        "commitOrRollback": "8",
        "msgId": "id",
    }
    return bytes(encode_command(RemotingCommand(END, 1, ext_fields={**header, **fields})))


def back(offset: int, **fields: str) -> bytes:
    header = {"offset": str(offset), "group": "CG", "delayLevel": "0", "originTopic": "T"}
    command = RemotingCommand(BACK, 1, ext_fields={**header, **fields})
    command.version = 407
    return bytes(encode_command(command))


def offsets_of(both: BrokerPair, topic: str) -> list[int]:
    units = both[0].harness.store.reader.queue_units(topic, 0, 0, 100)
    return [offset for offset, _, _ in units]


@pytest.mark.parametrize("settings", [{}, DLEDGER, SETTINGS["sync"]], ids=["", "dledger", "sync"])
@pytest.mark.parametrize("kind", ["commit", "rollback", "send back", "retry"])
def test_after_the_first_one_c_answers(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    settings: dict[str, Any],
    kind: str,
) -> None:
    both, clients = single_requests(pair, **settings)
    code = {"commit": END, "rollback": END, "send back": BACK, "retry": SEND}[kind]
    messages, halves = offsets_of(both, "T"), offsets_of(both, HALF)
    both[1].handed_back.clear()
    for number in range(3):
        send_to_both(
            both,
            {
                "commit": end(halves[number], number),
                "rollback": end(halves[number], number, commitOrRollback="12"),
                "send back": back(messages[number]),
                "retry": clients.send(RETRY, "UNIQ_KEY\x01u", j="3", l="16", e="0"),
            }[kind],
        )
    assert both[1].handed_back[code] == 1
    assert_same(both)
    if kind == "send back":
        assert sent_back(both[0]) == sent_back(both[1]) == {("CG", "T"): 3}


@pytest.mark.parametrize("kind", ["commit", "rollback", "send back"])
def test_a_damaged_message_is_left_to_python(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], kind: str
) -> None:
    """The copy would have a valid CRC."""
    both = pair()
    clients = Clients(random.Random(0), both[0].harness.store)
    for side in both:
        side.connect(("10.0.0.1", 1234))
    for _ in range(40):
        send_to_both(both, clients.send("T", "TRAN_MSG\x01true\x02PGROUP\x01PG", e="0", f="4"))
        send_to_both(both, clients.send("T", "UNIQ_KEY\x01u", e="0"))
    topic = "T" if kind == "send back" else HALF
    units = both[0].harness.store.reader.queue_units(topic, 0, 0, 100)
    long = [(number, offset) for number, (offset, size, _) in enumerate(units) if size > 230]
    assert len(long) > 3
    for side in both:
        for _, offset in long[2:]:
            flip_body(side.harness, offset)
    what = "12" if kind == "rollback" else "8"
    for number, offset in long:
        request = (
            back(offset) if kind == "send back" else end(offset, number, commitOrRollback=what)
        )
        send_to_both(both, request)
    assert_same(both)
    copies = {"commit": "T", "rollback": OP, "send back": "SCHEDULE_TOPIC_XXXX"}[kind]
    stored = queue_messages(both[1].harness.store, copies, 2 if kind == "send back" else 0)
    assert len(stored) == (42 if kind == "commit" else 2)


def test_a_message_within_a_body_cannot_be_named(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both, _ = single_requests(pair)
    halves = offsets_of(both, HALF)
    send_to_both(both, end(halves[0], 0), back(offsets_of(both, "T")[0]))
    record = both[0].harness.store.reader.message_at(halves[1])
    assert record is not None
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    send_to_both(
        both,
        encode_command(RemotingCommand(SEND, 9, ext_fields=fields, body=bytes(record))),
    )
    within = offsets_of(both, "T")[-1] + 88
    before = both[0].harness.store.log.max_offset
    send_to_both(both, end(within, 1), back(within))
    assert_same(both)
    assert both[1].harness.store.log.max_offset == before


@pytest.mark.parametrize("code", [END, BACK])
def test_a_changed_group_or_topic_reaches_python(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], code: int
) -> None:
    both, _ = single_requests(pair)
    messages, halves = offsets_of(both, "T"), offsets_of(both, HALF)
    request = end(halves[0], 0) if code == END else back(messages[0])
    send_to_both(both, request, request)
    config = SubscriptionGroupConfig(group_name="CG", retry_queue_nums=3)
    send_to_both(both, encode_command(RemotingCommand(200, 5, body=config.encode())))
    both[1].handed_back.clear()
    send_to_both(both, request, request)
    assert both[1].handed_back[code] == (2 if code == BACK else 0), "C does not choose a queue"
    for side in both:
        side.harness.broker.fence.close(60)
    send_to_both(both, request)
    assert_same(both)
    answer = both[1].channels[0].take()[-1]
    assert answer.code == 2 and answer.remark is not None and "fenced" in answer.remark


@pytest.mark.parametrize("is_lost", [False, True])
def test_replies_wait_for_the_quorum(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], is_lost: bool
) -> None:
    both, _ = single_requests(pair, **DLEDGER)
    messages, halves = offsets_of(both, "T"), offsets_of(both, HALF)
    send_to_both(both, end(halves[0], 0), back(messages[0]))
    both[1].handed_back.clear()
    for side in both:
        entries = side.harness.store.opened.entries
        assert entries is not None
        entries.subscribe(stored=lambda _: None)
        side.channels[0].take()
        side.receive(0, end(halves[1], 1) + back(messages[1]) + end(halves[2], 2))
        side.end_turn()
        assert side.channels[0].take() == []
        if is_lost:
            side.harness.broker.server.leadership_lost()
            side.harness.broker.messages.fail()
        else:
            entries.commit_to(entries.stored_index)
        answers = side.channels[0].take()
        assert [answer.code for answer in answers] == [int(is_lost)] * 3
    assert not both[1].handed_back
    assert_same(both)
    assert sent_back(both[0]) == sent_back(both[1]) == {("CG", "T"): 1 if is_lost else 2}
