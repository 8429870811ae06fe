"""Random streams to both brokers: valid, unusual, and damaged frames, cut anywhere, over three
connections and many turns. ``RMQPY_HOT_SEEDS`` is the number of streams.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define
from harness.fastpath import (
    PULL_FIELDS,
    SEND_FIELDS,
    BrokerPair,
    FallbackDriver,
    FastPathDriver,
    MakeBrokerPair,
)

from rmqpy.acl.signature import Credentials
from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.config.keys import BrokerRole, FlushDiskType
from rmqpy.remoting.bodies import SubscriptionData, SubscriptionGroupConfig
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.testing.memory_channel import MemoryChannel

SEEDS = int(os.environ.get("RMQPY_HOT_SEEDS", "60"))
FRAMES = 120

DLEDGER = {
    "enable_dledger_commit_log": True,
    "dledger_group": "broker-a",
    "dledger_peers": "n0-127.0.0.1:40911",
    "dledger_self_id": "n0",
}


SETTINGS: list[dict[str, Any]] = [
    {},
    {"enable_property_filter": True},
    {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    {"broker_role": BrokerRole.SYNC_MASTER},
    {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": FlushDiskType.SYNC_FLUSH},
    {"region_id": 'Ré"gion', "trace_on": False, "max_message_size": 700},
    {"mapped_file_size_commit_log": 1 << 13, "mapped_file_size_consume_queue": 200},
    {"max_transfer_bytes_on_message_in_memory": 900, "max_index_num": 30},
    {"enable_property_filter": True, "mapped_file_size_consume_queue": 400},
    {"message_index_enable": False, "reject_transaction_message": True},
    DLEDGER,
    {**DLEDGER, "pending_limit": 5},
    {**DLEDGER, "mapped_file_size_commit_log": 1 << 13},
]
ACCESS_FILE = "/rocketmq/conf/plain_acl.yml"
LONG_SECRET = "a-secret-of-more-than-one-block-" * 3
ACCOUNTS = f"""\
globalWhiteRemoteAddresses: [10.8.8.8]
accounts:
- accessKey: plain-user
  secretKey: plain-secret
  topicPerms: [T=PUB|SUB, new-topic=PUB, U=SUB]
  groupPerms: [CG=SUB, TG=SUB]
- accessKey: reading-user
  secretKey: {LONG_SECRET}
  topicPerms: [T=SUB]
  groupPerms: [CG=SUB]
- {{accessKey: administrator, secretKey: admin-secret, admin: true}}
- {{accessKey: homely-user, secretKey: homely-secret, whiteRemoteAddress: 10.0.0.*}}
"""
GUARDED: dict[str, Any] = {
    "acl_enable": True,
    "rocketmq_home": "/rocketmq",
    "given_files": {ACCESS_FILE: ACCOUNTS},
}
PLAIN = Credentials("plain-user", "plain-secret")
SIGNERS = [
    *[PLAIN] * 12,
    *[Credentials("administrator", "admin-secret")] * 3,
    *[Credentials("reading-user", LONG_SECRET)] * 3,
    Credentials("homely-user", "homely-secret"),
    Credentials("plain-user", "plain-secret", "token"),
    Credentials("plain-user", "another-secret"),
    Credentials("nobody-here", "plain-secret"),
    None,
]
TOPICS = ["T"] * 12 + ["U", "U", "new-topic", "SELF_TEST_TOPIC", "%RETRY%G", "é", ""]
NAMES = ["UNIQ_KEY", "WAIT", "TAGS", "KEYS", "CLUSTER", "a", "Aa", "BB", "key-1", "ключ", "b" * 40]
VALUES = [
    "x",
    "true",
    "false",
    "TagA",
    "k1 k2",
    "k1  k2 ",
    "日本",
    "a\x01b",
    "x" * 300,
    '"q"\\',
    "0",
]
RARE = [
    *["DELAY\x013", "DELAY\x0118", "DELAY\x0199", "DELAY\x0107", "DELAY\x011\x02REAL_TOPIC\x01x"],
    *["DELAY\x010", "DELAY\x01-1", "DELAY\x0112345", "DELAY\x01x", "DELAY\x012\x02DELAY\x014"],
    *["TRAN_MSG\x01true", "TRAN_MSG\x01true\x02PGROUP\x01PG", "TRAN_MSG\x01True"],
    *["TRAN_MSG\x01false", "DELAY\x011\x02TRAN_MSG\x01true", "INNER_MULTI_DISPATCH\x01x"],
]
EXPRESSIONS = [
    "*",
    "*",
    "",
    "TagA",
    "TagA || x",
    "none",
    "none||TagA| ||",
    " || ",
    "日本 || x",
    "x\n",
]
SQL_EXPRESSIONS = [
    *["TAGS = 'TagA'", "a = 'x' OR Aa = '日本'", "a = 0 AND BB IS NOT NULL"],
    *["KEYS IN ('k1 k2', 'x')", "a BETWEEN 0 AND 3 OR TAGS IS NULL", "NOT TAGS = 'x'"],
    *["a = '\"q\"'", "a = '\\' -- or\n", "a ="],
]


@define
class Stream:
    """A generator of the frames of clients, repeatable by its seed."""

    rng: random.Random
    signs: bool = False
    opaque: int = 0

    def frame(self) -> bytes:
        kind = self.rng.random()
        if kind < 0.55:
            command = self.send()
        elif kind < 0.7:
            command = self.batch()
        elif kind < 0.95:
            command = self.pull()
        else:
            command = self.other()
        signer = self.rng.choice(SIGNERS) if self.signs else None
        if signer is not None:
            command = signer.signed(command)
            if self.rng.random() < 0.1:
                self.falsify(command)
        self.opaque += 1
        command.opaque = self.rng.choice([self.opaque, -self.opaque, self.opaque << 12])
        command.serialize_type = int(self.rng.random() < 0.4)
        command.language = self.rng.choice([0, 1, 9])
        if self.rng.random() < 0.05:
            command.flag = self.rng.choice([2, 2, 4, 3])
        frame = encode_command(command)
        if command.serialize_type == 0 and self.rng.random() < 0.2:
            frame = _loosened(frame)
        return self.mutated(frame) if self.rng.random() < 0.04 else frame

    def falsify(self, command: RemotingCommand) -> None:
        """Change a signed field or the signature."""
        fields, rng = command.ext_fields, self.rng
        kind = rng.random()
        if kind < 0.2:
            command.body += b"x"
        elif kind < 0.5:
            fields[rng.choice(["_UNIQUE_KEY_QUERY", "o", "AccessKez", "Signatur"])] = "1"
        else:
            name = rng.choice([*fields])
            changed = ["", fields[name] + "=", fields[name][:-1], "ü", "a\\b"]
            fields[name] = rng.choice(changed)

    def send(self) -> RemotingCommand:
        code = self.rng.choice([310, 310, 310, 310, 320, 10])
        body = self.rng.randbytes(self.rng.choice([0, 1, 16, 128, 128, 128, 900]))
        return self._sent(code, self.header(), body)

    def batch(self) -> RemotingCommand:
        count = self.rng.choice([1, 2, 5, 16])
        items = [
            BatchItem(
                self.rng.choice([0, 7]),
                self.rng.randbytes(self.rng.choice([0, 9, 100])),
                self.properties().encode(),
            )
            for _ in range(count)
        ]
        body = encode_batch_body(items)
        if self.rng.random() < 0.1:
            body = body[: self.rng.randrange(len(body) + 1)]
        return self._sent(
            self.rng.choice([320, 320, 310, 10]), {**self.header(), "m": "true"}, body
        )

    def header(self) -> dict[str, str]:
        rng = self.rng
        fields = {
            "a": "PG",
            "b": rng.choice(TOPICS),
            "c": "TBW102",
            "d": "4",
            "e": str(rng.choice([0] * 8 + [1, 2, 3, 3, 3, 4, 99, -1])),
            "f": str(rng.choice([0] * 12 + [1, 2, 8, 4, 0x10, 0x700])),
            "g": str(rng.choice([1_600_000_000_000, 0, -5])),
            "h": str(rng.choice([0, 0, 12, -1])),
            "i": self.properties(),
            "j": str(rng.choice([0, 0, 3])),
            "k": rng.choice(["false", "true"]),
            "l": "16",
            "m": rng.choice(["false"] * 9 + ["FALSE"]),
            "n": "broker-a",
        }
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            fields.pop(rng.choice(list("ijklmn")), None)
        if rng.random() < 0.03:
            fields[rng.choice(list("abcdefgh"))] = rng.choice(["", "x", "+1", "99999999999", "07"])
        if rng.random() < 0.02:
            fields.pop(rng.choice(list("abcdefgh")))
        return fields

    def properties(self) -> str:
        rng = self.rng
        names = [rng.choice(NAMES) for _ in range(rng.choice([0, 1, 2, 2, 3, 3, 6, 14]))]
        pieces = [f"{name}\x01{rng.choice(VALUES)}" for name in names]
        if rng.random() < 0.1:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(RARE))
        if rng.random() < 0.05:
            pieces.append(rng.choice(["", "\x01", "noname", "a\x01", "\x01b"]))
        return "\x02".join(pieces) + rng.choice(["", "", "\x02"])

    def pull(self) -> RemotingCommand:
        rng = self.rng
        fields = {
            "consumerGroup": rng.choice(["CG", "CG", "CG", "TG", "BG", "SG", "nobody", "g g"]),
            "topic": rng.choice(["T", "T", "T", "U", "none"]),
            "queueId": str(rng.choice([0, 0, 1, 2, 3, 5, -1])),
            "queueOffset": str(rng.choice([0, 0, 1, 5, 20, 50, 400, -3])),
            "maxMsgNums": str(rng.choice([32, 32, 1, 5, 0, 1000])),
            "sysFlag": str(rng.choice([4, 4, 0, 1, 2, 3, 5, 7, 16, 8])),
            "commitOffset": str(rng.choice([0, 3, 77])),
            "suspendTimeoutMillis": "15000",
            "subscription": rng.choice(EXPRESSIONS),
            "subVersion": str(rng.choice([0, 0, 5, 100])),
            "expressionType": rng.choice(["TAG", "TAG", "", "SQL92", "SQL92"]),
        }
        if fields["expressionType"] == "SQL92" and rng.random() < 0.9:
            fields["subscription"] = rng.choice(SQL_EXPRESSIONS)
        for name in ("subscription", "expressionType"):
            if rng.random() < 0.2:
                del fields[name]
        return RemotingCommand(rng.choice([11, 11, 11, 361]), ext_fields=fields)

    def other(self) -> RemotingCommand:
        code, fields = self.rng.choice(
            [
                (30, {"topic": "T", "queueId": "0"}),
                (14, {"consumerGroup": "CG", "topic": "T", "queueId": "0"}),
                (15, {"consumerGroup": "CG", "topic": "T", "queueId": "1", "commitOffset": "9"}),
                (777, {}),
                (17, self.topic_settings()),
                (200, {}),
            ]
        )
        return RemotingCommand(code, ext_fields=fields, body=b"" if code != 200 else self.group())

    def topic_settings(self) -> dict[str, str]:
        rng = self.rng
        return {
            "topic": rng.choice(["T", "U", "V"]),
            "defaultTopic": "TBW102",
            "readQueueNums": str(rng.choice([1, 4, 4, 8])),
            "writeQueueNums": str(rng.choice([2, 4, 4, 8])),
            "perm": str(rng.choice([6, 6, 6, 4, 2])),
            "topicFilterType": rng.choice(["SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG"]),
            "topicSysFlag": "0",
            "order": "false",
        }

    def group(self) -> bytes:
        rng = self.rng
        return SubscriptionGroupConfig(
            group_name=rng.choice(["CG", "CG", "TG", "BG"]),
            consume_enable=rng.random() < 0.7,
            consume_broadcast_enable=rng.random() < 0.7,
        ).encode()

    def mutated(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self.rng.choice([1, 1, 3])):
            # The length word is kept: a wrong one would only shift all later frames.
            changed[self.rng.randrange(5, len(frame))] = self.rng.choice(b'\0"\\{}[],:0\xff\x80z ')
        return bytes(changed)

    def _sent(self, code: int, fields: dict[str, str], body: bytes) -> RemotingCommand:
        if code == 10:
            fields = {LONG_NAMES.get(name, name): value for name, value in fields.items()}
        return RemotingCommand(code, ext_fields=fields, body=body)


LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def _loosened(frame: bytes) -> bytes:
    """Return a frame with the same header as another JSON writer would write it."""
    length = int.from_bytes(frame[5:8])
    decoded = json.loads(frame[8 : 8 + length])
    header = json.dumps(decoded, ensure_ascii=len(frame) % 2 == 0).encode() + b"\n"
    body = frame[8 + length :]
    head = (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4)
    return head + header + body


def _run(pair: BrokerPair, stream: Stream, frames: int = FRAMES) -> None:
    """Send the same stream to both, cut at random, over turns and three connections."""
    rng = stream.rng
    for side in pair:
        home = MemoryChannel(peer=("10.8.8.8", 1))
        side.connect(("10.0.0.1", 1234))
        side.connect(("10.0.0.1", 1235))
        side.connect(("2001:db8::5", 40000))
        everything = (SubscriptionData("T", "*", sub_version=5),)
        side.harness.heartbeat(home, group="CG", subscriptions=everything)
        tags = SubscriptionData("T", "TagA || x", ["TagA", "x"], [2598919, 120], 5)
        side.harness.heartbeat(home, group="TG", client_id="c2", subscriptions=(tags,))
        sql = SubscriptionData("T", SQL_EXPRESSIONS[1], expression_type="SQL92", sub_version=5)
        side.harness.heartbeat(home, group="SG", client_id="c4", subscriptions=(sql,))
        side.harness.heartbeat(
            home,
            group="BG",
            client_id="c3",
            message_model="BROADCASTING",
            subscriptions=everything,
        )
    waiting = [b"".join(stream.frame() for _ in range(frames // 3)) for _ in range(3)]
    while any(waiting):
        for _ in range(rng.choice([1, 1, 2, 4])):
            number = rng.randrange(3)
            size = rng.choice([7, 300, 1500, 4000, 20000])
            data, waiting[number] = waiting[number][:size], waiting[number][size:]
            if data:
                for side in pair:
                    side.receive(number, data)
        for side in pair:
            side.end_turn()
            side.harness.scheduler.advance(2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_on_random_streams(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], seed: int
) -> None:
    rng = random.Random(seed)
    both = pair(**rng.choice(SETTINGS))
    both[1].feed.core.fallback_capacity = rng.choice([1, 1, 3, 32])
    _run(both, Stream(rng))
    assert_same(both)


def _send_to(topic: str, opaque: int, signer: Credentials | None = None) -> bytes:
    fields = {**SEND_FIELDS, "b": topic, "i": "TAGS\x01TagA"}
    command = RemotingCommand(310, opaque, ext_fields=fields, body=b"body")
    return encode_command(command if signer is None else signer.signed(command))


@pytest.mark.parametrize("settings", [{}, DLEDGER], ids=["classic", "dledger"])
def test_sends_that_differ_in_their_topic_are_stored_in_it(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], settings: dict[str, Any]
) -> None:
    """C compares a header with the one before. A topic has its own flags, queues, and name."""
    both = pair(**settings)
    creation = {**Stream(random.Random(1)).topic_settings(), "perm": "6", "writeQueueNums": "4"}
    topics = ["T", "U", "U-with-a-longer-name", "M", "N"]
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for topic in topics:
            kind = "MULTI_TAG" if topic in "MN" else "SINGLE_TAG"
            fields = {**creation, "topic": topic, "topicFilterType": kind}
            side.receive(0, encode_command(RemotingCommand(17, ext_fields=fields)))
            side.receive(0, _send_to(topic, 1))
            side.end_turn()
    both[1].handed_back.clear()
    mixed = [random.Random(2).choice(topics) for _ in range(200)]
    for side in both:
        side.receive(0, b"".join(_send_to(topic, n) for n, topic in enumerate(mixed)))
        side.end_turn()
    assert not both[1].handed_back
    for side in both:
        for other in ("unknown", "%RETRY%CG", "TBW102", "", "é"):
            side.receive(0, b"".join(_send_to(topic, 1) for topic in ("T", other, "U")))
            side.end_turn()
    assert_same(both)


def test_a_send_that_differs_in_its_topic_needs_the_permission_for_it(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair(**GUARDED)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for topic in ("T", "new-topic", "U", "T", "U", "new-topic", "T"):
            side.receive(0, _send_to(topic, 1, PLAIN))
        side.end_turn()
        side.receive(0, b"".join(_send_to(topic, 2, PLAIN) for topic in ("T", "U", "T")))
        side.end_turn()
    assert_same(both)
    assert access_of(both[0]) == access_of(both[1])


def access_of(side: FallbackDriver | FastPathDriver) -> dict[str, str]:
    """Return the counts of access control."""
    access = side.harness.broker.access
    assert access is not None
    return access.runtime_info()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_on_random_signed_streams(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], seed: int
) -> None:
    rng = random.Random(seed)
    both = pair(**GUARDED, **rng.choice(SETTINGS))
    both[1].feed.core.fallback_capacity = rng.choice([1, 1, 3, 32])
    _run(both, Stream(rng, signs=True))
    assert_same(both)
    assert access_of(both[0]) == access_of(both[1])


def _signed_sends(count: int, signer: Credentials) -> list[bytes]:
    header = {**Stream(random.Random(1)).header(), "b": "T", "e": "0", "f": "0", "i": "a\x01ä"}
    header |= {"g": "1", "h": "0", "m": "false", "n": "b"}
    return [
        encode_command(signer.signed(RemotingCommand(310, n, ext_fields=header, body=b"b%d" % n)))
        for n in range(count)
    ]


@pytest.mark.parametrize("serialize_type", [0, 1])
@pytest.mark.parametrize("code", [310, 320, 10, 11])
def test_signed_requests_of_each_kind_take_the_fast_path(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    code: int,
    serialize_type: int,
) -> None:
    """The fields are signed in the order of their names."""
    both = pair(**GUARDED)
    stream = Stream(random.Random(1))
    fields = {**stream.header(), "b": "T", "e": "0", "f": "0", "g": "1", "h": "0"}
    fields |= {"i": "k\x01ä", "j": "0", "k": "false", "l": "16", "m": str(code == 320).lower()}
    body = b"some body, longer than one block of the hash that is made of it, by some bytes"
    if code == 320:
        body = encode_batch_body([BatchItem(0, body, b"KEYS\x01k"), BatchItem(0, b"", b"")])
    signed = PULL_FIELDS if code == 11 else fields
    if code == 10:
        signed = {LONG_NAMES[name]: fields[name] for name in LONG_NAMES}
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _signed_sends(1, PLAIN)[0])
        side.end_turn()
        for number in range(6):
            request = RemotingCommand(
                code, number, ext_fields=signed, body=b"" if code == 11 else body
            )
            request.serialize_type = serialize_type
            side.receive(0, encode_command(PLAIN.signed(request)))
            side.end_turn()
    assert_same(both)
    assert both[1].handed_back == ({310: 1, code: 1} if code == 11 else {310: 1})
    assert access_of(both[0]) == access_of(both[1])


def test_signed_requests_take_the_fast_path_until_the_rules_change(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair(**GUARDED)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for frame in _signed_sends(50, PLAIN):
            side.receive(0, frame)
        side.end_turn()
    assert both[1].handed_back[310] == 1, "the first one"
    forger = Credentials("plain-user", "guessed-secret")
    for side in both:
        for frame in _signed_sends(5, forger):
            side.receive(0, frame)
        side.end_turn()
    assert both[1].handed_back[310] == 6
    assert access_of(both[1]) == {
        "accessRequestsAllowed": "50",
        "accessRequestsRefused": "5",
    }
    for side in both:
        side.harness.files.put(ACCESS_FILE, ACCOUNTS.replace("T=PUB|SUB", "T=SUB").encode())
        side.harness.scheduler.advance(6_000)
        for frame in _signed_sends(50, PLAIN):
            side.receive(0, frame)
        side.end_turn()
    assert both[1].handed_back[310] == 56, "Python refuses each of them"
    assert access_of(both[1])["accessRequestsRefused"] == "55"
    assert_same(both)
