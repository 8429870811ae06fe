"""The comparison of the logs of running replicas, while somebody looks at a store map.

A replica of rmqpy answers with digests of a range of its log (RMQPY_COMPARE_LOG), for which it
reads at most ``SPAN_MAX`` bytes. However many viewers and pages there are, it is asked at most once
per ``PAUSE_SECONDS``, and not at all once everything has been compared. Brokers of Java do not
know the request, and are not asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from rmqpy.console.agreement import LogAgreement, LogExtent
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.facts import BrokerFacts
from rmqpy.ha.compare import CompareRange
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.remoting.headers import CompareLogRequestHeader

__all__ = ["LogComparer"]

LOOK_MS: Final = 15_000
"""The time for which comparisons continue after the last look; open pages look every 5 s."""
PAUSE_SECONDS: Final = 1.0
GROUPS_PER_STEP: Final = 32

logger = logging.getLogger(__name__)


class LogComparer:
    """The comparisons of all groups; all viewers share them."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._clock = collector.clock
        self._known: dict[str, LogAgreement] = {}
        self._turn = 0
        self._look_until_ms = 0
        self._looked = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compare while somebody looks, until the context ends."""
        task = asyncio.create_task(self._compare_forever(), name="rmqpy-console-compare")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def look(self) -> Mapping[str, LogAgreement]:
        """Return what is known of each group by now, and have more compared for a while."""
        self._look_until_ms = self._clock.monotonic_ms() + LOOK_MS
        self._looked.set()
        return self._known

    def different(self) -> list[str]:
        """Return the names of the groups whose logs are known to differ, and still run."""
        brokers = self._brokers()
        for name, group in self._known.items():
            if group.is_different:
                group.observe(_extents(brokers.get(name, ())))
        return sorted(name for name, group in self._known.items() if group.is_different)

    async def _compare_forever(self) -> None:
        while True:
            if self._clock.monotonic_ms() >= self._look_until_ms:
                self._looked.clear()
                await self._looked.wait()
            try:
                await self.step()
            except Exception:
                logger.exception("a comparison of logs failed")
            await asyncio.sleep(PAUSE_SECONDS)

    async def step(self) -> None:
        """Compare one range of each group, of at most ``GROUPS_PER_STEP`` in turn."""
        groups = self._brokers()
        for gone in self._known.keys() - groups.keys():
            del self._known[gone]
        names = sorted(groups)
        turn = [*names[self._turn :], *names[: self._turn]][:GROUPS_PER_STEP]
        self._turn = (self._turn + len(turn)) % max(len(names), 1)
        await asyncio.gather(*(self._compare_next(name, groups[name]) for name in turn))

    def _brokers(self) -> dict[str, list[BrokerFacts]]:
        """Return the brokers of each name."""
        found: dict[str, list[BrokerFacts]] = {}
        for broker in self._collector.moment.brokers:
            found.setdefault(broker.name, []).append(broker)
        return found

    async def _compare_next(self, name: str, brokers: list[BrokerFacts]) -> None:
        group = self._known.setdefault(name, LogAgreement())
        group.observe(_extents(brokers))
        now_ms = self._clock.now_ms()
        span = group.next(now_ms)
        if span is None:
            return
        addresses = sorted(group.replicas)
        try:
            answers = await asyncio.gather(*(self._digests(each, span) for each in addresses))
            group.take(span, dict(zip(addresses, answers, strict=True)), now_ms)
        except (RmqError, ValueError) as error:
            group.fail(str(error), now_ms)

    async def _digests(self, address: str, span: CompareRange) -> bytes:
        header = CompareLogRequestHeader(
            begin_offset=span.begin, end_offset=span.end, block_size=span.block
        )
        try:
            answer = await self._collector.admin.call(
                address, RequestCode.RMQPY_COMPARE_LOG, header
            )
        except RequestRejectedError as refusal:
            if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise RmqError(f"{address} does not report digests of its log") from None
            raise RmqError(f"{address} refuses: {refusal.remark}") from None
        return answer.body


def _extents(brokers: Iterable[BrokerFacts]) -> dict[str, LogExtent]:
    """Return the logs that can be compared, by address; those of Java cannot."""
    return {
        each.address: LogExtent(*extent, each.info.get("bootTimestamp", ""))
        for each in brokers
        if each.is_rmqpy is not False and (extent := each.log_extent) is not None
    }
