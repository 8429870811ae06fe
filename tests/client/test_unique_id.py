"""Unique ids, against one that Java 4.9.7 made."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rmqpy.client.core.unique_id import UniqueIds, month_start_ms

JAVA_ID = "FD00000000000000000000000000000246A130946E0968D542430000"
JAVA_MADE_AT_MS = 1_795_250_006_595


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.at_ms = now_ms

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC0")
        time.tzset()
        yield
    time.tzset()


def ids(clock: Clock) -> UniqueIds:
    address = bytes.fromhex("fd000000000000000000000000000002")
    return UniqueIds(address, 0x546A1, bytes.fromhex("30946e09"), clock)


def test_same_as_java() -> None:
    source = ids(Clock(JAVA_MADE_AT_MS))
    assert source.next() == JAVA_ID
    assert source.next() == JAVA_ID[:-4] + "0001"


def test_ipv4_has_32_digits() -> None:
    source = UniqueIds(bytes([10, 0, 0, 7]), 1, b"\x00\x00\x00\x02", Clock(JAVA_MADE_AT_MS))
    assert source.next() == "0A00000700010000000268D542430000"


def test_counter_wraps() -> None:
    source = ids(Clock(JAVA_MADE_AT_MS))
    made = [source.next() for _ in range(65_537)]
    assert made[65_535].endswith("FFFF")
    assert made[65_536] == made[0]
    assert len(set(made)) == 65_536


def test_month_begins_anew() -> None:
    clock = Clock(1_796_083_199_999)  # the last ms of November 2026
    source = ids(clock)
    assert source.next()[44:52] == f"{30 * 86_400_000 - 1:08X}"
    clock.at_ms += 1
    assert source.next()[44:52] == "00000000"
    clock.at_ms -= 5  # set back over the start of the month
    assert source.next()[44:52] == "00000000"


def test_month_around_december() -> None:
    assert month_start_ms(1_797_000_000_000) == (1_796_083_200_000, 1_798_761_600_000)
