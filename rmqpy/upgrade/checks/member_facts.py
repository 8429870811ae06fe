"""The facts of one member that show how far its upgrade is: cheap to read, also while it runs.

They come from the directory, its journal, and the broker.conf, never from a file of their own. Of
the logs only the first frame and the last file are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
from attrs import define, evolve, field

from rmqpy.audit.facts.facts import LogFacts, Mode, StoreFacts
from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.facts.reader import FindLockOwner, read_facts
from rmqpy.audit.scan.directory import paths_below
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.typed_json import check_types
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.plan.evidence import current_journal
from rmqpy.upgrade.plan.node_context import NodeContext, fingerprint_log
from rmqpy.upgrade.plan.record import load_record
from rmqpy.upgrade.plan.survey import SurveyPlan, read_config

FACTS_FORMAT = 1


@define(slots=True, frozen=True, kw_only=True)
class MemberFacts:
    """What is known of a member at one time.

    ``problem`` says why nothing is known; then the rest has no meaning. ``journal`` is the state of
    the journal ("" without one), ``steps`` the migrations of its plan, ``since_ms`` when that plan
    began. ``untouched`` says that no log file was written to since the plan was applied.
    """

    name: str
    problem: str = ""
    running: bool = False
    dledger: bool = False
    """Whether broker.conf has enableDLegerCommitLog=true."""
    mode: Mode = Mode.EMPTY
    begin: int = 0
    end: int = 0
    """The end of the last message in the log; of a running broker, that of the last one that
    consumers can read."""
    entries: int = 0
    """The number of entries in the DLedger log."""
    clean_stop: bool = True
    journal: str = ""
    steps: tuple[str, ...] = ()
    plan: str = ""
    done: int = 0
    total: int = 0
    since_ms: int = 0
    turned_ms: int = 0
    """When the broker was last started or stopped, as far as the files show."""
    untouched: bool = False
    announced: str = ""
    damage: str = ""
    root: str = ""
    config_path: str = ""
    keys: Mapping[str, str] = field(factory=dict)
    """The pairs of its broker.conf."""

    @property
    def controlled(self) -> bool:
        """Whether broker.conf leaves the roles to a controller of 5.x."""
        return self.keys.get("enableControllerMode", "").lower() == "true"

    def encode(self) -> bytes:
        tree = attrs.asdict(self)
        return json.dumps({**tree, "mode": self.mode.value, "format": FACTS_FORMAT}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> MemberFacts:
        """Decode facts. Raise RmqError if ``raw`` are none of this format."""
        try:
            tree: dict[str, Any] = json.loads(raw)
            if tree.pop("format") != FACTS_FORMAT:
                raise RmqError("facts of another format: use the same rmqpy on all hosts")
            tree["mode"] = Mode(tree["mode"])
            tree["steps"] = tuple(tree["steps"])
            check_types(cls, tree)
            return cls(**tree)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RmqError(f"not the facts of a member: {error!r}") from None


def read_member_facts(
    files: FileSystem, plan: SurveyPlan, holder: FindLockOwner = find_lock_owner
) -> MemberFacts:
    """Return the facts of a directory of this host; they say so if it cannot be read."""
    keys = read_config(files, plan.config_path) or {}
    bare = MemberFacts(
        name=plan.name,
        dledger=keys.get("enableDLegerCommitLog", "").lower() == "true",
        root=plan.root,
        config_path=plan.config_path or "",
        keys=keys,
    )
    if not files.is_dir(plan.root):
        return evolve(bare, problem=f"found no directory {plan.root}, expected storePathRootDir")
    try:
        store = read_facts(files, plan.root, plan.settings, holder)
    except RmqError as error:
        return evolve(bare, problem=str(error))
    except OSError as error:
        problem = f"{error.filename}: found {error.strerror}, expected files that can be read"
        return evolve(bare, problem=f"{problem}; run the command as the user of the broker")
    found = evolve(
        bare,
        running=store.running,
        mode=store.mode,
        begin=store.begin,
        end=_end(store),
        entries=_entries(store.ledger),
        clean_stop=store.clean_stop or store.running,
        turned_ms=_turned_ms(files, plan, running=store.running),
    )
    settings = plan.settings or StoreSettings(store_path_root_dir=plan.root)
    return _with_journal(NodeContext(files, upgrade_work(plan.root), settings), found)


def _end(store: StoreFacts) -> int:
    """Return the end of the last message. A DLedger log without entries begins after the rest of
    the last classic file, which is no message.
    """
    logs = [log for log in (store.classic, store.ledger) if log is not None]
    return max((log.end for log in logs if log.last is not None), default=store.end)


def _turned_ms(files: FileSystem, plan: SurveyPlan, *, running: bool) -> int:
    """Return the time of ``abort``, which a start creates, or of the checkpoint of the stop."""
    paths = paths_below(plan.root, plan.settings)
    path = paths.abort if running else paths.checkpoint
    return files.mtime_ms(path) if files.exists(path) else 0


def _entries(ledger: LogFacts | None) -> int:
    if ledger is None or ledger.first is None or ledger.last is None:
        return 0
    return ledger.last.index - ledger.first.index + 1


def _with_journal(context: NodeContext, found: MemberFacts) -> MemberFacts:
    try:
        journal = current_journal(context)
        if journal is None:
            return found
        record = load_record(context.files, context.work, journal.plan_id)
    except StoreError as error:
        return evolve(found, journal="damaged", damage=str(error))
    context = record.context(context)
    return evolve(
        found,
        journal=journal.state,
        steps=record.plan.steps,
        plan=journal.plan_id,
        done=journal.done,
        total=len(record.node.ops),
        since_ms=journal.since_ms,
        untouched=journal.fingerprint == fingerprint_log(context),
        announced=journal.announced,
        damage=journal.damage,
    )
