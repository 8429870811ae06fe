"""What a rehearsal asks the name server and the brokers of a group."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from rmqpy.admin.api import Admin
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError, RequestRejectedError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.near_names import did_you_mean
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

TABLES: Mapping[str, RequestCode] = {
    "topics.json": RequestCode.GET_ALL_TOPIC_CONFIG,
    "consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delayOffset.json": RequestCode.GET_ALL_DELAY_OFFSET,
    "subscriptionGroup.json": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
"""The files in ``config/``, each with the request whose answer is its content."""


@define(slots=True, frozen=True)
class LogEnds:
    """The log of the master, ``[begin, end)``, and the ends of the slaves' logs by address.

    The master was asked before the slaves. Slaves that do not answer are missing.
    """

    begin: int
    end: int
    slaves: Mapping[str, int]

    @property
    def acknowledged(self) -> int | None:
        """The offset that every slave has reached; None without a slave."""
        return min(self.slaves.values(), default=None)


@define(slots=True, frozen=True, kw_only=True)
class RehearsedGroup:
    """A group with a master. ``settings`` are the master's, as code 26 returns them;
    ``sends_per_second`` is the mean of the last minute.
    """

    name: str
    master: str
    slaves: tuple[str, ...]
    settings: Mapping[str, str]
    ends: LogEnds
    sends_per_second: float

    @property
    def is_java(self) -> bool:
        return not any(key.startswith("rmqpy") for key in self.settings)

    @property
    def controlled(self) -> bool:
        """Whether a controller of 5.x elects the master."""
        return self.settings.get("enableControllerMode") == "true"

    @property
    def waits_for_slaves(self) -> bool:
        """Whether a connection that acknowledges nothing delays the answers to producers. A master
        of a controller waits for replicas in the SyncStateSet only.
        """
        return self.settings.get("brokerRole") == "SYNC_MASTER" and not self.controlled

    @property
    def ha_address(self) -> str:
        """The address at which the master's slaves connect."""
        host, _, port = self.master.rpartition(":")
        ha_port = self.settings.get("haListenPort") or str(int(port) + 1)
        return f"{self.settings.get('brokerIP2') or host}:{ha_port}"


async def read_group(admin: Admin, name: str) -> RehearsedGroup:
    """Ask for the group ``name``. Raises UpgradeRefusedError if it has no master."""
    table = (await admin.cluster_info()).broker_addr_table
    if name not in table:
        known = ", ".join(sorted(table)) or "no broker"
        raise UpgradeRefusedError(
            f"found {known} at the name server, expected the brokerName {name}; check -b and"
            f" -n{did_you_mean(name, table)}"
        )
    addresses = dict(table[name].broker_addrs)
    master = addresses.pop(MASTER_ID, None)
    if master is None:
        raise UpgradeRefusedError(
            f"found no master of {name}, only {', '.join(sorted(addresses.values()))}, expected one"
            " to copy; start it, and repeat"
        )
    slaves = tuple(sorted(addresses.values()))
    settings = await admin.broker_config(master)
    rates = (await admin.runtime_info(master)).get("putTps", "").split()
    return RehearsedGroup(
        name=name,
        master=master,
        slaves=slaves,
        settings=settings,
        ends=await read_ends(admin, master, slaves),
        sends_per_second=float(rates[1]) if len(rates) > 1 else 0.0,
    )


async def read_ends(admin: Admin, master: str, slaves: tuple[str, ...]) -> LogEnds:
    """Ask the master, then its slaves, for the ends of their logs."""
    info = await admin.runtime_info(master)
    begin, end = int(info["commitLogMinOffset"]), int(info["commitLogMaxOffset"])
    found: dict[str, int] = {}
    for slave in slaves:
        try:
            found[slave] = int((await admin.runtime_info(slave))["commitLogMaxOffset"])
        except (NetworkError, RequestRejectedError, KeyError):
            continue
    return LogEnds(max(0, begin), end, found)


async def read_tables(admin: Admin, master: str) -> dict[str, bytes]:
    """Return the contents of the master's tables by the names of their files.

    A table that the master does not have, such as the delay offsets of a new broker, is missing.
    """
    found = {}
    for name, code in TABLES.items():
        try:
            response = await admin.call(master, code)
        except RequestRejectedError:
            if code != RequestCode.GET_ALL_DELAY_OFFSET:
                raise
            continue
        if response.body:
            found[name] = bytes(response.body)
    return found
