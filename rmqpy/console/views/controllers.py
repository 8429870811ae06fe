"""Controller groups of RocketMQ 5.x: brokers whose master the controllers elect.

Everything here is reported by Java: the controllers say who is master, since which epoch, and who
is in the SyncStateSet, from which alone they elect; a broker says at which offset each epoch began,
and the master how far the others are. The confirm offset, up to which consumers read, is the
smallest of those in the SyncStateSet (AutoSwitchHAService.computeConfirmOffset of 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

from rmqpy.admin.elections import integer_in, objects_in
from rmqpy.console.facts import BrokerFacts, Moment

__all__ = ["ControllerAnswers", "ControllerGroup", "ControllerRow", "ReplicaRow", "controlled"]

EPOCHS_SHOWN: Final = 20


@define(slots=True, frozen=True, kw_only=True)
class ControllerAnswers:
    """What one set of controllers, and the brokers below them, have answered.

    ``metadata`` is the header of each controller that answers, by its address; ``replicas`` the
    entry of each broker name in the answer of the leader, ``epochs`` and ``ha_status`` the answers
    of brokers by their addresses.
    """

    metadata: Mapping[str, Mapping[str, str]] = field(factory=dict)
    replicas: Mapping[str, Any] = field(factory=dict)
    epochs: Mapping[str, Any] = field(factory=dict)
    ha_status: Mapping[str, Any] = field(factory=dict)

    @property
    def leader(self) -> str:
        """The address of the controller that leads, "" if none is known."""
        named = (each.get("controllerLeaderAddress", "") for each in self.metadata.values())
        return next((each for each in named if each), "")


@define(slots=True, frozen=True, kw_only=True)
class ControllerRow:
    """One controller: leads, follows, or does not answer."""

    address: str
    role: str


@define(slots=True, frozen=True, kw_only=True)
class ReplicaRow:
    """One broker; numbers are None where nobody reports them. ``epochs`` are the latest ones, each
    with the offset at which it begins.
    """

    broker_id: int | None
    address: str
    role: str
    in_sync: bool
    alive: bool
    end: int | None = None
    lag: int | None = None
    epochs: Sequence[tuple[int, int]] = ()
    fault: str = ""


@define(slots=True, frozen=True, kw_only=True)
class ControllerGroup:
    """The brokers of one name below controllers; ``problems`` are sentences."""

    name: str
    controllers: Sequence[ControllerRow]
    master: str
    master_epoch: int | None
    sync_epoch: int | None
    confirm: int | None
    replicas: Sequence[ReplicaRow]
    problems: Sequence[str]


def controlled(
    moment: Moment, answers: Mapping[str, ControllerAnswers], known: Mapping[str, str]
) -> list[ControllerGroup]:
    """Return the groups below controllers by name; ``known`` has the controllers of each name, and
    ``answers`` what these controllers have said.
    """
    return [
        _group(name, known[name], answers[known[name]], moment.of_name(name))
        for name in sorted(known)
    ]


def _group(
    name: str, addresses: str, said: ControllerAnswers, brokers: Sequence[BrokerFacts]
) -> ControllerGroup:
    entry = said.replicas.get(name)
    info: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    address = info.get("masterAddress")
    master = address if isinstance(address, str) else ""
    faults = {each.address: each.fault for each in brokers}
    found = said.ha_status.get(master)
    status: Mapping[str, Any] = found if isinstance(found, dict) else {}
    rows = [
        _replica(each, is_in, master, said, faults)
        for key, is_in in (("inSyncReplicas", True), ("notInSyncReplicas", False))
        for each in objects_in(info.get(key))
    ]
    return ControllerGroup(
        name=name,
        controllers=[_controller(each, said) for each in addresses.split(";") if each],
        master=master,
        master_epoch=integer_in(info, "masterEpoch"),
        sync_epoch=integer_in(info, "syncStateSetEpoch"),
        confirm=_confirm(status, sum(row.in_sync for row in rows)),
        replicas=sorted(rows, key=lambda row: (row.broker_id is None, row.broker_id)),
        problems=list(_problems(said, info, master, rows)),
    )


def _controller(address: str, said: ControllerAnswers) -> ControllerRow:
    found = said.metadata.get(address)
    if found is None:
        return ControllerRow(address=address, role="does not answer")
    return ControllerRow(
        address=address, role="leads" if found.get("isLeader") == "true" else "follows"
    )


def _confirm(status: Mapping[str, Any], in_sync: int) -> int | None:
    """Return the confirm offset, or None while a replica of the SyncStateSet is not connected: the
    master then keeps an offset that it does not report.
    """
    end = integer_in(status, "masterCommitLogMaxOffset")
    acknowledged = [
        integer_in(each, "slaveAckOffset")
        for each in objects_in(status.get("haConnectionInfo"))
        if each.get("inSync") is True
    ]
    known = [each for each in (end, *acknowledged) if each is not None]
    return min(known) if end is not None and len(known) == in_sync else None


def _replica(
    each: Mapping[str, Any],
    in_sync: bool,
    master: str,
    said: ControllerAnswers,
    faults: Mapping[str, str],
) -> ReplicaRow:
    address = str(each.get("brokerAddress") or "")
    cache = said.epochs.get(address)
    epochs = cache if isinstance(cache, dict) else {}
    end, top = integer_in(epochs, "maxOffset"), _log_end(said, master)
    return ReplicaRow(
        broker_id=integer_in(each, "brokerId"),
        address=address,
        role="master" if address and address == master else "slave",
        in_sync=in_sync,
        alive=each.get("alive") is True,
        end=end,
        lag=max(0, top - end) if top is not None and end is not None else None,
        epochs=list(_epochs(epochs))[-EPOCHS_SHOWN:],
        fault=faults.get(address, ""),
    )


def _log_end(said: ControllerAnswers, address: str) -> int | None:
    cache = said.epochs.get(address)
    return integer_in(cache, "maxOffset") if isinstance(cache, dict) else None


def _epochs(cache: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    for each in objects_in(cache.get("epochList")):
        number, start = integer_in(each, "epoch"), integer_in(each, "startOffset")
        if number is not None and start is not None:
            yield number, start


def _problems(
    said: ControllerAnswers, info: Mapping[str, Any], master: str, rows: Sequence[ReplicaRow]
) -> Iterator[str]:
    if not said.metadata:
        yield "No controller answers: who is master cannot change, and nothing below is known."
        return
    if not said.leader:
        yield "No controller leads: most of them are away, so that nobody can be elected master."
        return
    if not info:
        yield "The controllers do not know this group: no broker of it has registered with them."
        return
    if not master:
        waiting = [row.address for row in rows if row.in_sync and not row.alive]
        yield "No master is elected" + (
            f": of the SyncStateSet, {', '.join(waiting)} does not answer the controllers."
            if waiting
            else ": nobody of the SyncStateSet has asked for it."
        )
    out = [row.address for row in rows if not row.in_sync]
    if out:
        yield (
            f"{', '.join(out)} is not in the SyncStateSet, and is not elected: it lacks"
            " acknowledged messages."
        )
