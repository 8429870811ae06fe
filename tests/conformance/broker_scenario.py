"""The scenario with every request code of a broker of the priorities P0 and P1.

Requests of the broker (39, 40, 220, 221, 307, 309, 326) are answered as a Java client does; ACL
codes are tested elsewhere.
"""

from __future__ import annotations

import json
import time
from typing import Final

from conformance.wire import Wire
from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand

TOPIC: Final = "Conformance"
READERS, COPY, WRITERS, CLIENT = "conf-readers", "conf-copy", "conf-writers", "conf-client"
BORN_MS: Final = 1_700_000_000_000
KEY: Final = "7F0000010000000000000000000000%02X"
RUNNING: Final = {
    "mqTable": {},
    "properties": {"PROP_CLIENT_VERSION": "V4_9_7"},
    "statusTable": {},
    "subscriptionSet": [],
}
CONSUMED: Final = {
    "autoCommit": True,
    "consumeResult": "CR_SUCCESS",
    "order": False,
    "spentTimeMills": 3,
}


def properties(number: int, **more: str) -> str:
    pairs = {"UNIQ_KEY": KEY % number, "KEYS": f"key-{number}", "TAGS": "red", **more}
    return "\2".join(f"{name}\1{value}" for name, value in pairs.items())


def run_broker_scenario(wire: Wire, fast_address: str, cluster: str) -> None:
    """Send all requests; ``wire`` records the answers."""
    _tables(wire, fast_address)
    _clients(wire)
    first = _messages(wire)
    _positions(wire, first)
    _statistics(wire, cluster)
    _order(wire)
    _relays(wire, first)
    _replies(wire, cluster)
    _settings(wire)
    _transactions(wire)
    _end(wire)


def _tables(wire: Wire, fast_address: str) -> None:
    make = wire.request(17, topic=TOPIC, readQueueNums=2, writeQueueNums=2, perm=6)
    wire.exchange(make, until=lambda answer: answer.code == 0)
    config = {
        "brokerId": 0,
        "consumeBroadcastEnable": False,
        "consumeEnable": True,
        "consumeFromMinEnable": False,
        "groupName": READERS,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    wire.exchange(wire.request(200, json.dumps(config).encode()))
    wire.exchange(wire.request(201), more=True)
    wire.exchange(wire.request(21), address=fast_address)
    wire.exchange(wire.request(305))


def _clients(wire: Wire) -> None:
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": "*",
        "subVersion": BORN_MS,
        "tagsSet": [],
        "topic": TOPIC,
    }
    heartbeat = {
        "clientID": CLIENT,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": READERS,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [subscription],
                "unitMode": False,
            }
        ],
        "producerDataSet": [{"groupName": WRITERS}],
    }
    wire.exchange(wire.request(34, json.dumps(heartbeat).encode()), on="client")
    wire.receive_pushed(40)
    wire.exchange(wire.request(38, consumerGroup=READERS))
    wire.exchange(wire.request(38, consumerGroup="nobody"))
    wire.exchange(wire.request(203, consumerGroup=READERS))
    wire.exchange(wire.request(203, consumerGroup="nobody"))
    wire.exchange(wire.request(204, producerGroup=WRITERS))
    wire.exchange(wire.request(204, producerGroup="nobody"))
    wire.exchange(wire.request(328))
    for kind, expression in (("TAG", "red"), ("SQL92", "a > 1"), ("SQL92", "a >")):
        check = {
            "clientId": CLIENT,
            "group": READERS,
            "subscriptionData": subscription | {"expressionType": kind, "subString": expression},
        }
        wire.exchange(wire.request(46, json.dumps(check).encode()))


def _send(wire: Wire, number: int, body: bytes, **more: str) -> RemotingCommand:
    return wire.request(
        310, body, a=WRITERS, b=TOPIC, e=0, g=BORN_MS, i=properties(number, **more), n=None
    )


def _messages(wire: Wire) -> tuple[int, str]:
    """Send messages. Return physical offset and id of the first one."""
    names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId")
    values = (WRITERS, TOPIC, "TBW102", 4, 0)
    more = {"sysFlag": 0, "bornTimestamp": BORN_MS, "flag": 3, "properties": properties(1)}
    more |= {"reconsumeTimes": 0, "unitMode": False, "batch": False}
    sent = wire.exchange(wire.request(10, b"one", **dict(zip(names, values, strict=True)), **more))
    wire.exchange(_send(wire, 2, b"two"))
    items = [BatchItem(0, b"b%d" % n, properties(n).encode()) for n in (3, 4)]
    batch = wire.request(
        320, encode_batch_body(items), a=WRITERS, b=TOPIC, e=1, g=BORN_MS, i="", n=None
    )
    wire.exchange(batch)
    wire.exchange(_send(wire, 5, b"later", DELAY="18"))
    wire.exchange(
        wire.request(310, b"x", a=WRITERS, b="no-such", c="no-such-default", i="", n=None)
    )
    message_id = sent.ext_fields["msgId"]
    return int(message_id[16:], 16), message_id


def _positions(wire: Wire, first: tuple[int, str]) -> None:
    where = {"topic": TOPIC, "queueId": 0}
    for code in (30, 31, 32):
        wire.exchange(wire.request(code, **where))
    wire.exchange(wire.request(29, **where, timestamp=BORN_MS))
    wire.exchange(wire.request(30, topic="no-such", queueId=0))
    read = {"consumerGroup": READERS, "queueOffset": 0, "sysFlag": 4, "subscription": "*"}
    pull = wire.request(11, **where, **read, subVersion=BORN_MS)
    wire.exchange(pull, until=lambda answer: answer.code == 0)
    wire.exchange(wire.request(11, **where, **read | {"queueOffset": 99}, subVersion=BORN_MS))
    wire.exchange(wire.request(11, **where, **read | {"subscription": "blue"}, subVersion=BORN_MS))
    wire.exchange(wire.request(33, offset=first[0]))
    wire.exchange(wire.request(33, offset=1 << 40))
    query = wire.request(12, topic=TOPIC, key="key-2")
    wire.exchange(query, until=lambda answer: answer.code == 0)
    wire.exchange(wire.request(12, topic=TOPIC, key="no-such"))
    for group in (READERS, "nobody"):
        wire.exchange(wire.request(14, **where, consumerGroup=group))
    wire.exchange(wire.request(15, **where, consumerGroup=READERS, commitOffset=1))
    wire.exchange(wire.request(14, **where, consumerGroup=READERS))
    wire.exchange(wire.request(43))
    wire.exchange(wire.request(45))
    wire.exchange(wire.request(202, topic=TOPIC))
    wire.exchange(wire.request(202, topic="no-such"))
    wire.exchange(wire.request(321, **where))


def _statistics(wire: Wire, cluster: str) -> None:
    wire.exchange(wire.request(208, topic=TOPIC, consumerGroup=READERS))
    wire.exchange(wire.request(208, topic=None, consumerGroup=READERS))
    wire.exchange(wire.request(317))
    wire.exchange(wire.request(300, topic=TOPIC))
    wire.exchange(wire.request(303, topic=TOPIC, group=READERS))
    for name, key in (("TOPIC_PUT_NUMS", TOPIC), ("BROKER_PUT_NUMS", cluster)):
        wire.exchange(
            wire.request(315, statsName=name, statsKey=key), until=lambda answer: answer.code == 0
        )
    wire.exchange(wire.request(315, statsName="TOPIC_PUT_NUMS", statsKey="no-such"))


def _order(wire: Wire) -> None:
    queues = [{"brokerName": "broker-a", "queueId": n, "topic": TOPIC} for n in (0, 1)]
    for client, code in ((CLIENT, 41), ("other", 41), (CLIENT, 42), ("other", 41), ("other", 42)):
        lock = {"clientId": client, "consumerGroup": READERS, "mqSet": queues}
        wire.exchange(wire.request(code, json.dumps(lock).encode()))


def _relays(wire: Wire, first: tuple[int, str]) -> None:
    def nothing(_question: RemotingCommand) -> None:
        return None

    reset = wire.request(222, topic=TOPIC, group=READERS, timestamp=0, isForce=True)
    # Java requires an offset of every queue.
    wire.exchange(wire.request(15, topic=TOPIC, queueId=1, consumerGroup=READERS, commitOffset=2))
    wire.relay(reset, 220, nothing)
    wire.exchange(wire.request(222, topic=TOPIC, group="nobody", timestamp=0, isForce=True))
    queue = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": TOPIC})
    status = b'{"consumerTable":{},"messageQueueTable":{%s:7}}' % queue.encode()
    ask = wire.request(223, topic=TOPIC, group=READERS)
    wire.relay(ask, 221, lambda question: RemotingCommand.response_to(question, body=status))
    ask = wire.request(307, consumerGroup=READERS, clientId=CLIENT, jstackEnable=False)
    running = json.dumps(RUNNING).encode()
    wire.relay(ask, 307, lambda question: RemotingCommand.response_to(question, body=running))
    wire.exchange(wire.request(307, consumerGroup=READERS, clientId="x", jstackEnable=False))
    ask = wire.request(309, consumerGroup=READERS, clientId=CLIENT, msgId=first[1])
    consumed = json.dumps(CONSUMED).encode()
    wire.relay(ask, 309, lambda question: RemotingCommand.response_to(question, body=consumed))
    wire.exchange(wire.request(314, srcGroup=READERS, destGroup=COPY, topic=TOPIC, offline=False))
    wire.exchange(wire.request(14, topic=TOPIC, queueId=0, consumerGroup=COPY))
    back = {"offset": first[0], "group": READERS, "originMsgId": KEY % 1, "originTopic": TOPIC}
    wire.exchange(wire.request(36, **back, delayLevel=18, maxReconsumeTimes=16, bname=None))
    wire.exchange(wire.request(36, **back | {"offset": 1 << 40}, delayLevel=18, bname=None))
    wire.exchange(wire.request(36, **back | {"group": "nobody-known"}, delayLevel=18, bname=None))


def _replies(wire: Wire, cluster: str) -> None:
    addressed = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": CLIENT}
    short = dict(a=WRITERS, b=f"{cluster}_REPLY_TOPIC", c="TBW102", d=4, e=0, f=0, h=0)
    more = dict(g=BORN_MS, i=properties(6, **addressed), j=0, k=False, m=False)
    wire.relay(wire.request(325, b"v2", **short, **more), 326, RemotingCommand.response_to)
    names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId")
    long = dict(zip(names, (WRITERS, f"{cluster}_REPLY_TOPIC", "TBW102", 4, 0), strict=True))
    long |= {"sysFlag": 0, "bornTimestamp": BORN_MS, "flag": 0, "reconsumeTimes": 0}
    long |= {"properties": properties(7, **addressed), "unitMode": False, "batch": False}
    wire.relay(wire.request(324, b"v1", **long), 326, RemotingCommand.response_to)
    absent = addressed | {"REPLY_TO_CLIENT": "nobody"}
    wire.exchange(wire.request(325, b"v2", **short, **more | {"i": properties(8, **absent)}))


def _settings(wire: Wire) -> None:
    wire.exchange(wire.request(25))
    wire.exchange(wire.request(26), more=True)
    wire.exchange(wire.request(28), more=True)
    for code in (306, 316, 329):
        wire.exchange(wire.request(code))


def _transactions(wire: Wire) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": WRITERS}
    for number, end, check in ((9, 8, False), (10, 12, True)):
        # The broker discards transactions that are too old instead of checking them.
        request = _send(wire, number, b"half", **half)
        request.ext_fields["g"] = str(int(time.time() * 1000))
        sent = wire.exchange(request, on="client")
        place = {
            "commitLogOffset": int(sent.ext_fields["msgId"][16:], 16),
            "tranStateTableOffset": sent.ext_fields["queueOffset"],
        }
        if check:
            question = wire.receive_pushed(39)
            place = {name: question.ext_fields[name] for name in place}
        ended = wire.request(
            37, producerGroup=WRITERS, **place, commitOrRollback=end,
            fromTransactionCheck=check, msgId=KEY % number, bname=None,
        )  # fmt: skip
        wire.exchange(ended)
    wire.exchange(wire.request(323, msgId=sent.ext_fields["msgId"], topic=TOPIC))
    read = {"consumerGroup": READERS, "queueOffset": 0, "sysFlag": 4, "subscription": "*"}
    pull = wire.request(11, topic=TOPIC, queueId=0, **read, subVersion=BORN_MS)
    wire.exchange(pull, until=lambda answer: int(answer.ext_fields["nextBeginOffset"]) == 3)


def _end(wire: Wire) -> None:
    leave = wire.request(35, clientID=CLIENT, consumerGroup=READERS, producerGroup=WRITERS)
    wire.exchange(leave, on="client")
    wire.exchange(wire.request(38, consumerGroup=READERS))
    wire.exchange(wire.request(207, groupName=READERS, removeOffset=True))
    wire.exchange(wire.request(14, topic=TOPIC, queueId=0, consumerGroup=READERS))
    wire.exchange(wire.request(215, topic=TOPIC))
    oneway = wire.request(15, topic=TOPIC, queueId=0, consumerGroup=COPY, commitOffset=1)
    oneway.flag = FLAG_ONEWAY
    wire.connection().send(oneway)
    wire.exchange(wire.request(11, topic=TOPIC, queueId=0, consumerGroup=READERS))
