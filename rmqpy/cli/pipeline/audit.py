"""``rmqpy pipeline audit``: check every record of one or more stores."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NO,
    add_format_option,
    add_log_options,
    output_file,
    output_path,
)
from rmqpy.cli.pipeline.engine import (
    engine_option,
    spark_of,
    spark_options,
    store_runners,
    takes_spark,
)
from rmqpy.cli.pipeline.places import place_options, store_places
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqpy.audit.scan.findings import Finding
    from rmqpy.cli.parsing import Commands
    from rmqpy.cli.pipeline.places import StorePlace
    from rmqpy.pipeline.jobs.audit_report import AuditReport
    from rmqpy.pipeline.jobs.report_tables import AuditTables


def add_verbs(verbs: Commands) -> None:
    audit = verbs.add_parser(
        "audit", help="check every record, consume queue and key; exit code 2 if damage is found"
    )
    audit.add_argument(
        "directories",
        nargs="+",
        metavar="DIR",
        help="a broker's storePathRootDir, or a URI, one or more",
    )
    audit.add_argument(
        "--html",
        type=output_file,
        metavar="FILE",
        help="also write a page: maps, damage, equality, timeline",
    )
    audit.add_argument(
        "--md5", action="store_true", help="md5 of every log file and of its valid bytes"
    )
    engine_option(audit)
    spark_options(audit)
    place_options(audit)
    audit.add_argument(
        "--tables",
        type=output_path,
        metavar="FOLDER",
        help="write ranges, queues and findings as tables; the folder must be new or empty",
    )
    audit.add_argument(
        "--tables-format", default="parquet", choices=["parquet", "json"], help="default parquet"
    )
    add_format_option(audit)
    add_log_options(audit)
    audit.set_defaults(command=_audit)


def _audit(options: argparse.Namespace) -> int:
    from rmqpy.audit.checks.engine import AuditOptions, audit_store
    from rmqpy.audit.scan.directory import read_directory
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.cli.render_findings import Report
    from rmqpy.pipeline.spark.stage_progress import JobProgress

    places = store_places(options.directories, options)
    as_json = options.format == "json"
    clean = True
    with ExitStack() as stack:
        tables = _tables(options, stack)
        line = ProgressLine("checked")
        progress = JobProgress(line)
        runners = store_runners(options, places, stack, progress)
        picture = _picture(options, places, stack)
        stack.enter_context(line)
        for number, place in enumerate(places):
            files, root = place.files, place.root
            print(('{"stores": [' if not number else ",") if as_json else root)
            report = Report(as_json=as_json, before=line.clear)
            sink: Callable[[list[Finding]], None] = report.findings
            if picture is not None:
                sink = picture.sink(files, root, sink)
            plan = AuditOptions(
                root=root,
                blocks=picture is not None,
                md5=options.md5,
                sink=sink,
                progress=progress,
                range_bytes=options.range_bytes,
                pooled=tables is None,
            )
            plan = place.with_workers(plan)
            if tables is not None:
                plan = tables.of(plan)
            runner = runners(files, read_directory(files, root)) if runners else None
            try:
                audit = audit_store(files, plan, runner)
                place.check_unchanged()
            except (RmqError, OSError) as error:
                report.fail(error, EXIT_FAILED)
                print("]}")
                return EXIT_FAILED
            report.end(audit)
            if picture is not None:
                picture.add(audit)
            if tables is not None:
                tables.end(audit)
            clean = clean and audit.is_clean
        if picture is not None:
            picture.write(options.html)
    if as_json:
        print("]}")
    return EXIT_DONE if clean else EXIT_NO


def _picture(
    options: argparse.Namespace, places: list[StorePlace], stack: ExitStack
) -> AuditReport | None:
    if options.html is None:
        return None
    from functools import partial

    from rmqpy.pipeline.jobs.audit_report import AuditReport
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    if not takes_spark(options, places):
        return AuditReport()
    return AuditReport(partial(map_on_spark, spark_of(options, stack)))


def _tables(options: argparse.Namespace, stack: ExitStack) -> AuditTables | None:
    """Return the writer of ``--tables``, or None without this option."""
    if options.tables is None:
        return None
    from rmqpy.pipeline.jobs.report_tables import AuditTables
    from rmqpy.pipeline.spark.session import check_package

    if options.tables_format == "parquet":
        check_package("pyarrow")
    return stack.enter_context(AuditTables(options.tables, options.tables_format))
