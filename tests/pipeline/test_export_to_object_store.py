"""Exports to an object store, fsspec's memory: the rows are those of an export to a folder, each
exactly once, whatever is killed or repeated. test_s3.py exports to a server of S3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from harness.pipeline import FORGED_SIZE, Row, flip_bit, forged_record

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.cli import main
from rmqpy.pipeline.jobs.export import Export, ExportedRange, ExportPlan, ExportTask, WorkUnit
from rmqpy.pipeline.jobs.export_target import FolderTarget, ObjectTarget

StoreOf = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        find_spec("fsspec") is None or find_spec("pyarrow") is None,
        reason="fsspec or pyarrow is not installed; pip install 'rmqpy[object-store,lake]'",
    ),
]

CLASSIC = "A-classic-clean-v497"
RANGE = 8192


@pytest.fixture
def uri() -> Iterator[str]:
    """Return a URI of fsspec's memory below which nothing is."""
    import fsspec

    memory = fsspec.filesystem("memory")
    root = f"/{uuid4().hex}"
    yield f"memory:/{root}/out"
    if memory.exists(root):
        memory.rm(root, recursive=True)


def objects(uri: str) -> dict[str, bytes]:
    """Return what is below a URI of the memory."""
    import fsspec

    system, path = fsspec.core.url_to_fs(uri)
    return {name.removeprefix(f"{path}/"): system.cat_file(name) for name in system.find(path)}


def rows_below(uri: str, **options: Any) -> list[Row]:
    """Return the rows of the objects that a reader finds by their names, in their order."""
    import fsspec
    from pyarrow import parquet

    system, path = fsspec.core.url_to_fs(uri, **options)
    names = sorted(name for name in system.find(path) if name.endswith(".parquet"))
    return [row for name in names for row in parquet.read_table(system.open(name)).to_pylist()]


def rows_in(folder: Path) -> list[Row]:
    return rows_below(f"file://{folder}")


def plan_to(uri: str, store: Path, range_bytes: int = RANGE) -> ExportPlan:
    target = ObjectTarget(ObjectStore(uri))
    return ExportPlan(root=str(store), target=target, range_bytes=range_bytes)


class Killed(BaseException):
    """The end of a process at this point: nothing catches it."""


@pytest.mark.parametrize("node", [CLASSIC, "C-upgraded-v497/n0", "D-dledger-v497/n1"])
def test_rows_are_those_of_a_folder(
    node: str, store_of: StoreOf, uri: str, tmp_path: Path, capsys: Capture
) -> None:
    store = store_of(node)
    words = ["--internal-topics", "--broker-name", "a", "--range-bytes", str(RANGE)]
    assert main(["pipeline", "export", str(store), "--to", str(tmp_path / "out"), *words]) == 0
    local = capsys.readouterr().out
    assert main(["pipeline", "export", str(store), "--to", uri, *words]) == 0
    assert capsys.readouterr().out == local
    expected = rows_in(tmp_path / "out")
    assert rows_below(uri) == expected and len(expected) > 200
    found = objects(uri)
    manifest = json.loads(found["_manifest.json"])
    assert found.keys() == {"_SUCCESS", "_manifest.json", *(f["name"] for f in manifest["files"])}
    assert manifest["rows"] == len(expected) and len(manifest["files"]) > 3


def test_a_store_elsewhere_is_exported_elsewhere(
    store_of: StoreOf, uri: str, tmp_path: Path
) -> None:
    import fsspec

    store, memory = store_of(CLASSIC), fsspec.filesystem("memory")
    there = uri.removesuffix("/out") + "/store"
    for path in store.rglob("*"):
        if path.is_file():
            place = f"{there.removeprefix('memory:/')}/{path.relative_to(store)}"
            memory.pipe_file(place, path.read_bytes())
    assert main(["pipeline", "export", str(store), "--to", str(tmp_path / "out")]) == 0
    assert main(["pipeline", "export", there, "--to", uri]) == 0
    assert rows_below(uri) == rows_in(tmp_path / "out")


def test_damage_is_skipped_and_reported(copy_of: StoreOf, uri: str, capsys: Capture) -> None:
    store = copy_of(CLASSIC)
    flip_bit(store / f"commitlog/{0:020d}", 4)
    assert main(["pipeline", "export", str(store), "--to", uri]) == 2
    assert "bytes that are not a message" in capsys.readouterr().err
    assert json.loads(objects(uri)["_manifest.json"])["passed"]


@pytest.mark.parametrize("kill_at", range(0, 14, 3))
def test_an_export_that_was_killed_is_continued(
    kill_at: int, store_of: StoreOf, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after any of its writes, among them those of its end."""
    store = store_of(CLASSIC)
    Export(ExportPlan(root=str(store), target=FolderTarget(str(tmp_path / "out")))).run()
    expected = rows_in(tmp_path / "out")
    whole = Export(plan_to(f"{uri}-whole", store))
    whole.run()
    written: list[str] = []
    real = {name: getattr(ObjectStore, name) for name in ("put_file", "put_bytes", "remove")}

    def after(name: str, count: int) -> Callable[..., None]:
        def write(self: ObjectStore, *given: Any) -> None:
            real[name](self, *given)
            written.append(given[1] if name == "put_file" else given[0])
            if len(written) > count:
                raise Killed

        return write

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(ObjectStore, name, after(name, min(kill_at, len(whole.files) + 2)))
        with pytest.raises(Killed):
            Export(plan_to(uri, store)).run()
    complete = [name for name in written if name.endswith(".parquet")]
    assert "_SUCCESS" not in objects(uri)
    written.clear()
    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(ObjectStore, name, after(name, 1 << 20))
        again = Export(plan_to(uri, store))
        again.run()
    assert not set(complete) & set(written), "what was complete is not written again"
    assert again.files == whole.files
    assert rows_below(uri) == expected
    assert objects(uri).keys() == objects(f"{uri}-whole").keys()


def test_objects_of_an_older_state_of_the_store_are_replaced(
    copy_of: StoreOf, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of(CLASSIC)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectTarget, "finish", lambda *_given: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            Export(plan_to(uri, store)).run()
    flip_bit(store / f"commitlog/{0:020d}", 4)
    assert main(["pipeline", "export", str(store), "--to", uri, "--range-bytes", str(RANGE)]) == 2
    fresh = f"{uri}-fresh"
    assert main(["pipeline", "export", str(store), "--to", fresh, "--range-bytes", str(RANGE)]) == 2
    assert rows_below(uri) == rows_below(fresh)
    assert objects(uri)["_manifest.json"] == objects(fresh)["_manifest.json"]


def test_attempts_that_are_repeated_or_late_duplicate_nothing(
    store_of: StoreOf, uri: str, tmp_path: Path
) -> None:
    """Speculation runs every range twice, and the loser of each ends after the winner."""
    store = store_of(CLASSIC)

    def twice(task: ExportTask, units: Iterable[WorkUnit]) -> Iterator[ExportedRange]:
        late = []
        for unit in units:
            first, second = task(unit), task(unit)
            assert first == second
            late.append(unit)
            yield first
            task(late[max(len(late) - 3, 0)])

    Export(plan_to(uri, store), twice).run()
    Export(ExportPlan(root=str(store), target=FolderTarget(str(tmp_path / "out")))).run()
    assert rows_below(uri) == rows_in(tmp_path / "out")


def test_forged_records_in_a_body_are_not_rows(copy_of: StoreOf, uri: str, tmp_path: Path) -> None:
    """A range that starts inside the body writes an object for a wrong guess, which is removed."""
    store = copy_of(CLASSIC)
    Export(ExportPlan(root=str(store), target=FolderTarget(str(tmp_path / "intact")))).run()
    rows = [row for row in rows_in(tmp_path / "intact") if row["physicalOffset"] < 65536]
    large = max((row for row in rows if row["sysFlag"] == 0), key=lambda row: len(row["body"]))
    file = min((store / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    start = data.index(large["body"], large["physicalOffset"])
    for at in range(start, start + len(large["body"]) - FORGED_SIZE + 1, FORGED_SIZE):
        data[at : at + FORGED_SIZE] = forged_record(at)
    file.write_bytes(data)
    written: list[str] = []

    def run(task: ExportTask, units: Iterable[WorkUnit]) -> Iterator[ExportedRange]:
        for result in map(task, units):
            written.extend(filter(None, [result.path]))
            yield result

    export = Export(plan_to(uri, store, range_bytes=1400), run)
    export.run()
    wrong = set(written) - {file["name"] for file in export.files}
    assert wrong and not wrong & objects(uri).keys()
    assert [row["physicalOffset"] for row in rows_below(uri)] == [
        row["physicalOffset"] for row in rows_in(tmp_path / "intact")
    ]


def test_a_place_in_use_is_refused(store_of: StoreOf, uri: str, capsys: Capture) -> None:
    words = ["pipeline", "export", str(store_of(CLASSIC)), "--to", uri]
    assert main(words) == 0
    before = objects(uri)
    for more, sentence in (([], "is in use"), (["--internal-topics"], "is in use")):
        assert main([*words, *more]) == 1
        assert sentence in capsys.readouterr().err
    assert objects(uri) == before


def test_an_unfinished_export_with_other_options_is_refused(
    store_of: StoreOf, uri: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(CLASSIC)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectTarget, "finish", lambda *_given: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            Export(plan_to(uri, store)).run()
    words = ["pipeline", "export", str(store), "--to", uri, "--range-bytes", str(RANGE)]
    assert main([*words, "--internal-topics"]) == 1
    assert "unfinished export with other options (internal_topics)" in capsys.readouterr().err
    assert main(words) == 0


def test_a_place_that_cannot_be_written_is_named_before_any_work(
    store_of: StoreOf, uri: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_given: object, **_more: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    monkeypatch.setattr(ExportTask, "__call__", refuse)
    assert main(["pipeline", "export", str(store_of(CLASSIC)), "--to", uri]) == 1
    shown = capsys.readouterr().err
    assert f"{uri}: found no permission to write it (PermissionError: Access Denied)" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("to", "sentence"),
    [
        ("https://host/out", "found a URI of https, expected a folder"),
        ("nosuch://bucket/out", "found a URI of nosuch"),
    ],
)
def test_a_place_to_which_nothing_can_be_written_is_refused(
    to: str, sentence: str, store_of: StoreOf, capsys: Capture
) -> None:
    assert main(["pipeline", "export", str(store_of(CLASSIC)), "--to", to]) == 1
    shown = capsys.readouterr().err
    assert sentence in shown and shown.count("\n") == 1
