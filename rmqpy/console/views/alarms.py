"""What an operator should know now, as sentences: found, and what to do about it.

==========  ======================================================================================
severity    meaning
==========  ======================================================================================
critical    messages cannot be sent or read, or may be lost
warning     this will become critical, or a part of the cluster does not work
==========  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final

from attrs import define

from rmqpy.console.facts import BrokerFacts, Moment, number_of
from rmqpy.model.text import format_bytes, format_duration

__all__ = ["Alarm", "AlarmSeverity", "alarms_of"]

DISK_WARNING: Final = 0.75
"""The ratio at which brokers begin to delete files early (diskMaxUsedSpaceRatio)."""
DISK_CRITICAL: Final = 0.90
"""The ratio at which brokers refuse messages."""
LAG_BYTES: Final = 64 << 20
DISPATCH_BYTES: Final = 16 << 20
HEAD_WAIT_MS: Final = 200


class AlarmSeverity(Enum):
    """How urgent an alarm is."""

    CRITICAL = "critical"
    WARNING = "warning"


@define(slots=True, frozen=True)
class Alarm:
    """One sentence about ``subject``, and the remedy."""

    severity: AlarmSeverity
    subject: str
    text: str
    remedy: str = ""


def alarms_of(moment: Moment, different: Sequence[str] = ()) -> list[Alarm]:
    """Return all alarms, critical ones first; ``different`` are names whose logs differ."""
    found = [*_name_servers(moment), *map(_differs, different)]
    for broker in moment.brokers:
        if not broker.is_registered:
            found.append(_left(broker, moment))
        elif broker.fault:
            found.append(_silent(broker))
        if not broker.fault:
            for check in _BROKER_CHECKS:
                found += check(broker)
    for name in sorted({each.name for each in moment.brokers}):
        found += _group(name, moment.of_name(name))
    return sorted(found, key=lambda alarm: list(AlarmSeverity).index(alarm.severity))


def _name_servers(moment: Moment) -> Iterator[Alarm]:
    if moment.fault:
        yield Alarm(
            AlarmSeverity.CRITICAL,
            "name server",
            f"No name server answers: {moment.fault}.",
            "Start it again; the list of brokers is that of its last answer.",
        )
    elif not any(each.is_registered for each in moment.brokers):
        yield Alarm(
            AlarmSeverity.WARNING,
            "name server",
            "No broker is registered.",
            "Start a broker with -n and the address of this name server.",
        )


def _differs(name: str) -> Alarm:
    return Alarm(
        AlarmSeverity.CRITICAL,
        name,
        "The logs of its replicas differ.",
        "The screen Store map shows where, and in which replica.",
    )


def _silent(broker: BrokerFacts) -> Alarm:
    severity = AlarmSeverity.CRITICAL if broker.is_master else AlarmSeverity.WARNING
    return Alarm(
        severity,
        f"{broker.name} ({broker.address})",
        f"The broker does not answer: {broker.fault}.",
        "Check its process and the network; the name server still lists it.",
    )


def _left(broker: BrokerFacts, moment: Moment) -> Alarm:
    is_last = moment.master_of(broker.name) is None
    ago = format_duration((moment.time_ms - broker.left_ms) / 1000)
    if broker.fault:
        text = f"The broker left the name server {ago} ago, and does not answer: {broker.fault}."
        remedy = "Start it again. If it was removed on purpose, it is no longer listed in an hour."
    else:
        text = f"The broker answers, but has not been registered for {ago}: clients do not find it."
        remedy = "It registers every 30 s; otherwise check its namesrvAddr and the network."
    return Alarm(
        AlarmSeverity.CRITICAL if is_last else AlarmSeverity.WARNING,
        f"{broker.name} ({broker.address})",
        text,
        remedy,
    )


def _disk(broker: BrokerFacts) -> Iterator[Alarm]:
    for key, what in (("commitLogDiskRatio", "commit log"), ("consumeQueueDiskRatio", "queues")):
        try:
            ratio = float(broker.info.get(key, "0"))
        except ValueError:
            continue
        if ratio >= DISK_WARNING:
            is_critical = ratio >= DISK_CRITICAL
            yield Alarm(
                AlarmSeverity.CRITICAL if is_critical else AlarmSeverity.WARNING,
                f"{broker.name} ({broker.address})",
                f"The disk of the {what} is {ratio:.0%} full"
                + ("; the broker refuses messages." if is_critical else "."),
                f"Free space, or run rmqpy admin deleteExpiredCommitLog -b {broker.address}.",
            )
            return


def _dispatch(broker: BrokerFacts) -> Iterator[Alarm]:
    waiting = number_of(broker.info, "dispatchBehindBytes") or 0
    if waiting > DISPATCH_BYTES:
        yield Alarm(
            AlarmSeverity.WARNING,
            f"{broker.name} ({broker.address})",
            f"{format_bytes(waiting)} of the log are not in the consume queues yet, so consumers"
            " do not see these messages.",
            "Wait after a restart; otherwise check the disk.",
        )


def _head_wait(broker: BrokerFacts) -> Iterator[Alarm]:
    waited = number_of(broker.info, "sendThreadPoolQueueHeadWaitTimeMills") or 0
    if waited > HEAD_WAIT_MS:
        yield Alarm(
            AlarmSeverity.WARNING,
            f"{broker.name} ({broker.address})",
            f"A message has waited {format_duration(waited / 1000)} to be stored.",
            "Check the disk, and for SYNC_FLUSH or SYNC_MASTER the slave.",
        )


def _member(broker: BrokerFacts) -> Iterator[Alarm]:
    if broker.status is not None and broker.status.get("fault"):
        yield Alarm(
            AlarmSeverity.WARNING,
            f"{broker.name} ({broker.address})",
            f"The member cannot take part fully: {broker.status['fault']}.",
            f"rmqpy why election {broker.address}",
        )


_BROKER_CHECKS: Final[Sequence[Callable[[BrokerFacts], Iterator[Alarm]]]] = (
    _disk,
    _dispatch,
    _head_wait,
    _member,
)


def _group(name: str, brokers: Sequence[BrokerFacts]) -> Iterator[Alarm]:
    answering = [each for each in brokers if not each.fault]
    master = next((each for each in brokers if each.is_master and each.is_registered), None)
    is_dledger = any(each.is_dledger for each in brokers)
    if master is None:
        role = "leader" if is_dledger else "master"
        addresses = " ".join(each.address for each in brokers)
        yield Alarm(
            AlarmSeverity.CRITICAL,
            name,
            f"{name} has no {role}: nothing can be sent to it.",
            _missing_master(brokers, addresses, is_dledger=is_dledger),
        )
    versions = sorted({each.info.get("brokerVersionDesc", "") for each in answering} - {""})
    if len(versions) > 1:
        yield Alarm(
            AlarmSeverity.WARNING,
            name,
            f"The brokers have different versions: {', '.join(versions)}.",
            "Finish the upgrade of all of them.",
        )
    if master is None or master.fault or master.log_end is None:
        return
    for broker in answering:
        end = broker.log_end
        if broker is not master and end is not None and master.log_end - end > LAG_BYTES:
            yield Alarm(
                AlarmSeverity.WARNING,
                f"{name} ({broker.address})",
                f"This replica is {format_bytes(master.log_end - end)} behind.",
                "Check the network between them, and the disk of the replica.",
            )


def _missing_master(brokers: Sequence[BrokerFacts], addresses: str, *, is_dledger: bool) -> str:
    if is_dledger:
        return f"rmqpy why election {addresses}"
    if any(each.controllers for each in brokers):
        return "The screen Replication shows whom the controllers may elect, and why they do not."
    return "Start the master again."
