"""Registration with the name servers: with all of them, independently of each other.

===========================  ==================================================
at the start (with an id)    REGISTER_BROKER, the first of many
after ``FIRST_REPEAT_MS``    again, then each ``registerNameServerPeriod``
when the topic table grows   one-way, once a loop turn; rarer with a large table (``Throttled``);
                             with answers when a caller waits for them, as after creating a topic
at the stop                  UNREGISTER_BROKER
===========================  ==================================================

With ``forceRegister=false``, QUERY_DATA_VERSION is sent first, to find out whether a name server
needs the table. A slave always registers, because it needs the answer. The first answer of a round
determines the ordered topics, as in Java; all answers determine the master
(:mod:`rmqpy.broker.replication.master_discovery`). A member of a DLedger group has no id before its
first role and does not register.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from attrs import evolve, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.scheduling import Throttled
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.model.flags import PERM_READ, PERM_WRITE
from rmqpy.model.values import define
from rmqpy.remoting.bodies import (
    KVTable,
    RegisterBrokerBody,
    body_crc32,
)
from rmqpy.remoting.channel import Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)

FIRST_REPEAT_MS: Final = 10_000
UNREGISTER_TIMEOUT_MS: Final = 3_000

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class RegistrationAnswer:
    """The addresses of the group's master in the answer of a name server; empty if it has none."""

    ha_address: str
    master_address: str


@define(slots=True, eq=False, repr=False)
class _RegistrationRound:
    """One registration with all name servers."""

    answered: bool = False


@define(slots=True, eq=False, kw_only=True, repr=False)
class RegistrationService:
    """The registration of the broker with its name servers, periodically and after changes."""

    identity: BrokerContext
    topics: TopicTable
    scheduler: Scheduler
    network: Network
    last_answer: RegistrationAnswer | None = field(default=None, init=False)
    _listeners: list[Callable[[str, RegistrationAnswer], None]] = field(factory=list, init=False)
    _timer: Timer | None = field(default=None, init=False)
    _announcing: bool = field(default=False, init=False)
    _retired: bool = field(default=False, init=False)
    _awaited: list[Callable[[], None]] = field(factory=list, init=False)
    """Callbacks that wait until the name servers have the current table."""
    _pace: Throttled = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pace = Throttled(self.scheduler, self._send_announcement)

    def subscribe(self, listener: Callable[[str, RegistrationAnswer], None]) -> None:
        """Call ``listener`` with each answer of each name server: they may disagree."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Register now and periodically."""
        self.register()
        self._timer = self.scheduler.call_later(FIRST_REPEAT_MS, self._repeat)

    def stop(self, done: Callable[[], None]) -> None:
        """Unregister; ``done`` is called when every name server has answered or timed out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pace.cancel()
        self._call_waiting()
        if self.identity.broker_id < 0 or self._retired:
            self.scheduler.call_soon(done)
        else:
            self._request_all(
                self._unregister_command(), UNREGISTER_TIMEOUT_MS, "unregistration", done
            )

    def retire(self) -> None:
        """Register no more, because another broker has this one's place. A slave unregisters; a
        master does not, because that would remove the new master, too.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._retired = True
        self._pace.cancel()
        self._call_waiting()
        if self.identity.broker_id > 0:
            self._request_all(
                self._unregister_command(), UNREGISTER_TIMEOUT_MS, "unregistration", lambda: None
            )

    def register(self) -> None:
        """Start a round: register with every name server and read the answers."""
        if not self._registers:
            return
        this_round = _RegistrationRound()
        command: RemotingCommand | None = None
        for server in self.identity.broker_settings.name_servers:
            if self.identity.broker_settings.force_register or self.identity.is_slave:
                command = command or self._register_command()
                self._send(server, evolve(command), this_round)
            else:
                self._query_version(server, this_round)

    def announce(self) -> None:
        """Send the changed topic table to all name servers, at most once per turn, without waiting
        for answers.
        """
        if self._announcing or self._timer is None:
            return
        self._announcing = True
        self.scheduler.call_soon(self._announce)

    def tell(self, done: Callable[[], None]) -> None:
        """Announce the table and call ``done`` when every name server has answered or timed out, or
        at once if the broker does not register.
        """
        if self._timer is None or self.identity.broker_id < 0:
            done()
        else:
            self._awaited.append(done)
            self.announce()

    def _announce(self) -> None:
        self._announcing = False
        self._pace.request()

    def _send_announcement(self) -> None:
        if not self._registers or self._timer is None:
            self._call_waiting()
            return
        command = self._register_command()
        if self._awaited:
            awaited, self._awaited = self._awaited, []
            self._request_all(command, self._timeout_ms, "announcement", lambda: _call_all(awaited))
            return
        for server in self.identity.broker_settings.name_servers:
            self.network.oneway(server, evolve(command))

    def _call_waiting(self) -> None:
        awaited, self._awaited = self._awaited, []
        _call_all(awaited)

    def _request_all(
        self, command: RemotingCommand, timeout_ms: int, purpose: str, done: Callable[[], None]
    ) -> None:
        """Send a command to every name server; ``done`` is called when each has answered or timed
        out.
        """
        servers = self.identity.broker_settings.name_servers
        waiting = set(range(len(servers)))
        if not waiting:
            self.scheduler.call_soon(done)

        def answered(number: int, response: RemotingCommand | None, error: RmqError | None) -> None:
            waiting.discard(number)
            _success(servers[number], purpose, response, error)
            if not waiting:
                done()

        for number, server in enumerate(servers):
            self.network.request(server, evolve(command), timeout_ms, partial(answered, number))

    def _repeat(self) -> None:
        self.register()
        period_ms = self.identity.broker_settings.register_period_ms
        self._timer = self.scheduler.call_later(period_ms, self._repeat)

    def _query_version(self, server: str, this_round: _RegistrationRound) -> None:
        def answered(response: RemotingCommand | None, error: RmqError | None) -> None:
            if response is not None and response.code == ResponseCode.SUCCESS:
                try:
                    header = QueryDataVersionResponseHeader.decode(response.ext_fields)
                except RmqError as fault:
                    logger.warning("name server %s: %s", server, fault)
                else:
                    if not header.changed:
                        return
            elif error is not None:
                logger.warning("name server %s did not answer: %s", server, error)
            self._send(server, self._register_command(), this_round)

        self.network.request(server, self._query_command(), self._timeout_ms, answered)

    def _send(self, server: str, command: RemotingCommand, this_round: _RegistrationRound) -> None:
        def answered(response: RemotingCommand | None, error: RmqError | None) -> None:
            accepted = _success(server, "registration", response, error)
            if accepted is not None:
                self._take(server, accepted, first=not this_round.answered)
                this_round.answered = True

        self.network.request(server, command, self._timeout_ms, answered)

    def _take(self, server: str, response: RemotingCommand, *, first: bool) -> None:
        try:
            header = RegisterBrokerResponseHeader.decode(response.ext_fields)
            ordered = KVTable.decode(response.body).table if response.body else None
        except RmqError as fault:
            logger.warning("answer of name server %s is not readable: %s", server, fault)
            return
        answer = RegistrationAnswer(header.ha_server_addr or "", header.master_addr or "")
        if first:
            self.last_answer = answer
            if ordered is not None:
                self.topics.set_ordered(ordered.keys())
        for listener in self._listeners:
            listener(server, answer)

    @property
    def _registers(self) -> bool:
        """False for a member of a DLedger group without a role, or whose log is not that of its
        group. A slave registers always, to learn of its master.
        """
        identity = self.identity
        excluded = identity.diverged and identity.store.enable_dledger_commit_log
        return identity.broker_id >= 0 and not excluded and not self._retired

    @property
    def _timeout_ms(self) -> int:
        return self.identity.broker_settings.register_broker_timeout_mills

    def _body(self, compressed: bool) -> bytes:
        """Return the table; a broker permission below read and write applies to all topics."""
        permission = self.identity.broker_settings.broker_permission
        is_limited = permission & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE
        if not is_limited and not compressed:
            return RegisterBrokerBody.encode_with(self.topics.encoded())
        wrapper = self.topics.wrapper()
        if is_limited:
            wrapper.topic_config_table = {
                name: evolve(topic, perm=permission)
                for name, topic in wrapper.topic_config_table.items()
            }
        table = RegisterBrokerBody(wrapper)
        return table.encode_compressed() if compressed else table.encode()

    def _register_command(self) -> RemotingCommand:
        identity = self.identity
        compressed = identity.broker_settings.compressed_register
        body = self._body(compressed)
        header = RegisterBrokerRequestHeader(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            ha_server_addr=identity.ha_address,
            broker_id=identity.broker_id,
            compressed=compressed,
            body_crc32=body_crc32(body),
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)

    def _query_command(self) -> RemotingCommand:
        identity = self.identity
        header = QueryDataVersionRequestHeader(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            broker_id=identity.broker_id,
        )
        body = self.topics.data_version.encode()
        return RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, header, body)

    def _unregister_command(self) -> RemotingCommand:
        identity = self.identity
        header = UnRegisterBrokerRequestHeader(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            broker_id=identity.broker_id,
        )
        return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header)


def _success(
    server: str, purpose: str, response: RemotingCommand | None, error: RmqError | None
) -> RemotingCommand | None:
    """Return the answer of a name server that succeeded; log a failure and return None."""
    if response is None:
        logger.warning("%s with name server %s failed: %s", purpose, server, error)
    elif response.code != ResponseCode.SUCCESS:
        text = "name server %s refused the %s: %s %s"
        logger.warning(text, server, purpose, response.code, response.remark)
    else:
        return response
    return None


def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
