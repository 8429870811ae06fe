"""Administration of topics and groups: codes 17, 21, 215, 305, 200, 201 and 207."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, StoreAdmin
from rmqpy.broker.replication.metadata_sync import answer_with_table
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.statistics import Statistics
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import QUEUES_LIMIT, TopicTable
from rmqpy.model import names
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import (
    MULTI_TAG,
    SINGLE_TAG,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
)
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigResponseHeader,
)

PERM_MAX: Final = 15
RETRY_QUEUES_LIMIT: Final = 1024


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class TopicAdminProcessor:
    """The processor of requests that create, change, list and delete topics and groups."""

    identity: BrokerContext
    topics: TopicTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    statistics: Statistics
    store: StoreAdmin
    tell: Callable[[Callable[[], None]], None]
    """Registers the topics and calls its argument when the name servers have received them."""

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
        }

    def update_topic(self, channel: Channel, request: RemotingCommand) -> None:
        """Create or change a topic. As in Java, the answer is sent after the name servers have
        received the topic, so that the next request for a route finds it.
        """
        header = CreateTopicRequestHeader.decode(request.ext_fields)
        self._refuse_on_slave()
        names.check_topic(header.topic)
        self._refuse_system_topic(header.topic)
        _check_range("readQueueNums", header.read_queue_nums, QUEUES_LIMIT)
        _check_range("writeQueueNums", header.write_queue_nums, QUEUES_LIMIT)
        _check_range("perm", header.perm, PERM_MAX)
        if header.topic_filter_type not in (SINGLE_TAG, MULTI_TAG):
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType {header.topic_filter_type} is neither {SINGLE_TAG} "
                f"nor {MULTI_TAG}",
            )
        self.topics.put(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
            )
        )

        def registered() -> None:
            if not request.is_oneway:
                channel.write(encode_command(RemotingCommand.response_to(request)))

        self.tell(registered)

    def all_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topics, header = self.topics, GetAllTopicConfigResponseHeader()
        return answer_with_table(request, topics.data_version, topics.encoded, header)

    def delete_topic(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topic = DeleteTopicRequestHeader.decode(request.ext_fields).topic
        self._refuse_on_slave()
        names.check_topic(topic)
        self._refuse_system_topic(topic)
        self.topics.delete(topic)
        self.store.delete_topic_queues(topic)
        return RemotingCommand.response_to(request)

    def system_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = TopicList(topic_list=sorted(names.SYSTEM_TOPICS.union(self.topics.system_topics)))
        return RemotingCommand.response_to(request, body=body.encode())

    def update_group(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self._refuse_on_slave()
        config = SubscriptionGroupConfig.decode(request.body)
        _check_range("retryQueueNums", config.retry_queue_nums, RETRY_QUEUES_LIMIT)
        self.groups.put(config)
        return RemotingCommand.response_to(request)

    def all_groups(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        groups = self.groups
        return answer_with_table(request, groups.data_version, lambda: groups.wrapper().encode())

    def delete_group(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = DeleteSubscriptionGroupRequestHeader.decode(request.ext_fields)
        self._refuse_on_slave()
        names.check_group(header.group_name)
        self.groups.delete(header.group_name)
        self.statistics.forget_group(header.group_name)
        if header.remove_offset:
            self.offsets.remove_group(header.group_name)
        return RemotingCommand.response_to(request)

    def _refuse_on_slave(self) -> None:
        if self.identity.is_slave:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, "this broker is a slave: send the request to the master"
            )

    def _refuse_system_topic(self, topic: str) -> None:
        if self.topics.is_system(topic):
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"The topic[{topic}] is conflict with system topic."
            )


def _check_range(field: str, value: int, maximum: int) -> None:
    if not 0 <= value <= maximum:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR, f"{field} {value} is illegal: 0 … {maximum}"
        )
