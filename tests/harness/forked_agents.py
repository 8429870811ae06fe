"""Agents of ``rmqpy upgrade`` as forks of the test process.

An agent that ``ssh`` starts imports for longer than it works. A fork has everything imported; it
speaks the same frames over pipes, in a process and a working directory of its own.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from attrs import define

from rmqpy.cli import main


@define
class CutReader:
    """The answers of an agent, which is killed after ``left`` bytes of them (-1: never)."""

    stream: BinaryIO
    agent: int
    left: int = -1

    def read(self, size: int) -> bytes:
        return self._cut(self.stream.read(size if self.left < 0 else min(size, self.left)))

    def readline(self, limit: int) -> bytes:
        return self._cut(self.stream.readline(limit if self.left < 0 else min(limit, self.left)))

    def _cut(self, data: bytes) -> bytes:
        if self.left < 0:
            return data
        self.left -= len(data)
        if self.left <= 0 or not data:
            os.kill(self.agent, signal.SIGKILL)
        return data


@define
class ForkedAgent:
    """A connection to an agent (implements rmqpy.upgrade.link.connections.AgentConnection)."""

    agent: int
    reader: CutReader
    writer: BinaryIO

    def close(self) -> None:
        for stream in (self.writer, self.reader.stream):
            with suppress(OSError):
                stream.close()
        os.waitpid(self.agent, 0)


def fork_agent(cut: Path) -> ForkedAgent:
    """Start an agent. If the file ``cut`` exists, its connection is lost after so many bytes."""
    left = int(cut.read_text()) if cut.exists() else -1
    cut.unlink(missing_ok=True)
    questions, to_agent = os.pipe()
    from_agent, answers = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the threads of the test runner hold nothing of rmqpy's
        agent = os.fork()
    if agent == 0:
        _be_agent(questions, answers)
    os.close(questions)
    os.close(answers)
    reader = CutReader(os.fdopen(from_agent, "rb"), agent, left)
    return ForkedAgent(agent, reader, os.fdopen(to_agent, "wb"))


def _be_agent(questions: int, answers: int) -> None:
    code = 1
    try:
        os.setsid()
        os.chdir("/")
        os.dup2(questions, 0)
        os.dup2(answers, 1)
        os.closerange(3, 4096)
        sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb"))
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"))
        sys.stderr = os.fdopen(2, "w")
        code = main(["upgrade", "agent"])
        sys.stdout.flush()
    finally:
        os._exit(code)
