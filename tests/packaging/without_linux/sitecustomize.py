"""Take from Python what only Linux has; a process that has this folder in PYTHONPATH imports it.

rmqpy reads "darwin" as ``sys.platform``. The standard library and other packages do not: they were
installed for this machine. Other tests than smoke.py run with it, too, except those that bind
abstract sockets themselves:

    PYTHONPATH=tests/packaging/without_linux pytest --assert=plain -m "not slow" tests/client
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import mmap
import os
import resource
import select
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

LINUX_ONLY = {
    fcntl: "F_ADD_SEALS F_SETPIPE_SZ",
    mmap: "MADV_DONTDUMP MADV_HUGEPAGE MADV_REMOVE MAP_POPULATE",
    os: "O_DIRECT O_NOATIME O_PATH O_RSYNC O_TMPFILE POSIX_FADV_DONTNEED POSIX_FADV_RANDOM"
    " POSIX_FADV_WILLNEED RWF_DSYNC copy_file_range eventfd fdatasync getrandom getxattr"
    " memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate sched_getaffinity"
    " sched_setaffinity setresgid setresuid setxattr splice",
    resource: "RUSAGE_THREAD prlimit",
    select: "EPOLLIN EPOLLOUT epoll",
    signal: "SIGRTMAX SIGRTMIN pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "AF_NETLINK SOCK_CLOEXEC SOCK_NONBLOCK SO_INCOMING_CPU SO_PEERCRED TCP_CORK"
    " TCP_KEEPIDLE TCP_QUICKACK TCP_USER_TIMEOUT",
}
FUNCTIONS = ("prctl", "sync_file_range", "syncfs")
"""Functions of the C library, called through ctypes."""
FOLDERS = ("/proc", "/sys", "/dev/shm")
# The layout of ``struct flock`` is that of the kernel that runs.
EXEMPT = "rmqpy.audit.facts.lock_probe"


class OtherPlatform(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile without the bytecode of others, and leave none for them."""
        path = self.get_filename(fullname)
        source = self.get_data(path).replace(b"sys.platform", b'"darwin"')
        return self.source_to_code(source, path)


class Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "rmqpy" or fullname == EXEMPT:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if type(spec.loader) is SourceFileLoader:
                    spec.loader = OtherPlatform(spec.loader.name, spec.loader.path)
                return spec
        return None


class Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            raise AttributeError(name)
        return super().__getattr__(name)


def without_folders(function: Any) -> Any:
    def checked(path: Any = ".", *args: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and f"{os.fspath(path)}/".startswith(
            tuple(f"{folder}/" for folder in FOLDERS)
        ):
            raise FileNotFoundError(2, "only Linux has it", path)
        return function(path, *args, **options)

    return checked


_bind = socket.socket.bind


def bind(self: socket.socket, address: Any) -> None:
    if self.family == socket.AF_UNIX and str(address).startswith("\0"):
        raise OSError(f"{address!r}: only Linux has abstract sockets")
    _bind(self, address)


# What the standard library itself has chosen for Linux.
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc,assignment]
tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
for module, names in LINUX_ONLY.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
socket.socket.bind = bind  # type: ignore[assignment,method-assign]
ctypes.CDLL = Library  # type: ignore[misc]
builtins.open = io.open = without_folders(open)
for name in ("listdir", "open", "readlink", "stat"):
    setattr(os, name, without_folders(getattr(os, name)))
sys.meta_path.insert(0, Finder())
