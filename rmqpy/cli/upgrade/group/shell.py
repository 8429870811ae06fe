"""What is done on a member's own host: start or stop its broker, and look for a free port."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from rmqpy.model.errors import RmqError

COMMAND_SECONDS_MAX: Final = 120
SHOWN_BYTES: Final = 1000


def run_shell(command: str, folder: Path) -> tuple[int, str]:
    """Return the exit code of a shell command, and the end of its output.

    The command must return; what it starts may go on writing to its output. Raise RmqError if it
    does not return.
    """
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=COMMAND_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RmqError(
                f"found {command!r} still running after {COMMAND_SECONDS_MAX} s, expected a command"
                " that returns; start the broker in the background"
            ) from None
        output.seek(max(0, output.seek(0, 2) - SHOWN_BYTES))
        return done.returncode, output.read().decode("utf-8", "replace").strip()


def is_free_port(port: int) -> bool:
    """Return whether no process of this host listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
