"""Headers of requests that send messages, read them back, or end their transactions."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from attrs import field

from rmqpy.remoting.command_header import CommandHeader, Int64, named
from rmqpy.remoting.lazy_attrs import lazy_define


@lazy_define(kw_only=True)
class RpcRequestHeader(CommandHeader):
    """The four optional fields that 4.9.7 and later append to the fields of many requests."""

    namespace: str | None = field(default=None, metadata=named("ns"))
    namespaced: bool | None = field(default=None, metadata=named("nsd"))
    bname: str | None = None
    oneway: bool | None = field(default=None, metadata=named("oway"))


@lazy_define(kw_only=True)
class SendMessageRequestHeader(RpcRequestHeader):
    """The header of requests 10 and 324. The V2 form has the same attributes."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Int64
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False


@lazy_define(kw_only=True)
class SendMessageRequestHeaderV2(CommandHeader):
    """The header of requests 310, 320 and 325: the same fields with one-letter names."""

    FAST_CODEC: ClassVar[bool] = True

    producer_group: str = field(metadata=named("a"))
    topic: str = field(metadata=named("b"))
    default_topic: str = field(metadata=named("c"))
    default_topic_queue_nums: int = field(metadata=named("d"))
    queue_id: int = field(metadata=named("e"))
    sys_flag: int = field(metadata=named("f"))
    born_timestamp: Int64 = field(metadata=named("g"))
    flag: int = field(metadata=named("h"))
    properties: str | None = field(default=None, metadata=named("i"))
    reconsume_times: int | None = field(default=None, metadata=named("j"))
    unit_mode: bool = field(default=False, metadata=named("k"))
    max_reconsume_times: int | None = field(default=None, metadata=named("l"))
    batch: bool = field(default=False, metadata=named("m"))
    bname: str | None = field(default=None, metadata=named("n"))


AnySendHeader: TypeAlias = SendMessageRequestHeader | SendMessageRequestHeaderV2


@lazy_define(kw_only=True)
class SendMessageResponseHeader(CommandHeader):
    """The id and position of a stored message.

    In Java ``trace_on`` and ``msg_region`` are not members of the header but ext fields that every
    response has.
    """

    FAST_CODEC: ClassVar[bool] = True

    msg_id: str
    queue_id: int
    queue_offset: Int64
    transaction_id: str | None = None
    trace_on: bool | None = field(default=None, metadata=named("TRACE_ON"))
    msg_region: str | None = field(default=None, metadata=named("MSG_REGION"))


@lazy_define(kw_only=True)
class EndTransactionRequestHeader(RpcRequestHeader):
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


@lazy_define(kw_only=True)
class CheckTransactionStateRequestHeader(RpcRequestHeader):
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


@lazy_define(kw_only=True)
class ConsumerSendMsgBackRequestHeader(RpcRequestHeader):
    offset: Int64
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@lazy_define(kw_only=True)
class ReplyMessageRequestHeader(CommandHeader):
    """The header of request 326, from broker to client. Hosts are ``ip:port``."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Int64
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


@lazy_define(kw_only=True)
class QueryMessageRequestHeader(CommandHeader):
    """A query by key. In Java ``unique_key_query`` is not a member of the header but an ext field
    that the ACL signature does not cover.
    """

    topic: str
    key: str
    max_num: int
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = field(default=None, metadata=named("_UNIQUE_KEY_QUERY"))


@lazy_define(kw_only=True)
class QueryMessageResponseHeader(CommandHeader):
    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


@lazy_define(kw_only=True)
class ViewMessageRequestHeader(CommandHeader):
    offset: Int64


@lazy_define(kw_only=True)
class ResumeCheckHalfMessageRequestHeader(CommandHeader):
    msg_id: str | None = None


@lazy_define(kw_only=True)
class ConsumeMessageDirectlyResultRequestHeader(CommandHeader):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
