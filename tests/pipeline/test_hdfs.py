"""Stores and tables in HDFS: the name node and data node of Hadoop, by hdfs-native and WebHDFS."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from attrs import frozen
from foreign_clients.maven import java_program, missing
from harness.pipeline import flip_bit
from harness.store import StoreRig

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.cli import main
from rmqpy.model.errors import NetworkError
from rmqpy.store.files.disk import OsFileSystem

StoreOf = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]

CLASSIC: Final = "A-classic-clean-v497"
ARTIFACTS: Final = (
    "org.apache.hadoop:hadoop-client-minicluster:3.4.2",
    "org.junit.jupiter:junit-jupiter-api:5.13.4",
    "javax.xml.bind:jaxb-api:2.3.1",
    "org.mockito:mockito-core:4.11.0",
)
SCHEMES: Final = ("hdfs", "webhdfs")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(missing() is not None, reason=f"no HDFS: {missing()}"),
    pytest.mark.skipif(find_spec("hdfs_native") is None, reason="pip install hdfs-native"),
]


@frozen
class Hdfs:
    """The ports of a name node by the schemes of its URIs."""

    ports: dict[str, int]

    def uri(self, scheme: str) -> str:
        return f"{scheme}://localhost:{self.ports[scheme]}/{uuid4().hex}"

    def options(self, scheme: str) -> dict[str, str]:
        return {"user": getpass.getuser()} if scheme == "webhdfs" else {}

    def words(self, scheme: str) -> list[str]:
        given = self.options(scheme).items()
        return [word for name, value in given for word in ("--storage-option", f"{name}={value}")]

    def opened(self, uri: str) -> ObjectStore:
        store = ObjectStore(uri, self.options(uri.partition(":")[0]))
        store.names()
        return store

    def uploaded(self, scheme: str, folder: Path) -> str:
        """Copy a store, and return its URI."""
        uri = self.uri(scheme)
        store = self.opened(uri)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        with ThreadPoolExecutor(16) as pool:  # a file takes a third of a second, almost idle
            names = [str(path.relative_to(folder)) for path in paths]
            list(pool.map(store.put_file, map(str, paths), names))
        return uri


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    command = java_program("hdfs", ARTIFACTS, [Path(__file__).parent / "hdfs"])
    folder = tmp_path_factory.mktemp("hdfs")
    process = subprocess.Popen(
        [*command, "Hdfs", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        ports = [int(word) for word in process.stdout.readline().split()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HADOOP_USER_NAME", getpass.getuser())
            yield Hdfs(dict(zip(SCHEMES, ports, strict=True)))
        process.stdin.close()


def report(root: str, capsys: Capture, *words: str) -> str:
    """Return exit code and JSON of an audit, without the root."""
    code = main(["pipeline", "audit", root, "--format", "json", *words])
    shown = capsys.readouterr()
    assert code != 1, shown
    return f"{code} {shown.out}".replace(root, "ROOT")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("node", "is_damaged"), [(CLASSIC, False), (CLASSIC, True), ("D-dledger-v497/n1", False)]
)
def test_an_audit_has_the_report_of_the_directory(
    node: str, is_damaged: bool, scheme: str, copy_of: StoreOf, hdfs: Hdfs, capsys: Capture
) -> None:
    store = copy_of(node)
    if is_damaged:
        logs = [*store.glob("commitlog/*"), *store.glob("dledger-*/data/*")]
        flip_bit(min(logs, key=lambda path: path.name), 300)
    local = report(str(store), capsys)
    assert local.startswith("2 " if is_damaged else "0 ")
    assert report(hdfs.uploaded(scheme, store), capsys, *hdfs.words(scheme)) == local


def rows_below(store: ObjectStore) -> list[dict[str, Any]]:
    from pyarrow import parquet

    found: list[dict[str, Any]] = []
    for name in sorted(name for name in store.names() if name.endswith(".parquet")):
        with store.opened_file(name) as file:
            found += parquet.read_table(file).to_pylist()
    return sorted(found, key=lambda row: int(row["physicalOffset"]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_export_there_of_a_store_there_has_the_rows_of_a_folder(
    scheme: str, store_of: StoreOf, hdfs: Hdfs, tmp_path: Path
) -> None:
    from pyarrow import dataset

    store, target = store_of(CLASSIC), hdfs.uri(scheme)
    words = ["--range-bytes", "8192"]
    assert main(["pipeline", "export", str(store), "--to", str(tmp_path / "out"), *words]) == 0
    words += hdfs.words(scheme)
    root = hdfs.uploaded(scheme, store)
    assert main(["pipeline", "export", root, "--to", target, *words]) == 0
    expected = dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert rows_below(hdfs.opened(target)) == expected.sort_by("physicalOffset").to_pylist()
    assert expected.num_rows > 200


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_table_there_has_each_message_once(scheme: str, hdfs: Hdfs, tmp_path: Path) -> None:
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    target = hdfs.uri(scheme)
    words = ["--broker-name", "a", "--table", "parquet", "--to", target, "--range-bytes", "4096"]
    for first in (0, 60):
        rig.write(*range(first, first + 60))
        for _ in range(2):
            assert main(["pipeline", "append", rig.root, *words, *hdfs.words(scheme)]) == 0
        bodies = [row["body"] for row in rows_below(hdfs.opened(target))]
        assert bodies == [bytes(StoreRig.draft(each).body) for each in range(first + 60)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_name_is_given_once(scheme: str, hdfs: Hdfs, tmp_path: Path) -> None:
    store = hdfs.opened(hdfs.uri(scheme))
    for number in range(2):
        (tmp_path / "a").write_bytes(b"%d" % number)
        assert store.create_file(str(tmp_path / "a"), "x/y") == (number == 0)
    assert store.read_all("x/y") == b"0"
    store.put_file(str(tmp_path / "a"), "x/y")
    assert store.read_all("x/y") == b"1"
    assert store.names(parts=True) == ["x/y"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_interrupted_write_is_seen_by_nobody(
    scheme: str, hdfs: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HDFS shows a file while it is written, an interrupted one must not have its name."""
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    rig.write(*range(60))
    target = hdfs.uri(scheme)
    store = hdfs.opened(target)
    (tmp_path / "a").write_bytes(b"whole")

    def half(source: str, place: str, **_: object) -> None:
        store._system.pipe_file(place, b"ha")
        raise OSError("interrupted")

    for write in (store.put_file, store.create_file):
        with monkeypatch.context() as patch, pytest.raises(NetworkError, match="interrupted"):
            patch.setattr(store._system, "put_file", half)
            write(str(tmp_path / "a"), "a-00000000000000000000.parquet")
    assert store.names() == []
    assert len(store.names(parts=True)) == 2
    words = ["--to", target, *hdfs.words(scheme)]
    assert main(["pipeline", "export", rig.root, *words]) == 0
    assert len(rows_below(store)) == 60
    assert not [name for name in store.names(parts=True) if name.endswith(".part")]
