"""Stores in S3, with s3fs as a user has it, beyond what test_elsewhere.py does at every place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.elsewhere import BUCKET, S3_KEYS, Place, s3
from harness.pipeline import flip_bit
from harness.store import StoreRig

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.cli import main
from rmqpy.codec.message import offset_msg_id
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

StoreOf = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]
Upload = Callable[[Path], str]

CLASSIC = "A-classic-clean-v497"
LOG = "commitlog/00000000000000000000"

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with s3() as found:
        yield found


@pytest.fixture
def endpoint(place: Place) -> str:
    return place.options["endpoint_url"]


@pytest.fixture
def options(place: Place) -> list[str]:
    return place.words


@pytest.fixture
def upload(place: Place) -> Upload:
    """Return a function that uploads a store and returns its URI."""
    return place.uploaded


def report(root: str, capsys: Capture, *words: str) -> str:
    """Return exit code and JSON of an audit, without the root."""
    code = main(["pipeline", "audit", root, "--format", "json", *words])
    shown = capsys.readouterr()
    assert code != 1, shown
    return f"{code} {shown.out}".replace(root, "ROOT")


def test_spark_has_the_report_of_the_directory(
    copy_of: StoreOf,
    upload: Upload,
    options: list[str],
    tmp_path: Path,
    capsys: Capture,
    spark: SparkSession,
) -> None:
    store = copy_of(CLASSIC)
    for name, value in S3_KEYS.items():
        options += ["--storage-option", f"{name}={value}"]
    for damaged in (False, True):
        if damaged:
            flip_bit(store / LOG, 5000)
        local = report(str(store), capsys)
        # Ranges of bytes, with the queues pooled, and in the complete audit.
        for more in ([], ["--tables", str(tmp_path / f"{damaged}")]):
            words = ["--engine", "spark", "--range-bytes", "65536", *options, *more]
            assert report(upload(store), capsys, *words) == local


def test_rows_are_those_of_the_directory(
    store_of: StoreOf, upload: Upload, endpoint: str, spark: SparkSession
) -> None:
    store = store_of("C-upgraded-v497/n0")
    reader = spark.read.format("rocketmq").schema("topic string, queueOffset long, body binary")
    expected = sorted(map(tuple, reader.load(str(store)).collect()))
    there = reader.option("storageOptions", json.dumps({**S3_KEYS, "endpoint_url": endpoint}))
    uri = upload(store)
    assert sorted(map(tuple, there.load(uri).collect())) == expected
    assert len(expected) > 200
    topic, offset = expected[0][:2]
    one = there.option("topic", topic).option("queueId", 0)
    one = one.option("startingOffset", offset).option("endingOffset", offset + 1)
    assert [tuple(row)[:2] for row in one.load(uri).collect()] == [(topic, offset)]


def test_sql_queries_a_store_there(
    store_of: StoreOf, upload: Upload, options: list[str], capsys: Capture, spark: SparkSession
) -> None:
    store = store_of(CLASSIC)
    for name, value in S3_KEYS.items():
        options += ["--storage-option", f"{name}={value}"]
    statement = "SELECT topic, count(*) AS n, max(size) FROM messages GROUP BY topic ORDER BY topic"
    found = []
    for words in (["--on", str(store)], ["--on", upload(store), *options]):
        assert main(["pipeline", "sql", statement, "--format", "json", *words]) == 0
        found.append(capsys.readouterr().out)
        reading = ["topic=Normal", "queueId=0", "startingOffset=3", "endingOffset=5"]
        given = [word for each in reading for word in ("--option", each)]
        query = "SELECT queueOffset, topic FROM messages ORDER BY queueOffset"
        assert main(["pipeline", "sql", query, "--format", "json", *words, *given]) == 0
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["queueOffset"] for row in listed] == [3, 4]
        assert {row["topic"] for row in listed} == {"Normal"}
    assert found[0] == found[1] and found[0].count("\n") > 3


def test_a_lookup_reads_kilobytes(
    upload: Upload, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmqpy.pipeline.datasource.source import RocketMqSource

    store = tmp_path / "java" / "sizes"
    sizes = {"mapped_file_size_commit_log": 8 << 20, "mapped_file_size_consume_queue": 6_000_000}
    rig = StoreRig(OsFileSystem(), str(store), changes=sizes)
    opened = rig.open()
    for first in range(0, 3000, 100):
        rig.put(opened, *range(first, first + 100), body=b"0123456789abcdef" * 64)
        rig.clock.advance(1000)
    opened.shutdown()
    fetched: list[int] = []
    read = ObjectStore.read

    def counted(self: ObjectStore, path: str, start: int, end: int) -> bytes:
        data = read(self, path, start, end)
        fetched.append(len(data))
        return data

    def rows(root: str, **options: str) -> list[dict[str, Any]]:
        reader = RocketMqSource({"path": root, "storageOptions": storage} | options).reader(schema)
        batches = (batch for part in reader.partitions() for batch in reader.read(part))
        return [row for batch in batches for row in batch.to_pylist()]

    monkeypatch.setattr(ObjectStore, "read", counted)
    storage = json.dumps({**S3_KEYS, "endpoint_url": endpoint})
    schema = RocketMqSource({"path": str(store)}).schema()
    uri = upload(store)
    place = {"topic": "Topic", "queueId": "1", "startingOffset": "700", "endingOffset": "702"}
    expected = rows(str(store), **place)
    assert [row["queueOffset"] for row in expected] == [700, 701] and not fetched
    assert rows(uri, **place) == expected
    assert 0 < sum(fetched) < 512 << 10
    fetched.clear()
    host, _, port = expected[0]["storeHost"].rpartition(":")
    message_id = offset_msg_id(
        (bytes(map(int, host.split("."))), int(port)), expected[0]["physicalOffset"]
    )
    assert rows(uri, messageId=message_id) == expected[:1]
    assert 0 < sum(fetched) < 128 << 10
    fetched.clear()
    queue = {"topic": "Topic", "queueId": "1"}
    second = round(expected[0]["storeTimestamp"].timestamp() * 1000)
    span = {"startingTimestamp": str(second), "endingTimestamp": str(second + 1000)}
    found = rows(uri, **queue, **span, timestampLookup="true")
    assert 0 < sum(fetched) < 1 << 20
    assert found == rows(str(store), **queue, **span) and len(found) == 50


def test_a_backup_is_certified_and_exported(
    store_of: StoreOf, upload: Upload, options: list[str], tmp_path: Path, capsys: Capture
) -> None:
    store = store_of(CLASSIC)
    uri, out = upload(store), str(tmp_path / "certificate.json")
    given = [f"here={store}", f"backup={uri}", *options]
    assert main(["pipeline", "certify", *given, "--out", out]) == 0
    assert main(["pipeline", "certify", "--check", out, f"backup={uri}", *options]) == 0
    assert "HOLDS (backup)" in capsys.readouterr().out
    for root, name in ((str(store), "here"), (uri, "there")):
        more = options if name == "there" else []
        assert main(["pipeline", "export", root, "--to", str(tmp_path / name), *more]) == 0
    names = sorted(path.name for path in (tmp_path / "here").glob("*.parquet"))
    assert names
    for each in names:
        assert (tmp_path / "here" / each).read_bytes() == (tmp_path / "there" / each).read_bytes()


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_an_export_to_s3_has_the_rows_of_a_folder(
    engine: str,
    store_of: StoreOf,
    upload: Upload,
    endpoint: str,
    options: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """A worker of Spark is killed when its object is written, so that its task is repeated."""
    store = store_of("C-upgraded-v497/n0")
    words = ["--range-bytes", "8192", "--internal-topics"]
    assert main(["pipeline", "export", str(store), "--to", str(tmp_path / "out"), *words]) == 0
    target = f"s3://{BUCKET}/{tmp_path.name}/{engine}"
    if engine == "local":
        # A store there, and what is written there.
        root = upload(store)
        assert main(["pipeline", "export", root, "--to", target, *words, *options]) == 0
    else:
        export_with_a_kill(request.getfixturevalue("spark"), store, target, endpoint, tmp_path)
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    system = import_module("s3fs").S3FileSystem(endpoint_url=endpoint)
    system.invalidate_cache()
    connection.register_filesystem(system)
    query = "SELECT * FROM read_parquet('{}/*.parquet') ORDER BY physicalOffset"
    found = connection.sql(query.format(target)).fetchall()
    assert found == connection.sql(query.format(tmp_path / "out")).fetchall()
    assert len(found) > 200
    names = {name.rpartition("/")[2] for name in system.find(target)}
    assert {"_SUCCESS", "_manifest.json"} == {name for name in names if "parquet" not in name}


def export_with_a_kill(
    spark: SparkSession, store: Path, target: str, endpoint: str, folder: Path
) -> None:
    from rmqpy.pipeline.jobs.export import Export, ExportedRange, ExportPlan, ExportTask, WorkUnit
    from rmqpy.pipeline.jobs.export_target import ObjectTarget
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    marker = str(folder / "died")

    def dying(task: ExportTask) -> Callable[[WorkUnit], ExportedRange]:
        def do(unit: WorkUnit) -> ExportedRange:
            written = task(unit)
            if written.path is not None and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return written

        return do

    place = ObjectStore(target, {**S3_KEYS, "endpoint_url": endpoint})
    plan = ExportPlan(
        root=str(store), target=ObjectTarget(place), range_bytes=8192, internal_topics=True
    )
    Export(plan, lambda task, units: map_on_spark(spark, dying(task), units)).run()
    assert os.path.exists(marker)


def table_words(kind: str, endpoint: str, folder: Path) -> list[str]:
    """Return the options for a table of which the data are in S3."""
    place = f"{BUCKET}/{folder.name}/{kind}"
    if kind == "parquet":
        options = {"endpoint_url": endpoint}
        return [*words_of("storage-option", options), "--table", kind, "--to", f"s3://{place}"]
    if kind == "delta":
        options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
        return [*words_of("set", options), "--table", kind, "--to", f"s3://{place}"]
    options = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"s3://{place}",
        "s3.endpoint": endpoint,
    }
    table = ["--table", kind, "--catalog", "test", "--to", "mq.messages"]
    return [*words_of("set", options), *table]


def words_of(option: str, values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{option}", f"{name}={value}")]


def table_bodies(kind: str, endpoint: str, folder: Path) -> list[bytes]:
    """Return the bodies of a table by offset, as its own library, or DuckDB, reads them."""
    place = f"s3://{BUCKET}/{folder.name}/{kind}"
    if kind == "delta":
        options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
        table = import_module("deltalake").DeltaTable(place, storage_options=options)
        found = table.to_pyarrow_table()
    elif kind == "iceberg":
        settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "s3.endpoint": endpoint}
        catalog = import_module("pyiceberg.catalog").load_catalog("test", **settings)
        found = catalog.load_table("mq.messages").scan().to_arrow()
    else:
        system = import_module("s3fs").S3FileSystem(endpoint_url=endpoint)
        system.invalidate_cache()
        with import_module("duckdb").connect() as database:
            database.register_filesystem(system)
            found = database.sql(f"SELECT * FROM read_parquet('{place}/*.parquet')").arrow()
            found = found.read_all() if hasattr(found, "read_all") else found
    rows = sorted(found.to_pylist(), key=lambda row: int(row["physicalOffset"]))
    return [row["body"] for row in rows]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_killed_append_to_s3_continues(
    kind: str, upload: Upload, endpoint: str, tmp_path: Path
) -> None:
    """SIGKILL in the third commit, before and after S3 has it; then the store grows."""
    for package in ("deltalake", "pyiceberg", "duckdb"):
        pytest.importorskip(package)
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    rig.write(*range(120))
    upload(Path(rig.root))  # This creates the bucket.
    words = ["pipeline", "append", rig.root, "--broker-name", "a", "--range-bytes", "4096"]
    words += table_words(kind, endpoint, tmp_path)
    for when in ("before", "after"):
        program = KILLED.format(words=words, when=when)
        ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert main(words) == 0
    assert table_bodies(kind, endpoint, tmp_path) == [
        bytes(StoreRig.draft(number).body) for number in range(120)
    ]
    rig.write(*range(120, 130))
    assert main(words) == main(words) == 0
    assert len(table_bodies(kind, endpoint, tmp_path)) == 130


KILLED = """
import os, signal
from rmqpy.cli import main
from rmqpy.pipeline.lake.delta_table import DeltaTable
from rmqpy.pipeline.lake.iceberg_table import IcebergTable
from rmqpy.pipeline.lake.object_table import ObjectTable

commits = 0
for kind in (DeltaTable, IcebergTable, ObjectTable):
    def append(self, *given, real=kind.append):
        global commits
        commits += 1
        if commits == 3 and {when!r} == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, *given)
        if commits == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    kind.append = append
main({words})
"""


def test_an_export_to_a_missing_bucket_is_one_sentence(
    store_of: StoreOf, options: list[str], capsys: Capture
) -> None:
    words = ["pipeline", "export", str(store_of(CLASSIC)), "--to", "s3://no-such-bucket/out"]
    assert main([*words, *options]) == 1
    shown = capsys.readouterr()
    assert "s3://no-such-bucket/out: found no bucket" in shown.err and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("s3://no-such-bucket/store", "found no bucket or file of this name"),
        (f"s3://{BUCKET}/no/store", "found no bucket or file of this name"),
    ],
)
def test_what_is_not_there_is_named(
    uri: str, sentence: str, options: list[str], upload: Upload, capsys: Capture
) -> None:
    assert main(["pipeline", "audit", uri, *options]) == 1
    shown = capsys.readouterr()
    assert f"{uri}: {sentence}" in shown.err and shown.err.count("\n") == 1


def test_a_server_that_is_not_there_is_named(endpoint: str, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    words = ["--storage-option", f"endpoint_url=http://127.0.0.1:{port}"]
    assert main(["pipeline", "audit", "s3://bucket/store", *words]) == 1
    shown = capsys.readouterr()
    assert "s3://bucket/store: found no answer" in shown.err and shown.err.count("\n") == 1


def test_missing_credentials_are_named(
    endpoint: str, options: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    import_module("s3fs").S3FileSystem.clear_instance_cache()  # It has the credentials.
    assert main(["pipeline", "audit", "s3://bucket/of/nobody", *options]) == 1
    assert "found no permission to read it" in capsys.readouterr().err
