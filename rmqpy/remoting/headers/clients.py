"""Headers about producers, consumers and their groups."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.command_header import CommandHeader, named


@define(slots=True, kw_only=True, eq=False, repr=False)
class UnregisterClientRequestHeader(CommandHeader):
    client_id: str = field(metadata=named("clientID"))
    producer_group: str | None = None
    consumer_group: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class UnregisterClientResponseHeader(CommandHeader):
    """Empty: Java answers ``"extFields":{}``."""


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetConsumerListByGroupRequestHeader(CommandHeader):
    consumer_group: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetConsumerListByGroupResponseHeader(CommandHeader):
    """Empty: Java answers ``"extFields":{}``."""


@define(slots=True, kw_only=True, eq=False, repr=False)
class NotifyConsumerIdsChangedRequestHeader(CommandHeader):
    consumer_group: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetConsumerStatusRequestHeader(CommandHeader):
    """Codes 221 and 223; ``client_addr`` is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetConsumerRunningInfoRequestHeader(CommandHeader):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetConsumerConnectionListRequestHeader(CommandHeader):
    consumer_group: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetProducerConnectionListRequestHeader(CommandHeader):
    producer_group: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetAllProducerInfoRequestHeader(CommandHeader):
    """Empty."""


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetConsumeStatsRequestHeader(CommandHeader):
    consumer_group: str
    topic: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetConsumeStatsInBrokerHeader(CommandHeader):
    is_order: bool


@define(slots=True, kw_only=True, eq=False, repr=False)
class QueryTopicConsumeByWhoRequestHeader(CommandHeader):
    topic: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class QueryConsumeTimeSpanRequestHeader(CommandHeader):
    topic: str
    group: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class DeleteSubscriptionGroupRequestHeader(CommandHeader):
    group_name: str
    remove_offset: bool = False
