"""The ports of members that stand ready beside the classic log of a broker, on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from attrs import define, field

from rmqpy.broker.assembly.wiring import Broker
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.errors import RmqError
from rmqpy.store.message_store import MessageStore

if TYPE_CHECKING:  # loaded only by a broker that switches
    from rmqpy.broker.assembly.group_member import DLedgerMember
    from rmqpy.net.dledger.driver import DLedgerDriver


@define(slots=True, eq=False, repr=False)
class StandbyMembers:
    """The members that the switches of one broker prepare. ``make`` constructs one, and ``joined``
    is called with the one that the broker has become.
    """

    bind: str
    make: Callable[[BrokerConfiguration], DLedgerMember]
    joined: Callable[[DLedgerMember], None]
    _tasks: set[asyncio.Task[None]] = field(factory=set, init=False)

    def prepare(self, configuration: BrokerConfiguration) -> ListeningMember:
        return ListeningMember(self, self.make(configuration))

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Open or close a port."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for the ports that are being opened or closed."""
        while self._tasks:
            await asyncio.wait(self._tasks)


@define(slots=True, eq=False, repr=False)
class ListeningMember:
    """A ``StandbyMember`` with a port of the process."""

    _all: StandbyMembers
    _member: DLedgerMember
    _closed: bool = field(default=False, init=False)

    @property
    def driver(self) -> DLedgerDriver:
        return self._member.driver

    def open(self, opened: Callable[[str], None]) -> None:
        self._all.run(self._open(opened))

    async def _open(self, opened: Callable[[str], None]) -> None:
        reason = ""
        if not self._closed:
            try:
                await self._member.listen(self._all.bind)
            except (RmqError, OSError) as error:
                reason = str(error)
        if self._closed:
            await self._member.close()
        else:
            opened(reason)

    def join(self, broker: Broker, store: MessageStore) -> None:
        self._member.join(broker, store)

    def joined(self) -> None:
        self._all.joined(self._member)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._all.run(self._member.close())
