"""The suite file: stores, stages, limits, and hooks.

::

    java = ["4.9.7", "5.3.3"]          # brokers that must serve the result, each one more case
    # the default; controller only if java has a version of 5.x
    stages = ["check", "prepare", "switch", "failover", "verify", "leave", "controller"]

    [load]
    per_second = 100                   # a producer that never stops sending
    messages = 50                      # acknowledged before and after each change

    [limits]                           # a longer time is a finding
    switch_pause_s = 30                # the time without an acknowledged send
    failover_pause_s = 15
    leave_pause_s = 30
    controller_pause_s = 60            # to a controller, and when it elects another master
    lag_s = 15                         # the time until all members have the same end

    [hooks]                            # commands with a running group (rmqpy.suite.hooks)
    before_switch = ["./read-all.sh"]
    after_leave = ["./read-all.sh"]
    seconds = 60                       # the time that each may take

    [[store]]
    name = "orders"
    messages = 1234                    # the number of messages that the store must have
    [[store.replica]]                  # one to three, the master first; or three DLedger members
    path = "master/store"              # a storePathRootDir, relative to this file
    config = "master/broker.conf"
    [[store.replica]]
    path = "slave/store"
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field

from rmqpy.demo.store_copy import ledger_of
from rmqpy.demo.workload import STALL_SECONDS_MAX
from rmqpy.model.errors import ConfigError
from rmqpy.model.near_names import did_you_mean
from rmqpy.suite.toml_table import CheckedTable, read_toml

CONTROLLER = "controller"
STAGES = ("check", "prepare", "switch", "failover", "verify", "leave", CONTROLLER)
"""All stages in the order in which they are carried out. ``controller`` has a case for each version
of 5.x. The cases of Java follow them.
"""
NEEDED = {
    "prepare": "check",
    "switch": "prepare",
    "failover": "switch",
    "verify": "switch",
    "leave": "switch",
}
"""The stage without which another one has nothing to work on."""
LIVE_STAGES = ("switch", "failover", "leave", CONTROLLER)
"""The stages before and after which a group runs."""
CLASSIC_STAGES = ("prepare", "switch")
"""The stages that a group which runs DLedger already does not need."""
REPLICAS_MAX = 3
JAVA_CASE = "java-"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
VERSION = re.compile(r"\d+\.\d+\.\d+")
FIRST_WITH_CONTROLLER = 5
"""The first major version of RocketMQ that has controllers."""


@define(frozen=True, kw_only=True)
class SuiteLimits:
    """The longest times, in s."""

    pauses_s: Mapping[str, float]
    lag_s: float


@define(frozen=True)
class SuiteReplica:
    """A store directory, and the broker.conf with which it was written, if it is known."""

    path: Path
    config: Path | None


@define(frozen=True, kw_only=True)
class SuiteStore:
    """One group: its replicas, the master first. ``messages``: the number it must have.

    ``dledger``: the replicas are members of a DLedger group.
    """

    name: str
    replicas: tuple[SuiteReplica, ...]
    messages: int | None = None
    dledger: bool = False


@define(frozen=True, kw_only=True)
class SuitePlan:
    """A whole suite. ``hooks`` are commands by (before or after, stage)."""

    name: str
    folder: Path
    stores: tuple[SuiteStore, ...]
    stages: tuple[str, ...]
    java: tuple[str, ...] = ()
    per_second: float = 100.0
    load_messages: int = 50
    limits: SuiteLimits = field(factory=lambda: _limits(CheckedTable("", {})))
    hooks: Mapping[tuple[str, str], tuple[str, ...]] = field(factory=dict)
    hook_s: float = 60.0

    @property
    def stall_s(self) -> float:
        """The time without an acknowledged send after which a stage ends, in s: a finding that a
        limit names comes first.
        """
        return max(STALL_SECONDS_MAX, 2 * max(self.limits.pauses_s.values()))

    def cases_of(self, store: SuiteStore) -> tuple[str, ...]:
        """Return the names of the cases of a store, in order."""
        stages = [each for each in self.stages if not (store.dledger and each in CLASSIC_STAGES)]
        if CONTROLLER in stages:
            stages.remove(CONTROLLER)
            newer = _with_controller(self.java)
            stages += [f"{CONTROLLER}-{version}" for version in newer] or [CONTROLLER]
        served = self.java if "leave" in stages else ()
        return (*stages, *(f"{JAVA_CASE}{version}" for version in served))


def read_suite(path: Path) -> SuitePlan:
    """Read and check a suite file. Raises ConfigError for the first thing that is wrong."""
    top = read_toml(path)
    folder = path.resolve().parent
    load = top.table("load")
    hooks, hook_s = _hooks(top.table("hooks"))
    stores = _stores(top, folder)
    java = _java(top)
    stages = _stages(top, stores, java)
    plan = SuitePlan(
        name=top.text("name", path.stem),
        folder=folder,
        stores=stores,
        stages=stages,
        java=java,
        per_second=load.number("per_second", 100.0) or 1.0,
        load_messages=max(1, round(load.number("messages", 50))),
        limits=_limits(top.table("limits")),
        hooks=hooks,
        hook_s=hook_s,
    )
    load.finish()
    top.finish()
    for when, stage in hooks:
        if stage not in stages:
            raise ConfigError(
                f"{path}: [hooks]: found {when}_{stage}, but {stage} is not in stages; add it there"
            )
    return plan


def suite_of_store(store: Path, config: Path | None, java: tuple[str, ...]) -> SuitePlan:
    """Return the suite of one store, with all stages."""
    replica = SuiteReplica(store.resolve(), config)
    dledger = _check_replicas(str(store), (replica,))
    name = store.name if NAME.fullmatch(store.name) else "store"
    one = SuiteStore(name=name, replicas=(replica,), dledger=dledger)
    return SuitePlan(
        name="suite", folder=Path.cwd(), stores=(one,), stages=_default_stages(java), java=java
    )


def _with_controller(java: tuple[str, ...]) -> list[str]:
    """Return the versions that have controllers."""
    return [each for each in java if int(each.partition(".")[0]) >= FIRST_WITH_CONTROLLER]


def _default_stages(java: tuple[str, ...]) -> tuple[str, ...]:
    return STAGES if _with_controller(java) else STAGES[:-1]


def _stages(
    top: CheckedTable, stores: tuple[SuiteStore, ...], java: tuple[str, ...]
) -> tuple[str, ...]:
    """Read the stages. Those that only classic stores need may be missing if there is none."""
    not_needed = CLASSIC_STAGES if all(store.dledger for store in stores) else ()
    given = top.texts("stages", _default_stages(java))
    for stage in given:
        if stage not in STAGES:
            hint = did_you_mean(stage, STAGES)
            raise top.error("stages", stage, f"some of {', '.join(STAGES)}{hint}")
        needed = NEEDED.get(stage)
        if needed is not None and needed not in (*given, *not_needed):
            raise top.error("stages", list(given), f"{needed} before {stage}, which needs it")
    if not given:
        raise top.error("stages", [], f"some of {', '.join(STAGES)}")
    if CONTROLLER in given:
        classic = "switch" not in given and not any(store.dledger for store in stores)
        needed = "prepare" if classic else "leave"
        if needed not in given:
            raise top.error("stages", list(given), f"{needed} before {CONTROLLER}, which needs it")
    if "leave" not in given and set(java).difference(
        _with_controller(java) if CONTROLLER in given else ()
    ):
        raise top.error("java", list(java), "the stage leave, whose result Java serves")
    return tuple(stage for stage in STAGES if stage in given)


def _java(top: CheckedTable) -> tuple[str, ...]:
    versions = top.texts("java")
    for version in versions:
        if not VERSION.fullmatch(version):
            raise top.error("java", version, "versions such as 4.9.7")
    if len(set(versions)) < len(versions):
        raise top.error("java", list(versions), "each version once")
    return versions


def _limits(table: CheckedTable) -> SuiteLimits:
    pauses_s = {
        "switch": table.number("switch_pause_s", 30.0),
        "failover": table.number("failover_pause_s", 15.0),
        "leave": table.number("leave_pause_s", 30.0),
        CONTROLLER: table.number("controller_pause_s", 60.0),
    }
    limits = SuiteLimits(pauses_s=pauses_s, lag_s=table.number("lag_s", 15.0))
    table.finish()
    return limits


def _hooks(table: CheckedTable) -> tuple[dict[tuple[str, str], tuple[str, ...]], float]:
    expected = [f"{when}_{stage}" for when in ("before", "after") for stage in LIVE_STAGES]
    seconds = table.number("seconds", 60.0)
    hooks = {}
    for key in table.keys():  # noqa: SIM118 - it is not a dictionary
        if key == "seconds":
            continue
        if key not in expected:
            hint = did_you_mean(key, expected)
            known = ", ".join(expected)
            raise ConfigError(f"{table.where}: found {key!r}, expected some of {known}{hint}")
        commands = table.texts(key)
        for command in commands:
            _check_command(table, key, command)
        when, _, stage = key.partition("_")
        hooks[when, stage] = commands
    return hooks, seconds


def _check_command(table: CheckedTable, key: str, command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise table.error(key, command, f"a command line ({error})") from None
    if not words:
        raise table.error(key, command, "a command line")


def _stores(top: CheckedTable, folder: Path) -> tuple[SuiteStore, ...]:
    stores: list[SuiteStore] = []
    for table in top.tables("store"):
        name = table.text("name")
        if not NAME.fullmatch(name):
            raise table.error("name", name, "letters, digits, and . _ -, at most 64")
        if name in {each.name for each in stores}:
            raise table.error("name", name, "a name that no other store has")
        replicas = tuple(_replica(each, folder) for each in table.tables("replica"))
        if not 1 <= len(replicas) <= REPLICAS_MAX:
            raise table.error(
                "replica", f"{len(replicas)} replicas", f"1 to {REPLICAS_MAX} [[store.replica]]"
            )
        dledger = _check_replicas(table.where, replicas)
        messages = table.count("messages")
        stores.append(SuiteStore(name=name, replicas=replicas, messages=messages, dledger=dledger))
        table.finish()
    if not stores:
        raise ConfigError(f"{top.where}: found no [[store]], expected at least one; add its paths")
    return tuple(stores)


def _replica(table: CheckedTable, folder: Path) -> SuiteReplica:
    config = table.text("config", "-")
    path = folder / Path(table.text("path")).expanduser()
    replica = SuiteReplica(path, None if config == "-" else folder / Path(config).expanduser())
    table.finish()
    return replica


def _check_replicas(where: str, replicas: tuple[SuiteReplica, ...]) -> bool:
    """Check the directories of one group, and return whether it runs DLedger."""
    for replica in replicas:
        _check_replica(where, replica)
    members = [each for each in replicas if ledger_of(each.path) is not None]
    if members and len(members) < len(replicas):
        other = next(each for each in replicas if each not in members)
        raise ConfigError(
            f"{where}: found a member of a DLedger group, {members[0].path}, and a classic store,"
            f" {other.path}, expected replicas of one kind; give those of the same time"
        )
    if members and len(members) != REPLICAS_MAX:
        raise ConfigError(
            f"{where}: found {len(members)} members of a DLedger group, expected {REPLICAS_MAX};"
            " give them all, or copies of classic stores from before the switch"
        )
    return bool(members)


def _check_replica(where: str, replica: SuiteReplica) -> None:
    if ledger_of(replica.path) is None and not (replica.path / "commitlog").is_dir():
        raise ConfigError(
            f"{where}: found no directory commitlog in {replica.path}, expected a storePathRootDir;"
            " give the directory that contains commitlog, consumequeue, and config"
        )
    if replica.config is not None and not replica.config.is_file():
        raise ConfigError(f"{where}: found no file {replica.config}, expected a broker.conf")
