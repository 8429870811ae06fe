"""The tables that a slave fetches from its master in addition to the log (Java SlaveSynchronize),
in classic groups and DLedger groups alike:

====  ======================  =======  ========================================================
code  table                   port     handling
====  ======================  =======  ========================================================
21    topics                  fast     another data version: taken over
43    consumer offsets        main     the master's value for every queue that it names
45    delay offsets           main     the larger of both, level by level
201   subscription groups     main     another data version: taken over
====  ======================  =======  ========================================================

The tables are fetched ``FIRST_MS`` after the start, as soon as a new master is named (a change of
role registers, and the name servers' answers name it), and each ``PERIOD_MS``. In addition, an
rmqpy master is queried each ``LOOK_MS`` for changes of topics or groups
(:func:`answer_with_table`), so that at most the changes of one second, instead of ten, are lost
when the master is killed. Requests are independent: one that fails is repeated in the next round.
After a failure, and while no master is known, each round also registers with the name servers
again (Java waits for the next registration).

A topic or group that the master does not have is removed only if the master is known to have had
it: if it was in a table that this master sent before or, in a classic group, if the master's
version is later than ours. Otherwise it is kept: a leader that has just been set up has few
entries, and would remove those that only the others have. Keeping entries counts as a change of our
own, so that the difference is not mistaken for a change by the master later. The version of this
change depends on the entries: several slaves merge the same table, each keeps other entries, and
each can be the next master, from which slaves (and Java's) take only tables of another version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from zlib import crc32

from attrs import field

from rmqpy.broker.base.context import FAST_PORT_DISTANCE, BrokerContext
from rmqpy.broker.replication.master_discovery import MasterAddress, MasterDiscovery
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.delay_levels import DelayOffsetTable
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.config.keys import host_and_port, split_address
from rmqpy.model import names
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RmqError
from rmqpy.model.values import define
from rmqpy.remoting.bodies import (
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.body import Body
from rmqpy.remoting.channel import Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.fastjson import dumps

FIRST_MS: Final = 3_000
PERIOD_MS: Final = 10_000
LOOK_MS: Final = 1_000
TIMEOUT_MS: Final = 3_000
MASTER_NAMED_MS: Final = 3_000
"""The time in which the name servers name the master of a slave that has just started."""
NAMES_SHOWN: Final = 5
CONTENT_BITS: Final = 20
"""The lowest bits of the timestamp (17 minutes) that tell the versions of merged tables apart."""
KNOWN_VERSION: Final = "rmqpyKnownVersion"
VERSION: Final = "rmqpyVersion"
_ALL: Final = frozenset(
    (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    )
)

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class TableMerge:
    """The result of a merge: the master's table plus the ``kept`` entries of ours, under
    ``version``.
    """

    version: DataVersion
    kept: frozenset[str]


@define(slots=True, eq=False, repr=False)
class TableHistory:
    """The history of one kind of table: the names that a master is known to have had."""

    strict: bool
    """True if only names that were seen may be removed. Otherwise any name may be removed if the
    master's version is later.
    """
    _master: str = field(default="", init=False)
    _seen: set[str] = field(factory=set, init=False)

    def merge(
        self,
        master: str,
        own: tuple[Mapping[str, Body], DataVersion],
        theirs: tuple[Mapping[str, Body], DataVersion],
        expendable: frozenset[str],
    ) -> TableMerge:
        """Return the result of merging the table of ``master`` into our own. ``expendable`` names
        are created at each start anyway.
        """
        if master != self._master:
            self._master, self._seen = master, set()
        own_table, own_version = own
        their_table, their_version = theirs
        missing = own_table.keys() - their_table.keys() - expendable - self._seen
        later = (
            not self.strict
            and their_version.counter >= own_version.counter
            and their_version.timestamp >= own_version.timestamp
        )
        self._seen |= their_table.keys()
        if later or not missing:
            return TableMerge(their_version, frozenset())
        table = {**their_table, **{name: own_table[name] for name in missing}}
        version = own_version
        if table != own_table:
            version = _merged_version(table, own_version, their_version)
        return TableMerge(version, frozenset(missing))


def _merged_version(
    table: Mapping[str, Body], own: DataVersion, theirs: DataVersion
) -> DataVersion:
    """Return the version of the ``table`` that a merge of two versions results in. Equal tables
    have the same version, others a different one.
    """
    rows = dumps({name: table[name].to_json() for name in sorted(table)})
    content = crc32(rows) % (1 << CONTENT_BITS)
    latest = max(own.timestamp, theirs.timestamp)
    return DataVersion(
        latest >> CONTENT_BITS << CONTENT_BITS | content, max(own.counter, theirs.counter) + 1
    )


@define(slots=True, frozen=True)
class LastMasterTable:
    """The last state of a table at a master, and the version of our own table that resulted from
    it.
    """

    master: str
    version: str
    own: DataVersion


@define(slots=True, kw_only=True, eq=False, repr=False)
class MetadataSync:
    """The periodic fetching of the tables of the master."""

    identity: BrokerContext
    choice: MasterDiscovery
    topics: TopicTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    delays: DelayOffsetTable
    scheduler: Scheduler
    network: Network
    register: Callable[[], None]
    """Registers with all name servers, whose answers name the master."""
    _topic_history: TableHistory = field(init=False)
    _group_history: TableHistory = field(init=False)
    _timer: Timer | None = field(default=None, init=False)
    _query_timer: Timer | None = field(default=None, init=False)
    _last_tables: dict[int, LastMasterTable] = field(factory=dict, init=False)
    _faults: dict[int, str] = field(factory=dict, init=False)
    _kept: dict[int, frozenset[str]] = field(factory=dict, init=False)
    _done_ms: int | None = field(default=None, init=False)
    _fetched: set[int] = field(factory=set, init=False)
    _awaited: set[int] = field(factory=set, init=False)
    _waiting: list[Callable[[], None]] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        strict = self.identity.store.enable_dledger_commit_log
        self._topic_history, self._group_history = TableHistory(strict), TableHistory(strict)
        self.choice.subscribe(self._named)

    def start(self) -> None:
        self._plan(FIRST_MS)

    def stop(self) -> None:
        for timer in (self._timer, self._query_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._query_timer = None

    @property
    def is_synchronized(self) -> bool:
        """True if every table was fetched from a master since the start."""
        return self._fetched >= _ALL

    def runtime_info(self) -> dict[str, str]:
        """Return the lines of the runtime information about a slave's last fetch and its faults;
        none for a master.
        """
        if not self.identity.is_slave:
            return {}
        info = {"slaveSync": "nothing fetched yet"}
        if self._done_ms is not None:
            age_ms = self.scheduler.monotonic_ms() - self._done_ms
            info["slaveSync"] = f"{age_ms // 1000} s ago"
        for code, fault in sorted(self._faults.items()):
            info[f"slaveSyncFault_{code}"] = fault
        for code, kept in sorted(self._kept.items()):
            if kept:
                info[f"slaveSyncKept_{code}"] = _listed(kept)
        return info

    @property
    def faults(self) -> Sequence[str]:
        """The tables that could not be fetched last, with the reasons."""
        return [f"table {code}: {fault}" for code, fault in sorted(self._faults.items())]

    def fetch_now(self, done: Callable[[], None], *, named_within_ms: int = 0) -> None:
        """Fetch all tables at once; ``done`` is called when each has arrived or failed. If no
        master is known, as shortly after a start, the name servers have some time to name one.
        """
        self._awaited = set(_ALL)
        self._waiting.append(done)
        if self._timer is not None:
            self._timer.cancel()
        self._round()
        if not self._master_is_known():
            self.scheduler.call_later(named_within_ms, self._give_up_without_master)

    def _master_is_known(self) -> bool:
        return bool(self.choice.candidates(self.scheduler.monotonic_ms()))

    def _give_up_without_master(self) -> None:
        """End what waits for a fetch, unless a master was named in the meantime."""
        if not self._master_is_known():
            for code in _ALL:
                self._failed(code, "no master is known")
                self._settle(code)

    def _settle(self, code: int) -> None:
        """Record that the request for a table has ended."""
        self._awaited.discard(code)
        if not self._awaited:
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done()

    def _named(self) -> None:
        """Fetch at once, because a new master was named."""
        if self._timer is not None:
            self._timer.cancel()
            self._plan(0)

    def _plan(self, delay_ms: int) -> None:
        self._timer = self.scheduler.call_later(delay_ms, self._round)

    def _round(self) -> None:
        self._plan(PERIOD_MS)
        if not self.identity.is_slave:
            return
        masters = self.choice.candidates(self.scheduler.monotonic_ms())
        if self._faults or not masters:
            self.register()
        if not masters:
            return
        master = masters[0]
        self._fetch_topics(master, "")
        for code, take in (
            (RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
            (RequestCode.GET_ALL_DELAY_OFFSET, self._take_delays),
        ):
            self._fetch(RemotingCommand.request(code), master.address, master, take)
        self._fetch_groups(master, "")

    def _plan_version_query(self) -> None:
        """Plan a version query for a master that reports versions."""
        if self._query_timer is None:
            self._query_timer = self.scheduler.call_later(LOOK_MS, self._query_versions)

    def _query_versions(self) -> None:
        self._query_timer = None
        masters = self.choice.candidates(self.scheduler.monotonic_ms())
        if self.identity.is_slave and masters:
            master = masters[0]
            self._fetch_topics(master, self._known(RequestCode.GET_ALL_TOPIC_CONFIG, master))
            groups = self._known(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, master)
            self._fetch_groups(master, groups)

    def _known(self, code: int, master: MasterAddress) -> str:
        """Return the version of the master's table from which ours resulted, if ours has not
        changed since.
        """
        last = self._last_tables.get(code)
        current = last is not None and last.master == master.address and last.own is self._own(code)
        return last.version if last is not None and current else ""

    def _own(self, code: int) -> DataVersion:
        topics = code == RequestCode.GET_ALL_TOPIC_CONFIG
        return self.topics.data_version if topics else self.groups.data_version

    def _fetch_topics(self, master: MasterAddress, known: str) -> None:
        request = _table_request(RequestCode.GET_ALL_TOPIC_CONFIG, known)
        self._fetch(request, _fast_address(master), master, self._take_topics)

    def _fetch_groups(self, master: MasterAddress, known: str) -> None:
        request = _table_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, known)
        self._fetch(request, master.address, master, self._take_groups)

    def _fetch(
        self,
        request: RemotingCommand,
        address: str,
        master: MasterAddress,
        take: Callable[[MasterAddress, bytes], None],
    ) -> None:
        code = request.code

        def answered(response: RemotingCommand | None, error: RmqError | None) -> None:
            if not self.identity.is_slave or self._timer is None:
                self._settle(code)
                return
            try:
                if response is None:
                    raise error or RemoteProtocolError("no answer")
                if response.code != ResponseCode.SUCCESS:
                    raise RemoteProtocolError(f"refused with {response.code}: {response.remark}")
                version = response.ext_fields.get(VERSION, "")
                if response.body or not version:
                    take(master, response.body)
                if version:
                    self._last_tables[code] = LastMasterTable(
                        master.address, version, self._own(code)
                    )
                    self._plan_version_query()
            except RmqError as fault:
                self._failed(code, f"{address}: {fault}")
            else:
                self._faults.pop(code, None)
                self._fetched.add(code)
                self._done_ms = self.scheduler.monotonic_ms()
            self._settle(code)

        self.network.request(address, request, TIMEOUT_MS, answered)

    def _failed(self, code: int, fault: str) -> None:
        if self._faults.get(code) != fault:
            logger.warning("fetching table %d from the master failed: %s", code, fault)
        self._faults[code] = fault

    def _take_topics(self, master: MasterAddress, body: bytes) -> None:
        received = TopicConfigSerializeWrapper.decode(body)
        topics = self.topics
        if received.data_version.same_as(topics.data_version):
            return
        merged = self._topic_history.merge(
            master.address,
            (topics.topics, topics.data_version),
            (received.topic_config_table, received.data_version),
            frozenset(topics.system_topics),
        )
        self._note_kept(RequestCode.GET_ALL_TOPIC_CONFIG, "topics", merged.kept)
        if not merged.version.same_as(topics.data_version):
            topics.replace(received, merged.kept, merged.version)

    def _take_groups(self, master: MasterAddress, body: bytes) -> None:
        received = SubscriptionGroupWrapper.decode(body)
        groups = self.groups
        if received.data_version.same_as(groups.data_version):
            return
        merged = self._group_history.merge(
            master.address,
            (groups.groups, groups.data_version),
            (received.subscription_group_table, received.data_version),
            frozenset(names.INITIAL_GROUPS),
        )
        self._note_kept(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groups", merged.kept)
        if not merged.version.same_as(groups.data_version):
            groups.replace(received, merged.kept, merged.version)

    def _take_offsets(self, _master: MasterAddress, body: bytes) -> None:
        self.offsets.merge(ConsumerOffsetSerializeWrapper.decode(body))

    def _take_delays(self, _master: MasterAddress, body: bytes) -> None:
        if body:
            self.delays.merge(DelayOffsetSerializeWrapper.decode(body))

    def _note_kept(self, code: int, what: str, kept: frozenset[str]) -> None:
        if kept != self._kept.get(code, frozenset()):
            if kept:
                logger.warning("kept %s that the master does not have: %s", what, _listed(kept))
            self._kept[code] = kept


def _table_request(code: RequestCode, known: str) -> RemotingCommand:
    request = RemotingCommand.request(code)
    request.ext_fields[KNOWN_VERSION] = known
    return request


def _fast_address(master: MasterAddress) -> str:
    host, port = split_address(master.address)
    return host_and_port(host, port - FAST_PORT_DISTANCE)


def _listed(kept: frozenset[str]) -> str:
    listed = sorted(kept)
    more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more


def answer_with_table(
    request: RemotingCommand,
    version: DataVersion,
    table: Callable[[], Sequence[bytes]],
    header: CommandHeader | None = None,
) -> RemotingCommand:
    """Answer a request for a table, which is encoded in parts, without a body if the peer already
    has this version.

    ==========================  ==============================================================
    ext field                   meaning
    ==========================  ==============================================================
    rmqpyKnownVersion, request  the version that the slave received last; empty: send the table
    rmqpyVersion, answer        the version of the table; no body follows if it is the known one
    ==========================  ==============================================================

    Java ignores the request's field and sends the whole table without a version; the slave then
    fetches no more often than Java does. Versions are compared as text, and only with those of the
    same master.
    """
    response = RemotingCommand.response_to(request, header=header)
    known = request.ext_fields.get(KNOWN_VERSION)
    if known is not None:
        response.ext_fields[VERSION] = text = f"{version.timestamp}-{version.counter}"
        if known == text:
            return response
    response.body = b"".join(table())
    return response
