"""The standard error of a session's JVM: silent while it starts, and its reason if it does not.

A starting JVM of Spark writes half a dozen lines that say nothing (incubator modules, log4j's
profile, levels of logging), or, if it fails, the traces of Java. They are held back, and whether
the start succeeds decides. What the JVM and its Python workers write afterwards is passed on, until
the session ends.
"""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from attrs import define, field

__all__ = ["JavaOutput", "held_output"]

STDERR: Final = 2
CHUNK_BYTES: Final = 64 << 10
INITIALIZING: Final = "Error initializing SparkContext."
"""A logged error that is followed by its cause, an exception."""
LOGGED: Final = re.compile(r"^\S+ \S+ ERROR (\w+): (.+)$")
THROWN: Final = re.compile(
    r'^(?:Exception in thread "[^"]*" )?(?:(?:\w+\.)+\w+(?:Exception|Error): )+(.+)$|^Error: (.+)$'
)


@define(slots=True)
class JavaOutput:
    """What is read from ``reader``, and held until :meth:`release` passes it on to ``target``."""

    reader: int
    target: int
    _held: bytearray | None = field(factory=bytearray, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def start(self) -> None:
        threading.Thread(target=self._run, name="rmqpy-java-output", daemon=True).start()

    def reason(self) -> str | None:
        """Return what the held lines say about a start that failed: the last error that was logged,
        or the first exception; None if they say nothing.
        """
        self.drain()
        lines = bytes(self._held or b"").decode(errors="replace").splitlines()
        logged = [found[2] for line in lines if (found := LOGGED.match(line))]
        logged = [text for text in logged if text != INITIALIZING]
        thrown = [found[1] or found[2] for line in lines if (found := THROWN.match(line))]
        return logged[-1] if logged else thrown[0] if thrown else None

    def release(self) -> None:
        """Drop what was held, except logged errors, and pass on what follows."""
        self.drain()
        with self._lock:
            lines = bytes(self._held or b"").splitlines(keepends=True)
            self._held = None
            self._pass_on(b"".join(line for line in lines if _is_logged_error(line)))

    def hold(self) -> None:
        """Drop what follows: workers of a session that ends report lost connections."""
        self.drain()
        with self._lock:
            self._held = bytearray()

    def drain(self) -> None:
        """Take what has been written so far."""
        with self._lock:
            while select.select([self.reader], [], [], 0)[0]:
                if not self._take():
                    return

    def _run(self) -> None:
        while select.select([self.reader], [], [])[0]:
            with self._lock:
                # The other thread may have taken it meanwhile.
                is_ready = select.select([self.reader], [], [], 0)[0]
                if is_ready and not self._take():
                    os.close(self.target)
                    self.target = -1
                    return

    def _take(self) -> bool:
        """Take one part, with the lock. Return False at the end."""
        data = os.read(self.reader, CHUNK_BYTES)
        if not data:
            return False
        if self._held is None:
            self._pass_on(data)
        else:
            self._held += data
        return True

    def _pass_on(self, data: bytes) -> None:
        with suppress(OSError):  # The terminal is gone.
            while data:
                data = data[os.write(self.target, data) :]


def _is_logged_error(line: bytes) -> bool:
    return LOGGED.match(line.decode(errors="replace")) is not None


@contextmanager
def held_output() -> Iterator[JavaOutput]:
    """Hold the standard error of this process, and for ever that of processes started meanwhile."""
    reader, writer = os.pipe()
    target = os.dup(STDERR)
    output = JavaOutput(reader, target)
    output.start()
    sys.stderr.flush()
    os.dup2(writer, STDERR)
    os.close(writer)
    try:
        yield output
    finally:
        sys.stderr.flush()
        os.dup2(target, STDERR)
