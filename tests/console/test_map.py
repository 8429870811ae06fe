"""The store maps of running brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from harness.console import CountedBrokers, SetClock, browsing, collecting

from rmqpy.console.facts import BrokerFacts, Moment
from rmqpy.console.views.store_maps import FILES_MAX, maps_of

SETTINGS = {"mappedFileSizeCommitLog": "65536", "enableDLegerCommitLog": "true"}


def broker(settings: Mapping[str, str] = SETTINGS, **info: str) -> BrokerFacts:
    return BrokerFacts(
        cluster="c", name="a", broker_id=0, address="x:1", info=info, settings=settings
    )


def test_a_running_member_has_both_sides_of_the_divide() -> None:
    member = broker(
        commitLogMinOffset="0", commitLogMaxOffset="500000", dividedCommitlogOffset="262144"
    )
    (found,) = maps_of(Moment(time_ms=0, brokers=[member]))
    (row,) = found.layout.rows
    kinds = [shape.kind for shape in row.files]
    assert (kinds.count("classic"), kinds.count("ledger"), kinds.count("rest")) == (4, 4, 1)
    assert row.facts[1:] == ["256.0 KiB before the divide", "232.3 KiB after it"]
    assert [mark.kind for mark in row.marks] == ["divide", "committed"]


def test_a_running_broker_reports_what_is_flushed() -> None:
    info = {"commitLogMinOffset": "65536", "commitLogMaxOffset": "90000", "flushedOffset": "80000"}
    (found,) = maps_of(Moment(time_ms=0, brokers=[broker({}, **info)]))
    (row,) = found.layout.rows
    assert [mark.title for mark in row.marks] == ["flushed: on the disk up to here, 80,000"]
    assert row.expired == "expired, or never here: offsets before 65,536"


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"commitLogMinOffset": "-1", "commitLogMaxOffset": "5"},
        {"commitLogMinOffset": "9", "commitLogMaxOffset": "5"},
        {"commitLogMinOffset": "x", "commitLogMaxOffset": "5"},
    ],
)
def test_a_broker_that_reports_no_log_is_named(info: dict[str, str]) -> None:
    (found,) = maps_of(Moment(time_ms=0, brokers=[broker(SETTINGS, **info)]))
    assert found.silent == ["x:1"] and not found.layout.rows


@pytest.mark.parametrize("size", ["1", "0", "-5", "many"])
def test_a_wrong_file_size_costs_no_time(size: str) -> None:
    settings = {"mappedFileSizeCommitLog": size}
    odd = broker(settings, commitLogMinOffset="0", commitLogMaxOffset=str(1 << 60))
    (found,) = maps_of(Moment(time_ms=0, brokers=[odd]))
    assert 0 < len(found.layout.rows[0].files) < FILES_MAX


def test_the_page_escapes_names() -> None:
    async def run() -> None:
        hostile = "<script>alert(1)</script>"
        info = {"commitLogMinOffset": "0", "commitLogMaxOffset": "70000"}
        brokers = CountedBrokers({(hostile, 0): hostile}, {hostile: info})
        collector = collecting.Collector(brokers, SetClock())
        await collector.poll()
        async with browsing(collector) as client:
            page = await (await client.get("/map")).text()
            assert "<svg" in page and "<script>alert" not in page
            style = await client.get("/map.css")
            assert style.content_type == "text/css"

    asyncio.run(run())
