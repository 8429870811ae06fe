"""The verbs of ``rmqpy upgrade``, run as a person would run them beside a ``group.toml``.

A verb is a process of its own: it is the same code with the same checks, it can be killed and
repeated like one from a terminal, and it goes on when the console ends.

Invariants: one verb that changes something runs at a time; what it prints is kept up to
``LINES_MAX`` lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.console.collecting.shared import SharedAnswers
from rmqpy.model.clock import Clock
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text
from rmqpy.upgrade.plan.plan import Plan

__all__ = ["MigrationRunner", "VerbRun"]

PROGRAM: Final = (sys.executable, "-P", "-m", "rmqpy.cli", "upgrade")
FRESH_MS: Final = 20_000
STATUS_SECONDS: Final = 60.0
LINES_MAX: Final = 400
LINE_BYTES_MAX: Final = 1 << 20
OUTPUT_BYTES_MAX: Final = 16 << 20
PLAN_BYTES_MAX: Final = 64 << 20
PLAN_LINES_MAX: Final = 200


@define(slots=True, eq=False)
class VerbRun:
    """A verb that runs or has run; ``code`` is its exit code, None while it runs."""

    words: Sequence[str]
    account: str
    started_ms: int
    lines: deque[str] = field(factory=lambda: deque(maxlen=LINES_MAX))
    code: int | None = None


class MigrationRunner:
    """Runs verbs in the folder of a ``group.toml``; all viewers share what they print."""

    def __init__(self, folder: Path, clock: Clock, program: Sequence[str] = PROGRAM) -> None:
        self._folder = folder
        self._clock = clock
        self._program = tuple(program)
        self._shared = SharedAnswers(clock)
        self._task: asyncio.Task[None] | None = None
        self.last: VerbRun | None = None
        self.checked: tuple[int, dict[str, Any]] | None = None
        """When the last check began, and its JSON form."""

    @property
    def folder(self) -> Path:
        return self._folder

    async def status(self, *, anew: bool = False) -> dict[str, Any]:
        """Return the JSON form of ``status``. Raise RmqError if there is none."""

        async def ask() -> dict[str, Any]:
            process = await self._start(("status", "--format", "json"), asyncio.subprocess.PIPE)
            try:
                async with asyncio.timeout(STATUS_SECONDS):
                    out, err = await process.communicate()
            except TimeoutError:
                process.kill()
                raise RmqError(
                    f"found no answer of rmqpy upgrade status after {STATUS_SECONDS:.0f} s,"
                    " expected one; run it in the directory of the group to see where it waits"
                ) from None
            found = _json_of(out)
            if "state" not in found:
                raise RmqError(_reason(found, err))
            return found

        return await self._shared.get("status", 0 if anew else FRESH_MS, ask)

    def plan(self) -> list[str]:
        """Return the lines of the present plan; [] without one, or the reason why it is none."""
        path = self._folder / "plan.json"
        try:
            if path.stat().st_size > PLAN_BYTES_MAX:
                return [f"{path} is larger than {PLAN_BYTES_MAX} bytes and is not shown"]
            lines = list(Plan.from_json(json.loads(path.read_bytes())).lines())
        except FileNotFoundError:
            return []
        except (RmqError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return [f"{path} is no plan: {error}"]
        more = len(lines) - PLAN_LINES_MAX
        return [
            *lines[:PLAN_LINES_MAX],
            *([f"and {count_text(more, 'more line')}"] if more > 0 else []),
        ]

    def certificate(self) -> Certificate | None:
        """Return the certificate of the group, or None if there is none that can be read."""
        try:
            return Certificate.decode((self._folder / "certificate.json").read_bytes())
        except (RmqError, OSError):
            return None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def run(self, words: Sequence[str], account: str) -> VerbRun:
        """Start a verb. Raise RmqError while another one runs."""
        if self.is_running:
            raise RmqError("found a verb that still runs, expected none; wait until it has ended")
        self.last = VerbRun(words, account, self._clock.now_ms())
        self._task = asyncio.create_task(self._run(self.last), name="rmqpy-console-verb")
        return self.last

    async def ended(self) -> None:
        """Wait until no verb runs."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self, run: VerbRun) -> None:
        is_check = run.words[0] == "check"
        kept = bytearray()
        try:
            process = await self._start(run.words, asyncio.subprocess.STDOUT)
            assert process.stdout is not None
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:  # a line that is longer than the limit of the stream
                    continue
                if not line:
                    break
                if is_check and len(kept) < OUTPUT_BYTES_MAX:
                    kept += line
                else:
                    run.lines.append(line.decode("utf-8", "replace").rstrip())
            run.code = await process.wait()
        except OSError as error:
            run.lines.append(f"could not be started: {error}")
            run.code = 1
        if is_check:
            found = _json_of(bytes(kept))
            if "summary" in found:
                self.checked = run.started_ms, found
            else:
                run.lines.extend(_reason(found, bytes(kept)).splitlines())
        with suppress(RmqError):  # the page says so
            await self.status(anew=True)

    async def _start(self, words: Sequence[str], err: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._program,
            *words,
            cwd=self._folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=err,
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )


def _json_of(text: bytes) -> dict[str, Any]:
    """Return the JSON object in an output, which progress may precede."""
    start = text.find(b"{")
    try:
        found = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(found: dict[str, Any], err: bytes) -> str:
    for key in ("refused", "error", "found"):
        if isinstance(found.get(key), str):
            return str(found[key])
    text = err[-4096:].decode("utf-8", "replace").strip()
    return text.removeprefix("rmqpy: ") or "rmqpy upgrade ended without an answer"
