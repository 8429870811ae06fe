"""A Java producer that goes on sending while a group changes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define, field

from harness.interop import PATIENCE_SECONDS, events_of
from rmqpy.testing.java import Event, Probe

MORE = 200


@define(eq=False)
class JavaLoad:
    """Sends each message until it is acknowledged, to the queue that the client chooses by its
    route, which it reads every second. (A producer that names the queue itself goes on sending to a
    Java broker without write permission.) The file ``over`` ends it.
    """

    probe: Probe
    topic: str
    over: Path
    _events: list[Event] = field(factory=list)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def sent(self) -> list[Event]:
        """The acknowledgements."""
        return events_of(list(self._events), "sent")

    def wait_for_more(self, count: int = MORE) -> None:
        """Wait until ``count`` messages more are acknowledged."""
        goal, deadline_s = len(self.sent) + count, time.monotonic() + 2 * PATIENCE_SECONDS
        while len(self.sent) < goal:
            assert self._thread is not None and self._thread.is_alive(), self._events[-5:]
            assert time.monotonic() < deadline_s, self._events[-5:]
            time.sleep(0.1)

    def stop(self) -> list[Event]:
        """End the load, and return the acknowledgements, of which no message lacks one."""
        self._end()
        assert {event["index"] for event in self.sent} == set(range(len(self.sent)))
        return self.sent

    def _end(self) -> None:
        self.over.touch()
        if self._thread is not None:
            self._thread.join(2 * PATIENCE_SECONDS)
            assert not self._thread.is_alive()

    def _send(self) -> None:
        self.probe.run(
            "send",
            timeout_s=600,
            events=self._events,
            topic=self.topic,
            count=1_000_000,
            sizes="40,900,5000,3",
            paceMs=2,
            retryMs=200_000,
            auto="true",
            until=self.over,
        )
