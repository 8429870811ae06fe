"""Headers of requests about producers, consumers, and their groups."""

from __future__ import annotations

from attrs import field

from rmqpy.remoting.command_header import CommandHeader, named
from rmqpy.remoting.lazy_attrs import lazy_define


@lazy_define(kw_only=True)
class UnregisterClientRequestHeader(CommandHeader):
    client_id: str = field(metadata=named("clientID"))
    producer_group: str | None = None
    consumer_group: str | None = None


@lazy_define(kw_only=True)
class UnregisterClientResponseHeader(CommandHeader):
    """An empty header, which Java writes as ``"extFields":{}``."""


@lazy_define(kw_only=True)
class GetConsumerListByGroupRequestHeader(CommandHeader):
    consumer_group: str


@lazy_define(kw_only=True)
class GetConsumerListByGroupResponseHeader(CommandHeader):
    """An empty header, which Java writes as ``"extFields":{}``."""


@lazy_define(kw_only=True)
class NotifyConsumerIdsChangedRequestHeader(CommandHeader):
    consumer_group: str


@lazy_define(kw_only=True)
class GetConsumerStatusRequestHeader(CommandHeader):
    """The header of requests 221 and 223. ``client_addr`` is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


@lazy_define(kw_only=True)
class GetConsumerRunningInfoRequestHeader(CommandHeader):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@lazy_define(kw_only=True)
class GetConsumerConnectionListRequestHeader(CommandHeader):
    consumer_group: str


@lazy_define(kw_only=True)
class GetProducerConnectionListRequestHeader(CommandHeader):
    producer_group: str


@lazy_define(kw_only=True)
class GetAllProducerInfoRequestHeader(CommandHeader):
    """An empty header."""


@lazy_define(kw_only=True)
class GetConsumeStatsRequestHeader(CommandHeader):
    consumer_group: str
    topic: str | None = None


@lazy_define(kw_only=True)
class GetConsumeStatsInBrokerHeader(CommandHeader):
    is_order: bool


@lazy_define(kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(CommandHeader):
    topic: str


@lazy_define(kw_only=True)
class QueryConsumeTimeSpanRequestHeader(CommandHeader):
    topic: str
    group: str


@lazy_define(kw_only=True)
class DeleteSubscriptionGroupRequestHeader(CommandHeader):
    group_name: str
    remove_offset: bool = False
