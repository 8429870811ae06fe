"""The files that a broker keeps for the controller of RocketMQ 5.x: its epochs and its identity.

====================  ==========================================================================
file                  content
====================  ==========================================================================
epochFileCheckpoint   :mod:`rmqpy.codec.epochs`; ``.bak`` is read if it is missing or damaged
brokerIdentity        one line ``cluster#brokerName#brokerId``; the controller gives ids from 1
brokerIdentity-temp   the same with ``#address;millis``, while an id is being given
====================  ==========================================================================

Source: EpochFileCache, CheckpointFile, BrokerMetadata of 5.3.3.
"""

from __future__ import annotations

from rmqpy.codec.epochs import Epoch, decode_epochs
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.model.files import FileSystem
from rmqpy.model.values import define
from rmqpy.store.files.paths import BACKUP_SUFFIX, PENDING_SUFFIX, StorePaths


@define(slots=True, frozen=True, kw_only=True)
class Identity:
    """What the controller knows a broker by."""

    cluster: str
    broker_name: str
    broker_id: int


@define(slots=True, frozen=True, kw_only=True)
class ControllerFacts:
    """The controller's files of one store. ``problems`` has a sentence per file that Java cannot
    read, and that it takes for an empty one.
    """

    epochs: tuple[Epoch, ...] = ()
    identity: Identity | None = None
    pending: Identity | None = None
    """The identity that was being given when the broker stopped."""
    problems: tuple[str, ...] = ()


def read_controller_facts(files: FileSystem, paths: StorePaths) -> ControllerFacts | None:
    """Return the facts of a store, or None if no controller has to do with it."""
    problems: list[str] = []
    epochs = _epochs(files, paths.epochs, problems)
    identity = _identity(files, paths.identity, problems)
    pending = _identity(files, paths.identity + PENDING_SUFFIX, problems, more=1)
    if not epochs and identity is None and pending is None and not problems:
        return None
    return ControllerFacts(
        epochs=epochs, identity=identity, pending=pending, problems=tuple(problems)
    )


def _epochs(files: FileSystem, path: str, problems: list[str]) -> tuple[Epoch, ...]:
    for each in (path, path + BACKUP_SUFFIX):
        if not files.exists(each) or not files.size_of(each):
            continue
        try:
            return decode_epochs(files.read_bytes(each))
        except InvalidRecordError as error:
            problems.append(f"{each.rpartition('/')[2]}: {error}")
    return ()


def _identity(files: FileSystem, path: str, problems: list[str], more: int = 0) -> Identity | None:
    """Read an identity that ``more`` further fields follow."""
    if not files.exists(path) or not files.size_of(path):
        return None
    text = files.read_bytes(path).decode("utf-8", "replace").strip()
    try:
        cluster, broker_name, number = text.rsplit("#", more)[0].split("#")
        return Identity(cluster=cluster, broker_name=broker_name, broker_id=int(number))
    except ValueError:
        expected = "cluster#brokerName#brokerId" + "#address;millis" * more
        name = path.rpartition("/")[2]
        problems.append(f"{name}: found {text[:80]!r}, expected {expected}")
        return None
