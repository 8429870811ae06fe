"""The access files of a server: finding, reading and reloading them, and changing them on request.

::

    <home>/conf/plain_acl.yml          the main file (key rocketmq.acl.plain.file)
    <home>/conf/acl/**/*.yml, *.yaml   more files; of two accounts with the same key the first
    counts

The main file is first, followed by the others in order of their paths. A change is detected by
content, not by time. If a changed file is invalid, the current rules are kept and the error is
logged; an invalid file stops the start of the server.

Invariants: rules are always the result of one reading of all files. Changes by requests are applied
one after the other, each to the result of the previous one. No file outside this list is ever read
or written, regardless of the names in a request.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

from attrs import define, field

from rmqpy.acl.plain_acl_file import AccessFile, format_access_file, parse_access_file
from rmqpy.acl.rules import EXAMPLE_SECRET, AccessRules
from rmqpy.acl.signature import AccessChecker, AccessDemand
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.errors import ConfigError
from rmqpy.model.files import FileSystem

RELOAD_MS: Final = 5_000
FILES_MAX: Final = 1_000
CHANGES_MAX: Final = 1_000
"""The maximum number of waiting changes by requests."""
DEPTH_MAX: Final = 8

_SUFFIXES: Final = (".yml", ".yaml")
_TOOLS: Final = "tools.yml"
"""The file with the credentials of mqadmin, in the directory of the main file in Java's
installation. It is not an access file.
"""

Change = Callable[[AccessFile], AccessFile]
"""A function that returns the changed content of a file. It may raise ConfigError."""

Done = Callable[[str | None], None]
"""A callback, called with None when a change is on disk and in effect, or with the reason for its
failure.
"""

logger = logging.getLogger(__name__)


def access_paths(home: str | None, plain_file: str) -> tuple[str, str]:
    """Return the paths of the main file and of the directory of the other files."""
    if home:
        main = PurePosixPath(home) / plain_file.lstrip("/")
    else:
        main = PurePosixPath(plain_file)
        if not main.is_absolute():
            raise ConfigError(
                f"rocketmq.acl.plain.file={plain_file}: rocketmqHome is not set; set an absolute "
                "path"
            )
    return str(main), str(main.parent / "acl")


def watched_checker(
    demands: Mapping[int, AccessDemand],
    paths: tuple[str, str],
    files: FileSystem,
    scheduler: Scheduler,
    *,
    strict: bool,
) -> tuple[AccessChecker, AccessFiles]:
    """Return a checker of ``demands`` and the files at ``paths`` that supply its rules.

    The checker has no rules until :meth:`AccessFiles.start`.
    """
    checker = AccessChecker(demands)
    return checker, AccessFiles(*paths, files, scheduler, checker.use, strict)


@define(slots=True, eq=False, repr=False)
class AccessFiles:
    """The access files of a server. ``changed`` is called with the new rules after each change."""

    main: str
    folder: str
    files: FileSystem
    scheduler: Scheduler
    changed: Callable[[AccessRules], None]
    strict: bool = False
    """If True, files that other users of the machine can read and the accounts of Java's example
    file are refused.
    """
    read_files: Mapping[str, AccessFile] = field(factory=dict, init=False)
    _raw: Mapping[str, bytes] = field(factory=dict, init=False)
    _fault: str | None = field(default=None, init=False)
    _timer: Timer | None = field(default=None, init=False)
    _changes: deque[tuple[str, Change, Done]] = field(factory=deque, init=False)
    _changing: bool = field(default=False, init=False)

    def start(self) -> None:
        """Read all files, and reread them periodically. Raises ConfigError if there is none or one
        of them is invalid.
        """
        raw = read_access_files(self.files, self.main, self.folder)
        if not raw:
            raise ConfigError(
                f"access control is enabled, but neither {self.main} nor a file in {self.folder} "
                "exists; set rocketmqHome or rocketmq.acl.plain.file"
            )
        self._take(raw)
        self._schedule_reload()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def change(self, path: str, change: Change, done: Done) -> None:
        """Change one of the files, or create the main file, and call ``done`` with the result."""
        assert path in self.read_files or path == self.main, path
        if len(self._changes) >= CHANGES_MAX:
            done(f"{CHANGES_MAX} changes are already waiting; try again later")
            return
        self._changes.append((path, change, done))
        if not self._changing:
            self._change_next()

    def _change_next(self) -> None:
        if not self._changes:
            return
        path, change, done = self._changes.popleft()
        try:
            file = change(self.read_files.get(path) or AccessFile())
            self._check(path, file)
            file.rules(path)
            data = format_access_file(file).encode()
        except ConfigError as fault:
            done(str(fault))
            self._change_next()
            return

        def written(_: None, error: BaseException | None) -> None:
            self._changing = False
            if error is None:
                self._take({**self._raw, path: data})
            done(None if error is None else f"{path} could not be written: {error}")
            self._change_next()

        self._changing = True
        self.scheduler.run_blocking(lambda: self.files.replace_bytes(path, data), written)

    def _schedule_reload(self) -> None:
        self._timer = self.scheduler.call_later(RELOAD_MS, self._reload)

    def _reload(self) -> None:
        before = self._raw

        def read(raw: dict[str, bytes] | None, error: BaseException | None) -> None:
            if self._timer is None:
                return
            self._schedule_reload()
            if self._raw is not before:
                return  # a request has changed the files meanwhile
            if error is not None or not raw:
                self._report(f"{self.main} and the others cannot be read: {error or 'none left'}")
            elif raw != self._raw:
                try:
                    self._take(raw)
                except ConfigError as fault:
                    self._report(str(fault))

        self.scheduler.run_blocking(
            lambda: read_access_files(self.files, self.main, self.folder), read
        )

    def _report(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            logger.error("keeping the current access rules, the files are invalid: %s", fault)

    def _take(self, raw: Mapping[str, bytes]) -> None:
        parsed, rules = {}, []
        for path, data in raw.items():
            file = parse_access_file(data.decode("utf-8", "replace"), path)
            self._check(path, file)
            parsed[path] = file
            rules.append(file.rules(path))
        self._raw, self.read_files, self._fault = dict(raw), parsed, None
        merged = merged_rules(rules)
        logger.info("access rules: %d accounts in %d files", len(merged.accounts), len(parsed))
        self.changed(merged)

    def _check(self, path: str, file: AccessFile) -> None:
        if not self.strict:
            return
        if self.files.exists(path) and self.files.open_to_others(path):
            raise ConfigError(f"{path}: other users of this machine can read it; chmod o= {path}")
        refuse_examples(path, file)


def read_access_files(files: FileSystem, main: str, folder: str) -> dict[str, bytes]:
    """Return the content of all access files by path; the first that has an account counts."""
    paths = [main] if files.exists(main) else []
    paths += _found_below(files, folder, DEPTH_MAX)
    return {path: files.read_bytes(path) for path in paths[:FILES_MAX]}


def _found_below(files: FileSystem, folder: str, depth: int) -> list[str]:
    found: list[str] = []
    if depth and files.is_dir(folder):
        for name in files.list_dir(folder):
            path = f"{folder}/{name}"
            if files.is_dir(path):
                found += _found_below(files, path, depth - 1)
            elif name.endswith(_SUFFIXES) and name != _TOOLS:
                found.append(path)
    return found


def refuse_examples(path: str, file: AccessFile) -> None:
    """Raise ConfigError if ``file`` has an account with the publicly known secret of Java's example
    file.
    """
    for account in file.accounts:
        if account.secret_key == EXAMPLE_SECRET:
            raise ConfigError(
                f"{path}: account {account.access_key} has the secret of Java's example file; "
                "choose another secret"
            )


def merged_rules(rules: list[AccessRules]) -> AccessRules:
    """Return the merged rules. Of two accounts with the same key the first counts."""
    accounts = {key: account for each in reversed(rules) for key, account in each.accounts.items()}
    return AccessRules(accounts, tuple(white for each in rules for white in each.white_addresses))
