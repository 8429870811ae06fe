"""``group.toml`` in the current directory: the arguments that were not given.

A verb without replicas is the long form with the arguments that the file has. Plans, manifests, and
certificates have standard places beside the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define

from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.upgrade.group.group_file import GroupFile, MemberSpec


@define(slots=True, frozen=True)
class GivenGroup:
    """The group of a ``group.toml``, and the folder of the file."""

    file: GroupFile
    folder: Path

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def before(self) -> Path:
        """The manifest of the state before the last plan, with which ``verify`` compares."""
        return self.folder / "before.json"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.json"

    def keep(self, path: Path, data: bytes) -> None:
        """Write a file of the group, atomically."""
        from rmqpy.store.files.disk import OsFileSystem

        OsFileSystem().replace_bytes(str(path), data)

    def config_of(self, member: MemberSpec) -> str:
        """Return the path of a broker.conf on its host."""
        return str(self.folder / member.config) if member.is_local else member.config


def load_group(folder: Path) -> GivenGroup | None:
    """Return the group of the ``group.toml`` in a folder, or None if there is none.

    Raise RmqError if the file is wrong, or if it contradicts a broker.conf of this host.
    """
    from rmqpy.cli.given_files import read_given
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.group.contradictions import contradictions
    from rmqpy.upgrade.group.group_file import GROUP_FILE, parse_group_file
    from rmqpy.upgrade.plan.survey import read_config

    path = folder / GROUP_FILE
    if not path.exists():
        return None
    raw = read_given(str(path), "the group file")
    group = GivenGroup(parse_group_file(raw.decode("utf-8", "replace"), GROUP_FILE), folder)
    wrong = [
        text
        for member in group.file.members
        if member.is_local
        for text in contradictions(
            group.file, member, read_config(OsFileSystem(), group.config_of(member)) or {}
        )
    ]
    if wrong:
        raise RmqError("; ".join(wrong))
    return group


def use_group(options: argparse.Namespace) -> GivenGroup | None:
    """Add the arguments of ``group.toml`` to a verb that was given no replica.

    Return None if replicas were given. Raise RmqError if there are neither.
    """
    given = vars(options)
    if any(given.get(name) for name in ("replica", "directory", "resume", "into")):
        return None
    group = load_group(Path.cwd())
    if group is None:
        above = next((each for each in Path.cwd().parents if (each / "group.toml").is_file()), None)
        if above is not None:
            raise RmqError(
                f"found no group.toml in this directory, but one in {above}, expected it here;"
                f" change to {above}"
            )
        raise RmqError(
            "found no replica in the command and no group.toml in this directory, expected one of"
            " them; give replicas as NAME=DIR, or write the file with rmqpy upgrade init"
            " n0.conf n1.conf n2.conf"
        )
    file = group.file
    options.replica = [each.replica for each in file.members]
    options.config = [f"{each.name}={group.config_of(each)}" for each in file.members]
    for name in ("token_file", "authority", "key"):
        text = getattr(file, name)
        if name in given and given[name] is None and text:
            setattr(options, name, str(group.folder / text))
    if not given.get("controllers"):
        _use_dledger(options, file)
    if given.get("role") == []:
        options.role = [f"{each.name}={each.role}" for each in file.members]
    return group


def _use_dledger(options: argparse.Namespace, file: GroupFile) -> None:
    given = vars(options)
    if given.get("peers") == "":
        options.peers = file.peers
    if given.get("group") == "":
        options.group = file.dledger_group
    if given.get("self_id") == []:
        options.self_id = [f"{each.name}={each.id}" for each in file.members]
