"""Make a recording of the messages of a store, as if each was sent and received when it was stored.

Messages of system topics, retry topics, and transactions without a decision are left out.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from attrs import evolve

from rmqpy.audit.checks.messages import MessageSelection, each_message
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import read_directory
from rmqpy.codec.message import encode_stored, offset_msg_id
from rmqpy.codec.properties import encode_properties
from rmqpy.model.codes import RequestCode
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, has_queue_unit
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import (
    AUTO_CREATE_TOPIC,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.traffic.recording import RecordingWriter, RecordKind, TrafficRecord

GROUP: Final = "rmqpy-record"
SENDER, READER = 1, 2
OF_OTHER_SENDS: Final = frozenset({"TRAN_MSG", "WAIT"})


def record_store(
    root: str, writer: RecordingWriter, first_ms: int | None, end_ms: int | None
) -> tuple[int, Counter[str]]:
    """Record the messages of a store that were stored in [first_ms, end_ms); return their number,
    and how many were left out, by the reason. Raises RmqError or OSError.
    """
    files = OsFileSystem()
    limit = read_facts(files, root).confirmed_end
    selection = MessageSelection(first_ms=first_ms, end_ms=end_ms)
    left_out: Counter[str] = Counter()

    def damaged(_file: str, _offset: int, _size: int) -> None:
        left_out["damaged places"] += 1

    count, begin_ms, time_us = 0, None, 0
    for found in each_message(files, read_directory(files, root), selection, damaged, limit):
        why = _left_out(found.message)
        if why:
            left_out[why] += 1
            continue
        message = _as_sent(found.message)
        begin_ms = message.store_timestamp_ms if begin_ms is None else begin_ms
        time_us = max(time_us, (message.store_timestamp_ms - begin_ms) * 1000)
        count += 1
        _append(writer, message, count, time_us)
    return count, left_out


def _left_out(message: StoredMessage) -> str:
    if is_system_topic(message.topic):
        return "messages of system topics"
    if is_retry_topic(message.topic) or is_dlq_topic(message.topic):
        return "messages of retry topics"
    if not has_queue_unit(message.sys_flag):
        return "transactions that are not committed"
    return ""


def _as_sent(message: StoredMessage) -> StoredMessage:
    """Return a message as a plain send stores it: without the marks of a committed transaction, and
    without WAIT, which brokers keep in the messages of a batch only.
    """
    kept = {key: text for key, text in message.properties.items() if key not in OF_OTHER_SENDS}
    return evolve(message, sys_flag=message.sys_flag & ~TRANSACTION_MASK, properties=kept)


def _append(writer: RecordingWriter, message: StoredMessage, number: int, time_us: int) -> None:
    header = SendMessageRequestHeaderV2(
        producer_group=GROUP,
        topic=message.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=max(4, message.queue_id + 1),
        queue_id=message.queue_id,
        sys_flag=message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
        born_timestamp=message.born_timestamp_ms,
        flag=message.flag,
        properties=encode_properties(message.properties).decode(),
        reconsume_times=message.reconsume_times,
        batch=False,
    )
    send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, bytes(message.body))
    sent = SendMessageResponseHeader(
        msg_id=offset_msg_id(message.store_host, message.physical_offset),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
    )
    pull = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        max_msg_nums=1,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    received = RemotingCommand.request(RequestCode.PULL_MESSAGE, pull)
    answers = (
        (SENDER, send, RemotingCommand.response_to(send, 0, header=sent)),
        (READER, received, RemotingCommand.response_to(received, 0)),
    )
    answers[1][2].body = encode_stored(message)
    for connection, request, answer in answers:
        request.opaque = answer.opaque = number
        for kind, command in ((RecordKind.REQUEST, request), (RecordKind.ANSWER, answer)):
            writer.append(TrafficRecord(kind, connection, time_us, encode_command(command)))
