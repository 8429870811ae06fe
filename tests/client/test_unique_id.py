"""Unique ids, compared with one that Java 4.9.7 generated."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rmqpy.client.core.unique_id import UniqueIds, month_start_ms

JAVA_ID = "FD00000000000000000000000000000246A130946E0968D542430000"
JAVA_ID_MS = 1_795_250_006_595


class SettableClock:
    """A clock whose time is an attribute."""

    def __init__(self, now_ms: int) -> None:
        self.at_ms = now_ms

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone to UTC: an id counts from the start of the local month."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC0")
        time.tzset()
        yield
    time.tzset()


def unique_ids(clock: SettableClock) -> UniqueIds:
    address = bytes.fromhex("fd000000000000000000000000000002")
    return UniqueIds(address, 0x546A1, bytes.fromhex("30946e09"), clock)


def test_an_id_is_the_same_as_javas() -> None:
    source = unique_ids(SettableClock(JAVA_ID_MS))
    assert source.next() == JAVA_ID
    assert source.next() == JAVA_ID[:-4] + "0001"


def test_an_id_with_ipv4_has_32_digits() -> None:
    source = UniqueIds(bytes([10, 0, 0, 7]), 1, b"\x00\x00\x00\x02", SettableClock(JAVA_ID_MS))
    assert source.next() == "0A00000700010000000268D542430000"


def test_the_counter_wraps() -> None:
    source = unique_ids(SettableClock(JAVA_ID_MS))
    generated = [source.next() for _ in range(65_537)]
    assert generated[65_535].endswith("FFFF")
    assert generated[65_536] == generated[0]
    assert len(set(generated)) == 65_536


def test_ids_can_be_taken_together() -> None:
    alone, together = (unique_ids(SettableClock(JAVA_ID_MS)) for _ in range(2))
    for count in (1, 65_533, 4, 2):  # The counter wraps within the four.
        start, ends = together.take(count)
        assert [start + end for end in ends.split(",")] == [alone.next() for _ in range(count)]
    assert together.next() == alone.next()


def test_the_time_starts_again_each_month() -> None:
    clock = SettableClock(1_796_083_199_999)  # the last ms of November 2026
    source = unique_ids(clock)
    assert source.next()[44:52] == f"{30 * 86_400_000 - 1:08X}"
    clock.at_ms += 1
    assert source.next()[44:52] == "00000000"
    clock.at_ms -= 5  # before the start of the month
    assert source.next()[44:52] == "00000000"


def test_the_month_of_december_ends_with_the_year() -> None:
    assert month_start_ms(1_797_000_000_000) == (1_796_083_200_000, 1_798_761_600_000)
