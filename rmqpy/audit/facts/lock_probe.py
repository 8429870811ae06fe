"""Detect whether a broker runs on a directory, without disturbing it.

A broker, rmqpy's or Java's, holds an exclusive lock on byte 0 of ``lock``. Querying the owner of a
lock does not take the lock. A lock held by this process is not detected.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys

from rmqpy.model.local_paths import is_elsewhere

_IS_BSD = sys.platform != "linux"
_FLOCK = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")
"""struct flock: type, whence, start, length, process on 64-bit Linux; on macOS and the BSDs start,
length, process, type, whence.
"""


def find_lock_owner(path: str) -> int | None:
    """Return the id of the process that holds the lock on byte 0 of ``path``, or None, as for every
    file that is not on this machine.
    """
    if is_elsewhere(path):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _IS_BSD:
            request = _FLOCK.pack(0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        else:
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        reply = fcntl.fcntl(fd, fcntl.F_GETLK, request)
    finally:
        os.close(fd)
    if _IS_BSD:
        _, _, process, kind, _ = _FLOCK.unpack(reply)
    else:
        kind, _, _, _, process = _FLOCK.unpack(reply)
    return None if kind == fcntl.F_UNLCK else int(process)
