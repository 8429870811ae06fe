"""``rmqpy pipeline append``: a table that grows with a store, in Parquet, Delta, or Iceberg."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from rmqpy.cli.known_topics import note_unknown_topics
from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO, add_log_options, positive
from rmqpy.cli.pipeline.engine import print_skipped
from rmqpy.cli.pipeline.places import place_options, refuse_hosts, store_places
from rmqpy.model.errors import ConfigError
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.cli.pipeline.places import StorePlace
    from rmqpy.pipeline.jobs.append import AppendPlan
    from rmqpy.pipeline.lake.tables import LakeTable

KINDS: Final = ("parquet", "delta", "iceberg")


def add_verbs(verbs: Commands) -> None:
    append = verbs.add_parser(
        "append",
        help="append new messages to a Parquet, Delta, or Iceberg table, each exactly once",
    )
    append.add_argument(
        "directories", nargs=1, metavar="DIR", help="a broker's storePathRootDir, or a URI"
    )
    append.add_argument("--table", required=True, choices=KINDS, help="the format of the table")
    append.add_argument(
        "--to",
        required=True,
        metavar="TABLE",
        help="a folder, or the URI of an object store; NAMESPACE.TABLE of an Iceberg catalog",
    )
    append.add_argument(
        "--broker-name",
        required=True,
        type=_broker_name,
        metavar="NAME",
        help="value of the column brokerName; the table keeps the position of each",
    )
    append.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be repeated"
    )
    append.add_argument(
        "--internal-topics", action="store_true", help="include messages of system topics"
    )
    append.add_argument(
        "--body-schema",
        metavar="FILE",
        help="a JSON Schema, or with .avsc an Avro schema: bodies become the column fields",
    )
    append.add_argument("--mask", metavar="FILE", help="masking rules (TOML)")
    append.add_argument(
        "--allow-gap", action="store_true", help="continue although messages have expired"
    )
    append.add_argument(
        "--catalog", metavar="NAME", help="Iceberg: a catalog of PyIceberg's configuration"
    )
    append.add_argument(
        "--set",
        dest="settings",
        action="append",
        type=_setting,
        default=[],
        metavar="KEY=VALUE",
        help="a storage option of deltalake, or a property of the catalog; may be repeated",
    )
    append.add_argument(
        "--range-bytes",
        type=positive,
        metavar="N",
        help="bytes of the log per commit; default 256 MiB",
    )
    place_options(append)
    add_log_options(append)
    append.set_defaults(command=_append)


def _broker_name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("found an empty name, expected that of the broker")
    return text


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected KEY=VALUE")
    return key, value


def _append(options: argparse.Namespace) -> int:
    from attrs import evolve

    from rmqpy.audit.scan.directory import read_directory
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.jobs.append import Append

    targets = [options.to] if options.table == "parquet" else []
    (place,) = store_places(options.directories, options, *targets)
    plan = _plan(options, place)
    table = _table(options, plan)
    directory = read_directory(plan.files, plan.root)
    note_unknown_topics(plan.files, directory, options.topic or ())
    try:
        with ProgressLine("appended") as progress:
            append = Append(evolve(plan, progress=progress), table)
            append.run()
    finally:
        table.close()
    print_skipped(append.skipped)
    if not append.is_recognised:
        print(
            "not compared: the last row of the table, whose message has expired in the store",
            file=sys.stderr,
        )
    if append.gap:
        print(f"left out: {append.gap} bytes of the log that had expired", file=sys.stderr)
    if append.unreadable:
        print(
            f"{append.unreadable} bodies could not be read: their fields are null, and so are"
            " bodies that had to be masked",
            file=sys.stderr,
        )
    print(
        f"appended {count_text(append.rows, 'message')} in {count_text(append.commits, 'commit')}"
        f" up to offset {append.end}"
    )
    return EXIT_NO if append.skipped else EXIT_DONE


def _plan(options: argparse.Namespace, place: StorePlace) -> AppendPlan:
    from rmqpy.pipeline.jobs.append import RANGE_BYTES, AppendPlan
    from rmqpy.pipeline.lake.masking import Masking, read_masking
    from rmqpy.pipeline.lake.schema_file import read_body_schema
    from rmqpy.pipeline.lake.table_rows import TableRows
    from rmqpy.pipeline.spark.session import check_package

    if options.mask is not None and options.internal_topics:
        raise ConfigError(
            "found --mask and --internal-topics, expected one of them: system topics have copies"
            " of properties (the message trace) that no rule masks"
        )
    for package in ("pyarrow", *_packages(options)):
        check_package(package, "install it with: pip install 'rmqpy[lake]'")
    return AppendPlan(
        root=place.root,
        files=place.files,
        broker=options.broker_name,
        topics=None if options.topic is None else frozenset(options.topic),
        internal_topics=options.internal_topics,
        rows=TableRows(
            None if options.body_schema is None else read_body_schema(options.body_schema),
            Masking() if options.mask is None else read_masking(options.mask),
        ),
        range_bytes=options.range_bytes or RANGE_BYTES,
        allow_gap=options.allow_gap,
        check=place.check_unchanged,
    )


def _packages(options: argparse.Namespace) -> tuple[str, ...]:
    kinds = {"parquet": (), "delta": ("deltalake",), "iceberg": ("pyiceberg",)}
    avro = ("fastavro",) if str(options.body_schema).endswith(".avsc") else ()
    return (*kinds[options.table], *avro)


def _table(options: argparse.Namespace, plan: AppendPlan) -> LakeTable:
    from rmqpy.model.local_paths import is_elsewhere, local_path
    from rmqpy.pipeline.jobs.append import selection_of, write_parquet

    settings, selection = dict(options.settings), selection_of(plan)
    if (options.catalog is None) == (options.table == "iceberg"):
        raise ConfigError(
            "found --table iceberg without --catalog, expected the name of a catalog; add it"
            if options.table == "iceberg"
            else f"found --catalog with --table {options.table}, expected it with iceberg only"
        )
    match options.table:
        case "parquet":
            from rmqpy.pipeline.lake.parquet_table import ParquetTable

            if settings:
                raise ConfigError(
                    "found --set with --table parquet, which has no settings; omit it"
                )
            if is_elsewhere(options.to):
                return _object_table(options, selection)
            return ParquetTable(local_path(options.to), selection, write_parquet)
        case "delta":
            from rmqpy.pipeline.lake.delta_table import DeltaTable

            target = options.to if is_elsewhere(options.to) else local_path(options.to)
            return DeltaTable(target, selection, settings)
    from rmqpy.pipeline.lake.iceberg_table import IcebergTable

    return IcebergTable(options.to, selection, options.catalog, settings)


def _object_table(options: argparse.Namespace, selection: str) -> LakeTable:
    from rmqpy.audit.remote.object_store import ObjectStore
    from rmqpy.model.local_paths import without_slash
    from rmqpy.pipeline.jobs.append import write_parquet
    from rmqpy.pipeline.lake.object_table import ObjectTable

    refuse_hosts(options.to, "give another --to")
    store = ObjectStore(without_slash(options.to), dict(options.storage), "a bucket to write to")
    return ObjectTable(store, selection, write_parquet)
