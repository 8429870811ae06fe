"""The targets of ``rmqpy why`` and ``rmqpy where``: a store directory or a running broker, and the
options with which both commands read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rmqpy.cli.connecting import client_settings
from rmqpy.cli.parsing import add_format_option, add_log_options
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqpy.client.core.instance import ClientSettings
    from rmqpy.config.loading import LoadedConfiguration
    from rmqpy.why.message_id import MessageId
    from rmqpy.why.sources.directory import StoreDirectorySource
    from rmqpy.why.sources.interface import MessageSource
    from rmqpy.why.sources.live import BrokerSource

TARGET_HELP = "a broker's storePathRootDir, or the HOST:PORT of a running broker"


def add_scan_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-scan",
        dest="scan",
        action="store_false",
        help="do not read the whole log if the key index does not have the message",
    )


def add_target_options(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    if config:
        parser.add_argument(
            "-c",
            dest="config",
            metavar="FILE",
            help="the broker.conf of a directory; default: that of the broker that runs on it, else"
            " Java's defaults",
        )
    parser.add_argument(
        "-n",
        "--namesrvAddr",
        dest="name_servers",
        default=os.environ.get("NAMESRV_ADDR"),
        metavar="HOST:PORT[;HOST:PORT]",
        help="name servers; default: environment variable NAMESRV_ADDR",
    )
    parser.add_argument("--credentials", metavar="FILE", help="as for rmqpy admin")
    parser.add_argument("--tls", action="store_true", help="use TLS, unverified")
    parser.add_argument("--tls-config", metavar="FILE", help="a Java tls.properties file")
    add_format_option(parser)
    add_log_options(parser)


def is_address(text: str) -> bool:
    """Return whether a target is an address and not a directory."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and not os.path.isdir(text)


@contextmanager
def opened(options: argparse.Namespace, target: str) -> Iterator[MessageSource]:
    """Open a target as a source of facts."""
    if is_address(target):
        with broker_source(options, target) as broker:
            yield broker
    else:
        yield directory_source(options, target)


def broker_source(options: argparse.Namespace, address: str) -> BrokerSource:
    from rmqpy.why.sources.live import BrokerSource

    return BrokerSource(address, _client_settings(options))


def directory_source(options: argparse.Namespace, path: str) -> StoreDirectorySource:
    """Return the source for a directory. Raise StoreError if it is not a store."""
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.model.local_paths import local_path
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.why.sources.directory import DEFAULT_SETTINGS, StoreDirectorySource

    root = local_path(path)
    loaded, settings_from = configuration_of(options, root)
    files = OsFileSystem()
    configuration = loaded.configuration if loaded is not None else None
    check_store_root(files, root, configuration.store if configuration is not None else None)
    return StoreDirectorySource(
        files,
        root,
        configuration,
        settings_from or DEFAULT_SETTINGS,
        others=loaded.unknown if loaded is not None else {},
    )


def configuration_of(
    options: argparse.Namespace, root: str
) -> tuple[LoadedConfiguration | None, str]:
    """Return the configuration of a directory's broker and where it is from.

    That is the file of ``-c``, or the file with which the broker that runs on the directory was
    started.
    """
    from pathlib import Path

    from rmqpy.audit.facts.lock_probe import find_lock_owner
    from rmqpy.config.loading import load_settings_of_any_broker
    from rmqpy.why.sources.process import configuration_of_process

    if options.config is not None:
        return load_settings_of_any_broker(options.config, os.environ), options.config
    process = find_lock_owner(f"{root}/lock")
    path = configuration_of_process(process) if process is not None else None
    if path is None:
        return None, ""
    try:
        loaded = load_settings_of_any_broker(path, os.environ)
    except (RmqError, OSError):
        return None, ""
    configured = loaded.configuration.store.store_path_root_dir
    return (loaded, path) if str(Path(configured).resolve()) == root else (None, "")


def _client_settings(options: argparse.Namespace) -> Callable[[str], ClientSettings]:
    from rmqpy.why.sources.connection import FIRST_HEARTBEAT_MS

    return lambda address: client_settings(
        options, options.name_servers or address, FIRST_HEARTBEAT_MS
    )


def targets_of(options: argparse.Namespace, wanted: MessageId) -> list[str]:
    """Return the given targets; else the broker in an offset id, or all brokers of the name
    servers.
    """
    from rmqpy.client.core.message import host_address
    from rmqpy.why.sources.connection import masters_of

    if options.target:
        return list(options.target)
    if options.name_servers:
        return masters_of(_client_settings(options)(options.name_servers))
    if wanted.host is not None:
        return [host_address(wanted.host)]
    if os.path.isdir(wanted.text):
        raise RmqError(
            f"found the directory {wanted.text} where the message id must be, expected MESSAGE-ID"
            f" DIR; give an id or a key before it, as in rmqpy where order-7 {wanted.text}"
        )
    raise RmqError(
        "found no target, expected a directory, the HOST:PORT of a broker, or name servers; add one"
        " after the message id, or use -n HOST:PORT"
    )


def print_json(value: dict[str, Any]) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=False)
    print()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
