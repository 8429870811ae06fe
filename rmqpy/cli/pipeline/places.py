"""The stores that the verbs of ``rmqpy pipeline`` read: directories of this machine, and URIs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from rmqpy.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqpy.audit.checks.engine import AuditOptions
    from rmqpy.model.files import FileSystem

ANSWERING: Final = ("http", "https", "ssh")
"""The schemes of replicas that send their manifest instead of their bytes."""
REMOTE_WORKERS: Final = 8
"""The threads that read a store elsewhere: they wait for its answers."""


@define(slots=True, frozen=True)
class StorePlace:
    """A store on this machine, or elsewhere: then ``root`` is its URI, and all paths start with
    it.
    """

    root: str
    files: FileSystem

    @property
    def is_remote(self) -> bool:
        from rmqpy.audit.remote.files import RemoteFileSystem

        return isinstance(self.files, RemoteFileSystem)

    def check_unchanged(self) -> None:
        """Raise StoreError if files elsewhere have changed since they were listed."""
        from rmqpy.audit.remote.files import RemoteFileSystem

        if isinstance(self.files, RemoteFileSystem):
            self.files.check_unchanged()

    def divided(self, plan: AuditOptions, *, on_spark: bool) -> AuditOptions:
        """Return a plan for an audit of a store here or elsewhere.

        Elsewhere, threads wait for answers. A worker of Spark fetches whole files, so a range is
        one.
        """
        from attrs import evolve

        from rmqpy.audit.scan.directory import read_logs

        if not self.is_remote:
            return plan
        if on_spark:
            sizes = [log.file_size for log in read_logs(self.files, self.root)]
            plan = evolve(plan, range_bytes=max(plan.range_bytes, *sizes))
        return evolve(plan, workers=REMOTE_WORKERS)


def storage_options(parser: argparse.ArgumentParser) -> None:
    """Add the option for the drivers of object stores."""
    parser.add_argument(
        "--storage-option",
        dest="storage",
        action="append",
        type=storage_option,
        default=[],
        metavar="KEY=VALUE",
        help="an option of the driver of an object store (endpoint_url=URL); may be repeated",
    )


def storage_option(text: str) -> tuple[str, Any]:
    """Return an option as the driver takes it: true and false, a JSON object, or a text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError("found no KEY=VALUE, expected an option of the driver")
    if value in ("true", "false") or value.startswith("{"):
        try:
            return key, json.loads(value)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"found no JSON as the value of {key}, expected an object or a text"
            ) from None
    return key, value


def store_places(directories: list[str], storage: list[tuple[str, Any]]) -> list[StorePlace]:
    """Return the stores in directories of this machine, and below URIs of object stores.

    Raise StoreError if one is not a store, ConfigError if one is a URI that cannot be read, and
    NetworkError if its place does not answer.
    """
    from rmqpy.audit.remote.files import RemoteFileSystem
    from rmqpy.audit.remote.object_store import ObjectStore
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.model.local_paths import is_elsewhere, local_path
    from rmqpy.store.files.disk import OsFileSystem

    if storage and not any(map(is_elsewhere, directories)):
        raise ConfigError(
            "found --storage-option and only directories of this machine, expected the URI of an"
            " object store; omit the option"
        )
    places = []
    for text in directories:
        if text.partition(":")[0].lower() in ANSWERING and is_elsewhere(text):
            raise ConfigError(
                f"{text}: found a URI of a host, expected a directory or the URI of an object"
                " store; run the command on that host"
            )
        if is_elsewhere(text):
            root = text.rstrip("/")
            place = StorePlace(root, RemoteFileSystem(ObjectStore(root, dict(storage))))
        else:
            place = StorePlace(local_path(text), OsFileSystem())
        check_store_root(place.files, place.root)
        places.append(place)
    return places


def replica_uri(text: str) -> tuple[str, str] | None:
    """Return (name, URI) of a replica ``[NAME=]URI`` in an object store, or None for another one.

    Replicas that answer for themselves (``upgrade serve``, ``ssh``) are other ones.
    """
    from rmqpy.model.local_paths import is_elsewhere

    name, uri = ("", text) if is_elsewhere(text) else text.partition("=")[::2]
    if not is_elsewhere(uri) or uri.partition(":")[0].lower() in ANSWERING:
        return None
    uri = uri.rstrip("/")
    return name or uri.rpartition("/")[2], uri


def log_bytes(places: Iterable[StorePlace]) -> int:
    """Return the size of the logs of stores in bytes."""
    from rmqpy.audit.scan.directory import read_logs

    logs = [log for place in places for log in read_logs(place.files, place.root)]
    return sum(file.size for log in logs for file in log.files)
