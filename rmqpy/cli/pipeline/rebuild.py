"""``rmqpy pipeline rebuild``: rebuild consume queues and key index from the log, as a plan."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqpy.cli.parsing import (
    CAN_BE_RESUMED,
    EXIT_DONE,
    EXIT_NO,
    Parser,
    add_format_option,
    add_log_options,
    output_file,
)
from rmqpy.cli.pipeline.engine import engine_option, spark_of, spark_options, takes_spark
from rmqpy.cli.pipeline.places import StorePlace, log_bytes, refuse_elsewhere
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.audit.facts.facts import StoreFacts
    from rmqpy.cli.parsing import Commands
    from rmqpy.pipeline.jobs.rebuild import Rebuild
    from rmqpy.upgrade.checks.replica import LocalReplica
    from rmqpy.upgrade.plan.node_context import NodeContext


def add_verbs(verbs: Commands) -> None:
    text = "rebuild consume queues and key index from the log, as a plan for rmqpy upgrade apply"
    rebuild: Parser = verbs.add_parser("rebuild", help=text, description=text)
    rebuild.add_argument(
        "replica", nargs=1, metavar="[NAME=]DIR", help="a stopped broker's storePathRootDir"
    )
    rebuild.add_argument(
        "-c", dest="config", action="append", default=[], metavar="FILE", help="broker.conf"
    )
    rebuild.add_argument(
        "--out", type=output_file, metavar="FILE", help="write the plan to FILE, as JSON"
    )
    rebuild.add_argument("--apply", action="store_true", help="carry out the plan immediately")
    engine_option(rebuild)
    spark_options(rebuild)
    add_format_option(rebuild)
    add_log_options(rebuild)
    rebuild.set_defaults(command=_rebuild, interrupted=CAN_BE_RESUMED)


def _rebuild(options: argparse.Namespace) -> int:
    """Rebuild without garbage collection: with 50,000 queues it would go through all that is known
    of them again and again, and there are no cycles to find.
    """
    gc.disable()
    try:
        return _rebuild_store(options)
    finally:
        gc.enable()


def _rebuild_store(options: argparse.Namespace) -> int:
    """Rebuild, and print or apply the plan. Return 2 if the log lacks messages of a queue."""
    from rmqpy.cli.upgrade.base.contexts import locked
    from rmqpy.cli.upgrade.base.replicas import local_replicas
    from rmqpy.upgrade.plan.engine import apply_plan
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
    from rmqpy.upgrade.steps.install_rebuilt import build_folder, drop_unused, plan_rebuilt

    refuse_elsewhere(
        options.replica,
        "the new files take the place of the old ones by renaming, and rmqpy upgrade rollback takes"
        " that back; run rebuild on the host of the store, or on a copy of the store",
    )
    (replica,) = local_replicas(options)
    try:
        node_context, facts = _node_context(replica)
        with locked(node_context.files, replica.root):
            drop_unused(node_context)
            done = _build(options, node_context, build_folder(node_context))
            plan = plan_rebuilt(node_context, replica.name, _facts(done, facts), done.contents)
            if plan.is_empty:
                drop_unused(node_context)
            elif options.apply:
                apply_plan(node_context, plan, replica.name, phase="rebuilt")
    except UpgradeRefusedError as refused:
        print(f"rmqpy: refused: {refused}", file=sys.stderr)
        return EXIT_NO
    if options.out:
        text = json.dumps(plan.to_json(), indent=1)
        Path(options.out).write_text(text, encoding="utf-8")
    if options.format == "json":
        json.dump({"plan": plan.to_json(), "applied": options.apply}, sys.stdout, indent=1)
        print()
    else:
        for line in _lines(done, plan.is_empty, options.apply):
            print(line)
        if not plan.is_empty:
            print("\n".join(plan.lines(details=True)))
    return EXIT_DONE if done.is_whole else EXIT_NO


def _node_context(replica: LocalReplica) -> tuple[NodeContext, StoreFacts]:
    """Return the context and the facts of a replica.

    Raise UpgradeRefusedError if a broker is running, if there is no log, or if a plan is half done.
    """
    from rmqpy.audit.facts.reader import read_facts
    from rmqpy.cli.upgrade.base.replicas import now_ms
    from rmqpy.store.upgrade_guard import upgrade_work
    from rmqpy.upgrade.plan.journal import load_journal
    from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError
    from rmqpy.upgrade.steps.plan_context import settings_of_facts

    files, root = replica.files, replica.root
    # A stopped broker's log needs no queue to be read, and these are to be replaced.
    facts = read_facts(files, root, replica.plan.settings, bounds=())
    if facts.running:
        raise UpgradeRefusedError(
            f"{replica.name}: found a broker that runs in this directory, expected none;"
            " stop it first"
        )
    log = facts.classic or facts.ledger
    if log is None:
        raise UpgradeRefusedError(f"{replica.name}: it has no log to build from")
    settings = replica.plan.settings or settings_of_facts(root, log.file_size, facts.as_json())
    node_context = NodeContext(files, upgrade_work(root), settings, now_ms=now_ms)
    journal = load_journal(files, node_context.work)
    if journal is not None and journal.is_half_done:
        raise UpgradeRefusedError(
            f"plan {journal.plan_id} is {journal.state} in {root}: finish it with rmqpy upgrade"
            " apply --resume, or take it back with rmqpy upgrade rollback"
        )
    return node_context, facts


def _build(options: argparse.Namespace, node_context: NodeContext, target: str) -> Rebuild:
    from functools import partial

    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.jobs.local_run import local_run
    from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan
    from rmqpy.pipeline.spark.distributed_map import map_on_spark
    from rmqpy.pipeline.spark.stage_progress import JobProgress

    root = node_context.settings.store_path_root_dir
    with ExitStack() as stack:
        places = [StorePlace(root, node_context.files)]
        run = local_run(log_bytes(places))
        lines = [ProgressLine(verb) for verb in ("packed", "written")]
        packing = JobProgress(lines[0])
        if takes_spark(options, places):
            run = partial(map_on_spark, spark_of(options, stack), progress=packing)
        for line in lines:
            stack.enter_context(line)
        plan = RebuildPlan(
            root=root,
            target=target,
            settings=node_context.settings,
            range_bytes=options.range_bytes,
            packing=packing,
            writing=lines[1],
        )
        rebuild = Rebuild(plan, run)
        rebuild.run()
        return rebuild


def _facts(done: Rebuild, facts: StoreFacts) -> dict[str, Any]:
    return {
        "log": [facts.begin, facts.end],
        "queues": done.queues,
        "units": done.units,
        "copied_queues": done.copied,
        "index_files": done.index_files,
        "keys": done.keys,
        "breaks": [str(each) for each in done.breaks],
        "passed": [[each.file, each.offset, each.size] for each in done.skipped],
    }


def _lines(done: Rebuild, nothing: bool, applied: bool) -> list[str]:
    lines = [
        f"{count_text(done.units, 'unit')} in {count_text(done.queues, 'queue')},"
        f" {count_text(done.copied, 'queue')} of expired messages"
        f" copied, {count_text(done.keys, 'key')} in {count_text(done.index_files, 'index file')}"
    ]
    lines += [
        f"{each.file} at offset {each.offset}: {each.size} bytes that are not a message"
        for each in done.skipped
    ]
    lines += map(str, done.breaks)
    if nothing:
        lines.append("the existing files are the same: nothing to install")
    elif applied:
        lines.append("installed; rmqpy upgrade rollback takes it back")
    return lines
