"""Consumer groups, their lags, and their members, as the brokers have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.shared import SharedAnswers
from rmqpy.console.facts import BrokerFacts
from rmqpy.console.history import Sample
from rmqpy.console.views.groups import lags_of
from rmqpy.model.errors import RmqError
from rmqpy.remoting.bodies import ConsumerConnection, ConsumerRunningInfo, ConsumeStats

__all__ = ["GroupReader"]

TABLE_MS: Final = 15_000
STATS_MS: Final = 4_000
MEMBERS_ASKED: Final = 32
ANSWER_SECONDS: Final = 5.0
"""The time in which a member answers; the broker relays the question."""


class GroupReader:
    """Reads groups through the collector's connections; all viewers share the answers."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._admin = collector.admin
        self._shared = SharedAnswers(collector.clock)
        self._latest: dict[str, int] = {}

    async def names(self) -> list[str]:
        """Return all groups: one request per broker, whatever their number."""
        tables = await asyncio.gather(*(self._table(each) for each in self._masters()))
        return sorted({name for table in tables for name in table})

    async def stats(self, groups: Sequence[str]) -> dict[str, list[ConsumeStats]]:
        """Return what the brokers know of these groups: one request per group and broker."""
        masters = self._masters()
        wanted = [(group, broker) for group in groups for broker in masters]
        answers = await asyncio.gather(*(self._stats(broker, group) for group, broker in wanted))
        found: dict[str, list[ConsumeStats]] = {group: [] for group in groups}
        for (group, _), answer in zip(wanted, answers, strict=True):
            if answer is not None:
                found[group].append(answer)
        for group, stats in found.items():
            if stats:
                self._sample(group, sum(each.lag for each in lags_of(stats)))
        return found

    def _sample(self, group: str, lag: int) -> None:
        """Keep a lag, unless it comes from answers of which one was kept already."""
        self._latest[group] = lag
        now_ms = self._collector.clock.now_ms()
        known = self._collector.history.samples(("lag", group))
        if not known or now_ms - known[-1][0] >= STATS_MS:
            self._collector.history.add(("lag", group), now_ms, lag)

    def lag_samples(self, group: str) -> list[Sample]:
        """Return the lags of a group of the last hour, as far as they were asked for."""
        return self._collector.history.samples(("lag", group))

    def latest_lags(self) -> Mapping[str, int]:
        """Return the latest lag of each group that was asked for."""
        return self._latest

    def forget_others(self, names: Iterable[str]) -> None:
        """Forget the lags of groups that no longer exist."""
        self._latest = {name: self._latest[name] for name in names if name in self._latest}

    async def connections(self, group: str) -> dict[str, ConsumerConnection]:
        """Return the members that are online, by the name of the broker."""
        masters = self._masters()
        answers = await asyncio.gather(*(self._connection(each, group) for each in masters))
        return {
            broker.name: answer
            for broker, answer in zip(masters, answers, strict=True)
            if answer is not None
        }

    async def running(self, group: str) -> tuple[int, dict[str, ConsumerRunningInfo | None]]:
        """Return the number of members, and what the first of them say of themselves by client id,
        None from one that does not answer in time.
        """
        online = {
            client.client_id: broker
            for broker, each in (await self.connections(group)).items()
            for client in each.connection_set
        }
        asked = sorted(online)[:MEMBERS_ASKED]
        addresses = {each.name: each.address for each in self._masters()}
        infos = await asyncio.gather(
            *(self._running(addresses.get(online[client], ""), group, client) for client in asked)
        )
        return len(online), dict(zip(asked, infos, strict=True))

    async def _running(self, address: str, group: str, client: str) -> ConsumerRunningInfo | None:
        async def ask() -> ConsumerRunningInfo | None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._admin.running_info(address, group, client)
            except (RmqError, TimeoutError):
                return None

        return await self._shared.get(("running", group, client), TABLE_MS, ask)

    def _masters(self) -> list[BrokerFacts]:
        return [each for each in self._collector.moment.masters() if not each.fault]

    async def _table(self, broker: BrokerFacts) -> Sequence[str]:
        async def ask() -> Sequence[str]:
            try:
                return tuple(
                    (await self._admin.all_groups(broker.address)).subscription_group_table
                )
            except RmqError:
                return ()

        return await self._shared.get(("groups", broker.address), TABLE_MS, ask)

    async def _stats(self, broker: BrokerFacts, group: str) -> ConsumeStats | None:
        async def ask() -> ConsumeStats | None:
            try:
                return await self._admin.consume_stats(broker.address, group)
            except RmqError:
                return None

        return await self._shared.get(("stats", broker.address, group), STATS_MS, ask)

    async def _connection(self, broker: BrokerFacts, group: str) -> ConsumerConnection | None:
        async def ask() -> ConsumerConnection | None:
            try:
                return await self._admin.consumer_connections(broker.address, group)
            except RmqError:  # it has no member online
                return None

        return await self._shared.get(("members", broker.address, group), STATS_MS, ask)
