"""The store maps of running brokers: what they report of their logs, as rows of a map.

A running broker says where its log begins and ends, and where the divide is. Whether replicas have
the same blocks is known as far as :class:`rmqpy.console.agreement.LogAgreement` has compared them.
The members of a migration are mapped from their stores, with damage, the equality of all blocks,
and the age of the proof, which is part of what ``rmqpy upgrade check`` finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import define, evolve

from rmqpy.audit.picture.layout import FileOnMap, LogPart, MapLayout, ReplicaMap, lay_out
from rmqpy.audit.picture.layout_json import layout_of_json
from rmqpy.console.agreement import DifferentBlock, LogAgreement
from rmqpy.console.facts import BrokerFacts, Moment, number_of
from rmqpy.console.views.messages import shown
from rmqpy.model.errors import RmqError
from rmqpy.model.text import format_bytes, format_duration

__all__ = ["GroupMap", "map_of_check", "maps_of"]

FILE_BYTES: Final = 1 << 30
"""The size of log files unless the broker says otherwise."""
FILES_MAX: Final = 2_048


@define(slots=True, frozen=True, kw_only=True)
class GroupMap:
    """The map of the brokers of one name. ``silent`` are the addresses of those that report no log,
    and ``java`` those of replicas of Java, whose logs are not compared. ``is_live`` is False for
    stores that were read.
    """

    name: str
    layout: MapLayout
    silent: Sequence[str] = ()
    java: Sequence[str] = ()
    is_live: bool = False

    @property
    def is_different(self) -> bool:
        return any(each.kind == "different" for each in self.layout.agreement)


def maps_of(moment: Moment, agreements: Mapping[str, LogAgreement], now_ms: int) -> list[GroupMap]:
    """Return the maps of all brokers, by name, with the comparisons of their groups."""
    return [
        _map(name, moment.of_name(name), agreements.get(name, LogAgreement()), now_ms)
        for name in sorted({each.name for each in moment.brokers})
    ]


def map_of_check(name: str, checked: Mapping[str, Any]) -> GroupMap | None:
    """Return the map in the JSON form of ``rmqpy upgrade check``, or None if it has none."""
    try:
        return GroupMap(name=name, layout=layout_of_json(checked.get("map")))
    except RmqError:
        return None


def _map(
    name: str, brokers: Sequence[BrokerFacts], agreement: LogAgreement, now_ms: int
) -> GroupMap:
    differences = agreement.differences()
    replicas = [
        _replica(each, extent, agreement, differences)
        for each in brokers
        if (extent := each.log_extent) is not None
    ]
    java = [each.address for each in brokers if each.is_rmqpy is False and each.log_extent]
    comparable = len(replicas) - len(java)
    verdict = _verdict(agreement, differences, now_ms) if comparable > 1 else ""
    return GroupMap(
        name=name,
        layout=evolve(lay_out(replicas), verdict=verdict),
        silent=[each.address for each in brokers if each.log_extent is None],
        java=java if len(replicas) > 1 else (),
        is_live=True,
    )


def _verdict(agreement: LogAgreement, differences: Sequence[DifferentBlock], now_ms: int) -> str:
    """Return how far the logs are known to be equal, and since when."""
    compared = agreement.compared
    if agreement.fault and not compared:
        return f"The logs are not compared: {shown(agreement.fault)}."
    if not compared:
        is_apart = len(agreement.replicas) > 1 and agreement.begin >= agreement.end
        return f"The logs {'have no part in common' if is_apart else 'are being compared'}."
    count = sum(each.span.end - each.span.begin for each in compared)
    whole = agreement.end - agreement.begin
    age = format_duration((now_ms - min(each.time_ms for each in compared)) / 1000)
    what = "all" if count == whole else f"{format_bytes(count)} of"
    scope = f"compared {what} {format_bytes(whole)} that they have in common, the oldest {age} ago"
    reach = "" if count == whole else " as far as they were compared"
    if agreement.fault:
        scope += f"; not continued: {shown(agreement.fault)}"
    if not differences:
        return f"The logs of {len(agreement.replicas)} replicas are equal{reach}: {scope}."
    return (
        f"The logs differ in {_size_of(differences)}, first at offset {differences[0].offset:,}:"
        f" {scope}. rmqpy store map DIR DIR reads their whole stores, and rmqpy upgrade check also"
        " those on other hosts."
    )


def _replica(
    broker: BrokerFacts,
    extent: tuple[int, int],
    agreement: LogAgreement,
    differences: Sequence[DifferentBlock],
) -> ReplicaMap:
    begin, end = extent
    divide = number_of(broker.info, "dividedCommitlogOffset")
    address = broker.address
    own = [each for each in differences if address in each.replicas]
    return ReplicaMap(
        name=shown(f"{broker.broker_id}: {broker.address}"),
        files=list(_files(broker, begin, end, divide)),
        divided_offset=divide if divide is not None and divide >= 0 else None,
        committed_offset=end if broker.is_dledger else None,
        flushed_offset=number_of(broker.info, "flushedOffset"),
        blocks=agreement.blocks_of(address) if address in agreement.replicas else None,
        facts=[*_sentences(broker, begin, end, divide), *_deviations(own)],
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


def _deviations(blocks: Sequence[DifferentBlock]) -> Iterator[str]:
    if blocks:
        yield f"{_size_of(blocks)} differ from most replicas, first at {blocks[0].offset:,}"


def _size_of(blocks: Sequence[DifferentBlock]) -> str:
    return format_bytes(sum(each.size for each in blocks))
