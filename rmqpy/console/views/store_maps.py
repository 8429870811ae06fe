"""The store maps of running brokers: what they report of their logs, as rows of a map.

A running broker says where its log begins and ends, and where the divide is. It does not compare
its blocks with those of others. The members of a migration are mapped from their stores, with
damage, block equality, and the age of the proof, which is part of what ``rmqpy upgrade check``
finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import define

from rmqpy.audit.picture.layout import FileOnMap, LogPart, MapLayout, ReplicaMap, lay_out
from rmqpy.audit.picture.layout_json import layout_of_json
from rmqpy.console.facts import BrokerFacts, Moment, number_of
from rmqpy.console.views.messages import shown
from rmqpy.model.errors import RmqError
from rmqpy.model.text import format_bytes

__all__ = ["GroupMap", "map_of_check", "maps_of"]

FILE_BYTES: Final = 1 << 30
"""The size of log files unless the broker says otherwise."""
FILES_MAX: Final = 2_048


@define(slots=True, frozen=True, kw_only=True)
class GroupMap:
    """The map of the brokers of one name, and what is known of each in words."""

    name: str
    layout: MapLayout
    silent: Sequence[str]


def maps_of(moment: Moment) -> list[GroupMap]:
    """Return the maps of all brokers, by name."""
    return [_map(name, moment.of_name(name)) for name in sorted({b.name for b in moment.brokers})]


def map_of_check(name: str, checked: Mapping[str, Any]) -> GroupMap | None:
    """Return the map in the JSON form of ``rmqpy upgrade check``, or None if it has none."""
    try:
        return GroupMap(name=name, layout=layout_of_json(checked.get("map")), silent=())
    except RmqError:
        return None


def _map(name: str, brokers: Sequence[BrokerFacts]) -> GroupMap:
    replicas = [each for broker in brokers if (each := _replica(broker)) is not None]
    silent = [each.address for each in brokers if _replica(each) is None]
    return GroupMap(name=name, layout=lay_out(replicas), silent=silent)


def _replica(broker: BrokerFacts) -> ReplicaMap | None:
    """Return what a broker reports of its log, or None if that is too little.

    A member of a DLedger group, of rmqpy or of Java, reports the committed position as the end.
    """
    begin = number_of(broker.info, "commitLogMinOffset")
    end = broker.log_end
    if begin is None or end is None or not 0 <= begin <= end:
        return None
    divide = number_of(broker.info, "dividedCommitlogOffset")
    return ReplicaMap(
        name=shown(f"{broker.broker_id}: {broker.address}"),
        files=list(_files(broker, begin, end, divide)),
        divided_offset=divide if divide is not None and divide >= 0 else None,
        committed_offset=end if broker.is_dledger else None,
        flushed_offset=number_of(broker.info, "flushedOffset"),
        facts=list(_sentences(broker, begin, end, divide)),
    )


def _files(broker: BrokerFacts, begin: int, end: int, divide: int | None) -> Iterator[FileOnMap]:
    """Yield the files that a log of this extent has."""
    size = number_of(broker.settings, "mappedFileSizeCommitLog") or FILE_BYTES
    size = max(size, -(-(end - begin) // FILES_MAX), 1)
    member = shown(broker.settings.get("dLegerSelfId", ""))
    for start in range(begin // size * size, max(end, begin + 1), size):
        in_ledger = broker.is_dledger and (divide is None or start >= divide)
        folder = f"dledger-{member}/data" if in_ledger else "commitlog"
        part = LogPart.LEDGER if in_ledger else LogPart.CLASSIC
        first, last = max(start, begin), min(start + size, end)
        yield FileOnMap(f"{folder}/{start:020d}", part, first, max(first, last), start + size)


def _sentences(broker: BrokerFacts, begin: int, end: int, divide: int | None) -> Iterator[str]:
    yield f"{format_bytes(end - begin)} from {begin:,} to {end:,}"
    if divide is not None and broker.is_dledger:
        if begin < divide:
            yield f"{format_bytes(divide - begin)} before the divide"
        else:
            yield "the classic log has expired"
        yield f"{format_bytes(max(0, end - divide))} after it"
