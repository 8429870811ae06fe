"""The directory of a rehearsal: ``rehearsal.json`` (whose it is), ``status.json`` (where it
stands), ``report.json`` and ``certificate.json`` (of the last rehearsal), ``shadow/`` (the copy:
broker.conf, store/, and the epochs of a group with a controller), ``walk/`` (the members of a walk,
until it has succeeded), and ``lock``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from attrs import define

from rmqpy.codec.epochs import Epoch, decode_epochs, encode_epochs
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.config.properties_file import format_properties
from rmqpy.demo.store_copy import COPIED_SETTINGS, NEVER_CLEANED
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileLock, FileSystem
from rmqpy.model.text import format_bytes
from rmqpy.rehearsal.rehearsed_group import RehearsedGroup
from rmqpy.rehearsal.suitability import COPIES
from rmqpy.store.files.paths import EPOCH_FILE
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

FORMAT = 1
ELECTION = {
    "heartBeatTimeIntervalMs": "2000",
    "maxHeartBeatLeak": "3",
    "minVoteIntervalMs": "300",
    "maxVoteIntervalMs": "1000",
}
"""The defaults of the settings that decide how soon a lost leader is replaced. Java's brokers do
not report theirs.
"""


@define(slots=True, frozen=True)
class Workspace:
    """The directory ``folder``, which belongs to the rehearsal of one broker name."""

    files: FileSystem
    folder: str

    @property
    def shadow(self) -> str:
        return f"{self.folder}/shadow"

    @property
    def store(self) -> str:
        return f"{self.shadow}/store"

    @property
    def config(self) -> str:
        return f"{self.shadow}/broker.conf"

    @property
    def walk(self) -> str:
        return f"{self.folder}/walk"

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of the copy; none if they are not known, or the file is damaged."""
        if not self.files.exists(self._epoch_file):
            return ()
        try:
            return decode_epochs(self.files.read_bytes(self._epoch_file))
        except InvalidRecordError:
            return ()

    def write_epochs(self, epochs: tuple[Epoch, ...]) -> None:
        self.files.replace_bytes(self._epoch_file, encode_epochs(epochs))

    @property
    def _epoch_file(self) -> str:
        return f"{self.shadow}/{EPOCH_FILE}"

    def take(self, facts: RehearsedGroup) -> FileLock:
        """Claim the directory for a group, write the settings of the copy, and return the lock.

        Raises UpgradeRefusedError if the directory is something else, or too full.
        """
        marker = f"{self.folder}/rehearsal.json"
        mine = {"format": FORMAT, "brokerName": facts.name}
        if self.files.exists(marker):
            found = self._read(marker)
            if found != mine:
                raise UpgradeRefusedError(
                    f"{self.folder}: found the rehearsal of {found.get('brokerName')!r}, expected"
                    f" one of {facts.name!r}; use another directory"
                )
        elif self.files.list_dir(self.folder):
            raise UpgradeRefusedError(
                f"{self.folder}: found a directory with files that are no rehearsal, expected an"
                " empty one, or that of an earlier rehearsal; use another directory"
            )
        self.files.make_dirs(self.folder)
        self._check_space(facts)
        if not self.files.exists(marker):
            self.files.replace_bytes(marker, json.dumps(mine).encode())
        try:
            lock = self.files.lock(f"{self.folder}/lock")
        except StoreError:
            raise UpgradeRefusedError(
                f"{self.folder}: found another rmqpy rehearse at work in it, expected none; wait"
                " for it, or use another directory"
            ) from None
        self.files.replace_bytes(self.config, format_properties(self.settings(facts)).encode())
        return lock

    def settings(self, facts: RehearsedGroup) -> dict[str, str]:
        """Return the settings of the copy."""
        return {
            **member_settings(facts),
            "brokerName": facts.name,
            "brokerId": "1",
            "brokerRole": "SLAVE",
            "storePathRootDir": self.store,
            "rmqpyAcceptUnreadData": "true",
        }

    def write_tables(self, tables: Mapping[str, bytes]) -> None:
        for name, content in tables.items():
            self.files.replace_bytes(f"{self.store}/config/{name}", content)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace ``status.json``, from which other programs read the state."""
        text = json.dumps({"format": FORMAT, **status}, indent=1)
        self.files.replace_bytes(f"{self.folder}/status.json", text.encode())

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Replace ``report.json``, the result of the last rehearsal."""
        self.files.replace_bytes(self._report, json.dumps(report, indent=1).encode())

    def verified_ms(self) -> int | None:
        """Return the time of the last rehearsal that ended in ready, or None."""
        if not self.files.exists(self._report):
            return None
        report = self._read(self._report)
        return int(report["verified_ms"]) if report.get("ready") else None

    @property
    def _report(self) -> str:
        return f"{self.folder}/report.json"

    def keep_certificate(self) -> None:
        """Keep the certificate of a walk that has succeeded, and remove its stores."""
        self.files.rename(f"{self.walk}/certificate.json", f"{self.folder}/certificate.json")
        self.files.remove_tree(self.walk)

    def _check_space(self, facts: RehearsedGroup) -> None:
        log = facts.ends.end - facts.ends.begin
        kept = f"{self.store}/commitlog"
        have = sum(self.files.size_of(f"{kept}/{name}") for name in self.files.list_dir(kept))
        file_size = int(facts.settings.get("mappedFileSizeCommitLog", 1 << 30))
        needed = max(0, COPIES * log - have) + 3 * file_size
        free = self.files.disk_usage(self.folder)[1]
        if needed > free:
            raise UpgradeRefusedError(
                f"{self.folder}: found {format_bytes(free)} free on its file system, expected"
                f" {format_bytes(needed)} for the copy and the members that are rehearsed on it;"
                f" free {format_bytes(needed - free)}, or use another directory"
            )

    def _read(self, path: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = dict(json.loads(self.files.read_bytes(path)))
        except (ValueError, TypeError):
            raise UpgradeRefusedError(
                f"{path}: found no JSON object, expected the mark of a rehearsal; use another"
                " directory"
            ) from None
        return found


def member_settings(facts: RehearsedGroup) -> dict[str, str]:
    """Return the settings of a broker on the copy, other than its name, role, and directory."""
    given = {key: facts.settings[key] for key in COPIED_SETTINGS if key in facts.settings}
    election = {key: facts.settings.get(key, value) for key, value in ELECTION.items()}
    return {**given, **election, **NEVER_CLEANED}


def workspace_at(files: FileSystem, folder: str) -> Workspace:
    return Workspace(files, os.path.realpath(folder))
