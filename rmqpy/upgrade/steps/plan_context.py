"""The context from which a step plans: the group, its reference, and the operator's options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from attrs import define, evolve, field

from rmqpy.audit.scan.directory import paths_below
from rmqpy.codec.units import index_sizes_of
from rmqpy.config.loading import StoreSettings
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, StartProgress
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica, Replica, Replicas
from rmqpy.upgrade.checks.tables import MergedTables, merge_tables
from rmqpy.upgrade.plan.keep import folder_after, keep_folder
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.operations import Op
from rmqpy.upgrade.plan.plan import NodePlan, Plan
from rmqpy.upgrade.plan.space import SpaceNeed, space_needed
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.reference import Reference, choose_reference


def shown_settings(survey: Survey) -> StoreSettings:
    """Return settings with the configured sizes, else those that the survey found.

    The rest are Java's defaults.
    """
    found = settings_of_facts(survey.root, survey.file_size, survey.manifest.facts)
    if survey.config is None:
        return found
    keys = {
        "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
        "max_hash_slot_num": "maxHashSlotNum",
        "max_index_num": "maxIndexNum",
    }
    configured: dict[str, Any] = {
        name: int(text) for name, key in keys.items() if (text := survey.setting(key))
    }
    return evolve(found, **configured)


def settings_of_facts(root: str, file_size: int, facts: dict[str, Any]) -> StoreSettings:
    """Return the same settings from facts (:meth:`rmqpy.audit.facts.facts.StoreFacts.as_json`)."""
    values: dict[str, Any] = {
        "store_path_root_dir": root,
        "mapped_file_size_commit_log": file_size,
    }
    if facts.get("queue_file_size"):
        values["mapped_file_size_consume_queue"] = facts["queue_file_size"]
    sizes = index_sizes_of(facts["index"][0]["bytes"]) if facts.get("index") else None
    if sizes is not None:
        values["max_hash_slot_num"], values["max_index_num"] = sizes
    if facts.get("self_id"):
        values |= {"dledger_self_id": facts["self_id"], "enable_dledger_commit_log": True}
    return StoreSettings(**values)


@define(slots=True, frozen=True, kw_only=True)
class SwitchOptions:
    """The operator's options.

    ``reference`` is the chosen reference, ``peers`` the dLegerPeers, ``self_ids`` the ids by
    replica. An empty ``dledger_group`` means the broker's name. ``roles`` gives the role of each
    replica after leaving. ``controllers`` are the addresses of a 5.x controller to switch to.
    """

    reference: str | None = None
    peers: str = ""
    self_ids: dict[str, str] = field(factory=dict)
    dledger_group: str = ""
    cut_index: int | None = None
    reads_version: int = 1
    roles: dict[str, str] = field(factory=dict)
    controllers: str = ""
    write_config: bool = True


@define(slots=False, kw_only=True)
class PlanContext:
    """The replicas and options that a step reads; it changes nothing."""

    group: Group
    files: FileSystem
    options: SwitchOptions = field(factory=SwitchOptions)
    settings: dict[str, StoreSettings] = field(factory=dict)
    progress: StartProgress = NoProgress
    resolves: Callable[[str], bool] = lambda host: True
    """Returns whether this host can resolve the name of another."""

    @cached_property
    def reference(self) -> Reference:
        return choose_reference(self.group, self.options.reference)

    @property
    def on_this_host(self) -> list[LocalReplica]:
        """The replicas that may be changed; the others are only read."""
        return [each for each in self.group.replicas if isinstance(each, LocalReplica)]

    def space_of(self, plan: Plan) -> Iterator[tuple[str, SpaceNeed]]:
        """Yield the space that each member's part needs, by file system.

        Of a member on another host only the disk of its directory is known; there, apply looks at
        all of them before the first change.
        """
        local = {each.name: each for each in self.on_this_host}
        for part in (each for each in plan.nodes if each.ops):
            name, free = part.replica, self.group.survey(part.replica).disk_free
            if name in local:
                needs = space_needed(self.node_context(local[name]), part)
            else:
                needs = [SpaceNeed(part.root, part.written_bytes, free)]
            yield from ((name, each) for each in needs)

    def paths_of(self, survey: Survey) -> StorePaths:
        """Return the paths of a replica of this host."""
        return paths_below(survey.root, self.settings.get(survey.name))

    @cached_property
    def merged(self) -> MergedTables:
        """The tables of all replicas, merged for the reference's log."""
        return self.merged_for(self.reference.replica)

    def merged_for(self, reference: Replica) -> MergedTables:
        """Return the merged tables; ``reference`` decides what nothing else decides, and where the
        queues end.
        """
        tables = {survey.name: survey.tables for survey in self.group.surveys}
        ends = {
            (queue.topic, queue.queue_id): queue.max_offset
            for queue in reference.survey().manifest.queues
        }
        return merge_tables(tables, reference.name, ends)

    def settings_of(self, replica: Replica) -> StoreSettings:
        """Return the sizes and paths with which a replica's files are read."""
        found = self.settings.get(replica.name)
        if found is not None:
            return found
        survey = replica.survey()
        if survey.spans or survey.config is not None:
            return shown_settings(survey)
        # An empty directory will have the sizes of the others.
        like = next((each for each in self.group.surveys if each.spans), survey)
        root = survey.root
        return evolve(
            shown_settings(like),
            store_path_root_dir=root,
            store_path_commit_log=f"{root}/commitlog",
        )

    def node_context(self, replica: Replica) -> NodeContext:
        """Return the context for operations on a replica of this host."""
        assert isinstance(replica, LocalReplica), f"{replica.name} is not on this host"
        return NodeContext(
            replica.files,
            upgrade_work(replica.root),
            self.settings_of(replica),
            Replicas({each.name: each for each in self.group.replicas}),
            self.progress,
            replica.plan.now_ms,
            () if replica.plan.config_path is None else (replica.plan.config_path,),
        )

    def keep_folder(self, replica: Replica) -> str:
        """Return the folder for what a plan moves aside, of a replica of any host."""
        if isinstance(replica, LocalReplica):
            return keep_folder(NodeContext(replica.files, upgrade_work(replica.root)))
        status = replica.status()
        work = upgrade_work(replica.survey().root)
        return folder_after(work, status["state"], str(status.get("plan")))

    def commit_log(self, replica: Replica) -> str:
        """Return the folder of a replica's classic log."""
        settings = self.settings.get(replica.name)
        if settings is not None:
            return settings.store_path_commit_log
        survey = replica.survey()
        log = survey.manifest.log("classic")
        if log is not None and log.files and log.files[0].path.startswith("/"):
            return log.files[0].path.rpartition("/")[0]
        return f"{survey.root}/commitlog"

    def log_path(self, replica: Replica, path: str) -> str:
        """Return the absolute path of a log file that a manifest names."""
        if path.startswith("/"):
            return path
        return f"{self.commit_log(replica)}/{path.rpartition('/')[2]}"


def switch_part(
    context: PlanContext, replica: Replica, ops: list[Op], notes: list[str]
) -> NodePlan:
    """Return a replica's part of a switch."""
    return NodePlan(
        replica=replica.name,
        root=replica.survey().root,
        keep=context.keep_folder(replica),
        ops=tuple(ops),
        notes=tuple(notes),
    )
