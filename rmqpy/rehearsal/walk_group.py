"""The group of a walk as an operator has it: ``group.toml`` with start and stop commands, and the
lines of a runbook, each of which is a command of its own.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import define

from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.demo.cluster import MEMBERS, DemoCluster
from rmqpy.model.errors import RmqError
from rmqpy.testing.processes import python_environment
from rmqpy.upgrade.group.group_file import GROUP_FILE, GroupFile, MemberSpec
from rmqpy.upgrade.group.group_file_text import group_file_text

SHOWN_BYTES: Final = 3000
STARTING_S: Final = 10.0
"""For how long a broker may have no lock on its store yet after its start command returned."""


class RunbookLineError(RmqError):
    """A command of the runbook ended with an exit code other than 0; the text has its output."""


@define(slots=True, eq=False, repr=False)
class WalkGroup:
    """The members of ``cluster``, in its folder. Their first start is the cluster's."""

    cluster: DemoCluster

    @property
    def spec(self) -> GroupFile:
        """The content of ``group.toml``."""
        cluster = self.cluster
        return GroupFile(
            broker=cluster.broker_name,
            cluster="DefaultCluster",
            dledger_group=cluster.broker_name,
            members=tuple(self._member(name, peer) for name, peer in cluster.peers.items()),
        )

    def write(self) -> None:
        """Write ``group.toml``, and a script that starts each member in the background."""
        folder = self.cluster.folder
        (folder / GROUP_FILE).write_text(group_file_text(self.spec), encoding="utf-8")
        for name in MEMBERS:
            broker = self.cluster.brokers[name]
            self.cluster.store(name).mkdir(parents=True, exist_ok=True)
            self._script(name).write_text(
                f"cd {shlex.quote(str(broker.directory))}\n"
                f"nohup {shlex.join(broker.argv)} >> {shlex.quote(str(broker.output))} 2>&1 &\n"
                f"echo $! > {shlex.quote(str(self._pid_file(name)))}\n",
                encoding="utf-8",
            )

    async def start(self, *names: str) -> None:
        """Start members as processes of the cluster."""
        await self.cluster.start(*names)
        for name in names:
            self._pid_file(name).write_text(f"{self.cluster.brokers[name].pid}\n")

    async def run(self, line: str) -> str:
        """Run a line of a runbook, and return its output. Raise RunbookLineError if it fails."""
        # The command rmqpy of this interpreter, also where it is not on the PATH.
        alias = f'rmqpy() {{ {shlex.quote(sys.executable)} -m rmqpy.cli "$@"; }}\n'
        # A file, because a broker that a line starts may keep a pipe open.
        with tempfile.TemporaryFile() as output:
            process = await asyncio.create_subprocess_exec(
                *["sh", "-ec", alias + line],
                cwd=self.cluster.folder,
                env=python_environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            output.seek(max(0, output.seek(0, os.SEEK_END) - SHOWN_BYTES))
            text = output.read().decode("utf-8", "replace").strip()
        if code:
            raise RunbookLineError(f"{line}: found exit code {code}, expected 0: {text}")
        return text

    def start_line(self, name: str) -> str:
        """Return the command that starts a member."""
        return f"sh {shlex.quote(str(self._script(name)))}"

    def stop_line(self, name: str) -> str:
        """Return the command that asks a member to stop."""
        path = shlex.quote(str(self._pid_file(name)))
        return f"kill $(cat {path}) && rm {path}"

    def kill(self, name: str) -> None:
        """Kill a member as a crash would. Its process is the one that has locked the store: the
        number in a file may belong to another one by now.
        """
        lock = os.fspath(self.cluster.store(name) / "lock")
        deadline_s = time.monotonic() + STARTING_S
        while (owner := find_lock_owner(lock)) is None:
            if not self._is_starting(name) or time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        self._pid_file(name).unlink(missing_ok=True)
        if owner is None:
            return
        with suppress(ProcessLookupError):
            os.kill(owner, signal.SIGKILL)
        while find_lock_owner(lock) == owner and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def close(self) -> None:
        """Kill what still runs, and give the ports back."""
        for name in MEMBERS:
            self.kill(name)
        self.cluster.close()

    def _is_starting(self, name: str) -> bool:
        try:
            os.kill(int(self._pid_file(name).read_text()), 0)
        except (OSError, ValueError):
            return False
        return True

    def _member(self, name: str, peer: str) -> MemberSpec:
        broker = self.cluster.brokers[name]
        return MemberSpec(
            name=name,
            config=f"{name}/broker.conf",
            directory=os.fspath(self.cluster.store(name)),
            address=broker.address,
            id=name,
            peer=peer,
            role="ASYNC_MASTER" if name == MEMBERS[0] else "SLAVE",
            start=self.start_line(name),
            stop=self.stop_line(name),
        )

    def _script(self, name: str) -> Path:
        return self.cluster.folder / f"start-{name}"

    def _pid_file(self, name: str) -> Path:
        return self.cluster.folder / f"{name}.pid"
