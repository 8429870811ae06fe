"""``rmqpy pipeline append``: every message is in the table once, for the formats' own readers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define
from harness.pipeline import Row
from harness.store import StoreRig

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.cli import main
from rmqpy.pipeline.jobs import append as job
from rmqpy.pipeline.lake.delta_table import DeltaTable
from rmqpy.pipeline.lake.iceberg_table import IcebergTable
from rmqpy.pipeline.lake.object_table import ObjectTable
from rmqpy.pipeline.lake.parquet_table import ParquetTable
from rmqpy.pipeline.lake.tables import LakeTable, TableConflictError
from rmqpy.store.files.disk import OsFileSystem

pytestmark = pytest.mark.spark
for package in ("pyarrow", "deltalake", "pyiceberg", "duckdb", "fsspec"):
    pytest.importorskip(package)

BROKER = "broker-a"
KINDS = ("parquet", "delta", "iceberg")
OBJECTS = "objects"
"""A Parquet table in an object store: fsspec's memory. test_s3.py appends to a server of S3."""


@define
class Target:
    """A table of one kind, and how its own library reads it."""

    kind: str
    folder: Path

    @property
    def uri(self) -> str:
        return f"memory:/{self.folder}/table"

    @property
    def words(self) -> list[str]:
        if self.kind == OBJECTS:
            return ["--table", "parquet", "--to", self.uri]
        if self.kind != "iceberg":
            return ["--table", self.kind, "--to", str(self.folder / "table")]
        settings = {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }
        given = [f"{name}={value}" for name, value in settings.items()]
        named = [word for each in given for word in ("--set", each)]
        return ["--table", "iceberg", "--to", "mq.messages", "--catalog", "test", *named]

    def append(self, store: Path | str, *more: str, broker: str = BROKER) -> int:
        words = ["pipeline", "append", str(store), "--broker-name", broker, *self.words]
        return main([*words, "--range-bytes", "4096", *more])

    def arrow(self) -> Any:
        """Return the table as its own library reads it."""
        if self.kind in ("parquet", OBJECTS):
            from pyarrow import dataset

            path, system = self.place()
            return dataset.dataset(path, format="parquet", filesystem=system).to_table()
        if self.kind == "delta":
            from deltalake import DeltaTable as Opened

            return Opened(self.folder / "table").to_pyarrow_table()
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("test", type="sql", uri=f"sqlite:///{self.folder}/catalog.db")
        return catalog.load_table("mq.messages").scan().to_arrow()

    def place(self) -> tuple[Any, Any]:
        """Return the path of a Parquet table, and its file system for pyarrow."""
        if self.kind != OBJECTS:
            return self.folder / "table", None
        import fsspec
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        memory = PyFileSystem(FSSpecHandler(fsspec.filesystem("memory")))
        return f"{self.folder}/table", memory

    def opened(self, plan: job.AppendPlan) -> LakeTable:
        selection = job.selection_of(plan)
        match self.kind:
            case "objects":
                return ObjectTable(ObjectStore(self.uri), selection, job.write_parquet)
            case "parquet":
                return ParquetTable(str(self.folder / "table"), selection, job.write_parquet)
            case "delta":
                return DeltaTable(str(self.folder / "table"), selection, {})
        settings = {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db"}
        return IcebergTable("mq.messages", selection, "test", settings)

    def rows(self) -> list[Row]:
        return sorted(self.arrow().to_pylist(), key=lambda row: int(row["physicalOffset"]))

    def bodies(self) -> list[bytes]:
        return [row["body"] for row in self.rows()]


@pytest.fixture(params=[*KINDS, OBJECTS])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    (tmp_path / "warehouse").mkdir()
    yield Target(request.param, tmp_path)
    forget(tmp_path)


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Target]:
    yield Target(OBJECTS, tmp_path)
    forget(tmp_path)


def forget(folder: Path) -> None:
    import fsspec

    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(str(folder), recursive=True)


@pytest.fixture
def rig(tmp_path: Path) -> StoreRig:
    """Return a store whose log files have 4096 bytes."""
    return StoreRig(OsFileSystem(), str(tmp_path / "store"))


def drafts(*numbers: int) -> list[bytes]:
    return [bytes(StoreRig.draft(number).body) for number in numbers]


def test_rows_are_those_that_a_java_consumer_received(
    target: Target,
    told_node: str,
    store_of: Callable[[str], Path],
    check_rows: Callable[[str, list[Row]], None],
) -> None:
    assert target.append(store_of(told_node), "--range-bytes", "8192") == 0
    rows = target.rows()
    assert {row["brokerName"] for row in rows} == {BROKER}
    check_rows(told_node, rows)


def test_a_growing_store_is_appended_once(
    target: Target, rig: StoreRig, capsys: pytest.CaptureFixture[str]
) -> None:
    written = 0
    for end in (1, 2, 40, 41, 120):  # within a file, and over several
        rig.write(*range(written, end))
        written = end
        assert target.append(rig.root) == target.append(rig.root) == 0
        assert target.bodies() == drafts(*range(end))
    assert "appended 0 messages in 0 commits" in capsys.readouterr().out.splitlines()[-1]


def test_a_switched_store_continues(target: Target, rig: StoreRig) -> None:
    rig.write(*range(30))
    assert target.append(rig.root) == 0
    rig.flag = True
    rig.write(*range(30, 60))
    assert target.append(rig.root) == 0
    rows = target.rows()
    assert [row["body"] for row in rows] == drafts(*range(60))
    assert [row["entryIndex"] is None for row in rows] == [True] * 30 + [False] * 30


def test_any_replica_continues(target: Target, store_of: Callable[[str], Path]) -> None:
    assert target.append(store_of("C-upgraded-v497/n0")) == 0
    rows = target.rows()
    assert target.append(store_of("C-upgraded-v497/n1")) == 0
    assert target.rows() == rows


def test_two_brokers_share_a_table(target: Target, rig: StoreRig, tmp_path: Path) -> None:
    other = StoreRig(OsFileSystem(), str(tmp_path / "other"))
    rig.write(*range(20))
    other.write(*range(10))
    assert target.append(rig.root) == target.append(other.root, broker="broker-b") == 0
    rig.write(*range(20, 40))
    assert target.append(rig.root) == target.append(other.root, broker="broker-b") == 0
    rows = target.arrow().to_pylist()
    by_broker = {
        broker: sorted(row["queueOffset"] for row in rows if row["brokerName"] == broker)
        for broker in (BROKER, "broker-b")
    }
    assert len(by_broker[BROKER]) == 40 and len(by_broker["broker-b"]) == 10


def test_another_store_is_refused(
    target: Target, rig: StoreRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.write(*range(20))
    assert target.append(rig.root) == 0
    rows = target.rows()
    other = StoreRig(OsFileSystem(), str(tmp_path / "other"))
    other.write(*range(100, 150))
    assert target.append(other.root) == 1
    assert "it is another store" in capsys.readouterr().err
    short = StoreRig(OsFileSystem(), str(tmp_path / "short"))
    short.write(0)
    assert target.append(short.root) == 1
    assert target.rows() == rows


def test_a_last_row_in_a_file_of_a_wrong_length_is_not_recognised(
    target: Target, rig: StoreRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.write(*range(60))
    assert target.append(rig.root) == 0
    last = target.rows()[-1]["physicalOffset"]
    assert last > 4096
    rig.write(*range(60, 120))
    name, _ = rig.place(last)
    with (Path(rig.root) / name).open("ab") as file:
        file.write(b"x")
    assert target.append(rig.root) == 1
    shown = capsys.readouterr().err
    assert "no message at offset" in shown and "Traceback" not in shown
    assert target.bodies() == drafts(*range(60))


def test_expired_messages_are_a_gap(
    target: Target, rig: StoreRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.write(*range(10))
    assert target.append(rig.root) == 0
    offsets = rig.write(*range(10, 120))
    for file in sorted(Path(rig.root, "commitlog").iterdir())[:2]:
        file.unlink()
    assert target.append(rig.root) == 1
    assert "bytes have expired that were not appended" in capsys.readouterr().err
    assert target.append(rig.root, "--allow-gap") == 0
    shown = capsys.readouterr()
    assert "left out: " in shown.err and "not compared: " in shown.err
    kept = [number for number in range(10, 120) if offsets[number - 10] >= 8192]
    assert target.bodies() == drafts(*range(10), *kept)


def test_damage_is_reported_and_passed(
    target: Target, rig: StoreRig, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = rig.write(*range(60))
    rig.edit("commitlog/" + "0" * 20, offsets[3], bytes(40))
    assert target.append(rig.root) == 2
    assert "bytes that are not a message" in capsys.readouterr().err
    assert target.bodies() == drafts(0, 1, 2, *range(4, 60))


def test_other_rows_are_refused(
    target: Target, rig: StoreRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.write(*range(20))
    assert target.append(rig.root) == 0
    assert target.append(rig.root, "--topic", "Topic") == 1
    assert "appended with another --topic, expected the same" in capsys.readouterr().err
    assert target.append(rig.root, "--internal-topics") == 1
    assert "another --internal-topics" in capsys.readouterr().err


def test_a_second_process_is_refused(target: Target, rig: StoreRig) -> None:
    """Of two appends that started from the same position, one commits, and one is refused."""
    rig.write(*range(20))
    assert target.append(rig.root) == 0
    rig.write(*range(20, 40))
    plan = job.AppendPlan(root=rig.root, broker=BROKER, range_bytes=4096)
    with closing(target.opened(plan)) as first:
        if target.kind == "parquet":
            assert target.append(rig.root) == 1
            job.Append(plan, first).run()
        else:
            with closing(target.opened(plan)) as second:
                job.Append(plan, first).run()
                with pytest.raises(TableConflictError, match="another process has committed"):
                    job.Append(plan, second).run()
    assert target.bodies() == drafts(*range(40))


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_append_continues(kind: str, rig: StoreRig, tmp_path: Path) -> None:
    """Kill the process with SIGKILL in its third commit, before and after the table has it."""
    (tmp_path / "warehouse").mkdir()
    target = Target(kind, tmp_path)
    rig.write(*range(120))
    for when in ("before", "after"):
        words = ["pipeline", "append", rig.root, "--broker-name", BROKER, *target.words]
        program = KILLED.format(words=[*words, "--range-bytes", "4096"], when=when)
        ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert target.append(rig.root) == 0
    assert target.bodies() == drafts(*range(120))


KILLED = """
import os, signal
from rmqpy.cli import main
from rmqpy.pipeline.lake.delta_table import DeltaTable
from rmqpy.pipeline.lake.iceberg_table import IcebergTable
from rmqpy.pipeline.lake.parquet_table import ParquetTable

commits = 0
for kind in (DeltaTable, IcebergTable, ParquetTable):
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


def test_an_interrupted_parquet_commit_leaves_no_row_twice(
    rig: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop at each rename and sync of an append in turn; the next one continues."""
    target = Target("parquet", tmp_path)
    rig.write(*range(60))
    steps = count_steps(monkeypatch)

    def run(stop_at: int) -> bool:
        steps.left = stop_at
        try:
            return target.append(rig.root) == 0
        except InterruptedError:
            return False
        finally:
            steps.left = -1

    stops = 0
    while not run(stops):
        stops += 1
        bodies = target.bodies() if any((tmp_path / "table").glob("*.parquet")) else []
        assert bodies == drafts(*range(len(bodies)))  # a reader of the folder sees a prefix, once
        if stops % 3 == 0:
            rig.write(60 + stops)  # the store grows meanwhile
    assert stops > 3
    written = [60 + stop for stop in range(3, stops + 1, 3)]
    assert target.append(rig.root) == 0
    assert target.bodies() == drafts(*range(60), *written)


def count_steps(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    steps = SimpleNamespace(left=-1)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if steps.left == 0:
                raise InterruptedError
            steps.left -= 1
            return real(*given)

        return call

    fake = SimpleNamespace(
        **{name: getattr(os, name) for name in ("open", "close", "O_RDONLY", "O_DIRECTORY")},
        rename=counted(os.rename),
        fsync=counted(os.fsync),
    )
    monkeypatch.setattr("rmqpy.pipeline.lake.parquet_table.os", fake)
    return steps


def test_duckdb_reads_the_same(target: Target, rig: StoreRig) -> None:
    import duckdb

    rig.write(*range(60))
    assert target.append(rig.root) == 0
    with duckdb.connect() as database:
        if target.kind in ("parquet", OBJECTS):
            if target.kind == OBJECTS:
                import fsspec

                database.register_filesystem(fsspec.filesystem("memory"))
            place = target.uri if target.kind == OBJECTS else target.folder / "table"
            table = f"read_parquet('{place}/*.parquet')"
        else:
            table = "messages"
            database.register(table, target.arrow())
        found = database.execute(
            "select queueId, count(*), min(queueOffset), max(queueOffset)"
            f" from {table} group by queueId order by queueId"
        ).fetchall()
        keys = database.execute(f"select keys, properties['KEYS'] from {table}").fetchall()
    assert found == [(0, 30, 0, 29), (1, 30, 0, 29)]
    assert {column for column, _ in keys} == {f"key{number}" for number in range(60)}
    assert {column for column, _ in keys} == {value for _, value in keys}


def test_a_foreign_folder_is_refused(
    rig: StoreRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.write(0)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "mine.parquet").write_bytes(b"precious")
    assert Target("parquet", tmp_path).append(rig.root) == 1
    assert "expected an empty one or a table of rmqpy pipeline append" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "table").iterdir()] == ["mine.parquet"]


def test_a_foreign_delta_table_is_refused(
    rig: StoreRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    rig.write(0)
    write_deltalake(tmp_path / "table", pa.table({"a": [1]}))
    assert Target("delta", tmp_path).append(rig.root) == 1
    assert "rmqpy pipeline append has not created" in capsys.readouterr().err


def test_a_full_disk_leaves_the_table_as_it_was(
    rig: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target("parquet", tmp_path)
    rig.write(*range(60))

    def full(*_given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(job, "write_parquet", full)
        assert target.append(rig.root) == 1
    assert target.append(rig.root) == 0
    assert target.bodies() == drafts(*range(60))


def test_a_damaged_manifest_is_refused(
    rig: StoreRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target("parquet", tmp_path)
    rig.write(*range(20))
    assert target.append(rig.root) == 0
    manifest = tmp_path / "table" / "_manifest.json"
    for text in ("", "[]", "{}", '{"version": 2}', "{" + manifest.read_text()):
        manifest.write_text(text)
        assert target.append(rig.root) == 1
        assert "found no manifest of rmqpy pipeline append" in capsys.readouterr().err


WRONG: dict[str, tuple[list[str], str]] = {
    "a catalog without Iceberg": (
        ["--table", "delta", "--to", "t", "--catalog", "c"],
        "expected it with iceberg only",
    ),
    "Iceberg without a catalog": (["--table", "iceberg", "--to", "a.b"], "without --catalog"),
    "settings of Parquet": (
        ["--table", "parquet", "--to", "t", "--set", "a=b"],
        "which has no settings",
    ),
    "a host for Parquet": (
        ["--table", "parquet", "--to", "https://h/t"],
        "found a URI of https, expected a folder, or the URI of an object store",
    ),
    "options of a driver for Delta": (
        ["--table", "delta", "--to", "s3://b/t", "--storage-option", "key=k"],
        "found --storage-option and only directories of this machine",
    ),
    "no namespace": (
        ["--table", "iceberg", "--to", "t", "--catalog", "c", "--set", "type=in-memory"],
        "expected NAMESPACE.TABLE",
    ),
    "no such mask": (["--table", "delta", "--to", "t", "--mask", "none"], "No such file"),
    "no such schema": (["--table", "delta", "--to", "t", "--body-schema", "none"], "No such file"),
    "masks of system topics": (
        ["--table", "delta", "--to", "t", "--mask", "m", "--internal-topics"],
        "expected one of them",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_refused(
    name: str,
    rig: StoreRig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig.write(0)
    monkeypatch.chdir(tmp_path)
    words, expected = WRONG[name]
    assert main(["pipeline", "append", rig.root, "--broker-name", "b", *words]) == 1
    shown = capsys.readouterr().err
    assert expected in shown and "Traceback" not in shown
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_positions_need_their_row(rig: StoreRig, tmp_path: Path) -> None:
    """A table whose last row was deleted is refused: its content is no longer what was appended."""
    target = Target("delta", tmp_path)
    rig.write(*range(20))
    assert target.append(rig.root) == 0
    from deltalake import DeltaTable as Opened

    last = target.rows()[-1]["physicalOffset"]
    Opened(tmp_path / "table").delete(f"physicalOffset = {last}")
    assert target.append(rig.root) == 1


def test_the_lock_is_released(tmp_path: Path) -> None:
    """A table that could not be opened does not keep the next one out."""
    table = ParquetTable(str(tmp_path / "t"), "{}", job.write_parquet)
    assert table.selection is None and table.position("b") is None
    with pytest.raises(TableConflictError):
        ParquetTable(str(tmp_path / "t"), "{}", job.write_parquet)
    table.close()
    again = ParquetTable(str(tmp_path / "t"), "{}", job.write_parquet)
    assert again.row("b", 0) is None
    again.close()


def test_an_interrupted_commit_of_objects_leaves_no_row_twice(
    objects: Target, rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop before and after each object that is created; the next append continues."""
    rig.write(*range(60))
    create = ObjectStore.create_file
    left = [0]

    def stop() -> None:
        if not left[0]:
            raise KilledError
        left[0] -= 1

    def stopping(self: ObjectStore, source: str, path: str) -> bool:
        stop()
        is_made = create(self, source, path)
        stop()
        return is_made

    def run(stop_at: int) -> bool:
        left[0] = stop_at
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "create_file", stopping)
            try:
                return objects.append(rig.root) == 0
            except KilledError:
                return False

    stops = 0
    while not run(stops):
        stops += 1
        try:
            bodies = objects.bodies()
        except (FileNotFoundError, ValueError):  # There is no object with rows.
            bodies = []
        assert bodies == drafts(*range(len(bodies)))
        if stops % 3 == 0:
            rig.write(60 + stops)
    assert stops > 3
    assert objects.append(rig.root) == 0
    assert objects.bodies() == drafts(*range(60), *(60 + stop for stop in range(3, stops + 1, 3)))


class KilledError(BaseException):
    """The end of a process at this point: nothing catches it."""


def test_a_commit_whose_answer_was_lost_counts(
    objects: Target, rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that repeats a request meets its own object."""
    rig.write(*range(60))
    assert objects.append(rig.root) == 0
    create = ObjectStore.create_file

    def repeated(self: ObjectStore, source: str, path: str) -> bool:
        create(self, source, path)
        return create(self, source, path)

    rig.write(*range(60, 120))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "create_file", repeated)
        assert objects.append(rig.root) == 0
    assert objects.bodies() == drafts(*range(120))


def test_another_range_size_from_the_same_position_is_refused(
    objects: Target, rig: StoreRig
) -> None:
    """The loser's rows would begin like those of the winner, and end elsewhere."""
    rig.write(*range(120))
    short = job.AppendPlan(root=rig.root, broker=BROKER, range_bytes=4096)
    long = job.AppendPlan(root=rig.root, broker=BROKER, range_bytes=1 << 20)
    first, second = objects.opened(short), objects.opened(long)
    job.Append(short, first).run()
    with pytest.raises(TableConflictError):
        job.Append(long, second).run()
    assert objects.bodies() == drafts(*range(120))


def test_a_server_that_replaces_objects_is_refused(
    objects: Target, rig: StoreRig, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """An S3 server that does not know If-None-Match would let two commits replace each other."""

    def replace(self: ObjectStore, source: str, path: str) -> bool:
        self.put_file(source, path)
        return True

    rig.write(*range(20))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "create_file", replace)
        assert objects.append(rig.root) == 1
    assert "replaces an object that exists" in capsys.readouterr().err
    assert objects.append(rig.root) == 0
    rig.write(*range(20, 40))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "create_file", replace)
        assert objects.append(rig.root) == 1
    assert objects.bodies() == drafts(*range(20))


def test_foreign_objects_are_refused(
    objects: Target, rig: StoreRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.write(*range(20))
    store = ObjectStore(objects.uri)
    store.put_bytes("mine.parquet", b"precious")
    assert objects.append(rig.root) == 1
    assert "expected none or a table of rmqpy pipeline append" in capsys.readouterr().err
    store.remove("mine.parquet")
    for text in (b"", b"[]", b"{}", b'{"version": 2}'):
        store.put_bytes("_table.json", text)
        assert objects.append(rig.root) == 1
        assert "found no description of a table" in capsys.readouterr().err
    store.remove("_table.json")
    assert objects.append(rig.root) == 0
    newest = max(name for name in store.names() if name.endswith(".parquet"))
    store.put_bytes(newest, b"PAR1")
    assert objects.append(rig.root) == 1
    assert f"{newest}: found no commit of rmqpy pipeline append" in capsys.readouterr().err


def test_a_newest_object_that_was_removed_is_appended_again(objects: Target, rig: StoreRig) -> None:
    rig.write(*range(60))
    assert objects.append(rig.root) == 0
    store = ObjectStore(objects.uri)
    store.remove(max(name for name in store.names() if name.endswith(".parquet")))
    assert len(objects.bodies()) < 60
    assert objects.append(rig.root) == 0
    assert objects.bodies() == drafts(*range(60))
