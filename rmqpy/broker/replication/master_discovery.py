"""Discovery of the master from several name servers, which may be wrong.

The newest answer of each name server counts for ``FRESH_PERIODS`` registration periods (longer only
if no other has answered); one that names no master has no vote. The candidates are the followed
master, then the named masters, the most often named first, then the most recently named. A dead
name server therefore changes nothing, and one with an old or a wrong answer has an effect only
when the followed master does not answer. The slave then checks that the candidates really are
masters (:mod:`.master_log_check`).

``haMasterAddress`` excludes all other brokers; the broker's port is then the one below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from attrs import field

from rmqpy.broker.base.context import HA_PORT_DISTANCE, BrokerContext
from rmqpy.broker.services.registration import RegistrationAnswer
from rmqpy.config.keys import host_and_port, split_address
from rmqpy.model.values import define

FRESH_PERIODS: Final = 4


@define(slots=True, frozen=True)
class MasterAddress:
    """A broker's addresses: for requests, and for its slaves."""

    address: str
    ha_address: str


@define(slots=True, frozen=True)
class _Answer:
    master: MasterAddress
    at_ms: int


@define(slots=True, eq=False, repr=False)
class MasterDiscovery:
    """The masters that name servers name. ``followed`` is the one that the slave replicates
    from.
    """

    identity: BrokerContext
    followed: MasterAddress | None = None
    _answers: dict[str, _Answer] = field(factory=dict, init=False)
    _listeners: list[Callable[[], None]] = field(factory=list, init=False)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever a master becomes a candidate."""
        self._listeners.append(listener)

    def follow(self, master: MasterAddress) -> None:
        """Record that the slave replicates from ``master``."""
        self.followed = master

    def on_registration_answer(self, server: str, answer: RegistrationAnswer, now_ms: int) -> None:
        """Record the answer of a name server; invalid addresses count as no answer."""
        before = set(self.candidates(now_ms))
        self._take(server, _master_of(answer), now_ms)
        if set(self.candidates(now_ms)) - before:
            for listener in self._listeners:
                listener()

    def _take(self, server: str, master: MasterAddress | None, now_ms: int) -> None:
        if master is None or master.address == self.identity.address:
            self._answers.pop(server, None)
        else:
            self._answers[server] = _Answer(master, now_ms)

    def candidates(self, now_ms: int) -> list[MasterAddress]:
        """Return the brokers to check, in this order; empty if none is known."""
        named = self._named(now_ms)
        fixed = self.identity.store.ha_master_address
        if fixed:
            return [_fixed_master(fixed, named)]
        votes = {master: 0 for master in named}
        for master in named:
            votes[master] += 1
        newest = {answer.master: answer.at_ms for answer in self._answers.values()}
        others = sorted(votes, key=lambda master: (-votes[master], -newest[master]))
        followed = self.followed
        if followed is None:
            return others
        return [followed, *(master for master in others if master != followed)]

    def current_master(self, now_ms: int) -> str:
        """Return the master that each name server names, as text, if they disagree; otherwise an
        empty text.
        """
        if len(set(self._named(now_ms))) < 2:
            return ""
        return "; ".join(
            f"{server} names {self._answers[server].master.address}"
            for server in self.identity.broker_settings.name_servers
            if server in self._answers
        )

    def _named(self, now_ms: int) -> list[MasterAddress]:
        """Return the fresh answers in the order of the name servers, or the old ones if none is
        fresh.
        """
        fresh_ms = FRESH_PERIODS * self.identity.broker_settings.register_period_ms
        known = [self._answers.get(server) for server in self.identity.broker_settings.name_servers]
        answers = [answer for answer in known if answer is not None]
        fresh = [answer for answer in answers if now_ms - answer.at_ms <= fresh_ms]
        return [answer.master for answer in fresh or answers]


def _master_of(answer: RegistrationAnswer) -> MasterAddress | None:
    try:
        split_address(answer.master_address)
        if answer.ha_address:
            split_address(answer.ha_address)
    except ValueError:
        return None
    return MasterAddress(answer.master_address, answer.ha_address)


def _fixed_master(ha_address: str, named: Iterable[MasterAddress]) -> MasterAddress:
    for master in named:
        if master.ha_address == ha_address:
            return master
    host, port = split_address(ha_address)
    return MasterAddress(host_and_port(host, port - HA_PORT_DISTANCE), ha_address)
