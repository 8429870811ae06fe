"""A place in an object store (S3, GCS, …), or in any other file system that fsspec knows: a store,
or what an export writes.

The driver is the one that fsspec has for the scheme of the URI (s3fs, gcsfs, …), with its own
settings: environment, profiles, fsspec's configuration files. ``options`` are added to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import IO, Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from attrs import define, field

from rmqpy.audit.remote.byte_ranges import ListedFile
from rmqpy.model.errors import ConfigError, NetworkError, RmqError, StoreError

__all__ = ["ObjectStore"]

T = TypeVar("T")

INSTALL: Final = "install it with: pip install 'rmqpy[object-store]'"
REACH_SECONDS: Final = 20.0
"""The time for the first answer."""
LIST_SECONDS: Final = 1800.0
"""The time for the list of the files: an object store returns a thousand at a time."""
READ_SECONDS: Final = 120.0
WRITE_SECONDS: Final = 1800.0
"""The time for one object."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Its own patience is longer than that of a user in front of a command.
    "s3": {"config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 2}}},
    # fsspec drops the instances that it keeps in a forked process, such as that in which Spark
    # starts. hdfs-native waits there, for ever, for its threads, which a fork does not copy.
    "hdfs": {"skip_instance_cache": True},
    "viewfs": {"skip_instance_cache": True},
}
"""Options of drivers, before those of the user."""
SAME: Final = {"s3a": "s3", "s3n": "s3"}
WITHOUT_LIST: Final = ("http", "https")
"""Schemes of places that say neither the names nor the sizes of their files."""
RENAMED: Final = ("hdfs", "viewfs", "webhdfs", "swebhdfs")
"""Schemes of file systems that show a file before it is complete, unlike an object store. A file is
written there under another name and renamed, which happens at once, and not if the name is taken
(Hadoop's FileSystem specification, ``rename`` of HDFS)."""
PART: Final = ".part"
VERSIONS: Final = ("ETag", "etag", "generation", "md5Hash", "checksum", "content_md5")
TIMES: Final = (
    *("LastModified", "last_modified", "mtime", "updated", "modified", "created"),
    "modification_time",
)
REFUSED: Final = frozenset(
    ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError")
)
"""Errors of drivers that mean missing credentials, and are no PermissionError."""


@define(slots=True)
class ObjectStore:
    """The files below a URI (implements :class:`rmqpy.audit.remote.byte_ranges.ByteRanges`).

    ``expected`` is what they are, for messages.

    ``options`` are those of the driver; they may be secret, so no text contains their values.
    """

    root: str
    options: Mapping[str, Any] = field(factory=dict, repr=False)
    expected: str = "a store"
    _system: Any = field(default=None, init=False, repr=False, eq=False)
    _path: str = field(default="", init=False)
    _is_renamed: bool = field(default=False, init=False)

    def listed(self) -> list[ListedFile]:
        """Return all files. A place that does not answer is given up after some seconds."""

        def find() -> list[ListedFile]:
            found: Mapping[str, Mapping[str, Any]] = self._system.find(
                self._path, withdirs=True, detail=True
            )
            below = f"{self._path.rstrip('/')}/"
            return [
                _listed(name.removeprefix(below), about)
                for name, about in found.items()
                if name.startswith(below) and name != below
            ]

        self._asked(self._opened, LIST_SECONDS)  # imports the driver
        self._asked(self._reach, REACH_SECONDS)
        return self._asked(find, LIST_SECONDS)

    def _reach(self) -> None:
        self._system.invalidate_cache()
        self._system.info(self._path)

    def current(self, path: str) -> ListedFile | None:
        def info() -> Mapping[str, Any]:
            system = self._opened()
            system.invalidate_cache()
            found: Mapping[str, Any] = system.info(self._place(path))
            return found

        try:
            return _listed(path, self._asked(info, READ_SECONDS))
        except StoreError:
            return None

    def read(self, path: str, start: int, end: int) -> bytes:
        def read() -> bytes:
            found: bytes = self._opened().cat_file(self._place(path), start=start, end=end)
            return found

        return self._asked(read, READ_SECONDS)

    # ------------------------------------------------------------------ what the pipeline writes

    def names(self, *, parts: bool = False) -> list[str]:
        """Return the paths of all files; none if there is nothing of this name. ``parts`` adds what
        interrupted writes have left.
        """

        def find() -> list[str]:
            below = f"{self._path.rstrip('/')}/"
            found: list[str] = self._system.find(self._path)
            return [
                name.removeprefix(below)
                for name in found
                if parts or not (self._is_renamed and name.endswith(PART))
            ]

        def reach() -> bool:
            try:
                self._reach()
            except FileNotFoundError:
                return False
            return True

        self._asked(self._opened, LIST_SECONDS)
        return self._asked(find, LIST_SECONDS) if self._asked(reach, REACH_SECONDS) else []

    def read_all(self, path: str) -> bytes:
        """Return the content of a file."""

        def read() -> bytes:
            found: bytes = self._opened().cat_file(self._place(path))
            return found

        return self._asked(read, READ_SECONDS)

    @contextmanager
    def opened_file(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file to read parts of it."""
        with self._asked(
            lambda: self._opened().open(self._place(path), "rb"), READ_SECONDS
        ) as file:
            yield file

    def put_file(self, source: str, path: str) -> None:
        """Write a file of this machine, or replace the one that is there."""
        self._replace(lambda place: self._system.put_file(source, place), path)

    def create_file(self, source: str, path: str) -> bool:
        """Write a file of this machine unless there is one of this name; return whether it was
        written. Drivers without such a request look first.
        """

        def create() -> bool:
            system = self._opened()
            if self._is_renamed:
                return self._write_and_rename(lambda part: system.put_file(source, part), path)
            try:
                system.put_file(source, self._place(path), mode="create")
            except FileExistsError:
                return False
            return True

        return self._asked(create, WRITE_SECONDS, "write")

    def put_bytes(self, path: str, data: bytes) -> None:
        """Write a small file, or replace the one that is there."""
        self._replace(lambda place: self._system.pipe_file(place, data), path)

    def _replace(self, write: Callable[[str], object], path: str) -> None:
        def replace() -> None:
            self._opened()
            if not self._is_renamed:
                write(self._place(path))
                return
            while not self._write_and_rename(write, path):
                with suppress(FileNotFoundError):
                    self._system.rm_file(self._place(path))

        self._asked(replace, WRITE_SECONDS, "write")

    def _write_and_rename(self, write: Callable[[str], object], path: str) -> bool:
        """Write a file; return False, and leave none, if there is one of this name."""
        system, place = self._system, self._place(path)
        folder, _, name = place.rpartition("/")
        # Readers of tables pass over names with an underscore.
        part = f"{folder}/_{name}-{uuid4().hex}{PART}"
        write(part)
        fault: Exception | None = None
        try:
            system.mv(part, place)
        except Exception as error:  # noqa: BLE001 - drivers raise what their libraries raise
            fault = error
        system.invalidate_cache()
        # WebHDFS says only in an answer that fsspec does not read whether it has renamed.
        is_left, is_there = system.exists(part), system.exists(place)
        if is_left:
            system.rm_file(part)
        if not is_there:
            raise fault or OSError(f"{part} was not renamed")
        return not is_left

    def remove(self, path: str) -> None:
        """Remove a file, unless it is gone."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._opened().rm_file(self._place(path))

        self._asked(remove, WRITE_SECONDS, "write")

    # ------------------------------------------------------------------ the driver

    def _place(self, path: str) -> str:
        return f"{self._path.rstrip('/')}/{path}"

    def _opened(self) -> Any:
        """Return the driver. Raise ConfigError if it or fsspec is not installed."""
        if self._system is None:
            scheme = urlsplit(self.root).scheme.lower()
            try:
                import fsspec
            except ImportError:
                raise ConfigError(
                    f"{self.root}: found a URI of {scheme} and no fsspec, expected a local path, or"
                    f" fsspec and its driver for {scheme}; {INSTALL}"
                ) from None
            known = scheme not in WITHOUT_LIST
            try:
                fsspec.get_filesystem_class(scheme)
            except ImportError as error:
                raise ConfigError(
                    f"{self.root}: found a URI of {scheme} without its driver ({error}), expected"
                    " one that is installed; install it with pip"
                ) from None
            except ValueError:
                known = False
            if not known:
                raise ConfigError(
                    f"{self.root}: found a URI of {scheme}, expected a local path, file:///PATH, or"
                    " a file system that fsspec knows; mount or copy the data, and give its local"
                    " path"
                )
            options = {**OPTIONS.get(SAME.get(scheme, scheme), {}), **self.options}
            system, self._path = fsspec.core.url_to_fs(self.root, **options)
            self._is_renamed = scheme in RENAMED
            self._system = system
        return self._system

    def _asked(self, question: Callable[[], T], seconds: float, verb: str = "read") -> T:
        """Return the answer to a question. Raise an error with a sentence for the user."""
        try:
            return _within(question, seconds)
        except RmqError:
            raise
        except FileNotFoundError:
            raise StoreError(
                self.root,
                "no bucket or file of this name",
                self.expected,
                "check the URI, and the endpoint of its driver",
            ) from None
        except Exception as error:  # noqa: BLE001 - drivers raise what their libraries raise
            kind = type(error).__name__
            if isinstance(error, PermissionError) or kind in REFUSED:
                raise StoreError(
                    self.root,
                    f"no permission to {verb} it ({self._told(error)})",
                    f"credentials that may list and {verb} it",
                    "give those that its driver looks for, in the environment or its profile",
                ) from None
            raise NetworkError(
                f"{self.root}: found no answer ({self._told(error)}), expected that of the object"
                " store; check the network, and the endpoint and options of its driver"
            ) from None

    def _told(self, error: Exception) -> str:
        """Return the first line of an error's text, without values of the options."""
        lines = str(error).splitlines()
        text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        for value in _values(self.options):
            text = text.replace(value, "…")
        return text


def _values(options: Mapping[str, Any]) -> Iterator[str]:
    for value in options.values():
        if isinstance(value, Mapping):
            yield from _values(value)
        elif isinstance(value, str) and len(value) > 3 and "://" not in value:
            yield value


def _listed(path: str, about: Mapping[str, Any]) -> ListedFile:
    """Return an entry of a driver. All drivers have ``type`` and ``size``."""
    if about.get("type") == "directory" or path.endswith("/"):
        return ListedFile(path=path.rstrip("/"), is_folder=True)
    mtime_ms = _time_ms(next((about[name] for name in TIMES if about.get(name)), None))
    version = next((str(about[name]) for name in VERSIONS if about.get(name)), str(mtime_ms))
    return ListedFile(path=path, size=int(about["size"]), mtime_ms=mtime_ms, version=version)


def _time_ms(value: object) -> int:
    """Return a time as ms since 1970: drivers have objects, seconds, or ISO texts; 0 for none."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return 0
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    return int(value * 1000) if isinstance(value, int | float) else 0


def _within(call: Callable[[], T], seconds: float) -> T:
    """Return what a function returns. Raise TimeoutError after some time: the thread that waits for
    the answer ends with the process.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asks
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"none within {seconds:.0f} s")
    return results[0]
