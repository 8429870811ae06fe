"""The promises of the pipeline, by number: each was broken once, and has a test of its name.

===  ===============================================================================
s1   a path without a store is never clean, and two of them are never equal
s2   "contained in" and "equal" are two verdicts, whatever the order of the replicas
s3   keys and queues of a clean store are sums of the core (figures: bench/pipeline.py)
s4   tasks of Spark share their overhead (test_tasks.py; figures: bench/pipeline.py)
s5   a URI is honoured or refused, and never turned into a folder
s6   a range of a file is read without walking to it from the start of the file
s7   a DataFrame that is used twice has all rows each time
s8   views and tables of SQL can be created on a store and on a topic, and rows inserted
s9   a rebuild syncs and starts a task for many queues at once, not for each
s10  arguments are checked before any work
s11  consume queues and the key index serve as indexes (test_lookup.py)
s12  Spark finds the source itself; lag is in the progress (names: test_kafka_names.py)
s13  small queues share a task and a batch (test_kafka_names.py, test_offsets.py)
s14  damage, differences, and errors are reported in sentences
s15  several hosts: replicas by manifest or serve, executors that are lost (test_replicas.py,
     test_clusters.py; docs/reference/pipeline.md, Several hosts)
s16  tables that grow, bodies, masks, ready-made queries (test_append.py, test_ready_queries.py)
s17  columns are not guessed from the text of a statement
===  ===============================================================================
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.pipeline import FORGED_SIZE, LiveCluster, bodies, flip_bit, forged_record

from rmqpy.audit.checks.messages import MessageSelection, MessageWalk, file_view
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.damage import FileView
from rmqpy.audit.scan.directory import read_directory
from rmqpy.cli import main
from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.pipeline.spark import work_units
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Capture = pytest.CaptureFixture[str]
StoreOf = Callable[[str], Path]
STORE = "A-classic-clean-v497"


def run(*words: str) -> int:
    """Run a command and return its exit code, also for bad usage."""
    try:
        return main([*words])
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a store is audited, or Spark started."""

    import_module("rmqpy.audit.replicas.manifest")  # or it would keep the replacement

    def fail(*_given: object, **_more: object) -> None:
        raise AssertionError("work was done before the arguments were checked")

    monkeypatch.setattr("rmqpy.audit.checks.engine.audit_store", fail)
    monkeypatch.setattr("rmqpy.audit.replicas.manifest.make_manifest", fail)
    monkeypatch.setattr("rmqpy.pipeline.spark.session.spark_session", fail)


# ------------------------------------------------------------------ s1: no store is never clean


@pytest.mark.parametrize("what", ["missing", "empty", "other"])
@pytest.mark.parametrize(
    "words",
    [
        ["pipeline", "audit", "{one}"],
        ["pipeline", "audit", "{one}", "--engine", "spark"],
        ["pipeline", "compare", "{one}", "{two}"],
        ["pipeline", "certify", "{one}", "{two}"],
        ["pipeline", "plan", "{one}", "{two}"],
        ["pipeline", "rebuild", "{one}"],
        ["pipeline", "export", "{one}", "--to", "{out}"],
        ["pipeline", "sql", "SELECT 1", "--on", "{one}"],
        ["store", "fsck", "{one}"],
    ],
    ids=lambda words: "-".join(word for word in words if "{" not in word)[:30],
)
@pytest.mark.usefixtures("no_work")
def test_s1_a_path_without_a_store_is_never_clean(
    what: str, words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    for name in ("one", "two"):
        if what != "missing":
            (tmp_path / name).mkdir()
        if what == "other":
            (tmp_path / name / "holiday.jpg").write_bytes(b"\xff\xd8")
    places = {name: str(tmp_path / name) for name in ("one", "two", "out")}
    assert main([word.format(**places) for word in words]) == 1
    shown = capsys.readouterr()
    assert "found" in shown.err or "no finished export" in shown.err
    assert "clean" not in shown.out and "EQUAL" not in shown.out
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ s2: two verdicts


def test_s2_a_shorter_replica_is_not_equal_in_any_order(store_of: StoreOf, capsys: Capture) -> None:
    nodes = [str(store_of(f"B-lagging-slave-v497/{name}")) for name in ("master", "slave")]
    for order in (nodes, nodes[::-1]):
        words = ["pipeline", "certify", *(f"n{n}={path}" for n, path in enumerate(order))]
        assert main([*words, "--format", "json"]) == 2
        tree = json.loads(capsys.readouterr().out)
        assert tree["verdict"] != "EQUAL"


# ------------------------------------------------------------------ s3: no loop over keys


def test_s3_no_key_and_no_queue_of_a_clean_store_is_visited_in_python(
    copy_of: StoreOf, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from rmqpy.audit.checks.key_check import KeyCheck
    from rmqpy.audit.checks.queue_check import QueueCheck

    def fail(*_given: object) -> None:
        raise AssertionError("keys or queues were visited one by one")

    store = copy_of(STORE)
    monkeypatch.setattr(KeyCheck, "_each_message", fail)
    monkeypatch.setattr(QueueCheck, "run", fail)
    assert main(["pipeline", "audit", str(store)]) == 0
    assert "clean" in capsys.readouterr().out
    unit = next((store / "consumequeue" / "Keyed" / "0").iterdir())
    flip_bit(unit, 7)
    with pytest.raises(AssertionError, match="one by one"):
        main(["pipeline", "audit", str(store)])


# ------------------------------------------------------------------ s5: URIs


@pytest.mark.parametrize("uri", ["s3a://bucket/x", "hdfs://host/x", "file://other-host/x"])
@pytest.mark.usefixtures("no_work")
def test_s5_a_uri_is_refused_and_never_a_folder(
    uri: str, store_of: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    # test_object_stores.py reads some of them.
    monkeypatch.setitem(sys.modules, "fsspec", None)
    store = str(store_of(STORE))
    monkeypatch.chdir(tmp_path)
    for words in (
        ["export", store, "--to", uri],
        ["export", uri, "--to", "out"],
        ["audit", uri],
        ["audit", store, "--html", uri],
        ["audit", store, "--tables", uri],
        ["certify", f"a={store}", f"b={uri}"],
        ["certify", f"a={store}", f"b={store}", "--out", uri],
        ["rebuild", store, "--out", uri],
        ["sql", "SELECT 1", "--on", uri],
    ):
        assert run("pipeline", *words) == 1, words
        assert "found a URI" in capsys.readouterr().err, words
    assert not [*tmp_path.iterdir()]


def test_s5_a_file_uri_is_honoured(store_of: StoreOf, capsys: Capture) -> None:
    store = store_of(STORE)
    assert main(["pipeline", "audit", f"file://{store}"]) == 0
    assert "clean" in capsys.readouterr().out
    assert main(["store", "inspect", f"file:{store}"]) == 0


# ------------------------------------------------------------------ s6: ranges


def log_views(store: Path) -> Iterator[FileView]:
    directory = read_directory(OsFileSystem(), str(store))
    for log in directory.logs:
        for file in log.files:
            yield file_view(OsFileSystem(), file, log.framing)


@pytest.mark.parametrize("name", [STORE, "D-dledger-v497/n0"])
def test_s6_a_range_is_found_from_a_frame_before_it(
    name: str, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_units, "SEARCH_BACK_BYTES", 4096)
    searched = 0
    for file in log_views(store_of(name)):
        for position in range(0, len(file.view), 1499):
            near = work_units.frame_before(file, position)
            assert near <= position and (not near or position - near <= 4096)
            searched += near > 0
            walk, whole = (MessageWalk(file, MessageSelection()) for _ in range(2))
            assert walk.skip(position, near) == whole.skip(position)
            assert walk.closed == whole.closed
    assert searched > 20


def test_s6_a_forged_record_before_a_range_leads_to_the_same_frame(
    copy_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search starts within a body in which a complete record is forged."""
    path = min((copy_of(STORE) / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    view = memoryview(bytes(data))
    scan = scan_records(view, 0, dledger=False, check_crc=False)
    row = max(range(len(scan) - 3), key=scan.size.__getitem__)
    at = scan.frame_offset[row] + layout.RECORD_SIZE_MIN
    assert scan.size[row] > layout.RECORD_SIZE_MIN + FORGED_SIZE + 100
    data[at : at + FORGED_SIZE] = forged_record(at)
    path.write_bytes(data)
    end = scan.frame_offset[row] + scan.size[row]
    for file in log_views(path.parents[1]):
        if file.base_offset:
            continue
        for back in range(1, end - at + 1, 7):
            monkeypatch.setattr(work_units, "SEARCH_BACK_BYTES", end + 1 - at + back)
            walk = MessageWalk(file, MessageSelection())
            near = work_units.frame_before(file, end + 1)
            whole = MessageWalk(file, MessageSelection()).skip(end + 1)
            assert walk.skip(end + 1, near) == whole


# ------------------------------------------------------------------ s9: rebuilds of many queues


def test_s9_a_rebuild_syncs_many_queues_at_once(
    store_of: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan
    from rmqpy.upgrade.steps.plan_context import settings_of_facts

    root = str(store_of(STORE))
    facts = read_facts(OsFileSystem(), root)
    assert facts.classic is not None
    settings = settings_of_facts(root, facts.classic.file_size, facts.as_json())
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr("rmqpy.store.files.disk._sync_data", synced.append)
    tasks: list[object] = []

    def run(task: Callable[[object], object], units: Iterable[object]) -> Iterator[object]:
        for unit in units:
            tasks.append(unit)
            yield task(unit)

    rebuild = Rebuild(RebuildPlan(root=root, target=str(tmp_path / "made"), settings=settings), run)
    rebuild.run()
    assert rebuild.queues > 20
    assert len(tasks) < rebuild.queues / 2 and len(synced) < rebuild.queues / 2


# ------------------------------------------------------------------ s10: arguments before work


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["certify", "n0={store}"], "expected at least two"),
        (["compare", "n0={store}"], "expected at least two"),
        (["sql", "SELECT 1", "--on", "/nonexistent"], "no directory"),
        (["sql", "SELECT 1", "--on", "{store}", "--limit", "0"], "whole number of at least 1"),
        (["sql", "SELECT 1", "--on", "{store}", "--option", "key"], "expected KEY=VALUE"),
        (["export", "{store}", "--to", "{used}"], "is in use"),
        (["export", "{store}", "--to", "s3://"], "found a URI without a place"),
        (["export", "s3://", "--to", "{used}/out"], "found a URI without a place"),
        (["compare", "a=s3:///", "b={store}"], "found a URI without a place"),
        (["sql", "SELECT 1", "--on", "s3://"], "found a URI without a place"),
        (
            ["append", "{store}", "--table", "parquet", "--to", "t", "--broker-name", ""],
            "found an empty name",
        ),
        (["export", "{store}", "--to", "{file}/x"], "found a file"),
        (["audit", "{store}", "--range-bytes", "-1"], "whole number of at least 1"),
        (["audit", "{store}", "--html", "{used}/no/page.html"], "no folder to write it to"),
        (["audit", "{store}", "--html", "{used}"], "found a folder"),
        (["audit", "{store}", "--master", "bogus"], "expected local"),
        (["audit", "{store}", "--remote", "http://h"], "expected sc://"),
        (["audit", "{store}", "--conf", "memory=1g"], "expected spark.KEY=VALUE"),
        (["audit", "{store}", "--engine", "local", "--conf", "spark.a=b"], "found --conf and"),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_s10_arguments_are_checked_before_any_work(
    words: list[str], message: str, store_of: StoreOf, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").touch()
    places = {"store": store_of(STORE), "used": tmp_path, "file": tmp_path / "file"}
    assert run("pipeline", *(word.format(**places) for word in words)) == 1
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown


# ------------------------------------------------------------------ s14: sentences


def test_s14_an_export_of_a_damaged_store_says_so(
    copy_of: StoreOf, tmp_path: Path, capsys: Capture, arrow: object
) -> None:
    store = copy_of(STORE)
    flip_bit(sorted((store / "commitlog").iterdir())[0], 4)
    assert main(["pipeline", "export", str(store), "--to", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert "bytes that are not a message" in shown.err and "messages in" in shown.out
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert manifest["passed"] and manifest["rows"] > 0


def test_s14_differences_and_certificates_give_reasons(
    copy_of: StoreOf, store_of: StoreOf, capsys: Capture
) -> None:
    store, other = store_of(STORE), copy_of(STORE)
    file = sorted((other / "commitlog").iterdir())[0]
    flip_bit(file, 120)
    for verb in ("compare", "certify"):
        assert main(["pipeline", verb, f"n0={store}", f"n1={other}"]) == 2
        shown = capsys.readouterr().out
        assert "Difference(" not in shown and "<" not in shown
        assert "offset 0" in shown


# ------------------------------------------------------------------ with Spark


@pytest.mark.spark
def test_s7_a_frame_is_used_twice_and_pushes_no_filters(
    store_of: StoreOf, spark: SparkSession
) -> None:
    from pyspark.errors import PySparkException

    reader = spark.read.format("rocketmq").schema("topic string, queueId int, body binary")
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    try:
        for pushdown in ("true", "false"):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
            frame = reader.option("minPartitions", 64).load(str(store_of(STORE)))
            count = frame.count()
            assert 0 < frame.where("queueId = 1").count() < count == frame.count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(before))
    with pytest.raises(PySparkException, match="no option pushfilters"):
        reader.option("pushFilters", "true").load(str(store_of(STORE))).count()


@pytest.mark.spark
def test_s8_a_view_of_sql_reads_a_store(store_of: StoreOf, spark: SparkSession) -> None:
    store = store_of(STORE)
    count = spark.read.format("rocketmq").load(str(store)).count()
    for path in (store, f"file://{store}"):
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW s8 USING rocketmq OPTIONS (path '{path}')")
        assert spark.sql("SELECT count(*) FROM s8").collect()[0][0] == count > 0
    spark.catalog.dropTempView("s8")


@pytest.mark.spark
def test_s8_spark_refuses_a_path_in_backticks(store_of: StoreOf, spark: SparkSession) -> None:
    """It is possible for Spark's own file formats only; the documentation names the error."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="for direct query on files: rocketmq") as refused:
        spark.sql(f"SELECT topic FROM rocketmq.`{store_of(STORE)}`")
    assert refused.value.getCondition() == "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"


@pytest.mark.spark
def test_s8_a_table_reads_a_store_and_another_receives_rows(
    store_of: StoreOf, spark: SparkSession, live: LiveCluster
) -> None:
    store, topic = store_of(STORE), live.topic(queues=1)
    count = spark.read.format("rocketmq").load(str(store)).count()
    options = f"nameServer '{live.namesrv.address}', topic '{topic}', columns 'message'"
    try:
        spark.sql(f"CREATE TABLE s8_stored USING rocketmq OPTIONS (path '{store}')")
        assert spark.sql("SELECT count(*) FROM s8_stored").collect()[0][0] == count > 0
        spark.sql(f"CREATE TABLE s8_sent USING rocketmq OPTIONS ({options})")
        spark.sql("INSERT INTO s8_sent (topic, body) SELECT topic, body FROM s8_stored LIMIT 0")
        spark.sql(f"INSERT INTO s8_sent (topic, body, keys) VALUES ('{topic}', X'01', 'k')")
        (row,) = spark.sql("SELECT topic, keys, body FROM s8_sent").collect()
        assert (row["topic"], row["keys"], bytes(row["body"])) == (topic, "k", b"\1")
    finally:
        for name in ("s8_stored", "s8_sent"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.spark
def test_s12_a_stream_reports_its_lag(
    spark: SparkSession, live: LiveCluster, tmp_path: Path
) -> None:
    from rmqpy.pipeline.datasource.lag import lag_of

    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 10))
    query = (
        spark.readStream.format("rocketmq")
        .option("nameServer", live.namesrv.address)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120) and query.exception() is None
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    assert [sum(lag_of(each).values()) for each in batches] == [6, 2, 0], batches
    assert lag_of(None) == {}


@pytest.mark.spark
def test_s17_the_columns_of_a_statement_come_from_its_plan(
    store_of: StoreOf, spark: SparkSession, capsys: Capture
) -> None:
    from rmqpy.pipeline.arrow.rows import COLUMNS
    from rmqpy.pipeline.jobs.sql import used_columns

    for statement, columns in (
        ("SELECT Topic, max(queueoffset) FROM messages GROUP BY topic", ("topic", "queueOffset")),
        ("SELECT count(*) FROM messages", ("topic",)),
        ("SELECT 'body * properties' FROM messages WHERE crcOk", ("crcOk",)),
        ("SELECT count(*) FROM messages m JOIN messages n ON m.keys = n.keys", ("keys",)),
        ("SELECT count(*) FROM messages m JOIN messages n USING (keys)", COLUMNS),
        ("SELECT (SELECT max(size) FROM messages) AS body FROM messages", ("size", "body")),
        ("SELECT * FROM messages", COLUMNS),
        ("FROM messages", COLUMNS),
        ("TABLE messages", COLUMNS),
        ("FROM messages |> WHERE topic = 'a'", COLUMNS),
        (
            "SELECT count(*) FROM (SELECT topic, keys FROM messages UNION"
            " SELECT topic, tags FROM messages)",
            ("topic", "keys", "tags"),
        ),
        ("SHOW TABLES", COLUMNS),
    ):
        assert set(used_columns(spark, statement)) == set(columns), statement
    words = ["--on", str(store_of(STORE)), "--format", "json"]
    statement = "SELECT * EXCEPT (body, properties) FROM messages LIMIT 1"
    assert main(["pipeline", "sql", statement, *words]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["topic"] and "body" not in row
