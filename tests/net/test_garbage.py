"""Full garbage collections wait for a moment without requests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from attrs import define, field

from rmqpy.net.garbage import FULL_LATEST_MS, FULL_PERIOD_MS, QUIET_MS, QuietCollection
from rmqpy.testing.manual_scheduler import ManualScheduler


@define
class Site:
    """A server in virtual time, and the times of its full collections."""

    clock: ManualScheduler = field(factory=ManualScheduler)
    turns: int = 0
    collected: list[int] = field(factory=list)

    def collection(self) -> QuietCollection:
        return QuietCollection(self.clock, lambda: self.turns, self._collect)

    def _collect(self) -> int:
        self.collected.append(self.clock.monotonic_ms())
        return 0

    def serve(self, duration_ms: int) -> None:
        """Handle a request between any two checks, for that time."""
        for _ in range(0, duration_ms, QUIET_MS):
            self.turns += 1
            self.clock.advance(QUIET_MS)


@pytest.fixture
def site() -> Iterator[Site]:
    """A site; the thresholds of this process are those of before afterwards."""
    thresholds = gc.get_threshold()
    yield Site()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_young_objects_only_are_collected_while_requests_arrive(site: Site) -> None:
    collection = site.collection()
    collection.start()
    assert gc.isenabled() and gc.get_freeze_count()
    before = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(200_000)]  # without the threshold: full collections
    assert gc.get_stats()[2]["collections"] == before and kept
    collection.stop()
    assert site.clock.waiting == 0


def test_a_full_collection_waits_for_a_quiet_moment(site: Site) -> None:
    site.collection().start()
    site.clock.advance(FULL_PERIOD_MS - QUIET_MS)
    site.serve(10_000)
    assert site.collected == []
    site.clock.advance(2 * QUIET_MS)
    assert len(site.collected) == 1
    site.clock.advance(FULL_PERIOD_MS + QUIET_MS)
    assert len(site.collected) == 2


def test_a_server_that_is_never_quiet_collects_in_the_end(site: Site) -> None:
    site.collection().start()
    site.clock.advance(FULL_PERIOD_MS)
    while site.clock.monotonic_ms() < FULL_LATEST_MS:
        assert site.collected == []
        site.serve(60_000)
    site.serve(10 * QUIET_MS)
    assert len(site.collected) == 1
