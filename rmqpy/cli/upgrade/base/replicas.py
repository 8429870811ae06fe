"""The replicas of ``rmqpy upgrade`` as they are given on the command line.

A replica is ``[NAME=]DIR``, ``NAME=http(s)://HOST:PORT``, or ``NAME=ssh://HOST/DIR``; a
configuration is ``-c [NAME=]FILE``, a path on the replica's host.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from rmqpy.cli.given_files import check_readable, read_token
from rmqpy.cli.upgrade.base.hosts import DRIVER, driver_replica, linked_replica, note
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from rmqpy.config.loading import StoreSettings
    from rmqpy.upgrade.checks.replica import LocalReplica, Replica


FILL = (
    "A new member: rmqpy upgrade plan and apply of the whole group fill it; in a DLedger group,"
    " rmqpy upgrade join {} --from MEMBER"
)


def all_replicas(options: argparse.Namespace) -> list[Replica]:
    from rmqpy.upgrade.checks.replica import RemoteReplica

    token = read_token(getattr(options, "token_file", None))
    check_readable(getattr(options, "authority", None), "the certificates to trust")
    texts = getattr(options, "replica", [])
    order = [name_of(text) for text in texts]
    configs = named(getattr(options, "config", []), order, "-c")
    found: list[Replica] = []
    for text in texts:
        name, _, address = text.partition("=")
        if not is_remote(text):
            continue
        if address.startswith("ssh://"):
            found.append(linked_replica(options, name, address, configs.get(name, "")))
        elif address == DRIVER:
            found.append(driver_replica(options, name))
        else:
            found.append(RemoteReplica(name, address, token, options.authority, note=note))
    local = local_replicas(options)
    return sorted([*found, *local], key=lambda each: order.index(each.name))


def local_replicas(options: argparse.Namespace) -> list[LocalReplica]:
    """Return the replicas that are directories of this host.

    Raise StoreError if one is not a store. ``options.may_be_empty`` says whether it may be a member
    to be filled.
    """
    from rmqpy.audit.replicas.manifest import Md5
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.config.loading import load_store_settings
    from rmqpy.model.local_paths import local_path
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.checks.replica import LocalReplica
    from rmqpy.upgrade.plan.survey import SurveyPlan

    texts = getattr(options, "replica", [])
    names = [name_of(text) for text in texts]
    configs = named(getattr(options, "config", []), names, "-c")
    stores: dict[str, StoreSettings] = {}
    found: list[LocalReplica] = []
    for text in texts:
        if is_remote(text):
            continue
        path = text.rpartition("=")[2]
        name = name_of(text)
        config = configs.get(name)
        store = None
        if config is not None:
            store = load_store_settings(config, os.environ)
        root = local_path(path)
        settings = _relocated(store, root) if store else None
        _check_store(name, root, settings, may_be_empty=getattr(options, "may_be_empty", False))
        if store is not None:
            stores[name] = store
        plan = SurveyPlan(
            name=name,
            root=root,
            config_path=absolute(config, folder=False) if config else None,
            settings=settings,
            now_ms=now_ms,
            progress=ProgressLine,
            runner=getattr(options, "runner", None),
            full=getattr(options, "full", False),
            md5=Md5.EVERY_FILE if getattr(options, "every_md5", False) else Md5.OWN_FILES,
        )
        found.append(LocalReplica(OsFileSystem(), plan))
    _check_not_swapped({each.name: each.root for each in found}, stores)
    _check_distinct(found)
    return found


def _check_store(
    name: str, root: str, settings: StoreSettings | None, *, may_be_empty: bool
) -> None:
    """Raise StoreError with the name of the replica if its directory is not a store."""
    from rmqpy.audit.scan.store_root import EMPTY, WITHOUT_LOG, check_store_root
    from rmqpy.model.errors import StoreError
    from rmqpy.store.files.disk import OsFileSystem

    files = OsFileSystem()
    try:
        check_store_root(files, root, settings, may_be_empty=may_be_empty)
    except StoreError as error:
        is_member = error.found in (EMPTY, WITHOUT_LOG)
        remedy = f"{error.remedy}. {FILL.format(name)}" if is_member else error.remedy
        raise StoreError(f"{name}: {error.path}", error.found, error.expected, remedy) from None


def _relocated(store: StoreSettings, root: str) -> StoreSettings:
    """Return the settings of a broker.conf for the given directory, which may be a copy.

    Everything of a copy is in it: what a configured path names outside is the original's.
    """
    from pathlib import Path

    import attrs

    from rmqpy.audit.scan.directory import paths_below

    if str(Path(store.store_path_root_dir).resolve()) == root:
        return store
    paths = paths_below(root, store)
    return attrs.evolve(
        store,
        store_path_root_dir=root,
        store_path_commit_log=f"{root}/commitlog",
        store_path_epoch_file=_inside(root, paths.epochs_elsewhere),
        store_path_broker_identity=_inside(root, paths.identity_elsewhere),
    )


def _inside(root: str, path: str | None) -> str | None:
    if path is None or path.startswith(f"{root}/"):
        return path
    return f"{root}/{path.rpartition('/')[2]}"


def is_remote(text: str) -> bool:
    """Return whether a replica is on another host."""
    _, separator, address = text.partition("=")
    schemes = ("http://", "https://", "ssh://", DRIVER)
    return bool(separator) and address.startswith(schemes)


def name_of(text: str) -> str:
    name, separator, path = text.partition("=")
    return name if separator else path or text.rstrip("/").rpartition("/")[2] or text


def named(texts: list[str], replicas: list[str], option: str) -> dict[str, str]:
    """Return the values of ``option``, which are ``NAME=VALUE`` texts, by the replica's name.

    A value without a name belongs to the only replica. Raise RmqError if there are several, if no
    replica has that name, or if one has two values or an empty one.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            if len(replicas) != 1:
                raise RmqError(
                    f"{option} {text}: found no name of a replica, expected one of"
                    f" {', '.join(replicas)}; write {option} NAME={text}"
                )
            name, value = replicas[0], text
        if name not in replicas:
            known = ", ".join(replicas) or "none"
            raise RmqError(
                f"{option} {text}: found the name {name!r}, expected that of a given replica:"
                f" {known}; correct the name{did_you_mean(name, replicas)}"
            )
        if not value:
            raise RmqError(
                f"{option} {text}: found no value for {name}, expected {option} {name}=VALUE;"
                " give the value, or leave the option out"
            )
        if name in found:
            raise RmqError(
                f"{option}: found two values for {name}, {found[name]} and {value}, expected one;"
                " give one"
            )
        found[name] = value
    return found


def _check_distinct(replicas: list[LocalReplica]) -> None:
    """Check that no two replicas share a directory, a log, or a broker.conf.

    Raise UpgradeRefusedError for the first that do.
    """
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    owners: dict[tuple[str, str], str] = {}
    for replica in replicas:
        plan = replica.plan
        log = plan.settings.store_path_commit_log if plan.settings is not None else None
        places = {
            "the directory": plan.root,
            "the broker.conf": plan.config_path,
            "storePathCommitLog": log,
        }
        for what, place in places.items():
            if place is None:
                continue
            other = owners.setdefault((what, place), plan.name)
            if other != plan.name:
                raise UpgradeRefusedError(
                    f"{other} and {plan.name} share {what} {place}, expected one for each; give"
                    " every replica its own"
                )


def _check_not_swapped(roots: dict[str, str], stores: dict[str, StoreSettings]) -> None:
    """Check that no broker.conf is that of another replica. Raise UpgradeRefusedError if one is."""
    from pathlib import Path

    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    for name, store in stores.items():
        configured = str(Path(store.store_path_root_dir).resolve())
        for other, root in roots.items():
            if other != name and root == configured:
                raise UpgradeRefusedError(
                    f"the broker.conf given for {name} has storePathRootDir={configured}, which is"
                    f" the directory of {other}: the files may be swapped; give {name} its own"
                    f" with -c {name}=FILE"
                )


def absolute(path: str, *, folder: bool = True) -> str:
    from pathlib import Path

    found = Path(path)
    if folder and not found.is_dir():
        raise RmqError(
            f"{path}: found no directory, expected a broker's storePathRootDir; check the path"
        )
    return str(found.resolve())


def now_ms() -> int:
    return time.time_ns() // 1_000_000
