"""REGISTER_BROKER on the wire: the header, the forms of the body, and its checksum.

==========================  =====================================================================
request                     body
==========================  =====================================================================
version below 37            TopicConfigSerializeWrapper as JSON; no filter servers
``compressed`` false        RegisterBrokerBody as JSON
``compressed`` true         the zlib form of RegisterBrokerBody
empty                       no topics, DataVersion 0/0
==========================  =====================================================================

Topics are decoded only if the tables need them, because every broker repeats its table every 30 s,
and in the usual form of the JSON body (:mod:`rmqpy.namesrv.topic_rows`) only those that differ from
the last registration of the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from attrs import define, evolve, field

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.namesrv.names import check_address, check_name, check_text, is_name
from rmqpy.namesrv.route_info import BROKER_EXPIRED_MS, EXPIRY_LONGEST_MS, BrokerRegistration
from rmqpy.namesrv.topic_rows import ChangedRows, NotRowsError, RegistrationText
from rmqpy.remoting.bodies import (
    REGISTERED_TOPICS_MAX,
    BodyDecodeError,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    body_crc32,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import TOLERANT_REQUEST_MAX, FastjsonDecodeError, loads
from rmqpy.remoting.headers import RegisterBrokerRequestHeader

logger = logging.getLogger(__name__)

VERSION_WITH_FILTER_SERVERS = 37
"""The version V3_0_11, from which on the body is a RegisterBrokerBody."""

Topics = Callable[[], Mapping[str, TopicConfig]]


@define(slots=True, eq=False, repr=False)
class ReadRegistration:
    """A registration whose topics are decoded on demand.

    ``registration`` has topics once :meth:`decode` has finished.
    """

    request: RemotingCommand
    registration: BrokerRegistration
    _text: RegistrationText | None
    _topics: Topics
    _changed: ChangedRows | None = field(default=None, init=False)

    def decode(self, known: bytes, rows_max: int) -> int:
        """Decode up to ``rows_max`` topics that are not in ``known``, the rows that the tables
        show now. Return by how many they were fewer, or 0 if there may be more. Raises
        RequestRejectedError.
        """
        text = self._text
        if text is not None:
            try:
                return self._decode_rows(text, known, rows_max)
            except NotRowsError:
                self._text = None
        name = self.registration.broker_name
        topics = {topic: _queues(name, config) for topic, config in self._topics().items()}
        self.registration = evolve(self.registration, topics=_allowed(topics))
        return rows_max

    def _decode_rows(self, text: RegistrationText, known: bytes, rows_max: int) -> int:
        changed = self._changed
        if changed is None or changed.known is not known:
            if text.exceeds(REGISTERED_TOPICS_MAX):
                raise _refused(f"{text.topic_count} topics, more than {REGISTERED_TOPICS_MAX}")
            changed = ChangedRows(self.registration.broker_name, text.rows, known)
            self._changed = changed
        left = rows_max - changed.step(rows_max)
        if left:
            self.registration = evolve(self.registration, topics=changed.topics, rows=text.rows)
        return left


def read_registration(request: RemotingCommand) -> ReadRegistration:
    """Read a registration. Raises RequestRejectedError with the reason if it is invalid."""
    header = RegisterBrokerRequestHeader.decode(request.ext_fields)
    if header.body_crc32 and header.body_crc32 != body_crc32(request.body):
        raise _refused("crc32 not match")
    check_name("brokerName", header.broker_name)
    check_name("clusterName", header.cluster_name)
    check_address("brokerAddr", header.broker_addr)
    check_text("haServerAddr", header.ha_server_addr)
    text = None
    if request.version >= VERSION_WITH_FILTER_SERVERS and not header.compressed:
        text = RegistrationText.read(request.body)
    if text is not None:
        data_version, filter_servers = text.data_version, list[str]()
        topics: Topics = partial(_decode_body, request)
    else:
        data_version, filter_servers, topics = _read_body(request, header.compressed)
    for each in filter_servers:
        check_text("filter server", each)
    registration = BrokerRegistration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
        ha_address=header.ha_server_addr,
        data_version=data_version,
        filter_servers=tuple(filter_servers),
        expiry_ms=_expiry_ms(header.heartbeat_timeout_millis),
    )
    return ReadRegistration(request, registration, text, topics)


def _queues(broker_name: str, config: TopicConfig) -> QueueData:
    return QueueData(
        broker_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_sys_flag,
    )


def _read_body(request: RemotingCommand, compressed: bool) -> tuple[DataVersion, list[str], Topics]:
    if not request.body:
        return DataVersion(0, 0), [], dict
    if compressed and request.version >= VERSION_WITH_FILTER_SERVERS:
        body = RegisterBrokerBody.decode_compressed(request.body)
        wrapper = body.topic_config_serialize_wrapper
        return wrapper.data_version, body.filter_server_list, lambda: wrapper.topic_config_table
    try:
        value = loads(request.body, TOLERANT_REQUEST_MAX)
        return _read_json(value, request.version >= VERSION_WITH_FILTER_SERVERS)
    except (FastjsonDecodeError, BodyDecodeError) as fault:
        raise _refused(f"not the body of a registration: {str(fault)[:300]}") from None


def _decode_body(request: RemotingCommand) -> Mapping[str, TopicConfig]:
    _, _, topics = _read_body(request, False)
    return topics()


def _read_json(value: object, is_body: bool) -> tuple[DataVersion, list[str], Topics]:
    outer = _object("body", value)
    inner = _object("topicConfigSerializeWrapper", outer.get("topicConfigSerializeWrapper"))
    if not is_body:
        inner, outer = outer, {}
    version = inner.get("dataVersion")
    data_version = DataVersion(0, 0) if version is None else DataVersion.from_json(version)
    servers = outer.get("filterServerList") or []
    if not isinstance(servers, list) or not all(isinstance(each, str) for each in servers):
        raise BodyDecodeError("filterServerList is not a list of strings")
    table = _object("topicConfigTable", inner.get("topicConfigTable"))
    if len(table) > REGISTERED_TOPICS_MAX:
        raise BodyDecodeError(f"{len(table)} topics, more than {REGISTERED_TOPICS_MAX}")

    def topics() -> dict[str, TopicConfig]:
        try:
            return {
                str(name): TopicConfig.from_json(config)
                for name, config in table.items()
                if config is not None
            }
        except BodyDecodeError as fault:
            raise _refused(f"topicConfigTable: {fault}") from None

    return data_version, servers, topics


def _object(what: str, value: object) -> dict[object, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BodyDecodeError(f"{what} is not an object")
    return cast(dict[object, object], value)


def _allowed(topics: Mapping[str, QueueData]) -> dict[str, QueueData]:
    """Return the topics with valid names. The others are dropped, so that the broker can register
    the remaining ones.
    """
    allowed = {name: queues for name, queues in topics.items() if is_name(name)}
    if len(allowed) != len(topics):
        logger.warning("ignored %d topics with invalid names", len(topics) - len(allowed))
    return allowed


def _expiry_ms(requested_ms: int | None) -> int:
    if requested_ms is None or requested_ms <= 0:
        return BROKER_EXPIRED_MS
    return min(requested_ms, EXPIRY_LONGEST_MS)


def _refused(remark: str) -> RequestRejectedError:
    return RequestRejectedError(ResponseCode.SYSTEM_ERROR, remark)
