"""Headers of requests about pulls and offsets."""

from __future__ import annotations

from typing import ClassVar

from attrs import field

from rmqpy.remoting.command_header import CommandHeader, Int64, named
from rmqpy.remoting.headers.messages import RpcRequestHeader
from rmqpy.remoting.lazy_attrs import lazy_define


@lazy_define(kw_only=True)
class PullMessageRequestHeader(RpcRequestHeader):
    FAST_CODEC: ClassVar[bool] = True

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: Int64
    max_msg_nums: int
    sys_flag: int
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None


@lazy_define(kw_only=True)
class PullMessageResponseHeader(CommandHeader):
    FAST_CODEC: ClassVar[bool] = True

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


@lazy_define(kw_only=True)
class QueryConsumerOffsetRequestHeader(RpcRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int


@lazy_define(kw_only=True)
class QueryConsumerOffsetResponseHeader(CommandHeader):
    offset: Int64


@lazy_define(kw_only=True)
class UpdateConsumerOffsetRequestHeader(RpcRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: Int64


@lazy_define(kw_only=True)
class UpdateConsumerOffsetResponseHeader(CommandHeader):
    """An empty header, which Java writes as ``"extFields":{}``."""


@lazy_define(kw_only=True)
class QueueRequestHeader(RpcRequestHeader):
    """The fields that all requests about one queue have.

    In Java ``request_type`` (0) is not a member of the header but an ext field.
    """

    topic: str
    queue_id: int
    request_type: int | None = field(default=None, metadata=named("ReqT"))


@lazy_define(kw_only=True)
class SearchOffsetRequestHeader(QueueRequestHeader):
    timestamp: Int64


@lazy_define(kw_only=True)
class SearchOffsetResponseHeader(CommandHeader):
    offset: Int64


@lazy_define(kw_only=True)
class GetMaxOffsetRequestHeader(QueueRequestHeader):
    pass


@lazy_define(kw_only=True)
class GetMaxOffsetResponseHeader(CommandHeader):
    offset: Int64


@lazy_define(kw_only=True)
class GetMinOffsetRequestHeader(QueueRequestHeader):
    pass


@lazy_define(kw_only=True)
class GetMinOffsetResponseHeader(CommandHeader):
    offset: Int64


@lazy_define(kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(QueueRequestHeader):
    pass


@lazy_define(kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(CommandHeader):
    timestamp: Int64


@lazy_define(kw_only=True)
class QueryConsumeQueueRequestHeader(CommandHeader):
    topic: str
    queue_id: int
    index: Int64
    count: int
    consumer_group: str | None = None


@lazy_define(kw_only=True)
class QueryCorrectionOffsetHeader(CommandHeader):
    """A request for corrected offsets. ``filter_groups`` is separated by commas."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


@lazy_define(kw_only=True)
class CloneGroupOffsetRequestHeader(CommandHeader):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@lazy_define(kw_only=True)
class ResetOffsetRequestHeader(CommandHeader):
    """The header of request 222 (admin to broker) and 220 (broker to client).

    A ``timestamp`` of -1 means the maximum offset.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
