"""``rmqpy pipeline export | sql``: messages as Parquet files, and queries of them."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import (
    EXIT_DONE,
    EXIT_NO,
    add_format_option,
    add_log_options,
    output_path,
    positive,
)
from rmqpy.cli.pipeline.engine import (
    engine_option,
    master_option,
    spark_of,
    spark_options,
    store_roots,
    takes_spark,
)

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_verbs(verbs: Commands) -> None:
    export = verbs.add_parser(
        "export", help="export messages as Parquet files; exit code 2 if damage was skipped"
    )
    export.add_argument("directories", nargs=1, metavar="DIR", help="a broker's storePathRootDir")
    export.add_argument(
        "--to", required=True, type=output_path, metavar="FOLDER", help="a new or empty folder"
    )
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
    sql.add_argument(
        "--limit", type=positive, default=1000, metavar="N", help="max rows; default 1000"
    )
    master_option(sql)
    add_format_option(sql)
    add_log_options(sql)
    sql.set_defaults(command=_sql)


def _export(options: argparse.Namespace) -> int:
    from functools import partial

    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.jobs.export import Export, ExportPlan, check_target, run_here
    from rmqpy.pipeline.spark.distributed_map import map_on_spark
    from rmqpy.pipeline.spark.session import check_package

    roots = store_roots(options.directories)
    check_target(options.to)
    check_package("pyarrow")
    with ExitStack() as stack:
        run = run_here
        if takes_spark(options, roots):
            run = partial(map_on_spark, spark_of(options, stack))
        progress = stack.enter_context(ProgressLine("exported"))
        plan = ExportPlan(
            root=roots[0],
            target=options.to,
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
    from rmqpy.model.local_paths import local_path
    from rmqpy.pipeline.jobs.sql import json_lines, query, table_text, tables_in
    from rmqpy.pipeline.spark.stage_progress import watched_tasks

    tables = tables_in(local_path(options.on))
    with ExitStack() as stack:
        session = spark_of(options, stack, light=False)
        with ProgressLine("finished", things="tasks") as progress, watched_tasks(session, progress):
            result = query(session, tables, options.statement)
            if options.format == "json":
                lines = list(json_lines(result, options.limit))
            else:
                lines = [table_text(result, options.limit)]
    for line in lines:
        print(line)
    return EXIT_DONE
