"""One poll of all brokers for all viewers, and what was found.

However many viewers there are, a broker receives the same requests: its runtime information and,
from a member of a DLedger group, its status every ``period_ms``, and its configuration once per
minute. What a page needs besides (:mod:`rmqpy.console.collecting.shared`) is kept for some seconds
and shared, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from attrs import evolve

from rmqpy.admin.api import Admin
from rmqpy.console.facts import BrokerFacts, Moment, number_of
from rmqpy.console.history import HISTORY_MS, RateHistory
from rmqpy.console.views.overview import COUNTERS
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.remoting.fastjson import loads

__all__ = ["PERIOD_MS", "Collector"]

PERIOD_MS: Final = 5_000
BROKERS_MAX: Final = 1024
POLLS_AT_ONCE: Final = 16
RENEWED_EVERY: Final = 12
"""Polls after which configurations are read again: a running broker can become a DLedger member."""

logger = logging.getLogger(__name__)


class Collector:
    """The latest moment and the rates of the last hour.

    ``poll`` is called by :meth:`running`, or by a test.
    """

    def __init__(self, admin: Admin, clock: Clock, period_ms: int = PERIOD_MS) -> None:
        self.admin = admin
        self.clock = clock
        self.moment = Moment(time_ms=-1)
        self.history = RateHistory()
        self._period_ms = period_ms
        self._settings: dict[str, Mapping[str, str]] = {}
        self._without_status: set[str] = set()
        self._polls = 0
        self._limit = asyncio.Semaphore(POLLS_AT_ONCE)
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Poll once, and then until the context ends."""
        await self.poll()
        task = asyncio.create_task(self._poll_forever(), name="rmqpy-console-poll")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._period_ms / 1000)
            try:
                await self.poll()
            except Exception:
                logger.exception("a poll of the brokers failed")

    async def changed(self) -> None:
        """Wait for the next moment."""
        await self._changed.wait()

    async def poll(self) -> Moment:
        """Ask all brokers, and return the new moment."""
        time_ms = self.clock.now_ms()
        if self._polls % RENEWED_EVERY == 0:
            self._settings.clear()
            self._without_status.clear()
        self._polls += 1
        brokers, fault = await self._registered(time_ms)
        found = await asyncio.gather(*(self._ask(each) for each in brokers))
        self.moment = Moment(time_ms=time_ms, brokers=found, fault=fault)
        for broker in found:
            for name, counter in COUNTERS.items():
                self.history.add((broker.key, name), time_ms, number_of(broker.info, counter))
        self.history.forget_before(time_ms - HISTORY_MS)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return self.moment

    async def _registered(self, time_ms: int) -> tuple[Sequence[BrokerFacts], str]:
        """Return the brokers that the name servers list, and for an hour those that they have
        listed; those of the last poll if no name server answers.

        A name server forgets a broker at once if their connection ends: a broker that has been
        killed would be missing without a word.
        """
        try:
            info = await self.admin.cluster_info()
        except RmqError as error:
            known = [evolve(each, info={}, status=None) for each in self.moment.brokers]
            return known, str(error)
        found = [
            BrokerFacts(cluster=data.cluster, name=name, broker_id=broker_id, address=address)
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        listed = {each.address for each in found}
        left = [
            evolve(
                each, info={}, status=None, left_ms=time_ms if each.is_registered else each.left_ms
            )
            for each in self.moment.brokers
            if each.address not in listed
        ]
        found += [each for each in left if time_ms - each.left_ms < HISTORY_MS]
        return found[:BROKERS_MAX], ""

    async def _ask(self, broker: BrokerFacts) -> BrokerFacts:
        async with self._limit:
            try:
                info = await self.admin.runtime_info(broker.address)
                settings = await self._settings_of(broker.address)
                status = await self._status_of(broker.address)
            except RmqError as error:
                self._settings.pop(broker.address, None)
                self._without_status.discard(broker.address)
                return evolve(broker, fault=str(error))
        return evolve(broker, fault="", info=info, settings=settings, status=status)

    async def _settings_of(self, address: str) -> Mapping[str, str]:
        if address not in self._settings:
            try:
                self._settings[address] = await self.admin.broker_config(address)
            except RequestRejectedError:
                self._settings[address] = {}
        return self._settings[address]

    async def _status_of(self, address: str) -> Mapping[str, Any] | None:
        """Return the status of a DLedger member of rmqpy; None from all others, which are not asked
        again until they have been away.
        """
        if address in self._without_status:
            return None
        try:
            answer = await self.admin.call(address, RequestCode.RMQPY_DLEDGER_STATUS)
        except RequestRejectedError:
            self._without_status.add(address)
            return None
        status = loads(answer.body)
        return status if isinstance(status, dict) else None
