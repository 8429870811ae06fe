"""The two places of the servers of a :class:`rmqpy.testing.Broker`: threads of this process, and a
child process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from rmqpy.testing.dev.cluster import DevCluster, DevPlan
from rmqpy.testing.dev.commands import Commands
from rmqpy.testing.dev.nodes import DevError
from rmqpy.testing.processes import python_environment

STOP_SECONDS = 30.0


class Backend(Protocol):
    """The servers of one ``Broker``."""

    def start(self) -> dict[str, Any]:
        """Start them and return their addresses."""
        ...

    def run(self, command: Mapping[str, object]) -> dict[str, Any]: ...

    def close(self) -> None: ...


def start_backend(plan: Mapping[str, Any], *, process: bool) -> tuple[Backend, dict[str, Any]]:
    """Start the servers of a plan (the fields of :class:`DevPlan`); return them with their
    addresses.
    """
    checked = DevPlan(**plan)
    backend: ThreadBackend | ProcessBackend
    backend = ProcessBackend(checked) if process else ThreadBackend(checked)
    return backend, backend.start()


class ThreadBackend:
    """Servers in threads of this process."""

    def __init__(self, plan: DevPlan) -> None:
        self._cluster = DevCluster(plan)
        self._commands = Commands(self._cluster)

    def start(self) -> dict[str, Any]:
        self._cluster.start()
        return self._cluster.addresses()

    def run(self, command: Mapping[str, object]) -> dict[str, Any]:
        return self._commands.run(command)

    def close(self) -> None:
        self._cluster.close()


class ProcessBackend:
    """Servers in a child process, ``rmqpy dev``."""

    def __init__(self, plan: DevPlan) -> None:
        self._argv = [sys.executable, "-m", "rmqpy.cli", "dev", *_options(plan)]
        self._environment = python_environment()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> dict[str, Any]:
        self._process = subprocess.Popen(
            [*self._argv, "--parent", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        try:
            return self._read()
        except BaseException:
            self.close()
            raise

    def run(self, command: Mapping[str, object]) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise DevError("found a server process that does not run, expected one")
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise DevError(f"the server process has ended: {error}") from error
        return self._read()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):  # It may have ended already.
            process.stdin.close()  # The server ends with its stdin.
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DevError("the server process has ended; its errors are on stderr")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _options(plan: DevPlan) -> list[str]:
    """Return the options of ``rmqpy dev`` for ``plan``."""
    options = [] if plan.members == 1 else ["--group", str(plan.members)]
    if plan.dledger and plan.members == 1:
        options.append("--dledger")
    for topic in plan.topics:
        options += ["--topic", topic]
    for key, value in plan.settings.items():
        options += ["--set", f"{key}={value}"]
    if plan.config is not None:
        options += ["--config", str(plan.config)]
    if plan.name_server is not None:
        options += ["-n", plan.name_server]
    for name, store in plan.stores.items():
        options += ["--store", f"{name}={store}"]
    if plan.root is not None:
        options += ["--keep", str(plan.root)]
    return options
