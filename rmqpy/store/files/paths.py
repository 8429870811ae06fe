"""StorePaths: the paths under ``storePathRootDir``. Files of rmqpy are never in a folder of the
Java broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.files.boot_note import BOOT_NOTE_NAME
from rmqpy.store.files.recovery_point import RECOVERY_POINT_NAME

if TYPE_CHECKING:
    from rmqpy.config.loading import StoreSettings

EPOCH_FILE: Final = "epochFileCheckpoint"
IDENTITY_FILE: Final = "brokerIdentity"
BACKUP_SUFFIX: Final = ".bak"
PENDING_SUFFIX: Final = "-temp"
"""The end of the name of an identity that is being given."""

OWN_FORMAT = 1
"""The version of the files in ``rmqpy/``."""


def own_folder(root: str) -> str:
    """Return the folder that belongs to rmqpy alone."""
    return f"{root}/rmqpy"


def quarantine_folder(root: str) -> str:
    """Return the folder for bytes that were cut off and files that were set aside."""
    return f"{own_folder(root)}/quarantine"


@define(slots=True, frozen=True)
class StorePaths:
    """The paths of one store."""

    root: str
    commit_log: str
    epochs_elsewhere: str | None = None
    """``storePathEpochFile``."""
    identity_elsewhere: str | None = None
    """``storePathBrokerIdentity``."""

    @classmethod
    def from_settings(cls, settings: StoreSettings) -> StorePaths:
        return cls(
            settings.store_path_root_dir,
            settings.store_path_commit_log,
            settings.store_path_epoch_file,
            settings.store_path_broker_identity,
        )

    @property
    def epochs(self) -> str:
        """The epochs of a controller group of 5.x."""
        return self.epochs_elsewhere or f"{self.root}/{EPOCH_FILE}"

    @property
    def identity(self) -> str:
        """The identity that a controller of 5.x gave the broker."""
        return self.identity_elsewhere or f"{self.root}/{IDENTITY_FILE}"

    @property
    def controller_files(self) -> tuple[str, ...]:
        """All files that a controller makes a broker keep."""
        return (
            self.epochs,
            self.epochs + BACKUP_SUFFIX,
            self.identity,
            self.identity + PENDING_SUFFIX,
        )

    @property
    def consume_queue(self) -> str:
        return f"{self.root}/consumequeue"

    @property
    def index(self) -> str:
        return f"{self.root}/index"

    @property
    def checkpoint(self) -> str:
        return f"{self.root}/checkpoint"

    @property
    def abort(self) -> str:
        """The file that exists while a broker runs. If it exists at a start, the last stop was
        unclean.
        """
        return f"{self.root}/abort"

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def config(self) -> str:
        return f"{self.root}/config"

    @property
    def own(self) -> str:
        return own_folder(self.root)

    @property
    def certificate(self) -> str:
        return f"{self.own}/certificate.json"

    @property
    def own_format(self) -> str:
        return f"{self.own}/format"

    @property
    def own_dispatched(self) -> str:
        """The range that was dispatched; see :mod:`rmqpy.store.files.checkpoint`."""
        return f"{self.own}/dispatched"

    @property
    def recovery_point(self) -> str:
        return f"{self.own}/{RECOVERY_POINT_NAME}"

    @property
    def boot(self) -> str:
        """The boot in which the store was opened; see :mod:`rmqpy.store.files.boot_note`."""
        return f"{self.own}/{BOOT_NOTE_NAME}"

    @property
    def queue_rebuilds(self) -> str:
        return f"{self.own}/queue-rebuilds"

    @property
    def queue_ends(self) -> str:
        return f"{self.own}/queue-ends"

    @property
    def quarantine(self) -> str:
        return quarantine_folder(self.root)

    def dledger(self, self_id: str) -> str:
        return f"{self.root}/dledger-{self_id}"


def unused_name(files: FileSystem, name: str) -> str:
    """Return ``name``, with a number appended if the name is already used."""
    path, number = name, 0
    while files.exists(path):
        number += 1
        path = f"{name}.{number}"
    return path
