"""The journals of a switch and of a leave: the record of one member, ``switch.json`` or
``leave.json`` among the files of rmqpy.
"""

from __future__ import annotations

from attrs import define

from rmqpy.broker.assembly.switch.exchange import joined_configuration
from rmqpy.broker.replication.switch_protocol import (
    Outcome,
    SwitchRecord,
    SwitchStage,
    recorded_outcome,
)
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import own_folder


@define(slots=True, frozen=True, eq=False, repr=False)
class SwitchJournal:
    """The record in the store directory ``root``, in the file ``name``."""

    files: FileSystem
    root: str
    name: str = "switch.json"

    @property
    def folder(self) -> str:
        return own_folder(self.root)

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    def read(self) -> SwitchRecord | None:
        """Raises StoreError if the record cannot be read."""
        if not self.files.exists(self.path):
            return None
        return SwitchRecord.decode(self.path, self.files.read_bytes(self.path))

    def write(self, record: SwitchRecord | None) -> None:
        """Write the record durably, or remove it. Raises OSError."""
        if record is not None:
            self.files.replace_bytes(self.path, record.encode())
        elif self.files.exists(self.path):
            self.files.unlink(self.path)
            self.files.sync_dir(self.folder)

    def outcome(self, switch: str) -> Outcome:
        """Return what the record says about a switch."""
        return recorded_outcome(self.read(), switch)

    def configuration(self, configuration: BrokerConfiguration) -> BrokerConfiguration:
        """Return the settings with which the broker starts: those of a member if the switch was
        decided, and broker.conf does not contain them yet.
        """
        record = self.read()
        if record is None or record.stage is not SwitchStage.COMMITTED:
            return configuration
        return joined_configuration(configuration, record.plan, record.self_id)
