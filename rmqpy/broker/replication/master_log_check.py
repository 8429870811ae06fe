"""The check before a slave connects: whether a broker is its master, and whether the slave's log is
a copy of that broker's log.

The requests go to the broker's port, never to the replication stream, one after the other::

    26 settings ──► 28 runtime information ──► our COMPARE_LOG, as often as the search needs
        │                  │                            │
        ▼                  ▼                            ▼
    another cluster,   the slave's log ends         the logs differ: refused with the first
    name, file size;   after the master's, or       differing offset
    no master          before its start

A Java master answers the first two but not COMPARE_LOG (code 3). The slave then reports that the
logs were not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.replication.master_discovery import MasterAddress
from rmqpy.codec.layout import (
    MAGIC_BYTES,
    MAGIC_POSITION,
    PHYSICAL_OFFSET_POSITION,
)
from rmqpy.config.keys import BrokerRole
from rmqpy.config.properties_file import parse_properties
from rmqpy.ha.compare import DivergenceSearch
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConfigError, NetworkError, RemoteProtocolError, RmqError
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.channel import Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import CompareLogRequestHeader
from rmqpy.store.commitlog.interface import CommitLog, read_span

TIMEOUT_MS: Final = 5_000
LOOK_BACK_BYTES: Final = 5 << 20
"""The distance in which the start of a record is searched; with the default settings, records are
shorter.
"""


@define(slots=True, frozen=True)
class LogCheckResult:
    """The result of a check. ``refused`` is the reason not to follow this broker, or empty.
    ``unreachable`` means that the broker has not answered, ``diverged`` that it is of our group and
    the same offset of the two logs has different bytes. ``compared`` is the result of the
    comparison of the two logs, as text.
    """

    master: MasterAddress
    refused: str = ""
    unreachable: bool = False
    diverged: bool = False
    compared: str = ""
    begin: int = 0
    end: int = 0
    """The end of the log of the master at the time of the check."""

    @property
    def good(self) -> bool:
        return not self.refused


@define(slots=True, eq=False, repr=False)
class MasterLogCheck:
    """One check of one broker; ``done`` receives the result once, unless the
    check was cancelled.
    """

    identity: BrokerContext
    log: CommitLog
    network: Network
    master: MasterAddress
    done: Callable[[LogCheckResult], None]
    _cancelled: bool = field(default=False, init=False)
    _begin: int = field(default=0, init=False)
    _end: int = field(default=0, init=False)

    def start(self) -> None:
        if self.master.address == self.identity.address:
            self._refuse("it is this broker itself")
            return
        self._request(RemotingCommand.request(RequestCode.GET_BROKER_CONFIG), self._settings)

    def cancel(self) -> None:
        self._cancelled = True

    def _request(self, command: RemotingCommand, then: Callable[[RemotingCommand], None]) -> None:
        def answered(response: RemotingCommand | None, error: RmqError | None) -> None:
            if self._cancelled:
                return
            if response is None:
                self._refuse(f"it does not answer: {error}", isinstance(error, NetworkError))
                return
            try:
                then(response)
            except (ConfigError, RemoteProtocolError, ValueError, KeyError) as fault:
                self._refuse(f"its answer to {command.code} cannot be read: {fault}")

        self.network.request(self.master.address, command, TIMEOUT_MS, answered)

    def _settings(self, response: RemotingCommand) -> None:
        _check_success(response)
        text = response.body.decode("utf-8", "replace")
        lines = {line.key: line.value for line in parse_properties(text, "its settings")}
        refusal = self._refusal_of_settings(lines)
        if refusal:
            self._refuse(refusal)
            return
        self._request(RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO), self._runtime)

    def _refusal_of_settings(self, lines: Mapping[str, str]) -> str:
        identity = self.identity
        own_size = str(identity.store.mapped_file_size_commit_log)
        for key, own in (
            ("brokerClusterName", identity.cluster),
            ("brokerName", identity.name),
            ("mappedFileSizeCommitLog", own_size),
        ):
            theirs = lines.get(key, own)
            if theirs != own:
                return f"its {key} is {theirs}, here it is {own}: all brokers of a group must agree"
        is_member = lines.get("enableDLegerCommitLog") == "true"
        if is_member and lines.get("haServeEntries") != "true":
            return (
                "it is a member of a DLedger group, which serves slaves only with"
                " haServeEntries=true; set that on its members and restart them one by one"
            )
        # A member of a DLedger group that was a slave before keeps that setting when it leads.
        if lines.get("brokerRole") == BrokerRole.SLAVE.value and not is_member:
            if not identity.store.ha_master_address:
                return "it is a slave itself"
            if lines.get("brokerId") == str(identity.broker_id):
                return f"it is the slave with our brokerId {identity.broker_id}"
        return ""

    def _runtime(self, response: RemotingCommand) -> None:
        _check_success(response)
        table = KVTable.decode(response.body).table
        begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        self._begin, self._end = max(0, begin), end
        own = self.log.max_offset
        if own > end:
            self._refuse(
                f"its log ends at {end}, ours at {own}: this slave holds messages that the master"
                " never had or has lost; align both, or start with an empty store, to follow it"
            )
        elif 0 < own < begin:
            self._refuse(
                f"its log begins at {begin}, ours ends at {own}: the master no longer has what lies"
                " between; this slave must start with an empty store"
            )
        else:
            self._compare(max(self.log.min_offset, self._begin), own)

    def _compare(self, begin: int, end: int) -> None:
        if begin >= end:
            self._accept("nothing to compare yet")
            return
        self._search(DivergenceSearch(begin, end, partial(read_span, self.log)))

    def _search(self, search: DivergenceSearch) -> None:
        span = search.requested
        if span is None:
            self._conclude(search)
            return

        def answered(response: RemotingCommand) -> None:
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._accept(
                    "not compared: the master is not an rmqpy broker and cannot compare logs"
                )
                return
            _check_success(response)
            search.take(response.body)
            self._search(search)

        header = CompareLogRequestHeader(
            begin_offset=span.begin, end_offset=span.end, block_size=span.block
        )
        self._request(RemotingCommand.request(RequestCode.RMQPY_COMPARE_LOG, header), answered)

    def _conclude(self, search: DivergenceSearch) -> None:
        if search.parted is None:
            self._accept(f"the same up to {search.end}")
        else:
            frame = frame_start(self.log, search.parted)
            self._refuse(
                f"the two logs diverge at offset {search.parted}: this slave's bytes from there"
                f" (in the message at {frame}) to {search.end} are not the master's; align both,"
                " or start with an empty store",
                diverged=True,
            )

    def _accept(self, compared: str) -> None:
        self.done(LogCheckResult(self.master, compared=compared, begin=self._begin, end=self._end))

    def _refuse(self, reason: str, unreachable: bool = False, diverged: bool = False) -> None:
        reason = f"{self.master.address}: {reason}"
        self.done(
            LogCheckResult(self.master, refused=reason, unreachable=unreachable, diverged=diverged)
        )


def frame_start(log: CommitLog, offset: int) -> int:
    """Return the start of the record that contains ``offset``, or ``offset`` if none is found."""
    low = max(log.min_offset, offset - LOOK_BACK_BYTES)
    high = min(offset + PHYSICAL_OFFSET_POSITION + 8, log.max_offset)
    data = read_span(log, low, high - low)
    last = offset - low + MAGIC_POSITION + len(MAGIC_BYTES[0])
    while last > 0:
        position = max(data.rfind(magic, 0, last) for magic in MAGIC_BYTES)
        start = position - MAGIC_POSITION
        if start < 0:
            break
        size = int.from_bytes(data[start : start + 4])
        recorded = int.from_bytes(data[start + PHYSICAL_OFFSET_POSITION :][:8])
        if recorded == low + start and recorded <= offset < recorded + size:
            return recorded
        last = position + len(MAGIC_BYTES[0]) - 1
    return offset


def _check_success(response: RemotingCommand) -> None:
    """Check that the response is a success. Raises RemoteProtocolError for a refusal."""
    if response.code != ResponseCode.SUCCESS:
        raise RemoteProtocolError(f"the broker refused with {response.code}: {response.remark}")
