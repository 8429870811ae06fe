"""The end of a change of the log: broker.conf, and the record that nothing is left to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import define

from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.switch.local import RETRY_MS
from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.replication.switch_protocol import SwitchRecord
from rmqpy.model.clock import Scheduler

SAVE_AFTER_MS: Final = 250
"""The time from the exchange until the settings are written, which the record makes up for. The
disk syncs that what is held waits for come first.
"""

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, eq=False, repr=False)
class Completion:
    """What is written a moment after the log was exchanged. Each write is tried again until it
    succeeds or the broker stops, and its disk syncs happen in a thread, because clients are served
    again.
    """

    broker: Broker
    journal: SwitchJournal
    scheduler: Scheduler
    is_stopped: Callable[[], bool]

    def begin(self, record: SwitchRecord) -> None:
        """Write the settings to broker.conf, then ``record``. Without a broker.conf, each start has
        the settings from the earlier record.
        """
        if self.broker.settings.file is not None:
            self.scheduler.call_later(SAVE_AFTER_MS, partial(self._save, record))

    def _save(self, record: SwitchRecord) -> None:
        file = self.broker.settings.file
        if self.is_stopped() or file is None:
            return
        file.save(self.broker.identity, lambda error: self._saved(record, error))

    def _saved(self, record: SwitchRecord, error: BaseException | None) -> None:
        if error is not None:
            self._ended(record, error)
            return
        self.scheduler.run_blocking(
            lambda: self.journal.write(record), lambda _, failure: self._ended(record, failure)
        )

    def _ended(self, record: SwitchRecord, error: BaseException | None) -> None:
        if error is None or self.is_stopped():
            return
        logger.error("the change of the log is not complete on the disk, trying again: %s", error)
        self.scheduler.call_later(RETRY_MS, partial(self._save, record))
