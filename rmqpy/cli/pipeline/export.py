"""``rmqpy pipeline export | sql``: messages as Parquet files, and queries of them."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import (
    EXIT_DONE,
    EXIT_NO,
    add_format_option,
    add_log_options,
    positive,
)
from rmqpy.cli.pipeline.engine import (
    engine_option,
    master_option,
    print_skipped,
    spark_of,
    spark_options,
    takes_spark,
)
from rmqpy.cli.pipeline.places import (
    check_storage_options,
    export_target,
    log_bytes,
    output_place,
    place_options,
    refuse_hosts,
    storage_options,
    store_places,
)
from rmqpy.model.errors import ConfigError
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.pipeline.jobs.sql import QueriedFolder


def add_verbs(verbs: Commands) -> None:
    export = verbs.add_parser(
        "export", help="export messages as Parquet files; exit code 2 if damage was skipped"
    )
    export.add_argument(
        "directories", nargs=1, metavar="DIR", help="a broker's storePathRootDir, or a URI"
    )
    export.add_argument(
        "--to",
        required=True,
        type=output_place,
        metavar="FOLDER",
        help="a new or empty folder, or the URI of an object store",
    )
    engine_option(export)
    export.add_argument("--broker-name", metavar="NAME", help="value of the column brokerName")
    export.add_argument(
        "--internal-topics", action="store_true", help="include messages of system topics"
    )
    spark_options(export)
    place_options(export)
    add_log_options(export)
    export.set_defaults(command=_export)

    sql = verbs.add_parser("sql", help="query an export or a store; its table is called messages")
    sql.add_argument("statement", metavar="QUERY")
    sql.add_argument(
        "--on",
        required=True,
        metavar="FOLDER",
        help="output of rmqpy pipeline export, or a store, also the URI of a store",
    )
    _query_options(sql)
    sql.set_defaults(command=_sql)

    query = verbs.add_parser("query", help="run a ready-made query; without NAME, list them")
    query.add_argument("name", nargs="?", metavar="NAME")
    query.add_argument(
        "--on", metavar="FOLDER", help="an export, a Parquet table, or a store, also the URI of one"
    )
    query.add_argument(
        "--set",
        dest="parameters",
        action="append",
        type=_parameter,
        default=[],
        metavar="NAME=N",
        help="set a parameter of the query; may be repeated",
    )
    query.add_argument(
        "--print", action="store_true", help="print the SQL, for other engines, instead"
    )
    _query_options(query)
    query.set_defaults(command=_ready_query)


def _query_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=positive, default=1000, metavar="N", help="max rows; default 1000"
    )
    parser.add_argument(
        "--option",
        dest="reading",
        action="append",
        type=_reading_option,
        default=[],
        metavar="KEY=VALUE",
        help="how a store is read, as for format(rocketmq): topic=T, key=K; may be repeated",
    )
    storage_options(parser)
    master_option(parser)
    add_format_option(parser)
    add_log_options(parser)


def _reading_option(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected KEY=VALUE")
    return key, value


def _parameter(text: str) -> tuple[str, int]:
    name, separator, value = text.partition("=")
    if not separator or not value.isdecimal() or not value.isascii():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected NAME=N with a whole number")
    return name, int(value)


def _export(options: argparse.Namespace) -> int:
    from functools import partial

    from attrs import evolve

    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.jobs.export import Export, ExportPlan
    from rmqpy.pipeline.jobs.local_run import local_run
    from rmqpy.pipeline.spark.distributed_map import map_on_spark
    from rmqpy.pipeline.spark.session import check_package
    from rmqpy.pipeline.spark.stage_progress import JobProgress

    places = store_places(options.directories, options, options.to)
    (place,) = places
    plan = ExportPlan(
        root=place.root,
        files=place.files,
        target=export_target(options),
        broker_name=options.broker_name,
        internal_topics=options.internal_topics,
        range_bytes=options.range_bytes,
        check=place.check_unchanged,
    )
    plan.target.check(plan.options())
    check_package("pyarrow")
    with ExitStack() as stack:
        # One process, so that the ranges of a file elsewhere share its copy.
        run = map if place.is_remote else local_run(log_bytes(places))
        line = ProgressLine("exported")
        progress = JobProgress(line)
        if takes_spark(options, places):
            run = partial(map_on_spark, spark_of(options, stack), progress=progress)
        stack.enter_context(line)
        export = Export(evolve(plan, progress=progress), run)
        export.run()
    print_skipped(export.skipped)
    print(f"{count_text(export.rows, 'message')} in {count_text(len(export.files), 'file')}")
    return EXIT_NO if export.skipped else EXIT_DONE


def _ready_query(options: argparse.Namespace) -> int:
    from attrs import asdict

    from rmqpy.pipeline.jobs.ready_queries import find_query, ready_queries

    as_json = options.format == "json"
    if options.name is None:
        found = ready_queries().values()
        if as_json:
            print(json.dumps([asdict(query) for query in found], indent=1))
            return EXIT_DONE
        for query in found:
            given = "".join(f" --set {name}={value}" for name, value in query.parameters.items())
            print(f"{query.name}{given}\n    {query.description}")
        return EXIT_DONE
    options.statement = find_query(options.name).statement(dict(options.parameters))
    if options.print:
        shown = json.dumps({"statement": options.statement}) + "\n"
        print(shown if as_json else options.statement, end="")
        return EXIT_DONE
    if options.on is None:
        raise ConfigError("found no --on, expected the folder to query; name it")
    return _sql(options)


def _queried(options: argparse.Namespace) -> QueriedFolder:
    """Return what ``--on`` names. Raise an error without starting Spark if it has no tables."""
    from rmqpy.model.local_paths import is_elsewhere, local_path, without_slash
    from rmqpy.pipeline.jobs.sql import read_with, store_elsewhere, tables_in

    check_storage_options(options, [options.on])
    if is_elsewhere(options.on):
        refuse_hosts(options.on, "export that store, and query the export")
        folder = store_elsewhere(without_slash(options.on), dict(options.storage))
    else:
        folder = tables_in(local_path(options.on))
    return read_with(folder, options.reading)


def _sql(options: argparse.Namespace) -> int:
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.jobs.sql import json_lines, query, table_text
    from rmqpy.pipeline.spark.stage_progress import watched_tasks

    tables = _queried(options)
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
