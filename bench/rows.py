"""The measurements of ``compare.py``: loads, and rows that compare two of them.

A *sample* is one load offered to one kind of broker; a row divides the median of one sample by that
of another. Most rows compare rmqpy with Java under the same load.

======  =============================================
kind    broker
======  =============================================
java    the Java broker
rmqpy   rmqpy
pure    rmqpy without the C core (``RMQPY_PURE=1``)
floor   ``floor.c``, the lower bound of the cost
======  =============================================
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

KINDS = ("java", "rmqpy", "pure", "floor")

PER_CPU = "messages_per_server_cpu_s"
PER_SECOND = "messages_per_s"
PULL_TOPIC = "bench-pull"

IDLE = "idle"
START = "start"
FAILOVER = "failover"
FAILOVER_FAST = "failover-fast"
ACCESS = "access"
"""The profile with access control: each send is signed and checked."""
ACCOUNT = ("bench-account", "the-secret-of-the-bench")
GROUP = "dledger-3"
"""The profile of a DLedger group with three members on one core."""

SIGNED = ("--access-key", ACCOUNT[0], "--secret-key", ACCOUNT[1])

LOADS: Mapping[str, tuple[str, ...]] = {
    "send-128": ("--size", "128"),
    "send-128-binary": ("--size", "128", "--header", "rocketmq"),
    "send-1k": ("--size", "1024"),
    "send-64x1": ("--size", "128", "--connections", "64", "--window", "1"),
    "batch-16x128": ("--mode", "send-batch", "--size", "128", "--window", "8"),
    "pull-32x128": ("--mode", "pull", "--window", "4", "--topic", PULL_TOPIC),
    "rate-5000": ("--size", "128", "--connections", "16", "--rate", "5000"),
    "rate-5000-admin": ("--size", "128", "--connections", "16", "--rate", "5000"),
    "many-128": ("--size", "128"),
    "send-128-signed": ("--size", "128", *SIGNED),
    "send-1k-signed": ("--size", "1024", *SIGNED),
}

WITH_ADMIN = frozenset({"rate-5000-admin"})
"""Loads during which admin commands run as well."""

COUNTED: Mapping[str, int] = {"many-128": 10_000_000}
"""Loads with a fixed number of messages, which run once after the rounds."""


@frozen
class Sample:
    """One load offered to one kind of broker."""

    kind: str
    load: str


@frozen
class Row:
    """One line of the table; ``sample`` is divided by ``base``."""

    name: str
    profile: str
    sample: Sample
    base: Sample
    figure: str = PER_CPU
    lower_is_better: bool = False

    @property
    def samples(self) -> tuple[Sample, Sample]:
        return self.base, self.sample


def _against_java(
    name: str,
    profile: str,
    load: str,
    figure: str = PER_CPU,
    *,
    kind: str = "rmqpy",
    lower: bool = False,
) -> Row:
    return Row(name, profile, Sample(kind, load), Sample("java", load), figure, lower)


ROWS = (
    _against_java("send-128", "async", "send-128"),
    _against_java("send-128-binary", "async", "send-128-binary"),
    _against_java("send-1k", "async", "send-1k"),
    _against_java("send-64x1", "async", "send-64x1"),
    _against_java("batch-16x128", "async", "batch-16x128"),
    _against_java("pull-32x128", "async", "pull-32x128"),
    _against_java("send-128-pure", "async", "send-128", kind="pure"),
    _against_java("floor-send-128", "async", "send-128", kind="floor"),
    _against_java("floor-send-1k", "async", "send-1k", kind="floor"),
    _against_java("floor-send-64x1", "async", "send-64x1", kind="floor"),
    _against_java("p99-ms-4x64", "async", "send-128", "p99_ms", lower=True),
    _against_java("p50-ms-5000-a-s", "async", "rate-5000", "p50_ms", lower=True),
    Row(
        "p99-ms-under-admin",
        "async",
        Sample("rmqpy", "rate-5000-admin"),
        Sample("rmqpy", "rate-5000"),
        "p99_ms",
        lower_is_better=True,
    ),
    _against_java("memory-idle-kb", "async", IDLE, "server_anon_kb", lower=True),
    _against_java("memory-10m-kb", "async", "many-128", "server_anon_kb", lower=True),
    _against_java("send-128-access", ACCESS, "send-128-signed"),
    _against_java("send-1k-access", ACCESS, "send-1k-signed"),
    _against_java("sync-flush-128", "sync-flush", "send-128", PER_SECOND),
    _against_java("dledger-128", "dledger", "send-128"),
    _against_java("dledger-1k", "dledger", "send-1k"),
    _against_java("dledger-3x128", GROUP, "send-128"),
    _against_java("dledger-3x1k", GROUP, "send-1k"),
    _against_java("failover-s", FAILOVER, FAILOVER, "failover_s", lower=True),
    Row(
        "failover-fast-s",
        FAILOVER,
        Sample("rmqpy", FAILOVER_FAST),
        Sample("java", FAILOVER),
        "failover_s",
        lower_is_better=True,
    ),
    _against_java("start-s", START, START, "start_s", lower=True),
)


def samples_of(rows: tuple[Row, ...], profile: str, kinds: tuple[str, ...]) -> list[Sample]:
    """Return the samples to measure with brokers of ``profile``, without duplicates."""
    found = [
        sample
        for row in rows
        if row.profile == profile
        for sample in row.samples
        if sample.kind in kinds
    ]
    return list(dict.fromkeys(found))
