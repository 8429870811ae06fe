"""Following a master as an observer, until the copy has what the master had when its tables were
read.

Each second the master and its slaves are asked for the ends of their logs. The observer is
connected only while it may be (:mod:`.suitability`), and looks for the master again after each
end of a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from attrs import define, evolve, field

from rmqpy.admin.api import Admin
from rmqpy.config.keys import split_address
from rmqpy.ha.follower import FollowerLink
from rmqpy.ha.frames import TransferFrame
from rmqpy.model.errors import RmqError
from rmqpy.net.ha import HaClientHandler, HaConnection
from rmqpy.rehearsal.rehearsed_group import (
    LogEnds,
    RehearsedGroup,
    read_ends,
    read_group,
    read_tables,
)
from rmqpy.rehearsal.shadow import Shadow
from rmqpy.rehearsal.suitability import FollowerWatch, alone, refusals
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

LOOK_S = 1.0
FIRST_LOOKS = 5
"""The looks in which a slave of a SYNC_MASTER must show that it follows."""
UNREACHABLE_S = 60.0
"""The time after which a master that does not answer ends the command."""
FAILURES_MAX = 5
"""The connections in a row that may end without a frame that fits."""
FLUSH_LOOKS = 5

COPYING, WAITING = "copying", "waiting"
ALONE = "no slave follows the SYNC_MASTER, which would wait for this copy"

Dial = Callable[[tuple[str, int], HaClientHandler], HaConnection]

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True)
class CopyStatus:
    """The state of a copy at one look. Offsets and sizes are in bytes.

    ``goal`` is the offset to reach, ``lag`` what the copy lacks of the master's log, ``reason`` why
    the state is not ``copying``, ``proof_age_s`` the age of the last rehearsal in s, if any.
    """

    state: str
    begin: int
    end: int
    goal: int
    lag: int
    rate: float
    reason: str = ""
    proof_age_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """The seconds until the goal at this rate; None if nothing arrives."""
        left = max(0, self.goal - self.end)
        return left / self.rate if self.rate else None if left else 0.0


async def read_suitable(admin: Admin, name: str, look_s: float = LOOK_S) -> RehearsedGroup:
    """Return the facts of a group that can be observed. Raises UpgradeRefusedError."""
    facts = await _read_classic(admin, name)
    watch = FollowerWatch()
    ends = facts.ends
    for _ in range(FIRST_LOOKS):
        if not facts.waits_for_slaves or watch.follows(ends):
            return facts
        await asyncio.sleep(look_s)
        ends = await read_ends(admin, facts.master, facts.slaves)
    raise UpgradeRefusedError(alone(name))


async def _read_classic(admin: Admin, name: str) -> RehearsedGroup:
    facts = await read_group(admin, name)
    for refusal in refusals(facts):
        raise UpgradeRefusedError(refusal)
    return facts


@define(slots=True, eq=False, repr=False)
class Copier:
    """Copies one group into ``shadow`` (implements ``rmqpy.net.ha.HaClientHandler``).

    ``show`` receives the state at each look. The copy is given up after ``patience_s`` seconds
    without a connection that works.
    """

    admin: Admin
    facts: RehearsedGroup
    shadow: Shadow
    dial: Dial
    show: Callable[[CopyStatus], None]
    look_s: float = LOOK_S
    patience_s: float = UNREACHABLE_S
    _ends: LogEnds = field(init=False)
    _watch: FollowerWatch = field(factory=FollowerWatch, init=False)
    _connection: HaConnection | None = field(default=None, init=False)
    _reason: str = field(default="", init=False)
    _due_s: float = field(default=0.0, init=False)
    """The time before which no connection is opened."""
    _worked_s: float = field(default=0.0, init=False)
    """When a connection worked last, or had to wait for a slave."""
    _failures: int = field(default=0, init=False)
    _goal: int = field(default=0, init=False)
    _received: int = field(default=0, init=False)
    _seen_to: int = field(init=False)
    """The end of what the master has sent to this run, whether new or compared."""
    _woken: asyncio.Event = field(factory=asyncio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._ends = self.facts.ends
        self._seen_to = self.facts.ends.begin

    @property
    def known(self) -> RehearsedGroup:
        """What is known of the group now."""
        return evolve(self.facts, ends=self._ends)

    async def copy(self) -> Mapping[str, bytes]:
        """Copy what the master has now, then its tables, then the log that they refer to.

        Return the tables by the names of their files. Raises RmqError if the copy cannot go on.
        """
        try:
            await self._reach(self._ends.end)
            tables = await read_tables(self.admin, self.facts.master)
            self._ends = await read_ends(self.admin, self.facts.master, self.facts.slaves)
            await self._reach(self._ends.end)
        finally:
            self._disconnect("")
        return tables

    async def follow(self, is_due: Callable[[], bool]) -> None:
        """Copy what the master writes, until ``is_due()`` at a look. The master is looked for
        first: it may be another one than that of ``facts``.
        """
        self._reason = "looking for the master"
        try:
            await self._run(lambda: False, is_due)
        finally:
            self._disconnect("")

    async def _reach(self, goal: int) -> None:
        """Follow until the master has sent the bytes before ``goal``, or those that the copy has
        already and compares; and the rest of the message that it is sending.
        """
        self._goal = goal
        await self._run(lambda: self._seen_to >= goal and self.shadow.is_whole, lambda: False)

    async def _run(self, is_reached: Callable[[], bool], is_due: Callable[[], bool]) -> None:
        """Follow the master until the first is true after a frame, or the second at a look."""
        loop = asyncio.get_running_loop()
        looks, received, looked_s = 0, self._received, loop.time()
        self._worked_s = loop.time()
        while not is_reached():
            await self._steer(loop.time())
            try:
                async with asyncio.timeout(self.look_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            if self.shadow.fault:
                raise RmqError(self.shadow.fault)
            if self._failures >= FAILURES_MAX:
                raise RmqError(
                    f"{self.facts.ha_address}: found no log, {FAILURES_MAX} times ({self._reason}),"
                    " expected the port of the slaves; check that brokerIP2 can be reached from"
                    " here, haListenPort, and replicationAddresses of a rmqpy master"
                )
            now_s = loop.time()
            if now_s - looked_s < self.look_s and not is_reached():
                continue
            rate = (self._received - received) / max(now_s - looked_s, 0.001)
            received, looked_s, looks = self._received, now_s, looks + 1
            await self._look(now_s)
            self.show(self._status(rate))
            if looks % FLUSH_LOOKS == 0:
                await self.shadow.flush()
            if is_due():
                return

    async def _look(self, now_s: float) -> None:
        """Ask for the ends of the logs, and disconnect if nobody else acknowledges any more."""
        facts = self.facts
        try:
            self._ends = await read_ends(self.admin, facts.master, facts.slaves)
        except RmqError as error:
            self._disconnect(f"the master does not answer: {error}")
            return
        if self._connection is not None:
            self._worked_s = now_s
        if facts.waits_for_slaves and not self._watch.follows(self._ends):
            self._disconnect(ALONE)
            self._due_s = now_s + self.look_s

    async def _steer(self, now_s: float) -> None:
        """Connect if there is no connection and one may be opened."""
        if self._connection is not None or now_s < self._due_s:
            return
        if self._reason:  # The master may be another one by now.
            if now_s - self._worked_s > self.patience_s:
                raise RmqError(
                    f"{self.facts.name}: found no connection to its master for"
                    f" {self.patience_s:.0f} s ({self._reason}), expected one at"
                    f" {self.facts.ha_address}; start the master, check that this address can be"
                    " reached from here (brokerIP2, haListenPort), and repeat"
                )
            self._due_s = now_s + self.look_s
            try:
                self.facts = facts = await _read_classic(self.admin, self.facts.name)
            except RmqError as error:
                self._reason = str(error)
                return
            self._ends = facts.ends
            if facts.waits_for_slaves and not self._watch.follows(self._ends):
                self._reason = ALONE
                self._worked_s = now_s
                return
        self.shadow.check_continues(self._ends)
        self._connection = self.dial(split_address(self.facts.ha_address), self)

    def _disconnect(self, reason: str) -> None:
        self._reason = reason
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _status(self, rate: float) -> CopyStatus:
        end = self.shadow.end
        return CopyStatus(
            state=COPYING if self._connection is not None else WAITING,
            begin=self.shadow.begin if end else self._ends.begin,
            end=end or self._ends.begin,
            goal=max(self._goal, self._ends.end),
            lag=max(0, self._ends.end - (end or self._ends.begin)),
            rate=rate,
            reason=self._reason,
        )

    # HaClientHandler

    def connected(self, now_ms: int) -> FollowerLink:
        self._reason = ""
        logger.info("observing %s", self.facts.ha_address)
        return self.shadow.link(self._ends, now_ms, controlled=self.facts.controlled)

    def store(self, transfer: TransferFrame) -> None:
        self._received += self.shadow.append(transfer)
        self._seen_to = max(self._seen_to, transfer.end)
        if self._seen_to >= self._goal:
            self._woken.set()

    def ended(self, link: FollowerLink | None, reason: str) -> None:
        self._connection = None
        self._reason = reason
        if link is not None:
            self._failures = 0 if link.has_worked else self._failures + 1
        logger.warning("%s: %s", self.facts.ha_address, reason)
        delay_s = self.look_s * (1 + self._failures)
        self._due_s = asyncio.get_running_loop().time() + delay_s
        self._woken.set()
