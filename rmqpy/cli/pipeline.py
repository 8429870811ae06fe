"""``rmqpy pipeline``: work on stores that are too large, or too many, for one machine."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rmqpy.cli import pipeline_rebuild, pipeline_replicas
from rmqpy.cli.parsing import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NO,
    Parser,
    add_format_option,
    add_log_options,
)
from rmqpy.cli.pipeline_engine import (
    engine_option,
    master_option,
    spark_of,
    spark_options,
    store_roots,
    store_runners,
    takes_spark,
)
from rmqpy.model.errors import ConfigError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.pipeline.jobs.audit_report import AuditReport
    from rmqpy.pipeline.jobs.report_tables import AuditTables


def add_commands(commands: Commands) -> None:
    pipeline = commands.add_parser("pipeline", help="examine many or large stores, with Spark")
    verbs = pipeline.add_subparsers(required=True, metavar="VERB", parser_class=Parser)

    doctor = verbs.add_parser("doctor", help="report what Spark needs and what is missing here")
    master_option(doctor)
    add_log_options(doctor)
    doctor.set_defaults(command=_doctor)

    audit = verbs.add_parser(
        "audit", help="check every record, consume queue and key; exit code 2 if damage is found"
    )
    audit.add_argument(
        "directories", nargs="+", metavar="DIR", help="a broker's storePathRootDir, one or more"
    )
    audit.add_argument(
        "--html", metavar="FILE", help="also write a page: maps, damage, equality, timeline"
    )
    audit.add_argument(
        "--md5", action="store_true", help="md5 of every log file and of its valid bytes"
    )
    engine_option(audit)
    spark_options(audit)
    audit.add_argument(
        "--tables",
        metavar="FOLDER",
        help="write ranges, queues and findings as tables; the folder must be new or empty",
    )
    audit.add_argument(
        "--tables-format", default="parquet", choices=["parquet", "json"], help="default parquet"
    )
    add_format_option(audit)
    add_log_options(audit)
    audit.set_defaults(command=_audit)

    pipeline_replicas.add_verbs(verbs)
    pipeline_rebuild.add_verb(verbs)

    export = verbs.add_parser(
        "export", help="export messages as Parquet files; exit code 2 if damage was skipped"
    )
    export.add_argument("directories", nargs=1, metavar="DIR", help="a broker's storePathRootDir")
    export.add_argument("--to", required=True, metavar="FOLDER", help="a new or empty folder")
    engine_option(export)
    export.add_argument("--broker-name", metavar="NAME", help="value of the column brokerName")
    export.add_argument(
        "--internal-topics", action="store_true", help="include messages of system topics"
    )
    spark_options(export)
    add_log_options(export)
    export.set_defaults(command=_export)

    sql = verbs.add_parser("sql", help="query an export; its table is called messages")
    sql.add_argument("statement", metavar="QUERY")
    sql.add_argument(
        "--on", required=True, metavar="FOLDER", help="output of rmqpy pipeline export"
    )
    sql.add_argument("--limit", type=int, default=1000, metavar="N", help="max rows; default 1000")
    master_option(sql)
    add_format_option(sql)
    add_log_options(sql)
    sql.set_defaults(command=_sql)


def _doctor(options: argparse.Namespace) -> int:
    """Print the requirements of a session; with a master, start one. Return 1 if that fails."""
    from rmqpy.pipeline.spark.session import check_needs

    missing = 0
    for name, found in check_needs(os.environ):
        wrong = isinstance(found, ConfigError)
        missing += wrong
        print(f"{name:<12} {'missing: ' if wrong else ''}{found}")
    print(f"{'workers':<12} {sys.executable} (on a cluster: the one in its PYSPARK_PYTHON)")
    if missing or options.master is None:
        print("Spark cannot start; --engine local works" if missing else "Spark can start")
        return EXIT_FAILED if missing else EXIT_DONE
    from rmqpy.pipeline.spark.session import worker_texts

    with ExitStack() as stack:
        for text in worker_texts(spark_of(options, stack)):
            print(f"{'worker':<12} {text}")
    print(f"Spark works at {options.master}")
    return EXIT_DONE


def _audit(options: argparse.Namespace) -> int:
    from rmqpy.audit.checks.engine import AuditOptions, audit_store
    from rmqpy.audit.scan.directory import read_directory
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.cli.render_findings import Report
    from rmqpy.store.files.disk import OsFileSystem

    roots = store_roots(options.directories)
    as_json = options.format == "json"
    clean = True
    with ExitStack() as stack:
        tables = _tables(options, stack)
        runners = store_runners(options, roots, stack)
        picture = _picture(options, roots, stack)
        progress = stack.enter_context(ProgressLine("checked"))
        for number, root in enumerate(roots):
            print(('{"stores": [' if not number else ",") if as_json else root)
            report = Report(as_json=as_json)
            plan = AuditOptions(
                root=root,
                blocks=picture is not None,
                md5=options.md5,
                sink=report.findings if picture is None else picture.sink(root, report.findings),
                progress=progress,
                range_bytes=options.range_bytes,
            )
            if tables is not None:
                plan = tables.of(plan)
            runner = runners(read_directory(OsFileSystem(), root)) if runners else None
            audit = audit_store(OsFileSystem(), plan, runner)
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


def _picture(options: argparse.Namespace, roots: list[str], stack: ExitStack) -> AuditReport | None:
    if options.html is None:
        return None
    from functools import partial

    from rmqpy.pipeline.jobs.audit_report import AuditReport
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    if not takes_spark(options, roots):
        return AuditReport(roots)
    return AuditReport(roots, partial(map_on_spark, spark_of(options, stack)))


def _tables(options: argparse.Namespace, stack: ExitStack) -> AuditTables | None:
    """Return the writer of ``--tables``, or None without this option."""
    from rmqpy.pipeline.jobs.report_tables import AuditTables
    from rmqpy.pipeline.spark.session import check_package

    if options.tables is None:
        return None
    if options.tables_format == "parquet":
        check_package("pyarrow")
    return stack.enter_context(AuditTables(options.tables, options.tables_format))


def _export(options: argparse.Namespace) -> int:
    from functools import partial

    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.jobs.export import Export, ExportPlan, run_here
    from rmqpy.pipeline.spark.distributed_map import map_on_spark
    from rmqpy.pipeline.spark.session import check_package

    check_package("pyarrow")
    roots = store_roots(options.directories)
    with ExitStack() as stack:
        run = run_here
        if takes_spark(options, roots):
            run = partial(map_on_spark, spark_of(options, stack))
        progress = stack.enter_context(ProgressLine("exported"))
        plan = ExportPlan(
            root=roots[0],
            target=str(Path(options.to).resolve()),
            broker_name=options.broker_name,
            internal_topics=options.internal_topics,
            range_bytes=options.range_bytes,
            progress=progress,
        )
        export = Export(plan, run)
        export.run()
    for skipped in export.skipped:
        print(
            f"{skipped.file} at offset {skipped.offset}: {skipped.size} bytes that are not a"
            " message",
            file=sys.stderr,
        )
    print(f"{export.rows} messages in {len(export.files)} files")
    return EXIT_NO if export.skipped else EXIT_DONE


def _sql(options: argparse.Namespace) -> int:
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.jobs.sql import json_lines, query, table_text
    from rmqpy.pipeline.spark.stage_progress import watched_tasks

    with ExitStack() as stack:
        session = spark_of(options, stack, light=False)
        with ProgressLine("finished", things="tasks") as progress, watched_tasks(session, progress):
            result = query(session, options.on, options.statement)
            if options.format == "json":
                lines = list(json_lines(result, options.limit))
            else:
                lines = [table_text(result, options.limit)]
    for line in lines:
        print(line)
    return EXIT_DONE
