"""The stores that the verbs of ``rmqpy pipeline`` read: directories of this machine, and URIs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from rmqpy.cli.parsing import output_path
from rmqpy.model.errors import ConfigError
from rmqpy.model.local_paths import is_elsewhere, local_path, without_slash
from rmqpy.model.values import define

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqpy.audit.checks.engine import AuditOptions
    from rmqpy.audit.remote.byte_ranges import ByteRanges
    from rmqpy.model.files import FileSystem
    from rmqpy.pipeline.jobs.export_target import ExportTarget

ANSWERING: Final = ("http", "https", "ssh")
"""The schemes of hosts. A replica there sends its manifest instead of its bytes."""
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
        return is_elsewhere(self.root)

    def check_unchanged(self) -> None:
        """Raise StoreError if files elsewhere have changed since they were listed."""
        if not self.is_remote:
            return
        from rmqpy.audit.remote.files import RemoteFileSystem

        assert isinstance(self.files, RemoteFileSystem)
        self.files.check_unchanged()

    def with_workers(self, plan: AuditOptions) -> AuditOptions:
        """Return a plan for an audit of a store here, or elsewhere: threads wait for answers."""
        return evolve(plan, workers=REMOTE_WORKERS) if self.is_remote else plan


def place_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for stores in object stores, and behind ``rmqpy upgrade serve``."""
    storage_options(parser)
    parser.add_argument("--token-file", metavar="FILE", help="token for rmqpy upgrade serve")
    parser.add_argument("--authority", metavar="FILE", help="certificates to trust, PEM")


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


def output_place(text: str) -> str:
    """Return the absolute path of an output, or a URI, for the ``type`` of an option."""
    if not is_elsewhere(text):
        return output_path(text)
    try:
        return without_slash(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def export_target(options: argparse.Namespace) -> ExportTarget:
    """Return the place ``--to`` of an export. Raise ConfigError for a URI of a host."""
    from rmqpy.audit.remote.object_store import ObjectStore
    from rmqpy.pipeline.jobs.export_target import FolderTarget, ObjectTarget

    if not is_elsewhere(options.to):
        return FolderTarget(options.to)
    refuse_hosts(options.to, "give another --to")
    expected = "a bucket to write to"
    return ObjectTarget(ObjectStore(options.to, dict(options.storage), expected))


def refuse_hosts(uri: str, remedy: str) -> None:
    """Raise ConfigError for the address of a host."""
    scheme = uri.partition(":")[0].lower()
    if scheme in ANSWERING:
        raise ConfigError(
            f"{uri}: found a URI of {scheme}, expected a folder, or the URI of an object store;"
            f" {remedy}"
        )


def check_storage_options(options: argparse.Namespace, places: Iterable[str]) -> None:
    """Raise ConfigError for options of drivers if no place has one."""
    if options.storage and not any(map(is_elsewhere, places)):
        raise ConfigError(
            "found --storage-option and only directories of this machine, expected the URI of an"
            " object store; omit the option"
        )


def store_places(
    directories: list[str], options: argparse.Namespace, *targets: str
) -> list[StorePlace]:
    """Return the stores in directories of this machine, and below URIs elsewhere.

    The options of drivers are for them, and for ``targets``.

    Raise StoreError if one is not a store, ConfigError if one is a URI that cannot be read, and
    NetworkError if its place does not answer.
    """
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.store.files.disk import OsFileSystem

    check_storage_options(options, (*directories, *targets))
    places = []
    for text in directories:
        if is_elsewhere(text):
            from rmqpy.audit.remote.files import RemoteFileSystem

            root = without_slash(text)
            place = StorePlace(root, RemoteFileSystem(_source(root, options)))
        else:
            place = StorePlace(local_path(text), OsFileSystem())
        check_store_root(place.files, place.root)
        places.append(place)
    return places


def _source(root: str, options: argparse.Namespace) -> ByteRanges:
    """Return the bytes below a URI: those of a host that serves them, or of an object store."""
    from rmqpy.audit.remote.object_store import ObjectStore
    from rmqpy.cli.given_files import check_readable, read_token
    from rmqpy.cli.upgrade.base.hosts import note
    from rmqpy.upgrade.checks.replica import RemoteReplica
    from rmqpy.upgrade.checks.served_store import ServedStore

    scheme = root.partition(":")[0].lower()
    if scheme not in ANSWERING:
        return ObjectStore(root, dict(options.storage))
    if scheme == "ssh":
        raise ConfigError(
            f"{root}: found a URI of ssh, expected a directory, the address of rmqpy upgrade serve,"
            " or the URI of an object store; run rmqpy upgrade serve on that host"
        )
    check_readable(options.authority, "the certificates to trust")
    token = read_token(options.token_file)
    return ServedStore(RemoteReplica(root, root, token, options.authority, note=note))


def replica_uri(text: str) -> tuple[str, str] | None:
    """Return (name, URI) of a replica ``[NAME=]URI`` in an object store, or None for another one.

    Replicas that answer for themselves (``upgrade serve``, ``ssh``) are other ones.
    """
    name, uri = ("", text) if is_elsewhere(text) else text.partition("=")[::2]
    if not is_elsewhere(uri) or uri.partition(":")[0].lower() in ANSWERING:
        return None
    uri = without_slash(uri)
    return name or uri.rpartition("/")[2], uri


def refuse_elsewhere(replicas: Iterable[str], why: str, *, hosts: bool = False) -> None:
    """Raise ConfigError for replicas that are not directories: ``why`` says what needs one.

    With ``hosts``, the addresses of hosts that answer for themselves are allowed.
    """
    for text in replicas:
        place = text if is_elsewhere(text) else text.partition("=")[2]
        scheme = place.partition(":")[0].lower()
        if is_elsewhere(place) and not (hosts and scheme in ANSWERING):
            raise ConfigError(f"{place}: found a URI of {scheme}, expected a directory: {why}")


def log_bytes(places: Iterable[StorePlace]) -> int:
    """Return the size of the logs of stores in bytes."""
    from rmqpy.audit.scan.directory import read_logs

    logs = [log for place in places for log in read_logs(place.files, place.root)]
    return sum(file.size for log in logs for file in log.files)
