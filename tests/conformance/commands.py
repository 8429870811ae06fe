"""The commands of mqadmin, in an order in which each has output, and its comparable form.

Words in braces stand for what :func:`prepare` creates: a topic with messages, a group that has read
some of them, and an online client of the group that answers requests of the broker.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, field

from conformance.broker_scenario import BORN_MS, CONSUMED, KEY, RUNNING
from conformance.compare import masked_text
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic, send_request

TOPIC, GROUP, WRITERS, CLIENT = "Operations", "ops-readers", "ops-writers", "10.0.0.9@ops"
MESSAGES: Final = 6
FAILED: Final = "failed"
_TIME_DEPENDENT: Final = ("RocketmqCommon - ", "TRANS_CHECK_MAX_TIME_TOPIC", "TOOLS_CONSUMER")
"""Log lines, and topics whose existence depends on the duration of earlier commands."""
_NUMBER: Final = re.compile(r"\d+(\.\d+)?(E-?\d+)?|NaN")
_PLACE: Final = re.compile(
    r"HOST[0-9A-F]{16}|(?<=commitLogOffset=)\d+|(?<=CommitLog Offset:    )\d+|(?<=physicOffset=)\d+"
)
"""Positions in the log, which depend on the servers' own messages."""
_HEXADECIMAL: Final = re.compile(r"\b(HOST[0-9A-F]{16}|[0-9A-F]{32,56})\b")
ONLINE_SECONDS_MAX: Final = 600.0


@define(slots=True, frozen=True)
class Line:
    """One command line, and the function ``look`` that returns its output in comparable form.

    A command of Java that never ends is killed after ``seconds``; that of rmqpy ends because of the
    further arguments ``ours``.
    """

    words: str
    look: Callable[[str], list[str]]
    seconds: int = 30
    ours: str = ""

    @property
    def command(self) -> str:
        return self.words.split()[0]


def exact(output: str) -> list[str]:
    """Return all lines without trailing blanks. mqadmin reports a failure as a stack trace."""
    if "\tat org.apache.rocketmq" in output:
        return [FAILED]
    return [
        line.rstrip()
        for line in output.splitlines()
        if line.strip() and not any(text in line for text in _TIME_DEPENDENT)
    ]


def unordered(output: str) -> list[str]:
    """Return the set of lines: the order of Java's maps and sets is arbitrary."""
    return sorted(set(exact(output)))


def numbers(output: str) -> list[str]:
    """Return all lines with ``0`` for every number, and single blanks."""
    return [
        re.sub(r"\s+", " ", _NUMBER.sub("0", _HEXADECIMAL.sub("ID", line)))
        for line in exact(output)
    ]


def any_numbers(output: str) -> list[str]:
    """Return the set of lines with ``0`` for every number."""
    return sorted(set(numbers(output)))


def titles(output: str) -> list[str]:
    """Return the headings, for outputs whose rows always differ."""
    return [line for line in exact(output) if line.startswith(("#", "=="))]


def without_paths(output: str) -> list[str]:
    """Return all lines without the files that only mqadmin writes to its working directory."""
    return [re.sub(r"\S+/10\.0\.0\.9@ops", "-", line) for line in exact(output)]


def names(output: str) -> list[str]:
    """Return the names before ``:`` or ``=``."""
    found = (re.match(r"([\w.]+)\s*[:=]", line) for line in exact(output))
    return sorted({match[1] for match in found if match})


LINES: Final[tuple[Line, ...]] = (
    Line("updateTopic -t {made} -b {broker} -r 3 -w 3", exact),
    Line("updateTopicPerm -t {made} -b {broker} -p 4", exact),
    Line("updateTopicPerm -t {made} -b {broker} -p 6", exact),
    Line("topicRoute -t {topic}", exact),
    Line("topicRoute -t {topic} -l", exact),
    Line("topicRoute -t NoSuch", exact),
    Line("topicStatus -t {topic}", exact),
    Line("topicClusterList -t {topic}", exact),
    Line("topicList", unordered),
    Line("topicList -c", unordered),
    Line("allocateMQ -t {topic} -i a,b", exact),
    Line("updateOrderConf -t {topic} -m put -v broker-a:2", exact),
    Line("updateOrderConf -t {topic} -m get", exact),
    Line("updateOrderConf -t {topic} -m delete", exact),
    Line("updateSubGroup -b {broker} -g {madegroup} -r 3", exact),
    Line("getConsumerConfig -g {madegroup}", exact),
    Line("deleteSubGroup -b {broker} -g {madegroup}", exact),
    Line("brokerStatus -b {broker}", names),
    Line("clusterList", numbers),
    Line("clusterList -m", numbers),
    Line("getBrokerConfig -b {broker}", names),
    Line("updateBrokerConfig -b {broker} -k flushDelayOffsetInterval -v 9000", exact),
    Line("queryMsgById -i {id}", exact),
    Line("queryMsgByKey -t {topic} -k key-3", exact),
    Line("queryMsgByUniqueKey -t {topic} -i {key}", exact),
    Line("queryMsgByOffset -t {topic} -b broker-a -i 0 -o 1", exact),
    Line("queryMsgTraceById -i {key} -t {made}", exact),
    Line("printMsg -t {topic} -d true", exact),
    Line("printMsgByQueue -t {topic} -a broker-a -i 0 -p true -f true", exact),
    Line("consumeMessage -t {topic} -b broker-a -i 0 -o 0 -c 2", exact),
    Line("brokerConsumeStats -b {broker}", exact),
    Line("producerConnection -g {writers} -t {topic}", exact),
    Line("consumerConnection -g {group}", unordered),
    Line("consumerProgress -g {group}", exact),
    Line("consumerProgress", unordered),
    Line("consumerStatus -g {group}", without_paths),
    Line("consumerStatus -g {group} -i {client}", unordered),
    Line("cloneGroupOffset -s {group} -d {cloned} -t {topic}", exact),
    Line("producer -b {broker}", unordered),
    Line("updateKvConfig -s NS -k a -v b", exact),
    Line("deleteKvConfig -s NS -k a", exact),
    Line("wipeWritePerm -b broker-a", numbers),
    Line("addWritePerm -b broker-a", numbers),
    Line("resetOffsetByTime -g {group} -t {topic} -s 0", unordered),
    Line("skipAccumulatedMessage -g {group} -t {topic}", unordered),
    Line("cleanExpiredCQ -b {broker}", exact),
    Line("deleteExpiredCommitLog -b {broker}", exact),
    Line("cleanUnusedTopic -b {broker}", exact),
    Line("statsAll -t {topic}", any_numbers),
    Line("getNamesrvConfig", names),
    Line("updateNamesrvConfig -k orderMessageEnable -v true", exact),
    Line("queryCq -t {topic} -q 0 -i 0 -c 2 -b {broker}", exact),
    Line("exportMetadata -c DefaultCluster -f {folder}", exact),
    Line("exportConfigs -c DefaultCluster -f {folder}", exact),
    Line("exportMetrics -c DefaultCluster -f {folder}", exact),
    Line("deleteTopic -t {made} -c DefaultCluster", exact),
    Line("sendMessage -t {topic} -p hello -k k1 -c red -b broker-a -i 1", numbers),
    Line("sendMsgStatus -b broker-a -s 16 -c 1", numbers),
    Line("checkMsgSendRT -t {topic} -a 2 -s 16", numbers),
    Line("clusterRT -a 1 -s 16 -c DefaultCluster -i 1", titles, 5, "-r 1"),
    Line("startMonitoring", titles, 3, "-r 1"),
)


@define
class OnlineClient:
    """A consumer and producer that answers requests of the broker until it is closed."""

    connection: BlockingConnection
    _thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.connection.close()
        self._thread.join(5)

    def _answer(self) -> None:
        running = {**RUNNING, "properties": {"PROP_CLIENT_VERSION": "V4_9_7", **_ONLINE}}
        bodies: Mapping[int, object] = {
            221: {"consumerTable": {}, "messageQueueTable": {}},
            307: running,
            309: CONSUMED,
        }
        try:
            while True:
                question = self.connection.receive_pushed(None)
                if question.code in bodies:
                    body = json.dumps(bodies[question.code]).encode()
                    self.connection.answer(RemotingCommand.response_to(question, body=body))
        except (NetworkError, ValueError):
            return  # closed


_ONLINE: Final = {
    "PROP_CONSUMEORDERLY": "false",
    "PROP_CONSUMER_START_TIMESTAMP": str(BORN_MS),
    "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
    "PROP_NAMESERVER_ADDR": "127.0.0.1:9;",
    "PROP_THREADPOOL_CORE_SIZE": "20",
}


def prepare(address: str) -> tuple[OnlineClient, dict[str, str]]:
    """Create the objects that the commands show. Return the client and the words in braces."""
    connection = BlockingConnection(address, ONLINE_SECONDS_MAX)
    create_topic(connection, TOPIC, 2)
    first = ""
    for number in range(MESSAGES):
        properties = f"UNIQ_KEY\1{KEY % (32 + number)}\2KEYS\1key-{number}\2TAGS\1red"
        body = b"message %d" % number
        sent = connection.call(send_request(TOPIC, number % 2, [body], properties))
        assert sent.code == 0, sent.remark
        first = first or sent.ext_fields["msgId"]
    _heartbeat(connection)
    for queue_id, offset in ((0, 1), (1, 2)):
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
        fields["commitOffset"] = str(offset)
        assert connection.call(RemotingCommand(15, ext_fields=fields)).code == 0
    words = {"topic": TOPIC, "group": GROUP, "writers": WRITERS, "client": CLIENT}
    return OnlineClient(connection), words | {"id": first, "key": KEY % 35, "broker": address}


def _heartbeat(connection: BlockingConnection) -> None:
    subscriptions = [
        {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
            "subVersion": BORN_MS,
            "tagsSet": [],
            "topic": topic,
        }
        for topic in (TOPIC, f"%RETRY%{GROUP}")
    ]
    data = {
        "clientID": CLIENT,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": GROUP,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": subscriptions,
                "unitMode": False,
            }
        ],
        "producerDataSet": [{"groupName": WRITERS}],
    }
    request = RemotingCommand(34, body=json.dumps(data).encode())
    assert connection.call(request).code == 0


def seen(line: Line, output: str, masks: Mapping[str, str]) -> list[str]:
    """Return an output in comparable form."""
    kept = [_PLACE.sub("OFFSET", masked_text(text, masks)) for text in output.splitlines()]
    return line.look("\n".join(kept))
