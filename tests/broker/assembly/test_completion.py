"""The end of a change of the log: what is written when, and what happens if a write fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqpy.broker.assembly.switch.completion import SAVE_AFTER_MS, Completion
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.switch.local import RETRY_MS
from rmqpy.broker.replication.switch_protocol import SwitchPlan, SwitchRecord, SwitchStage
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.manual_scheduler import ManualScheduler

PLAN = SwitchPlan(switch="1", group="g", coordinator="n0", peers="n0-127.0.0.1:1", brokers={})
RECORD = SwitchRecord(SwitchStage.COMPLETE, PLAN, "n0")
SYNC_MS = 40


class Writes:
    """A broker.conf and a journal, whose writes fail as often as ``faults`` says."""

    def __init__(self, conf: int = 0, journal: int = 0) -> None:
        self.faults = {"conf": conf, "journal": journal}
        self.done: list[str] = []
        self.stopped = False
        self.scheduler = ManualScheduler(blocking_ms=SYNC_MS)

    def completion(self) -> Completion:
        file = SimpleNamespace(save=lambda _identity, done: done(self._write("conf")))
        broker = SimpleNamespace(settings=SimpleNamespace(file=file), identity=None)
        journal = SimpleNamespace(write=self._record)
        given = cast(Any, broker), cast(Any, journal), self.scheduler
        return Completion(*given, lambda: self.stopped)

    def _record(self, record: SwitchRecord) -> None:
        assert record is RECORD
        error = self._write("journal")
        if error is not None:
            raise error

    def _write(self, name: str) -> OSError | None:
        if self.faults[name]:
            self.faults[name] -= 1
            return OSError(28, "No space left on device")
        self.done.append(name)
        return None


def test_the_record_follows_the_settings_and_its_sync_stops_no_request() -> None:
    writes = Writes()
    writes.completion().begin(RECORD)
    writes.scheduler.advance(SAVE_AFTER_MS - 1)
    assert writes.done == []
    writes.scheduler.advance(SYNC_MS)
    assert writes.done == ["conf"], "the sync of the record takes its time in a thread"
    writes.scheduler.advance(SYNC_MS)
    assert writes.done == ["conf", "journal"] and not writes.scheduler.waiting


@pytest.mark.parametrize(("conf", "journal"), [(2, 0), (0, 2), (1, 1)])
def test_a_full_disk_delays_the_end(conf: int, journal: int) -> None:
    writes = Writes(conf, journal)
    writes.completion().begin(RECORD)
    writes.scheduler.advance(SAVE_AFTER_MS + 3 * (RETRY_MS + SYNC_MS))
    assert writes.done[-2:] == ["conf", "journal"] and not writes.scheduler.waiting


@pytest.mark.parametrize("name", ["conf", "journal"])
def test_nothing_is_tried_again_after_the_broker_has_stopped(name: str) -> None:
    writes = Writes(**{name: 1_000})
    writes.completion().begin(RECORD)
    writes.scheduler.advance(SAVE_AFTER_MS + SYNC_MS)
    writes.stopped = True
    writes.scheduler.advance(RETRY_MS + SYNC_MS)
    assert not writes.scheduler.waiting and "journal" not in writes.done


def test_a_broker_without_a_file_of_settings_keeps_its_record() -> None:
    scheduler = ManualScheduler()
    broker = SimpleNamespace(settings=SimpleNamespace(file=None))
    journal = SwitchJournal(OsFileSystem(), "nowhere")
    Completion(cast(Any, broker), journal, scheduler, lambda: False).begin(RECORD)
    assert not scheduler.waiting
