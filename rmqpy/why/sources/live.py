"""A running broker, rmqpy's or Java's, as a source of facts about messages.

Only requests that read are sent. The calls are synchronous, because a command asks one question
after the other; the connections live in an event loop of their own. What a broker cannot answer is
None: no request reads the log without the key index, for example.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.codec.received import decode_records
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RequestRejectedError, RmqError
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import TRANSACTION_OP_HALF_TOPIC
from rmqpy.remoting.bodies import (
    ConsumerOffsetSerializeWrapper,
    ConsumerRunningInfo,
    DelayOffsetSerializeWrapper,
    SubscriptionData,
)
from rmqpy.remoting.command import RemotingCommand
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
from rmqpy.why.sources.directory import has_key
from rmqpy.why.sources.interface import (
    ClientGroup,
    LogPlace,
    QueueLock,
    QueueUnitPlace,
    StoreRange,
)

__all__ = ["FIRST_HEARTBEAT_MS", "BrokerSource", "locks_of", "masters_of"]

T = TypeVar("T")

KEY_HITS_MAX = 64
FIRST_HEARTBEAT_MS = 3_600_000
"""No heartbeat is sent: this client is a member of no group."""
CLIENTS_ASKED_MAX = 20
_END_OF_TIME_MS = (1 << 63) - 1


class BrokerSource:
    """The broker at ``address``. A context manager: leaving it closes the connections.

    ``name_servers`` are only needed for questions about routes.
    """

    is_live = True

    def __init__(self, address: str, settings: Callable[[str], ClientSettings]) -> None:
        self._address = address
        self._settings = settings(address)
        self._runner = asyncio.Runner()
        self._values: dict[str, str] | None = None
        self._cache: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._instance = self._run(ClientInstance.open(self._settings))
        self.admin = Admin(self._instance, self._settings.name_servers)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(RmqError):
            self._run(self._instance.close())
        self._runner.close()

    def _run(self, answer: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await answer

        try:
            return self._runner.run(awaited())
        except NetworkError as error:
            raise NetworkError(
                f"{self._address}: found no answer ({error}), expected a running broker; check the"
                " address, or give the broker's directory instead"
            ) from error

    def call(self, code: RequestCode, header: Any = None) -> RemotingCommand | None:
        """Return the broker's answer, or None if it refuses the request or does not know it.
        Raises NetworkError.
        """
        answer = self._run(self._instance.invoke(self._address, code, header))
        return answer if answer.code == ResponseCode.SUCCESS else None

    def _known(self, name: str, read: Callable[[], T]) -> T:
        if name not in self._cache:
            self._cache[name] = read()
        found: T = self._cache[name]
        return found

    @property
    def name(self) -> str:
        return self._address

    def settings(self) -> tuple[Mapping[str, str], str]:
        values = self._known("settings", lambda: self._read(self.admin.broker_config) or {})
        return values, "the running broker"

    def runtime_info(self) -> Mapping[str, str]:
        return self._known("runtime", lambda: self._read(self.admin.runtime_info) or {})

    def _read(self, ask: Callable[[str], Awaitable[T]]) -> T | None:
        try:
            return self._run(ask(self._address))
        except RequestRejectedError:
            return None

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
            found = self._read(self.admin.all_topics)
            if found is None:
                return None
            return {name: _plain(config) for name, config in found.topic_config_table.items()}

        return self._known("topics", read)

    def groups(self) -> Mapping[str, Mapping[str, Any]] | None:
        def read() -> Mapping[str, Mapping[str, Any]] | None:
            found = self._read(self.admin.all_groups)
            if found is None:
                return None
            return {name: _plain(each) for name, each in found.subscription_group_table.items()}

        return self._known("groups", read)

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

        return self._known("offsets", read)

    def delay_offsets(self) -> Mapping[int, int] | None:
        def read() -> Mapping[int, int] | None:
            answer = self.call(RequestCode.GET_ALL_DELAY_OFFSET)
            if answer is None or not answer.body:
                return None
            return dict(DelayOffsetSerializeWrapper.decode(answer.body).offset_table)

        return self._known("delays", read)

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
            answer = self._run(self.admin.consume_queue(self._address, header))
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

    def members(self, group: str, topic: str) -> ClientGroup | None:
        try:
            found = self._run(self.admin.consumer_connections(self._address, group))
        except RequestRejectedError as refusal:
            offline = refusal.code == ResponseCode.CONSUMER_NOT_ONLINE
            return ClientGroup() if offline else None
        registered = found.subscription_table.get(topic)
        clients = tuple(sorted(each.client_id for each in found.connection_set))
        infos = self._running_infos(group, clients)
        return ClientGroup(
            clients=clients,
            message_model=found.message_model or "",
            consume_type=found.consume_type or "",
            consume_from=found.consume_from_where or "",
            expression=registered.sub_string if registered is not None else None,
            expression_type=registered.expression_type if registered is not None else "TAG",
            subscriptions=tuple(_subscriptions(infos, topic)),
            locks=tuple(locks_of(infos, topic, self.settings()[0].get("brokerName", ""))),
        )

    def _running_infos(
        self, group: str, clients: tuple[str, ...]
    ) -> dict[str, ConsumerRunningInfo]:
        """Return what the clients say of themselves; those that do not answer are left out, as
        clients in other languages often do not.
        """
        found = {}
        for client in clients[:CLIENTS_ASKED_MAX]:
            with suppress(RmqError):
                found[client] = self._run(self.admin.running_info(self._address, group, client))
        return found


def _subscriptions(
    infos: Mapping[str, ConsumerRunningInfo], topic: str
) -> Iterator[tuple[str, str]]:
    """Yield each client and its subscription to the topic."""
    for client, info in infos.items():
        mine = [each for each in info.subscription_set if each.topic == topic]
        yield client, _expression(mine[0]) if mine else "none"


def locks_of(
    infos: Mapping[str, ConsumerRunningInfo], topic: str, broker: str
) -> Iterator[QueueLock]:
    """Yield the queues of the topic at a broker that orderly clients have."""
    for client, info in infos.items():
        if info.properties.get("PROP_CONSUMEORDERLY") != "true":
            continue
        for queue, state in info.mq_table.items():
            if (queue.topic, queue.broker_name) == (topic, broker) and not state.droped:
                yield QueueLock(
                    client=client,
                    queue_id=queue.queue_id,
                    is_locked=state.locked,
                    last_lock_ms=state.last_lock_timestamp,
                )


def _expression(subscription: SubscriptionData) -> str:
    if subscription.tags_set:
        return " || ".join(sorted(subscription.tags_set))
    return subscription.sub_string or "*"


def _number(values: Mapping[str, str], key: str) -> int | None:
    text = values.get(key, "").removeprefix("-")
    return int(values[key]) if text.isascii() and text.isdigit() else None


def _plain(body: Any) -> Mapping[str, Any]:
    value: Mapping[str, Any] = body.to_json()
    return value


def masters_of(settings: ClientSettings) -> list[str]:
    """Return the address of the member with the smallest id of each broker that the name servers
    know. Raises NetworkError if no name server answers.
    """

    async def ask() -> list[str]:
        instance = await ClientInstance.open(settings)
        try:
            info = await Admin(instance, settings.name_servers).cluster_info()
        finally:
            await instance.close()
        table = info.broker_addr_table
        return [
            table[name].broker_addrs[min(table[name].broker_addrs)]
            for name in sorted(table)
            if table[name].broker_addrs
        ]

    return asyncio.run(ask())
