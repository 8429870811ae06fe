"""What an agent may be asked for: that of ``rmqpy upgrade serve --drive`` is for one directory.

Over ssh, the agent may do what the user of the connection may do. Over ``serve``, whoever has the
token may drive the upgrade of the directory that is served, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define

from rmqpy.cli.upgrade.base.hosts import DRIVER
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.upgrade.link.frames import Frame

FLAGS: Final = frozenset(("--dry-run", "--full", "--clear", "--leave"))
TEXTS: Final = frozenset(
    ("--format", "--group", "--node", "--peers", "--self-id", "--give-up", "--role", "--reader")
    + ("--cut-index", "--to", "--controllers", "--reference", "--rate")
)
"""The options whose value names no file."""
VERBS: Final = frozenset(("prepare", "apply", "switch", "leave", "rollback", "finalize"))


@define(slots=True, frozen=True, kw_only=True)
class AgentLimits:
    """One directory, its broker.conf, and the commands that may start and stop its broker."""

    directory: str
    config: str
    commands: tuple[str, ...]

    def check(self, frame: Frame) -> None:
        """Raise RmqError if the frame asks for anything else."""
        head = frame.head
        match frame.kind:
            case "get":
                self._check_path(head["directory"], self.directory)
                if head["config"]:
                    self._check_path(head["config"], self.config)
            case "config":
                self._check_path(head["path"], self.config)
            case "run":
                for path, expected in self._paths(head["words"]):
                    self._check_path(path, expected)
            case "shell" if head["command"] not in self.commands:
                known = ", ".join(map(repr, self.commands)) or "none"
                raise RmqError(
                    f"found the command {head['command']!r}, expected one that the host allows"
                    f" ({known}); restart rmqpy upgrade serve there with --allow"
                    f" {head['command']!r}, or remove the command from group.toml"
                )

    def _paths(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield each path among the words of a verb, with the only one that is allowed there."""
        if not words or words[0] not in VERBS:
            raise RmqError(f"found {' '.join(words[:1])!r}, expected {', '.join(sorted(VERBS))}")
        left = iter(words[1:])
        for word in left:
            if word in FLAGS:
                continue
            if word == "--plan":
                plan = next(left, "")
                if words[0] != "rollback":
                    yield plan, "{plan}"
            elif word in TEXTS:
                next(left, "")
            elif word == "-c":
                yield next(left, "").partition("=")[2], self.config
            elif word == "--resume":
                yield next(left, ""), self.directory
            elif word.startswith("-"):
                raise RmqError(f"found the option {word}, which no other host may give")
            elif not word.endswith(f"={DRIVER}"):
                yield word.rpartition("=")[2], self.directory

    def _check_path(self, path: str, expected: str) -> None:
        if path != expected and os.path.realpath(path) != os.path.realpath(expected):
            raise RmqError(
                f"found the path {path}, expected {expected}: only that is served; correct"
                " group.toml"
            )


def limits_of(values: Mapping[str, str | Sequence[str] | None]) -> AgentLimits | None:
    """Return the limits given to ``rmqpy upgrade agent``, or None if there are none."""
    directory, config, commands = values["only"], values["config"], values["allow"]
    if directory is None:
        return None
    return AgentLimits(
        directory=str(directory), config=str(config or ""), commands=tuple(commands or ())
    )
