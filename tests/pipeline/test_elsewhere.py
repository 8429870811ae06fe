"""Stores, exports, and tables in S3, GCS, and HDFS, each with its server and its driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from harness.elsewhere import Place, gcs, hdfs, s3
from harness.pipeline import flip_bit
from harness.store import StoreRig

from rmqpy.cli import main
from rmqpy.model.errors import NetworkError
from rmqpy.store.files.disk import OsFileSystem

StoreOf = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]

CLASSIC: Final = "A-classic-clean-v497"
PLACES: Final = ("s3", "gcs", "hdfs", "webhdfs")

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def of_s3() -> Iterator[Place]:
    with s3() as place:
        yield place


@pytest.fixture(scope="module")
def of_gcs() -> Iterator[Place]:
    with gcs() as place:
        yield place


@pytest.fixture(scope="module")
def of_both_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as places:
        yield places


@pytest.fixture
def of_hdfs(of_both_hdfs: tuple[Place, Place]) -> Place:
    return of_both_hdfs[0]


@pytest.fixture
def of_webhdfs(of_both_hdfs: tuple[Place, Place]) -> Place:
    return of_both_hdfs[1]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"of_{request.param}")
    return found


def report(root: str, capsys: Capture, *words: str) -> str:
    """Return exit code and JSON of an audit, without the root."""
    code = main(["pipeline", "audit", root, "--format", "json", *words])
    shown = capsys.readouterr()
    assert code != 1, shown
    return f"{code} {shown.out}".replace(root, "ROOT")


@pytest.mark.parametrize(
    ("node", "is_damaged"),
    [
        (CLASSIC, False),
        (CLASSIC, True),
        ("C-upgraded-v497/n0", False),
        ("D-dledger-v497/n1", False),
    ],
)
def test_an_audit_has_the_report_of_the_directory(
    node: str, is_damaged: bool, place: Place, copy_of: StoreOf, capsys: Capture
) -> None:
    store = copy_of(node)
    if is_damaged:
        flip_bit(store / "commitlog/00000000000000000000", 300)
    local = report(str(store), capsys)
    assert local.startswith("2 " if is_damaged else "0 ")
    assert report(place.uploaded(store), capsys, *place.words) == local


def test_an_export_there_of_a_store_there_has_the_rows_of_a_folder(
    place: Place, store_of: StoreOf, tmp_path: Path
) -> None:
    from pyarrow import dataset

    store, target = store_of(CLASSIC), place.uri()
    words = ["--range-bytes", "8192"]
    assert main(["pipeline", "export", str(store), "--to", str(tmp_path / "out"), *words]) == 0
    words += place.words
    assert main(["pipeline", "export", place.uploaded(store), "--to", target, *words]) == 0
    expected = dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert place.rows(target) == expected.sort_by("physicalOffset").to_pylist()
    assert expected.num_rows > 200


def test_a_table_there_has_each_message_once(place: Place, tmp_path: Path) -> None:
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    target = place.uri()
    words = ["--broker-name", "a", "--table", "parquet", "--to", target, "--range-bytes", "4096"]
    for first in (0, 60):
        rig.write(*range(first, first + 60))
        for _ in range(2):
            assert main(["pipeline", "append", rig.root, *words, *place.words]) == 0
        bodies = [row["body"] for row in place.rows(target)]
        assert bodies == [bytes(StoreRig.draft(each).body) for each in range(first + 60)]


def test_a_name_is_given_once(place: Place, tmp_path: Path) -> None:
    """The server decides, also for a file that is uploaded in parts."""
    store = place.opened(place.uri())
    for size in (100, 101 << 20):
        source = tmp_path / f"{size}"
        with source.open("wb") as file:
            file.truncate(size)
        assert store.create_file(str(source), f"x/{size}")
        assert not store.create_file(str(source), f"x/{size}")
    store.put_bytes("x/100", b"replaced")
    assert store.read_all("x/100") == b"replaced"
    assert sorted(store.names(parts=True)) == ["x/100", f"x/{101 << 20}"]


@pytest.mark.parametrize("place", ["hdfs", "webhdfs"], indirect=True)
def test_an_interrupted_write_is_seen_by_nobody(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HDFS shows a file while it is written, an interrupted one must not have its name."""
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    rig.write(*range(60))
    target = place.uri()
    store = place.opened(target)
    assert store.names() == []
    (tmp_path / "a").write_bytes(b"whole")

    def half(source: str, there: str, **_: object) -> None:
        store._system.pipe_file(there, b"ha")
        raise OSError("interrupted")

    for write in (store.put_file, store.create_file):
        with monkeypatch.context() as patch, pytest.raises(NetworkError, match="interrupted"):
            patch.setattr(store._system, "put_file", half)
            write(str(tmp_path / "a"), "a-00000000000000000000.parquet")
    assert store.names() == []
    assert len(store.names(parts=True)) == 2
    assert main(["pipeline", "export", rig.root, "--to", target, *place.words]) == 0
    assert len(place.rows(target)) == 60
    assert not [name for name in store.names(parts=True) if name.endswith(".part")]


@pytest.mark.parametrize("place", ["hdfs"], indirect=True)
def test_a_process_may_be_forked_after_a_read(place: Place) -> None:
    """Spark starts in such a process. With fsspec's cache of drivers it waited there for ever."""
    program = (
        "import subprocess; from rmqpy.audit.remote.object_store import ObjectStore;"
        f" ObjectStore({place.root!r}).names();"
        " subprocess.run(['true'], preexec_fn=lambda: None, check=True)"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)
