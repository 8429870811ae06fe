"""DLedger groups: their members, and what each says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from rmqpy.admin.elections import integer_in, objects_in
from rmqpy.console.facts import BrokerFacts, Moment

__all__ = ["MemberRow", "ReplicationGroup", "groups_of"]


@define(slots=True, frozen=True, kw_only=True)
class MemberRow:
    """A member as it describes itself; numbers are None where it does not answer."""

    name: str
    address: str
    role: str
    term: int | None = None
    begin: int | None = None
    end: int | None = None
    committed: int | None = None
    lag: int | None = None
    fault: str = ""


@define(slots=True, frozen=True, kw_only=True)
class ReplicationGroup:
    """The brokers of one name that are a DLedger group."""

    name: str
    leader: str
    members: Sequence[MemberRow]
    divided_offset: str


def groups_of(moment: Moment) -> list[ReplicationGroup]:
    """Return the DLedger groups by name."""
    names = sorted({each.name for each in moment.brokers if each.is_dledger})
    return [_group(name, moment.of_name(name)) for name in names]


def _group(name: str, brokers: Sequence[BrokerFacts]) -> ReplicationGroup:
    lags: dict[str, int] = {}
    leader = divide = ""
    for broker in brokers:
        status = broker.status or {}
        divide = divide or broker.info.get("dividedCommitlogOffset", "")
        if status.get("role") == "LEADER":
            leader = str(status.get("self", ""))
            for peer in objects_in(status.get("peers")):
                lag = peer.get("lag")
                if isinstance(lag, int):
                    lags[str(peer.get("id", ""))] = lag
        elif not status and broker.is_master and broker.is_registered and not broker.fault:
            leader = leader or broker.settings.get("dLegerSelfId", "")  # a member of Java
    rows = [_member(broker, lags) for broker in brokers]
    return ReplicationGroup(name=name, leader=leader, members=rows, divided_offset=divide)


def _member(broker: BrokerFacts, lags: Mapping[str, int]) -> MemberRow:
    status = broker.status
    if broker.fault or status is None:
        name = broker.settings.get("dLegerSelfId", str(broker.broker_id))
        role = "does not answer" if broker.fault else "leader" if broker.is_master else "follower"
        return MemberRow(name=name, address=broker.address, role=role, fault=broker.fault)
    name = str(status.get("self", ""))
    return MemberRow(
        name=name,
        address=broker.address,
        role=str(status.get("role", "")).lower(),
        term=integer_in(status, "term"),
        begin=integer_in(status, "begin"),
        end=integer_in(status, "end"),
        committed=integer_in(status, "committed"),
        lag=lags.get(name),
        fault=str(status.get("fault") or ""),
    )
