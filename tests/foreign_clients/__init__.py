"""RocketMQ clients in other languages than Python and Java, from the registries of these languages.

=====  =============================================  ====================================
name   what                                           needs
=====  =============================================  ====================================
go     github.com/apache/rocketmq-client-go/v2        ``go``
cpp    rocketmq-client-cpp in PyPI's ``rocketmq``     Linux on x86-64, ``pip``
=====  =============================================  ====================================

Each is a :class:`rmqpy.testing.java.Probe` with the commands ``send`` and ``consume``; Go's also
has ``transact``. They are cached below ``RMQPY_CLIENTS_CACHE`` or ``~/.cache/rmqpy/clients`` as
``go-<hash>/probe`` and ``rocketmq-<version>/``, which appear by a rename when they are complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmqpy.model.errors import RmqError
from rmqpy.testing.java.clients import LineClient, Probe

GO_MODULE: Final = "github.com/apache/rocketmq-client-go/v2"
GO_VERSION: Final = "v2.1.2"
CPP_VERSION: Final = "0.4.4"
INSTALL_SECONDS_MAX: Final = 600
SOURCES: Final = Path(__file__).resolve().parent
GO_SOURCE: Final = SOURCES / "probe.go"


class ClientUnavailableError(RmqError):
    """A client is not available here; the message says why."""


def missing(name: str) -> str | None:
    """Return why a client cannot run here, or None if it can, perhaps after a download."""
    if name == "go":
        return None if shutil.which("go") else "go is not on the PATH"
    assert name == "cpp", name
    where = (platform.system(), platform.machine())
    if where != ("Linux", "x86_64"):
        return f"there is no C++ client for {' '.join(where)} in PyPI's rocketmq"
    return None


def probe(name: str, directory: Path, namesrv: str) -> Probe:
    """Start a client in its own process, which writes files only in ``directory``."""
    reason = missing(name)
    if reason is not None:
        raise ClientUnavailableError(reason)
    argv = [str(_go_program())] if name == "go" else _cpp_command()
    environment = {**os.environ, "HOME": str(directory)}
    return Probe(LineClient(argv, directory, environment), namesrv)


def cpp_body(index: int, size: int) -> bytes:
    """Return the body of the message with this number as the C++ probe sends it."""
    return bytes(97 + (31 * index + 7 * j) % 26 for j in range(size))


def _go_program() -> Path:
    source = GO_SOURCE.read_bytes() + GO_VERSION.encode()
    folder = _cache() / f"go-{hashlib.sha256(source).hexdigest()[:12]}"
    _make(folder, _build_go)
    return folder / "probe"


def _build_go(work: Path) -> None:
    shutil.copy(GO_SOURCE, work / "main.go")
    lines = ("module probe", "go 1.21", f"require {GO_MODULE} {GO_VERSION}")
    (work / "go.mod").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    _run(["go", "mod", "tidy"], work)
    _run(["go", "build", "-o", "probe", "."], work)


def _cpp_command() -> list[str]:
    folder = _cache() / f"rocketmq-{CPP_VERSION}"
    _make(folder, _install_cpp)
    return [sys.executable, str(SOURCES / "cpp_probe.py"), str(folder)]


def _install_cpp(work: Path) -> None:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--target", str(work)]
    _run([sys.executable, "-m", "pip", "install", *options, f"rocketmq=={CPP_VERSION}"], work)


def _cache() -> Path:
    chosen = os.environ.get("RMQPY_CLIENTS_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "rmqpy" / "clients"


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` fill a new folder, unless it exists."""
    with _locked():
        if folder.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=_cache(), prefix="install-") as folder_name:
            work = Path(folder_name) / "client"
            work.mkdir()
            make(work)
            work.rename(folder)


@contextmanager
def _locked() -> Iterator[None]:
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "HOME": str(Path.home())},
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
