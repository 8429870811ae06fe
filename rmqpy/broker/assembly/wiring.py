"""What producers and consumers ask of a broker: their processors, put together.

Knows every table of the broker and changes none itself: that is the processors' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from attrs import define

from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.processors.admin.replication_queries import LogCompareProcessor
from rmqpy.broker.processors.client_manage import HeartbeatProcessor
from rmqpy.broker.processors.end_transaction import TransactionProcessor
from rmqpy.broker.processors.events import OffsetMovedEvents
from rmqpy.broker.processors.pull import PullProcessor, PullSurroundings
from rmqpy.broker.processors.query import QueryProcessor
from rmqpy.broker.processors.reply import ReplyMessageProcessor
from rmqpy.broker.processors.send import SendProcessor, SendSurroundings
from rmqpy.broker.processors.send_back import SendBackProcessor
from rmqpy.broker.processors.send_request import SendRequestParser
from rmqpy.broker.state.consumer_offsets import OffsetProcessor
from rmqpy.model.clock import Clock

if TYPE_CHECKING:
    from rmqpy.broker.assembly.server import BrokerDependencies, BrokerServer


@define(slots=True, frozen=True, eq=False, repr=False)
class Traffic:
    """``handlers``: every request code of producers and consumers, those of ``sends`` and ``pulls``
    among them.
    """

    sends: SendProcessor
    pulls: PullProcessor
    handlers: HandlerTable

    @classmethod
    def of(cls, broker: BrokerServer, deps: BrokerDependencies) -> Self:
        """The processors over the tables of ``broker``."""
        clock, identity, reader = deps.scheduler, broker.identity, broker.store.reader
        drafts = SendRequestParser(
            identity=identity,
            topics=broker.topics,
            groups=broker.groups,
            clock=clock,
            pick_queue=deps.pick_queue,
        )
        sends, pulls = _sends(broker, drafts, clock), _pulls(broker, deps)
        heartbeats = HeartbeatProcessor(
            clock, broker.clients, broker.topics, broker.groups, broker.locks, broker.filters
        )
        broker.clients.on_change = heartbeats.notify
        send_back = SendBackProcessor(
            identity=identity,
            topics=broker.topics,
            groups=broker.groups,
            queues=reader,
            messages=broker.own_messages,
            statistics=broker.statistics,
            pick_queue=deps.pick_queue,
        )
        transactions = TransactionProcessor(
            identity=identity, queues=reader, messages=broker.own_messages, clock=clock
        )
        replies = ReplyMessageProcessor(
            identity=identity,
            clients=broker.clients,
            calls=broker.calls,
            drafts=drafts,
            messages=broker.own_messages,
            clock=clock,
        )
        return cls(
            sends,
            pulls,
            {
                **sends.handlers(),
                **pulls.handlers(),
                **heartbeats.handlers(),
                **QueryProcessor(identity, reader).handlers(),
                **OffsetProcessor(broker.offsets, reader).handlers(),
                **broker.delay_offsets.handlers(),
                **send_back.handlers(),
                **transactions.handlers(),
                **LogCompareProcessor(broker.store.log).handlers(),
                **replies.handlers(),
            },
        )


def _sends(broker: BrokerServer, drafts: SendRequestParser, clock: Clock) -> SendProcessor:
    return SendProcessor(
        SendSurroundings(
            identity=broker.identity,
            drafts=drafts,
            sink=broker.store.appender,
            gate=broker.gate,
            replication=broker.replication,
            statistics=broker.statistics,
            clock=clock,
        )
    )


def _pulls(broker: BrokerServer, deps: BrokerDependencies) -> PullProcessor:
    clock, identity, reader = deps.scheduler, broker.identity, broker.store.reader
    return PullProcessor(
        PullSurroundings(
            identity=identity,
            topics=broker.topics,
            groups=broker.groups,
            clients=broker.clients,
            offsets=broker.offsets,
            filters=broker.filters,
            queues=reader,
            hold=broker.hold,
            slow_readers=broker.slow_readers,
            statistics=broker.statistics,
            clock=clock,
            offset_moved=OffsetMovedEvents(identity, broker.own_messages, clock).write,
        )
    )
