"""Administration of topics and groups: codes 17, 21, 215, 305, 200, 201 and 207.

The answer to a change waits until it is on disk, so a change that was answered with code 0 survives
a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, StoreAdmin
from rmqpy.broker.replication.metadata_sync import answer_with_table
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.persistence import PersistentTables
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
    saved: PersistentTables
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
        """Create or change a topic. As in Java, the answer is sent after the topic is on disk and
        the name servers have received it, so that the next request for a route finds it.
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
        self.saved.topics.check_not_full()
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

        def is_saved(error: BaseException | None) -> None:
            self.tell(lambda: _answer(channel, request, error))

        self.saved.topics.when_saved(is_saved)

    def all_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topics, header = self.topics, GetAllTopicConfigResponseHeader()
        return answer_with_table(request, topics.data_version, topics.encoded, header)

    def delete_topic(self, channel: Channel, request: RemotingCommand) -> None:
        topic = DeleteTopicRequestHeader.decode(request.ext_fields).topic
        self._refuse_on_slave()
        names.check_topic(topic)
        self._refuse_system_topic(topic)
        self.saved.topics.check_not_full()
        self.topics.delete(topic)
        self.store.delete_topic_queues(topic)
        self.saved.topics.when_saved(partial(_answer, channel, request))

    def system_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = TopicList(topic_list=sorted(names.SYSTEM_TOPICS.union(self.topics.system_topics)))
        return RemotingCommand.response_to(request, body=body.encode())

    def update_group(self, channel: Channel, request: RemotingCommand) -> None:
        self._refuse_on_slave()
        config = SubscriptionGroupConfig.decode(request.body)
        _check_range("retryQueueNums", config.retry_queue_nums, RETRY_QUEUES_LIMIT)
        self.saved.groups.check_not_full()
        self.groups.put(config)
        self.saved.groups.when_saved(partial(_answer, channel, request))

    def all_groups(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        groups = self.groups
        return answer_with_table(request, groups.data_version, groups.encoded)

    def delete_group(self, channel: Channel, request: RemotingCommand) -> None:
        header = DeleteSubscriptionGroupRequestHeader.decode(request.ext_fields)
        self._refuse_on_slave()
        names.check_group(header.group_name)
        self.saved.groups.check_not_full()
        self.groups.delete(header.group_name)
        self.statistics.forget_group(header.group_name)
        answer = partial(_answer, channel, request)
        if not header.remove_offset:
            self.saved.groups.when_saved(answer)
            return
        self.offsets.remove_group(header.group_name)

        def groups_saved(error: BaseException | None) -> None:
            if error is None:
                self.saved.offsets.when_saved(answer)
            else:
                answer(error)

        self.saved.groups.when_saved(groups_saved)

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


def _answer(channel: Channel, request: RemotingCommand, error: BaseException | None) -> None:
    """Answer a change whose write has ended."""
    if request.is_oneway:
        return
    response = RemotingCommand.response_to(request)
    if error is not None:
        response.code = ResponseCode.SYSTEM_ERROR
        response.remark = f"in effect, but not on disk: {error}"
    channel.write(encode_command(response))


def _check_range(field: str, value: int, maximum: int) -> None:
    if not 0 <= value <= maximum:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR, f"{field} {value} is illegal: 0 … {maximum}"
        )
