"""The permission that each request code requires: the one table of access control in a broker.

A code that is not listed here is open to no account. Where Java 4.9.7 requires only a valid
signature (batch sends, offsets, a message by its id, ends of transactions, everything that tools
read), the right on the topic or group is required here, or an administrator.

Topics that hold the messages of other topics (delayed, half) are readable by administrators only. A
message that is named by its place in the log requires the right on the topic to which it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import define

from rmqpy.acl.rules import PUB, SUB, RequiredPermission, retry_resource
from rmqpy.acl.signature import AccessDemand, AccessLevel
from rmqpy.broker.base.store_api import MessageReader
from rmqpy.codec.message import InvalidRecordError, decode_message
from rmqpy.codec.properties import PROPERTY_REAL_TOPIC
from rmqpy.model.codes import RequestCode
from rmqpy.model.names import (
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_HALF_TOPIC,
)
from rmqpy.remoting.bodies import (
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    UnlockBatchRequestBody,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)

_INTERNAL_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_HALF_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
    }
)

_UNGRANTED: Final = 0
"""A right that no entry grants, so that only an administrator without entries passes."""

ADMINISTRATION: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.RMQPY_COMPARE_LOG,
    RequestCode.RMQPY_DLEDGER_STATUS,
    RequestCode.RMQPY_FENCE,
    RequestCode.RMQPY_CHANGE_ROLE,
    RequestCode.RMQPY_SWITCH,
    RequestCode.RMQPY_LEAVE,
    RequestCode.RMQPY_ELECTIONS,
)
"""Codes for settings, tables, and the data of other clients: for administrators."""

SECRETS: Final = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
)
"""Codes for accounts: only for administrators that have signed the request, even from a white
address.
"""

ELSEWHERE: Final = frozenset(
    {
        # Not implemented.
        RequestCode.QUERY_BROKER_OFFSET,
        RequestCode.GET_TOPIC_CONFIG_LIST,
        RequestCode.GET_TOPIC_NAME_LIST,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.SUSPEND_CONSUMER,
        RequestCode.RESUME_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
        RequestCode.ADJUST_CONSUMER_THREAD_POOL,
        RequestCode.WHO_CONSUME_THE_MESSAGE,
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
        # Sent by a broker to its clients.
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        # Answered by a controller of 5.x, or by its brokers.
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        # Answered at the port of a DLedger member.
        RequestCode.METADATA,
        RequestCode.APPEND,
        RequestCode.GET,
        RequestCode.VOTE,
        RequestCode.HEART_BEAT_DLEDGER,
        RequestCode.PULL_DLEDGER,
        RequestCode.PUSH,
        RequestCode.LEADERSHIP_TRANSFER,
        RequestCode.RMQPY_DLEDGER_HANDSHAKE,
        RequestCode.RMQPY_QUEUE_ENDS,
        RequestCode.RMQPY_PUSH_RUN,
    }
)
"""Codes that neither a broker nor a name server answers at the client ports."""


def broker_demands(queues: MessageReader) -> Mapping[int, AccessDemand]:
    """Return the table for a broker with these queues."""
    by_offset = _PermissionsByOffset(queues)
    open_to_accounts: dict[int, Callable[[RemotingCommand], Sequence[RequiredPermission]]] = {
        RequestCode.SEND_MESSAGE: _send_v1,
        RequestCode.SEND_MESSAGE_V2: _send_v2,
        RequestCode.SEND_BATCH_MESSAGE: _send_v2,
        RequestCode.SEND_REPLY_MESSAGE: _send_v1,
        RequestCode.SEND_REPLY_MESSAGE_V2: _send_v2,
        RequestCode.PULL_MESSAGE: _pull,
        RequestCode.LITE_PULL_MESSAGE: _pull,
        RequestCode.QUERY_MESSAGE: _query,
        RequestCode.QUERY_CONSUMER_OFFSET: _query_offset,
        RequestCode.UPDATE_CONSUMER_OFFSET: _update_offset,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _queue(SearchOffsetRequestHeader),
        RequestCode.GET_MAX_OFFSET: _queue(GetMaxOffsetRequestHeader),
        RequestCode.GET_MIN_OFFSET: _queue(GetMinOffsetRequestHeader),
        RequestCode.GET_EARLIEST_MSG_STORETIME: _queue(GetEarliestMsgStoretimeRequestHeader),
        RequestCode.VIEW_MESSAGE_BY_ID: by_offset.view,
        RequestCode.HEART_BEAT: _heartbeat,
        RequestCode.UNREGISTER_CLIENT: _unregister,
        RequestCode.CONSUMER_SEND_MSG_BACK: by_offset.send_back,
        RequestCode.END_TRANSACTION: by_offset.end_transaction,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _consumer_list,
        RequestCode.LOCK_BATCH_MQ: _lock,
        RequestCode.UNLOCK_BATCH_MQ: _unlock,
        RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    }
    return {
        **{
            code: AccessDemand(AccessLevel.ACCOUNT, needs)
            for code, needs in open_to_accounts.items()
        },
        **{code: AccessDemand(AccessLevel.ADMINISTRATOR) for code in ADMINISTRATION},
        **{code: AccessDemand(AccessLevel.SECRETS) for code in SECRETS},
    }


def _topic(name: str, right: int) -> RequiredPermission:
    return RequiredPermission(
        name, _UNGRANTED if name in _INTERNAL_TOPICS and right == SUB else right
    )


def _group(name: str) -> RequiredPermission:
    return RequiredPermission(retry_resource(name), SUB)


def _write_permission(topic: str) -> Sequence[RequiredPermission]:
    """Return the permission to write to a topic. Writing to the retry topic of a group requires the
    right to read as that group.
    """
    return [_group(topic) if topic.startswith(RETRY_PREFIX) else RequiredPermission(topic, PUB)]


def _send_v1(request: RemotingCommand) -> Sequence[RequiredPermission]:
    return _write_permission(SendMessageRequestHeader.decode(request.ext_fields).topic)


def _send_v2(request: RemotingCommand) -> Sequence[RequiredPermission]:
    """Return the permission of a send. This runs for each message, so it reads the topic only; the
    processor decodes the whole header.
    """
    topic = request.ext_fields.get("b")
    if topic is None:
        topic = SendMessageRequestHeaderV2.decode(request.ext_fields).topic
    return _write_permission(topic)


def _pull(request: RemotingCommand) -> Sequence[RequiredPermission]:
    fields = request.ext_fields
    topic, group = fields.get("topic"), fields.get("consumerGroup")
    if topic is None or group is None:
        header = PullMessageRequestHeader.decode(fields)
        topic, group = header.topic, header.consumer_group
    return [_topic(topic, SUB), _group(group)]


def _query(request: RemotingCommand) -> Sequence[RequiredPermission]:
    return [_topic(QueryMessageRequestHeader.decode(request.ext_fields).topic, SUB)]


def _query_offset(request: RemotingCommand) -> Sequence[RequiredPermission]:
    header = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
    return [_topic(header.topic, SUB), _group(header.consumer_group)]


def _update_offset(request: RemotingCommand) -> Sequence[RequiredPermission]:
    header = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
    return [_topic(header.topic, SUB), _group(header.consumer_group)]


def _queue(
    header: type[
        SearchOffsetRequestHeader
        | GetMaxOffsetRequestHeader
        | GetMinOffsetRequestHeader
        | GetEarliestMsgStoretimeRequestHeader
    ],
) -> Callable[[RemotingCommand], Sequence[RequiredPermission]]:
    return lambda request: [_topic(header.decode(request.ext_fields).topic, SUB)]


def _heartbeat(request: RemotingCommand) -> Sequence[RequiredPermission]:
    needs = []
    for consumer in HeartbeatData.decode(request.body).consumer_data_set:
        needs.append(_group(consumer.group_name))
        needs += [_topic(each.topic, SUB) for each in consumer.subscription_data_set]
    return needs


def _unregister(request: RemotingCommand) -> Sequence[RequiredPermission]:
    group = UnregisterClientRequestHeader.decode(request.ext_fields).consumer_group
    return [] if group is None else [_group(group)]


def _consumer_list(request: RemotingCommand) -> Sequence[RequiredPermission]:
    header = GetConsumerListByGroupRequestHeader.decode(request.ext_fields)
    return [_group(header.consumer_group)]


def _lock(request: RemotingCommand) -> Sequence[RequiredPermission]:
    body = LockBatchRequestBody.decode(request.body)
    return [_group(body.consumer_group), *(_topic(each.topic, SUB) for each in body.mq_set)]


def _unlock(request: RemotingCommand) -> Sequence[RequiredPermission]:
    body = UnlockBatchRequestBody.decode(request.body)
    return [_group(body.consumer_group), *(_topic(each.topic, SUB) for each in body.mq_set)]


def _check_client(request: RemotingCommand) -> Sequence[RequiredPermission]:
    body = CheckClientRequestBody.decode(request.body)
    return [_group(body.group), _topic(body.subscription_data.topic, SUB)]


@define(slots=True, frozen=True)
class _PermissionsByOffset:
    """Permissions of requests that name a message by its place in the log."""

    queues: MessageReader

    def view(self, request: RemotingCommand) -> Sequence[RequiredPermission]:
        return self._at(ViewMessageRequestHeader.decode(request.ext_fields).offset, SUB)

    def send_back(self, request: RemotingCommand) -> Sequence[RequiredPermission]:
        header = ConsumerSendMsgBackRequestHeader.decode(request.ext_fields)
        return [_group(header.group), *self._at(header.offset, SUB)]

    def end_transaction(self, request: RemotingCommand) -> Sequence[RequiredPermission]:
        header = EndTransactionRequestHeader.decode(request.ext_fields)
        return self._at(header.commit_log_offset, PUB)

    def _at(self, offset: int, right: int) -> Sequence[RequiredPermission]:
        """Return the permission on the topic of the message at ``offset``, or an empty list if
        there is no message; the handler then reports that.
        """
        try:
            record = self.queues.message_at(offset)
            if record is None:
                return []
            message = decode_message(record)
        except InvalidRecordError:
            return []
        topic = message.topic
        if topic in _INTERNAL_TOPICS:
            topic = message.properties.get(PROPERTY_REAL_TOPIC, topic)
        if topic.startswith(RETRY_PREFIX):
            return [_group(topic)]
        return [_topic(topic, right)]
