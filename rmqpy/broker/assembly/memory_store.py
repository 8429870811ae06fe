"""The directory of a broker with ``storeType=MEMORY``: a folder in the memory file system of this
machine, which exists as long as the broker runs.

The store is the same as on a disk, in the same files; only their place differs. So its size is
limited, cleaned and refused by the same settings, and the commands that read a store read it.
What a killed broker has left is removed by the next start (:mod:`rmqpy.store.files.locked_folder`).
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Final

import attrs
from attrs import define

from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.errors import ConfigError
from rmqpy.store.files.locked_folder import LockedFolder

MEMORY_FILE_SYSTEM: Final = "/dev/shm"
_PREFIX: Final = "rmqpy-store-"

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, eq=False, repr=False)
class MemoryFolder:
    """A folder in memory that no other process uses."""

    _folder: LockedFolder

    @classmethod
    def create(cls) -> MemoryFolder:
        """Create a folder, after removing those of brokers that were killed. Raises ConfigError if
        this machine has no memory file system.
        """
        _check_memory_file_system()
        try:
            return cls(LockedFolder.create(MEMORY_FILE_SYSTEM, _PREFIX, _removed))
        except OSError as error:
            raise ConfigError(
                f"storeType=MEMORY: no folder can be created in {MEMORY_FILE_SYSTEM}:"
                f" {error.strerror or error}"
            ) from error

    @property
    def path(self) -> str:
        return self._folder.path

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
        self._folder.remove()


def _removed(path: str) -> None:
    logger.info("removed %s, which a killed broker has left in memory", path)


def _check_memory_file_system() -> None:
    """Raise ConfigError if MEMORY_FILE_SYSTEM is not in memory."""
    place = os.path.realpath(MEMORY_FILE_SYSTEM)
    kind = "nothing is mounted there"
    with (
        suppress(FileNotFoundError),  # not Linux
        open("/proc/mounts", encoding="utf-8", errors="replace") as mounts,
    ):
        for line in mounts:
            _, where, found, *_ = line.split(" ")
            if where == place:
                kind = found
    if kind not in ("tmpfs", "ramfs"):
        raise ConfigError(
            f"storeType=MEMORY: found {kind} at {MEMORY_FILE_SYSTEM}, expected tmpfs; mount it, or"
            " remove storeType"
        )
