"""A running broker, rmqpy's or Java's, as a source of facts about messages.

What a broker cannot answer is None: no request reads the log without the key index, for example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqpy.codec.received import decode_records
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import TRANSACTION_OP_HALF_TOPIC
from rmqpy.remoting.bodies import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from rmqpy.remoting.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rmqpy.store.unread.pop import PopReceipt
from rmqpy.why.sources.accounts import accounts_of_answer
from rmqpy.why.sources.clients import members_of
from rmqpy.why.sources.connection import BrokerConnection
from rmqpy.why.sources.directory import has_key
from rmqpy.why.sources.interface import (
    AccessAccounts,
    ClientGroup,
    LogPlace,
    QueueUnitPlace,
    StoreRange,
)

__all__ = ["BrokerSource"]

KEY_HITS_MAX = 64
_END_OF_TIME_MS = (1 << 63) - 1


class BrokerSource(BrokerConnection):
    """The broker at ``address``, as a source. A context manager."""

    is_live = True

    def range(self) -> StoreRange | None:
        info = self.runtime_info()
        begin, end = (_number(info, f"commitLog{which}Offset") for which in ("Min", "Max"))
        if begin is None or end is None:
            return None
        first_ms = _number(info, "earliestMessageTimeStamp")
        return StoreRange(begin=begin, end=end, first_ms=-1 if first_ms is None else first_ms)

    # -- tables

    def topics(self) -> Mapping[str, Mapping[str, Any]] | None:
        def read() -> Mapping[str, Mapping[str, Any]] | None:
            found = self.read(self.admin.all_topics)
            if found is None:
                return None
            return {name: _plain(config) for name, config in found.topic_config_table.items()}

        return self.known("topics", read)

    def groups(self) -> Mapping[str, Mapping[str, Any]] | None:
        def read() -> Mapping[str, Mapping[str, Any]] | None:
            found = self.read(self.admin.all_groups)
            if found is None:
                return None
            return {name: _plain(each) for name, each in found.subscription_group_table.items()}

        return self.known("groups", read)

    def consumer_offsets(self) -> Mapping[tuple[str, str], Mapping[int, int]] | None:
        def read() -> Mapping[tuple[str, str], Mapping[int, int]] | None:
            answer = self.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
            if answer is None:
                return None
            table = ConsumerOffsetSerializeWrapper.decode(answer.body).offset_table
            found = {}
            for key, queues in table.items():
                topic, _, group = key.partition("@")
                found[topic, group] = dict(queues)
            return found

        return self.known("offsets", read)

    def delay_offsets(self) -> Mapping[int, int] | None:
        def read() -> Mapping[int, int] | None:
            answer = self.call(RequestCode.GET_ALL_DELAY_OFFSET)
            if answer is None or not answer.body:
                return None
            return dict(DelayOffsetSerializeWrapper.decode(answer.body).offset_table)

        return self.known("delays", read)

    def filters(self) -> Mapping[tuple[str, str], tuple[str, bool]] | None:
        return None  # the members that are online say more

    # -- queues and log

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        low = self.call(
            RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id)
        )
        high = self.call(
            RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
        )
        if low is None or high is None:
            return None
        begin = GetMinOffsetResponseHeader.decode(low.ext_fields).offset
        return begin, GetMaxOffsetResponseHeader.decode(high.ext_fields).offset

    def earliest_ms(self, topic: str, queue_id: int) -> int:
        """Return the store time of the first message of a queue, or -1."""
        header = GetEarliestMsgStoretimeRequestHeader(topic=topic, queue_id=queue_id)
        answer = self.call(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        if answer is None:
            return -1
        return GetEarliestMsgStoretimeResponseHeader.decode(answer.ext_fields).timestamp

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> QueueUnitPlace | None:
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=queue_offset, count=1
        )
        try:
            answer = self.run(self.admin.consume_queue(self.address, header))
        except RequestRejectedError:
            return None
        for each in answer.queue_data or ():
            return QueueUnitPlace(
                physical_offset=each.physic_offset,
                size=each.physic_size,
                tags_code=each.tags_code,
            )
        return None

    def message(self, physical_offset: int) -> StoredMessage | None:
        header = ViewMessageRequestHeader(offset=physical_offset)
        answer = self.call(RequestCode.VIEW_MESSAGE_BY_ID, header)
        records = decode_records(answer.body)[0] if answer is not None else []
        return records[0] if records else None

    def place(self, message: StoredMessage) -> LogPlace:
        settings, _ = self.settings()
        offset = message.physical_offset
        size = _number(settings, "mappedFileSizeCommitLog")
        divide = _number(self.runtime_info(), "dividedCommitlogOffset")
        is_dledger = settings.get("enableDLegerCommitLog") == "true"
        if not is_dledger:
            log, folder = "classic", "commitlog"
        elif divide is None:
            log, folder = "classic or DLedger", ""
        elif offset < divide:
            log, folder = "classic", "commitlog"
        else:
            log, folder = "DLedger", f"dledger-{settings.get('dLegerSelfId', '')}/data"
        if not size or not folder:
            return LogPlace(log=log, file="", position=-1)
        begin = offset // size * size
        return LogPlace(log=log, file=f"{folder}/{begin:020d}", position=offset - begin)

    # -- search

    def with_key(self, topic: str, key: str, *, unique: bool) -> list[tuple[StoredMessage, str]]:
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=KEY_HITS_MAX,
            begin_timestamp=0,
            end_timestamp=_END_OF_TIME_MS,
            unique_key_query=unique,
        )
        answer = self.call(RequestCode.QUERY_MESSAGE, header)
        records = decode_records(answer.body)[0] if answer is not None else []
        return [
            (each, "found by the broker")
            for each in records
            if each.topic == topic and has_key(each, key, unique)
        ]

    def scan(self, key: str) -> list[StoredMessage] | None:
        return None

    def unindexed(self, key: str) -> list[StoredMessage]:
        return []

    def resolved_halves(self, queue_id: int) -> set[int] | None:
        bounds = self.bounds(TRANSACTION_OP_HALF_TOPIC, queue_id)
        return set() if bounds == (0, 0) else None

    def pop_records_in_rocksdb(self) -> list[PopReceipt] | None:
        return None

    def members(self, group: str, topic: str) -> ClientGroup | None:
        return members_of(self, group, topic)

    def accounts(self) -> AccessAccounts | None:
        if self.settings()[0].get("aclEnable") != "true":
            return None
        found = self.read(self.admin.acl_config)
        if found is None:
            return AccessAccounts(
                fault="the broker lists them for administrators only; give --credentials of one"
            )
        return accounts_of_answer(found, self.name)


def _number(values: Mapping[str, str], key: str) -> int | None:
    text = values.get(key, "").removeprefix("-")
    return int(values[key]) if text.isascii() and text.isdigit() else None


def _plain(body: Any) -> Mapping[str, Any]:
    value: Mapping[str, Any] = body.to_json()
    return value
