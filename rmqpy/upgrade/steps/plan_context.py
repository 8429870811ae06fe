"""What a step plans from: the group, its reference, what the operator wishes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from attrs import define, evolve, field

from rmqpy.codec.units import index_sizes_of
from rmqpy.config.loading import StoreSettings
from rmqpy.model.files import FileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica, Replica, Replicas
from rmqpy.upgrade.checks.tables import MergedTables, merge_tables
from rmqpy.upgrade.plan.node_context import NodeContext, Progress, no_progress
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.reference import Reference, choose_reference


def shown_settings(survey: Survey) -> StoreSettings:
    """The sizes that the files themselves show; the rest is Java's default."""
    return settings_of_facts(survey.root, survey.file_size, survey.manifest.facts)


def settings_of_facts(root: str, file_size: int, facts: dict[str, Any]) -> StoreSettings:
    """The same from facts (:meth:`rmqpy.audit.facts.facts.StoreFacts.as_json`)."""
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
    """``reference``: the operator's choice. ``peers``: dLegerPeers; ``self_ids`` by replica;
    ``dledger_group``: "" for the broker's name. ``roles``: after leaving, which replica is what.
    """

    reference: str | None = None
    peers: str = ""
    self_ids: dict[str, str] = field(factory=dict)
    dledger_group: str = ""
    cut_index: int | None = None
    reads_version: int = 1
    roles: dict[str, str] = field(factory=dict)
    write_config: bool = True


@define(slots=False, kw_only=True)
class PlanContext:
    """Reads replicas; changes nothing."""

    group: Group
    files: FileSystem
    wish: SwitchOptions = field(factory=SwitchOptions)
    settings: dict[str, StoreSettings] = field(factory=dict)
    progress: Progress = no_progress

    @cached_property
    def reference(self) -> Reference:
        return choose_reference(self.group, self.wish.reference)

    @property
    def on_this_host(self) -> list[LocalReplica]:
        """What may be changed; the others are only looked at."""
        return [each for each in self.group.replicas if isinstance(each, LocalReplica)]

    @cached_property
    def merged(self) -> MergedTables:
        tables = {survey.name: survey.tables for survey in self.group.surveys}
        reference = self.reference.replica
        ends = {
            (queue.topic, queue.queue_id): queue.max_offset
            for queue in reference.survey().manifest.queues
        }
        return merge_tables(tables, reference.name, ends)

    def settings_of(self, replica: Replica) -> StoreSettings:
        """Sizes and paths with which a replica's files are read."""
        found = self.settings.get(replica.name)
        if found is not None:
            return found
        survey = replica.survey()
        if survey.spans or survey.config is not None:
            return shown_settings(survey)
        # An empty directory is going to be like the others.
        like = next((each for each in self.group.surveys if each.spans), survey)
        root = survey.root
        return evolve(
            shown_settings(like),
            store_path_root_dir=root,
            store_path_commit_log=f"{root}/commitlog",
        )

    def ground_of(self, replica: Replica) -> NodeContext:
        """For operations on a replica of this host."""
        assert isinstance(replica, LocalReplica), f"{replica.name} is not on this host"
        return NodeContext(
            replica.files,
            upgrade_work(replica.root),
            self.settings_of(replica),
            Replicas({each.name: each for each in self.group.replicas}),
            self.progress,
            replica.plan.now_ms,
        )

    def changed_since_survey(self) -> list[str]:
        return [
            f"{replica.name}: log files have changed since they were looked at"
            for replica in self.on_this_host
            if not replica.survey().manifest.fits(replica.files, replica.root)
        ]
