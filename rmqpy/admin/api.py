"""Typed calls to name servers and brokers, one per request code.

A response other than SUCCESS raises RequestRejectedError. Brokers are addressed by ``host:port``.
The client picks a name server, except for calls that go to all of them (key-value pairs,
permissions, settings).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from rmqpy.client.core.instance import ClientInstance
from rmqpy.config.properties_file import format_properties, parse_properties
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.near_names import did_you_mean
from rmqpy.remoting.bodies import (
    AclConfig,
    BrokerStatsData,
    ClusterInfo,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    GroupList,
    KVTable,
    MessageQueue,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from rmqpy.remoting.body import Body
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    CreateAccessConfigRequestHeader,
    CreateTopicRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetBrokerAclConfigResponseHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicsByClusterRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PutKVConfigRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

B = TypeVar("B", bound=Body)

RELAYED_MS = 30_000
"""The timeout of calls that the broker relays to a client."""


class Admin:
    """Typed calls to a cluster; ``instance`` belongs to the caller."""

    def __init__(self, instance: ClientInstance, name_servers: Sequence[str]) -> None:
        self.instance = instance
        self.name_servers = tuple(name_servers)

    async def call(
        self,
        address: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """Send a request and return the response. Raises RequestRejectedError unless its code is
        SUCCESS.
        """
        return _successful(
            await self.instance.invoke(address, code, header, body, timeout_ms=timeout_ms), address
        )

    async def _name_server(
        self, code: RequestCode, header: CommandHeader | None = None
    ) -> RemotingCommand:
        return _successful(await self.instance.invoke_namesrv(code, header), "the name server")

    # -- clusters and routes

    async def cluster_info(self) -> ClusterInfo:
        response = await self._name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(response.body)

    async def masters(self, cluster: str) -> list[str]:
        """Return the sorted addresses of the masters. Raise RequestRejectedError if none exists."""
        info = await self.cluster_info()
        found = sorted(
            info.broker_addr_table[name].broker_addrs[MASTER_ID]
            for name in info.cluster_addr_table.get(cluster, [])
            if name in info.broker_addr_table
            and MASTER_ID in info.broker_addr_table[name].broker_addrs
        )
        if not found:
            raise _no_master(cluster, info)
        return found

    async def members(self, cluster: str) -> dict[str, list[str]]:
        """Return the addresses of slaves by the address of their master, both sorted. Raise
        RequestRejectedError if no master exists.
        """
        info = await self.cluster_info()
        found: dict[str, list[str]] = {}
        for name in sorted(info.cluster_addr_table.get(cluster, [])):
            addresses = dict(info.broker_addr_table[name].broker_addrs)
            master = addresses.pop(MASTER_ID, None)
            if master is not None:
                found[master] = [addresses[broker_id] for broker_id in sorted(addresses)]
        if not found:
            raise _no_master(cluster, info)
        return found

    async def route(self, topic: str) -> TopicRouteData:
        return await self.instance.route(topic)

    async def topics(self) -> list[str]:
        response = await self._name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return TopicList.decode(response.body).topic_list

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        response = await self._name_server(
            RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster=cluster)
        )
        return TopicList.decode(response.body).topic_list

    # -- topics

    async def update_topic(self, address: str, topic: TopicConfig) -> None:
        header = CreateTopicRequestHeader(
            topic=topic.topic_name,
            default_topic="TBW102",
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_filter_type=topic.topic_filter_type,
            topic_sys_flag=topic.topic_sys_flag,
            order=topic.order,
        )
        await self.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, address: str, topic: str) -> None:
        header = DeleteTopicRequestHeader(topic=topic)
        await self.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)

    async def forget_topic(self, topic: str, cluster: str | None) -> None:
        """Remove a topic's routes from every name server."""
        header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        for server in self.name_servers:
            await self.call(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def all_topics(self, address: str) -> TopicConfigSerializeWrapper:
        return TopicConfigSerializeWrapper.decode(await self.encoded_topics(address))

    async def encoded_topics(self, address: str) -> bytes:
        """Return what ``all_topics`` decodes, to compare it with an earlier answer."""
        return (await self.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)).body

    async def system_topics(self, address: str) -> list[str]:
        response = await self.call(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return TopicList.decode(response.body).topic_list

    async def topic_stats(self, address: str, topic: str) -> TopicStatsTable:
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        response = await self.call(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        return TopicStatsTable.decode(response.body)

    async def consumers_of(self, address: str, topic: str) -> list[str]:
        """Return the groups that consume ``topic``: those online, and those with offsets."""
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
        response = await self.call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return GroupList.decode(response.body).group_list

    # -- groups and clients

    async def update_group(self, address: str, group: SubscriptionGroupConfig) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self.call(address, code, body=group.encode())

    async def delete_group(self, address: str, group: str, remove_offset: bool) -> None:
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, remove_offset=remove_offset)
        await self.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def all_groups(self, address: str) -> SubscriptionGroupWrapper:
        response = await self.call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return SubscriptionGroupWrapper.decode(response.body)

    async def consumer_connections(self, address: str, group: str) -> ConsumerConnection:
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        response = await self.call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(response.body)

    async def producer_connections(self, address: str, group: str) -> ProducerConnection:
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        response = await self.call(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return ProducerConnection.decode(response.body)

    async def producers(self, address: str) -> ProducerTableInfo:
        response = await self.call(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return ProducerTableInfo.decode(response.body)

    async def running_info(
        self, address: str, group: str, client_id: str, jstack: bool = False
    ) -> ConsumerRunningInfo:
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=jstack
        )
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        response = await self.call(address, code, header, timeout_ms=RELAYED_MS)
        return ConsumerRunningInfo.decode(response.body)

    async def consume_directly(
        self, address: str, group: str, client_id: str, offset_msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Make one client of ``group`` consume one message now."""
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=offset_msg_id
        )
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        response = await self.call(address, code, header, timeout_ms=RELAYED_MS)
        return ConsumeMessageDirectlyResult.decode(response.body)

    # -- offsets

    async def consume_stats(
        self, address: str, group: str, topic: str | None = None
    ) -> ConsumeStats:
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        response = await self.call(address, RequestCode.GET_CONSUME_STATS, header)
        return ConsumeStats.decode(response.body)

    async def broker_consume_stats(
        self, address: str, ordered: bool, timeout_ms: int
    ) -> ConsumeStatsList:
        header = GetConsumeStatsInBrokerHeader(is_order=ordered)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        response = await self.call(address, code, header, timeout_ms=timeout_ms)
        return ConsumeStatsList.decode(response.body)

    async def reset_offset(
        self, address: str, header: ResetOffsetRequestHeader
    ) -> dict[MessageQueue, int]:
        """Return the offsets that the broker sends to the group's online clients."""
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        response = await self.call(address, code, header, timeout_ms=RELAYED_MS)
        return dict(ResetOffsetBody.decode(response.body).offset_table)

    async def consumer_status(
        self, address: str, header: GetConsumerStatusRequestHeader
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets that each client has reached, by client id."""
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        response = await self.call(address, code, header, timeout_ms=RELAYED_MS)
        table = GetConsumerStatusBody.decode(response.body).consumer_table
        return {client: dict(offsets) for client, offsets in table.items()}

    async def clone_offsets(self, address: str, header: CloneGroupOffsetRequestHeader) -> None:
        await self.call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def consumer_offset(self, address: str, group: str, queue: MessageQueue) -> int:
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
        )
        response = await self.call(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        return QueryConsumerOffsetResponseHeader.decode(response.ext_fields).offset

    async def set_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        await self.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def time_spans(self, address: str, topic: str, group: str) -> QueryConsumeTimeSpanBody:
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
        response = await self.call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        return QueryConsumeTimeSpanBody.decode(response.body)

    async def consume_queue(
        self, address: str, header: QueryConsumeQueueRequestHeader
    ) -> QueryConsumeQueueResponseBody:
        response = await self.call(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return QueryConsumeQueueResponseBody.decode(response.body)

    # -- brokers

    async def runtime_info(self, address: str) -> dict[str, str]:
        response = await self.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(KVTable.decode(response.body).table)

    async def broker_config(self, address: str) -> dict[str, str]:
        response = await self.call(address, RequestCode.GET_BROKER_CONFIG)
        return _settings(address, response.body)

    async def elections(self, address: str) -> bytes:
        """Return the record of elections of a member of rmqpy as JSON. Java answers with code 3."""
        response = await self.call(address, RequestCode.RMQPY_ELECTIONS)
        return response.body

    async def update_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        body = format_properties(changes).encode()
        await self.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        response = await self.call(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return BrokerStatsData.decode(response.body)

    async def clean_expired_queues(self, address: str) -> None:
        await self.call(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, timeout_ms=RELAYED_MS)

    async def clean_unused_topics(self, address: str) -> None:
        await self.call(address, RequestCode.CLEAN_UNUSED_TOPIC, timeout_ms=RELAYED_MS)

    async def delete_expired_log(self, address: str) -> None:
        await self.call(address, RequestCode.DELETE_EXPIRED_COMMITLOG, timeout_ms=RELAYED_MS)

    # -- access

    async def update_account(self, address: str, header: CreateAccessConfigRequestHeader) -> None:
        await self.call(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_account(self, address: str, access_key: str) -> None:
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        await self.call(address, RequestCode.DELETE_ACL_CONFIG, header)

    async def update_white_addresses(
        self, address: str, header: UpdateGlobalWhiteAddrsConfigRequestHeader
    ) -> None:
        await self.call(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def acl_version(self, address: str) -> GetBrokerAclConfigResponseHeader:
        response = await self.call(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        return GetBrokerAclConfigResponseHeader.decode(response.ext_fields)

    async def acl_config(self, address: str) -> AclConfig:
        response = await self.call(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return AclConfig.decode(response.body)

    # -- name servers

    async def namesrv_config(self, server: str) -> dict[str, str]:
        response = await self.call(server, RequestCode.GET_NAMESRV_CONFIG)
        return _settings(server, response.body)

    async def update_namesrv_config(self, server: str, changes: Mapping[str, str]) -> None:
        body = format_properties(changes).encode()
        await self.call(server, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        for server in self.name_servers:
            await self.call(server, RequestCode.PUT_KV_CONFIG, header)

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return the value of a pair, or None if it does not exist."""
        header = GetKVConfigRequestHeader(namespace=namespace, key=key)
        try:
            response = await self._name_server(RequestCode.GET_KV_CONFIG, header)
        except RequestRejectedError as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return GetKVConfigResponseHeader.decode(response.ext_fields).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        for server in self.name_servers:
            await self.call(server, RequestCode.DELETE_KV_CONFIG, header)

    async def wipe_write_perm(self, server: str, broker_name: str) -> int:
        """Return the number of the broker's topics that lost the permission in this name server."""
        header = WipeWritePermOfBrokerRequestHeader(broker_name=broker_name)
        response = await self.call(server, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return WipeWritePermOfBrokerResponseHeader.decode(response.ext_fields).wipe_topic_count

    async def add_write_perm(self, server: str, broker_name: str) -> int:
        """Return the number of the broker's topics that regained the permission."""
        header = AddWritePermOfBrokerRequestHeader(broker_name=broker_name)
        response = await self.call(server, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return AddWritePermOfBrokerResponseHeader.decode(response.ext_fields).add_topic_count


def _settings(source: str, body: bytes) -> dict[str, str]:
    return {each.key: each.value for each in parse_properties(body.decode(), source)}


def _successful(response: RemotingCommand, source: str) -> RemotingCommand:
    if response.code != ResponseCode.SUCCESS:
        raise RequestRejectedError(response.code, f"{source}: {response.remark or 'no remark'}")
    return response


def _no_master(cluster: str, info: ClusterInfo) -> RequestRejectedError:
    known = info.cluster_addr_table
    return RequestRejectedError(
        ResponseCode.SYSTEM_ERROR,
        f"the cluster {cluster} has no master; known clusters: {', '.join(sorted(known)) or 'none'}"
        f"{did_you_mean(cluster, known)}",
    )
