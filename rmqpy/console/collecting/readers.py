"""Everything that pages read from the brokers through one collector."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define

from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.controller_reader import ControllerReader
from rmqpy.console.collecting.election_reader import ElectionReader
from rmqpy.console.collecting.group_reader import GroupReader
from rmqpy.console.collecting.lag_sampler import LagSampler
from rmqpy.console.collecting.log_comparer import LogComparer
from rmqpy.console.collecting.topic_reader import TopicReader

__all__ = ["ClusterReaders"]


@define(slots=True, frozen=True)
class ClusterReaders:
    """The readers of one console. ``consumer`` of :meth:`of` pulls messages and commits nothing."""

    collector: Collector
    topics: TopicReader
    groups: GroupReader
    elections: ElectionReader
    controllers: ControllerReader
    logs: LogComparer
    lags: LagSampler

    @classmethod
    def of(cls, collector: Collector, consumer: PullConsumer) -> ClusterReaders:
        groups = GroupReader(collector)
        return cls(
            collector,
            TopicReader(collector, consumer),
            groups,
            ElectionReader(collector),
            ControllerReader(collector),
            LogComparer(collector),
            LagSampler(collector, groups),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Poll the brokers, sample lags, and compare logs for viewers, until the context ends."""
        async with self.collector.running(), self.lags.running(), self.logs.running():
            yield
