"""The directory of a broker with ``storeType=MEMORY``: a folder in the memory file system of this
machine, which exists as long as the broker runs.

The store is the same as on a disk, in the same files; only their place differs. So its size is
limited, cleaned and refused by the same settings, and the commands that read a store read it.

Invariant: a folder is locked (flock) by the process that uses it, from before it contains a file
until it is removed. What a killed broker has left is not locked, and the next start removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from typing import Final

import attrs
from attrs import define

from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.errors import ConfigError

MEMORY_FILE_SYSTEM: Final = "/dev/shm"
_PREFIX: Final = "rmqpy-store-"

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, eq=False, repr=False)
class MemoryFolder:
    """A folder in memory that no other process uses."""

    path: str
    _fd: int

    @classmethod
    def create(cls) -> MemoryFolder:
        """Create a folder, after removing those of brokers that were killed. Raises ConfigError if
        this machine has no memory file system.
        """
        _check_memory_file_system()
        _remove_abandoned()
        try:
            while True:
                path = tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY_FILE_SYSTEM)
                fd = _lock(path)
                if fd is not None:
                    return cls(path, fd)
        except OSError as error:
            raise ConfigError(
                f"storeType=MEMORY: no folder can be created in {MEMORY_FILE_SYSTEM}:"
                f" {error.strerror or error}"
            ) from error

    def placed(self, configuration: BrokerConfiguration) -> BrokerConfiguration:
        """Return ``configuration`` with its store in this folder."""
        root, log = self.settings.values()
        store = attrs.evolve(
            configuration.store, store_path_root_dir=root, store_path_commit_log=log
        )
        return attrs.evolve(configuration, store=store)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that name this folder. They do not belong in the configuration file."""
        return {"storePathRootDir": self.path, "storePathCommitLog": f"{self.path}/commitlog"}

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _lock(path: str) -> int | None:
    """Lock a folder and return its descriptor, or None if another process holds it, or it is not
    there any more: another start may have taken it for an abandoned one.
    """
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    return None


def _remove_abandoned() -> None:
    """Remove the folders of this user that no process has locked."""
    for entry in list(os.scandir(MEMORY_FILE_SYSTEM)):
        with contextlib.suppress(OSError):
            if not entry.name.startswith(_PREFIX) or entry.stat().st_uid != os.getuid():
                continue
            fd = _lock(entry.path)
            if fd is not None:
                MemoryFolder(entry.path, fd).remove()
                logger.info("removed %s, which a killed broker has left in memory", entry.path)


def _check_memory_file_system() -> None:
    """Raise ConfigError if MEMORY_FILE_SYSTEM is not in memory."""
    place = os.path.realpath(MEMORY_FILE_SYSTEM)
    kind = "nothing is mounted there"
    with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, where, found, *_ = line.split(" ")
            if where == place:
                kind = found
    if kind not in ("tmpfs", "ramfs"):
        raise ConfigError(
            f"storeType=MEMORY: found {kind} at {MEMORY_FILE_SYSTEM}, expected tmpfs; mount it, or"
            " remove storeType"
        )
