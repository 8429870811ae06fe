"""A cache of programs that are built or installed once, by any of several processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmqpy.model.errors import RmqError

INSTALL_SECONDS_MAX: Final = 1800
"""Rust compiles a client for some ten minutes on two cores."""


class ClientUnavailableError(RmqError):
    """A client is not available here; the message says why."""


def cache() -> Path:
    chosen = os.environ.get("RMQPY_CLIENTS_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "rmqpy" / "clients"


def make(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Let ``fill`` fill a new folder, unless it exists, and return it. It appears by a rename."""
    with _locked():
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=cache(), prefix="install-") as folder_name:
            work = Path(folder_name) / "client"
            work.mkdir()
            fill(work)
            work.rename(folder)
    return folder


def run(command: list[str], directory: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command; raise ClientUnavailableError with the end of its output if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "HOME": str(Path.home()), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as fault:
        raise ClientUnavailableError(
            f"{command[0]} did not end within {INSTALL_SECONDS_MAX} s"
        ) from fault
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ClientUnavailableError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")


@contextmanager
def _locked() -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
