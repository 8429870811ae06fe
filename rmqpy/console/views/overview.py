"""The overview: clusters, brokers with their roles, versions, and rates, and the alarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define

from rmqpy.console.facts import BrokerFacts, Moment, number_of
from rmqpy.console.history import RateHistory, rates_of
from rmqpy.console.views.alarms import Alarm, alarms_of

__all__ = ["COUNTERS", "BrokerRow", "ClusterView", "Overview", "overview_of", "rate_columns"]

RATE_WINDOW_MS: Final = 60_000

COUNTERS: Final = {
    "in": "msgPutTotalTodayNow",
    "out": "msgGetTotalTodayNow",
}
"""Series of rates, each with the counter of the runtime information; Java has both."""


@define(slots=True, frozen=True, kw_only=True)
class BrokerRow:
    """One broker in the table. Rates are messages per second, None if unknown."""

    facts: BrokerFacts
    role: str
    program: str
    rate_in: float | None
    rate_out: float | None
    lag_bytes: int | None
    waiting_bytes: int
    disk: float | None
    divided_offset: int | None


@define(slots=True, frozen=True, kw_only=True)
class ClusterView:
    name: str
    brokers: Sequence[BrokerRow]
    rate_in: float
    rate_out: float
    waiting_bytes: int


@define(slots=True, frozen=True, kw_only=True)
class Overview:
    """``age_ms`` is the time since the last poll that found anything; -1 before the first."""

    clusters: Sequence[ClusterView]
    alarms: Sequence[Alarm]
    time_ms: int
    fault: str


def overview_of(moment: Moment, history: RateHistory, different: Sequence[str] = ()) -> Overview:
    """Return the overview of the latest moment; ``different`` are names whose logs differ."""
    clusters: dict[str, list[BrokerRow]] = {}
    for broker in sorted(moment.brokers, key=lambda each: (each.cluster, each.key)):
        clusters.setdefault(broker.cluster, []).append(_row(broker, moment, history))
    return Overview(
        clusters=[_cluster(name, rows) for name, rows in clusters.items()],
        alarms=alarms_of(moment, different),
        time_ms=moment.time_ms,
        fault=moment.fault,
    )


def rate_columns(moment: Moment, history: RateHistory, cluster: str) -> list[list[float | None]]:
    """Return the columns of a chart: times in seconds, then messages in and out per second."""
    brokers = [
        each
        for each in moment.brokers
        if each.cluster == cluster and each.is_master and each.is_registered
    ]
    series = []
    for name in COUNTERS:
        rows = [history.samples((each.key, name)) for each in brokers]
        series.append(dict(rates_of(rows)))
    times = sorted({time for each in series for time in each})
    return [
        [time / 1000 for time in times],
        *([each.get(time) for time in times] for each in series),
    ]


def _cluster(name: str, rows: list[BrokerRow]) -> ClusterView:
    masters = [row for row in rows if row.facts.is_master and row.facts.is_registered]
    return ClusterView(
        name=name,
        brokers=rows,
        rate_in=sum(row.rate_in or 0.0 for row in masters),
        rate_out=sum(row.rate_out or 0.0 for row in rows),
        waiting_bytes=sum(row.waiting_bytes for row in masters),
    )


def _row(broker: BrokerFacts, moment: Moment, history: RateHistory) -> BrokerRow:
    master = moment.master_of(broker.name)
    ends = (broker.log_end, master.log_end if master is not None else None)
    lag = None
    if not broker.is_master and ends[0] is not None and ends[1] is not None:
        lag = max(0, ends[1] - ends[0])
    return BrokerRow(
        facts=broker,
        role=_role(broker),
        program=_program(broker),
        rate_in=history.rate((broker.key, "in"), RATE_WINDOW_MS),
        rate_out=history.rate((broker.key, "out"), RATE_WINDOW_MS),
        lag_bytes=lag,
        waiting_bytes=number_of(broker.info, "dispatchBehindBytes") or 0,
        disk=_ratio(broker.info.get("commitLogDiskRatio", "")),
        divided_offset=number_of(broker.info, "dividedCommitlogOffset"),
    )


def _role(broker: BrokerFacts) -> str:
    if broker.status is not None:
        return str(broker.status.get("role", "")).lower()
    if broker.is_dledger:
        return "leader" if broker.is_master else "follower"
    configured = broker.settings.get("brokerRole", "")
    if broker.is_master:
        return f"master, {configured}" if configured else "master"
    return "slave"


def _program(broker: BrokerFacts) -> str:
    version = broker.info.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".")
    if broker.is_rmqpy:
        return f"rmqpy, speaks {version}" if version else "rmqpy"
    if broker.is_rmqpy is None:
        return version
    return f"Java {version}"


def _ratio(text: str) -> float | None:
    try:
        ratio = float(text)
    except ValueError:
        return None
    return ratio if 0.0 <= ratio <= 1.0 else None
