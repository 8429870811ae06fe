"""The record of a plan that was started in a directory: the plan, and what this node needs for it.

``<work>/<plan id>/plan.json`` and a copy, ``plan.bak``. With it ``apply --resume`` and
``rollback`` work given the directory alone: it has the settings (file sizes, folders), the paths of
the node's configuration, and where the other replicas were. The plan is verified by its id, the
rest by an md5. Records of earlier versions have the plan and the name of the replica only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from attrs import define, evolve, field

from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.node_context import NodeContext, digest_of
from rmqpy.upgrade.plan.operations import Write
from rmqpy.upgrade.plan.plan import NodePlan, Plan

NAMES = ("plan.json", "plan.bak")


@define(slots=True, frozen=True, kw_only=True)
class PlanRecord:
    """A started plan. ``sources`` has the directory or the address of each replica to copy from.

    ``settings`` is None in records of earlier versions.
    """

    plan: Plan
    replica: str
    settings: StoreSettings | None = None
    configuration: tuple[str, ...] = ()
    sources: dict[str, str] = field(factory=dict)
    phase: str = ""
    since_ms: int = 0
    earlier: tuple[str, ...] = ()

    @property
    def node(self) -> NodePlan:
        return self.plan.node(self.replica)

    def context(self, given: NodeContext) -> NodeContext:
        """Return the context of the node: what was recorded, else what is given."""
        if self.settings is None:
            written = (op.path for op in self.node.ops if isinstance(op, Write))
            return evolve(given, configuration=(*given.configuration, *written))
        return evolve(given, settings=self.settings, configuration=self.configuration)


def save_record(files: FileSystem, work: str, record: PlanRecord) -> None:
    node = {
        "settings": _settings_json(record.settings) if record.settings else None,
        "configuration": list(record.configuration),
        "sources": record.sources,
        "phase": record.phase,
        "since_ms": record.since_ms,
        "earlier": list(record.earlier),
    }
    value = {"plan": record.plan.to_json(), "replica": record.replica, "node": node}
    data = json.dumps({**value, "md5": _digest(record.replica, node)}, indent=1).encode()
    for name in reversed(NAMES):
        files.replace_bytes(f"{work}/{record.plan.id}/{name}", data)


def load_record(files: FileSystem, work: str, plan_id: str) -> PlanRecord:
    """Return the record of a plan. Raise StoreError if neither copy can be read."""
    damage = []
    for name in NAMES:
        path = f"{work}/{plan_id}/{name}"
        try:
            return _decoded(json.loads(files.read_bytes(path)), plan_id)
        except FileNotFoundError:
            damage.append(f"no {name}")
        except (
            *(ValueError, KeyError, TypeError, AttributeError, RecursionError, RmqError),
        ) as error:
            damage.append(f"{name} is damaged ({error})")
    raise StoreError(
        f"{work}/{plan_id}",
        ", ".join(damage),
        "the plan that was started here",
        "restore plan.json from a backup, or from the file of plan --out: as"
        ' {"plan": FILE, "replica": NAME}',
    )


def recorded_plans(files: FileSystem, work: str) -> list[str]:
    """Return the ids of all plans that were ever started here, the newest last."""
    found = []
    for name in files.list_dir(work):
        paths = [f"{work}/{name}/{each}" for each in NAMES]
        times = [files.mtime_ms(path) for path in paths if files.exists(path)]
        if times:
            found.append((min(times), name))
    return [name for _, name in sorted(found)]


def _decoded(value: Mapping[str, Any], plan_id: str) -> PlanRecord:
    plan, replica = Plan.from_json(value["plan"]), str(value["replica"])
    if plan.id != plan_id:
        raise ValueError(f"it has the plan {plan.id}")
    node = value.get("node")
    if node is None:
        return PlanRecord(plan=plan, replica=replica)
    if value["md5"] != _digest(replica, node):
        raise ValueError("its md5 does not match")
    return PlanRecord(
        plan=plan,
        replica=replica,
        settings=_settings_of(node["settings"]) if node["settings"] else None,
        configuration=tuple(node["configuration"]),
        sources=dict(node["sources"]),
        phase=node["phase"],
        since_ms=node["since_ms"],
        earlier=tuple(node["earlier"]),
    )


def _digest(replica: str, node: Mapping[str, Any]) -> str:
    return digest_of(json.dumps([replica, node], sort_keys=True).encode())


def _settings_json(settings: StoreSettings) -> dict[str, Any]:
    """Return the values that are not the defaults; paths and sizes are among the plain ones."""
    default = StoreSettings()
    return {
        name: value
        for name, value in _plain(settings)
        if name.startswith("store_path") or value != getattr(default, name)
    }


def _plain(settings: StoreSettings) -> Iterable[tuple[str, Any]]:
    for each in attrs.fields(StoreSettings):
        value = getattr(settings, each.name)
        if value is None or type(value) in (str, int, bool):
            yield each.name, value


def _settings_of(values: Mapping[str, Any]) -> StoreSettings:
    known = {each.name for each in attrs.fields(StoreSettings)}
    return StoreSettings(**{name: value for name, value in values.items() if name in known})
