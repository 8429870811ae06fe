"""The inputs of ``rmqpy upgrade``: replicas, configurations, directories.

A replica is ``[NAME=]DIR`` or ``NAME=http(s)://HOST:PORT``, a configuration ``-c [NAME=]FILE``.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmqpy.cli.given_files import check_readable, read_token
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmqpy.config.loading import StoreSettings
    from rmqpy.model.files import FileSystem
    from rmqpy.upgrade.checks.replica import LocalReplica, Replica
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions


def plan_context_of(
    options: argparse.Namespace, switch: SwitchOptions | None = None
) -> PlanContext:
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.config.loading import load_broker_configuration
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.checks.findings import Group
    from rmqpy.upgrade.checks.replica import LocalReplica
    from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions

    replicas = all_replicas(options)
    _check_one_has_content(replicas)
    names = [replica.name for replica in replicas]
    if len(set(names)) < len(names):
        raise RmqError(f"replicas need different names: {', '.join(names)}; write NAME=DIR")
    settings = {}
    for name, path in named(getattr(options, "config", []), names, "-c").items():
        settings[name] = load_broker_configuration(path, {}, os.environ).configuration.store
    for replica in replicas:
        # The given directory is used, not the one in its broker.conf, because it may be a copy.
        if isinstance(replica, LocalReplica) and replica.plan.settings is not None:
            settings[replica.name] = replica.plan.settings
    if switch is None:
        switch = SwitchOptions(reference=getattr(options, "reference", None))
    return PlanContext(
        group=Group(tuple(replicas)),
        files=OsFileSystem(),
        options=switch,
        settings=settings,
        progress=ProgressLine,
        resolves=_resolves,
    )


def _resolves(host: str) -> bool:
    import socket

    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def _check_one_has_content(replicas: list[Replica]) -> None:
    """Raise StoreError if all replicas are empty: then none can be a member to be filled."""
    from rmqpy.audit.scan.store_root import check_store_root, is_store_root
    from rmqpy.upgrade.checks.replica import LocalReplica

    local = [each for each in replicas if isinstance(each, LocalReplica)]
    stores = (is_store_root(each.files, each.root, each.plan.settings) for each in local)
    if local and len(local) == len(replicas) and not any(stores):
        check_store_root(local[0].files, local[0].root, local[0].plan.settings)


def all_replicas(options: argparse.Namespace) -> list[Replica]:
    from rmqpy.upgrade.checks.replica import RemoteReplica

    token = read_token(getattr(options, "token_file", None))
    check_readable(getattr(options, "authority", None), "the certificates to trust")
    found: list[Replica] = []
    for text in getattr(options, "replica", []):
        name, separator, address = text.partition("=")
        if separator and address.startswith(("http://", "https://")):
            found.append(RemoteReplica(name, address, token, options.authority))
    local = local_replicas(options)
    order = [name_of(text) for text in getattr(options, "replica", [])]
    return sorted([*found, *local], key=lambda each: order.index(each.name))


def local_replicas(options: argparse.Namespace) -> list[LocalReplica]:
    """Return the replicas that are directories of this host.

    Raise StoreError if one is not a store. ``options.may_be_empty`` says whether it may be a member
    to be filled.
    """
    from pathlib import Path

    from rmqpy.audit.replicas.manifest import Md5
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.config.loading import load_broker_configuration
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.checks.replica import LocalReplica
    from rmqpy.upgrade.plan.survey import SurveyPlan

    texts = getattr(options, "replica", [])
    names = [name_of(text) for text in texts]
    configs = named(getattr(options, "config", []), names, "-c")
    stores: dict[str, StoreSettings] = {}
    found: list[LocalReplica] = []
    for text in texts:
        _, separator, path = text.rpartition("=")
        if separator and path.startswith(("http://", "https://")):
            continue
        name = name_of(text)
        config = configs.get(name)
        store = None
        if config is not None:
            store = load_broker_configuration(config, {}, os.environ).configuration.store
        root = str(Path(path).resolve())
        settings = _relocated(store, root) if store else None
        may_be_empty = getattr(options, "may_be_empty", False)
        check_store_root(OsFileSystem(), root, settings, may_be_empty=may_be_empty)
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
            md5=Md5.EVERY_FILE if getattr(options, "every_md5", False) else Md5.OWN_FILES,
        )
        found.append(LocalReplica(OsFileSystem(), plan))
    _check_not_swapped({each.name: each.root for each in found}, stores)
    _check_distinct(found)
    return found


def _relocated(store: StoreSettings, root: str) -> StoreSettings:
    """Return the settings of a broker.conf for the given directory, which may be a copy."""
    from pathlib import Path

    import attrs

    if str(Path(store.store_path_root_dir).resolve()) == root:
        return store
    return attrs.evolve(store, store_path_root_dir=root, store_path_commit_log=f"{root}/commitlog")


def name_of(text: str) -> str:
    name, separator, path = text.partition("=")
    return name if separator else path or text.rstrip("/").rpartition("/")[2] or text


def named(texts: list[str], replicas: list[str], option: str) -> dict[str, str]:
    """Return the values of ``option``, which are ``NAME=VALUE`` texts, by the replica's name.

    A value without a name belongs to the only replica. Raise RmqError if there are several, if no
    replica has that name, or if one has two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            if len(replicas) != 1:
                raise RmqError(f"{option} {text}: the replica is not clear; write NAME={text}")
            name, value = replicas[0], text
        if name not in replicas:
            known = ", ".join(replicas) or "none"
            raise RmqError(
                f"{option} {text}: no replica is called {name}{did_you_mean(name, replicas)};"
                f" the replicas given are: {known}"
            )
        if name in found:
            raise RmqError(f"{option}: {name} has two values, {found[name]} and {value}; give one")
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
        raise RmqError(f"{path}: not a directory; give a broker's storePathRootDir")
    return str(found.resolve())


def node_context_at(context: PlanContext, root: str) -> NodeContext:
    """Return the context of a directory of this host; it need not be a replica of ``context``."""
    from rmqpy.audit.replicas.manifest import Md5
    from rmqpy.store.upgrade_guard import upgrade_work
    from rmqpy.upgrade.checks.replica import LocalReplica, Replicas
    from rmqpy.upgrade.plan.node_context import NodeContext

    for replica in context.group.replicas:
        if isinstance(replica, LocalReplica) and replica.root == root:
            return context.node_context(replica)
    from rmqpy.upgrade.plan.survey import SurveyPlan
    from rmqpy.upgrade.steps.plan_context import shown_settings

    sources = Replicas({each.name: each for each in context.group.replicas})
    plan = SurveyPlan(name="here", root=root, now_ms=now_ms, md5=Md5.NONE)
    survey = LocalReplica(context.files, plan).survey()
    work = upgrade_work(root)
    settings = shown_settings(survey)
    return NodeContext(context.files, work, settings, sources, context.progress, now_ms)


@contextmanager
def locked(files: FileSystem, root: str) -> Iterator[None]:
    """Hold the lock of a directory in the block, so that no broker, Java or rmqpy, starts there."""
    lock = files.lock(f"{root}/lock")
    try:
        yield
    finally:
        lock.release()


def copied(options: argparse.Namespace) -> str:
    """Copy the only replica to the directory of ``--into``; return it as a replica's text.

    Raise UpgradeRefusedError unless that directory is new or empty.
    """
    from pathlib import Path

    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.plan.copying import copy_tree
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    if len(options.replica) != 1:
        raise RmqError("--into works with one replica at a time")
    name, root = name_of(options.replica[0]), options.replica[0].rpartition("=")[2]
    check_store_root(OsFileSystem(), str(Path(root).resolve()))
    source, target = Path(absolute(root)), Path(options.into).resolve()
    if target.is_relative_to(source):
        raise UpgradeRefusedError(
            f"--into {options.into}: found a directory inside of the store {source}, expected one"
            " outside of it; nothing was changed. Give another directory"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UpgradeRefusedError(
            f"--into {options.into}: found a file or a directory with content, expected a new or an"
            " empty directory; nothing was changed. Give another one, or remove an unfinished copy"
        )
    copy_tree(OsFileSystem(), str(source), str(target), frozenset(("rmqpy", "lock")))
    return f"{name}={target}"


def check_certificate_target(path: str | None, key: bytes | None) -> None:
    """Raise RmqError if an unsigned certificate would replace a signed one."""
    if path is None or key:
        return
    from pathlib import Path

    from rmqpy.audit.replicas.certificate import is_signed

    target = Path(path)
    if target.is_file() and is_signed(target.read_bytes()):
        raise RmqError(
            f"{path} is a signed certificate: give --key to sign the new one too, or another --out"
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000
