"""Why a group cannot be observed, or not at this moment; and who acknowledges for its master.

An observer is one more connection of the master. That matters only to a SYNC_MASTER: without any
connection it answers SLAVE_NOT_AVAILABLE at once, with one it waits for an acknowledgement. The
observer gives none, so it is connected only while a slave of the group follows the master. The
master of a controller group of 5.x does not count a learner.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define

from rmqpy.rehearsal.rehearsed_group import LogEnds, RehearsedGroup

COPIES = 2
"""A rehearsal takes at most this many times the size of the log: the copy with its queues and
index, then the files that the members on the copy write.
"""

_CLASSIC = (
    (
        "enableDLegerCommitLog",
        "true",
        "a DLedger group",
        "the way to DLedger is rehearsed, and this group has gone it; rmqpy upgrade leave --into"
        " DIR tries the way back on a copy",
    ),
    (
        "enableAutoInSyncReplicas",
        "true",
        "enableAutoInSyncReplicas, with which the master counts every connection as a replica",
        "set it to false, or rehearse on a copy with rmqpy demo --store DIR",
    ),
    (
        "storeType",
        "defaultRocksDB",
        "storeType=defaultRocksDB, whose queues are not files",
        "rmqpy and DLedger read queues of files only",
    ),
)


def refusals(facts: RehearsedGroup) -> Iterator[str]:
    """Yield why this group cannot be observed, as found, expected, and remedy."""
    for key, value, found, remedy in _CLASSIC:
        if facts.settings.get(key) == value:
            yield f"{facts.name}: found {found}, expected a classic master; {remedy}"
    if facts.ends.end <= facts.ends.begin:
        yield (
            f"{facts.master}: found an empty log, expected one with messages; there is nothing to"
            " rehearse on before the first message"
        )
    role = facts.settings.get("brokerRole", "")
    if role not in ("ASYNC_MASTER", "SYNC_MASTER"):
        yield (
            f"{facts.master}: found brokerRole={role}, expected a master; check brokerId and"
            " brokerRole of this broker"
        )


def alone(name: str) -> str:
    """Return the refusal for a SYNC_MASTER that no slave follows."""
    return (
        f"{name}: found a SYNC_MASTER that no slave follows, expected a slave that has everything:"
        " with another connection such a master waits for an acknowledgement instead of answering"
        " SLAVE_NOT_AVAILABLE at once; start a slave, let it catch up, and repeat"
    )


def first_request(ends: LogEnds, own_end: int, *, overlap: int) -> int:
    """Return the offset that an observer with a log up to ``own_end`` requests. The master takes it
    for an acknowledgement.

    Every slave of the group has this offset already, and up to ``overlap`` bytes before the end are
    requested again, to compare them.
    """
    known = own_end if ends.acknowledged is None else min(own_end, ends.acknowledged)
    return max(ends.begin, known - overlap)


@define(slots=True)
class FollowerWatch:
    """Whether a slave follows a master that grows: at one look it has what the master had at the
    look before.
    """

    _before: LogEnds | None = None

    def follows(self, ends: LogEnds) -> bool:
        """Take the next look, and return whether some slave follows."""
        before, self._before = self._before or ends, ends
        return any(end >= before.end for end in ends.slaves.values())
