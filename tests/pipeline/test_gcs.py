"""Stores and tables in Google Cloud Storage: fake-gcs-server, with gcsfs as a user has it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from harness.pipeline import flip_bit
from harness.store import StoreRig

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.cli import main
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import connect_when_ready
from rmqpy.testing.ports import free_port_block

StoreOf = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]

SERVER = shutil.which("fake-gcs-server")
"""go install github.com/fsouza/fake-gcs-server@v1"""
CLASSIC = "A-classic-clean-v497"
BUCKET = "backups"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        SERVER is None or find_spec("gcsfs") is None,
        reason="fake-gcs-server or gcsfs is not installed; pip install gcsfs, go install"
        " github.com/fsouza/fake-gcs-server@latest",
    ),
]


@pytest.fixture(scope="module")
def gcs() -> Iterator[Any]:
    """Start a server of GCS, and return gcsfs's file system of it."""
    assert SERVER is not None
    port = free_port_block().first
    words = ["-scheme", "http", "-host", "127.0.0.1", "-port", f"{port}", "-backend", "memory"]
    process = subprocess.Popen([SERVER, *words], stderr=subprocess.DEVNULL)
    try:
        connect_when_ready(f"127.0.0.1:{port}").close()
        endpoint = f"http://127.0.0.1:{port}"
        with pytest.MonkeyPatch.context() as patch:
            # gcsfs reads it when it is imported. With it, it asks Google's servers over gRPC.
            patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
            system = import_module("gcsfs").GCSFileSystem(endpoint_url=endpoint, token="anon")
        system.mkdir(BUCKET)
        yield system
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def options(gcs: Any) -> list[str]:
    given = [f"endpoint_url={gcs._endpoint}", "token=anon"]
    return [word for each in given for word in ("--storage-option", each)]


def uploaded(gcs: Any, store: Path) -> str:
    """Copy a store into the bucket, and return its URI."""
    place = f"{BUCKET}/{uuid4().hex}"
    for path in store.rglob("*"):
        if path.is_file():
            gcs.pipe_file(f"{place}/{path.relative_to(store)}", path.read_bytes())
    return f"gs://{place}"


def report(root: str, capsys: Capture, *words: str) -> str:
    """Return exit code and JSON of an audit, without the root."""
    code = main(["pipeline", "audit", root, "--format", "json", *words])
    shown = capsys.readouterr()
    assert code != 1, shown
    return f"{code} {shown.out}".replace(root, "ROOT")


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("node", [CLASSIC, "C-upgraded-v497/n0", "D-dledger-v497/n1"])
def test_an_audit_has_the_report_of_the_directory(
    node: str, is_damaged: bool, copy_of: StoreOf, gcs: Any, options: list[str], capsys: Capture
) -> None:
    store = copy_of(node)
    if is_damaged:
        logs = [*store.glob("commitlog/*"), *store.glob("dledger-*/data/*")]
        flip_bit(min(logs, key=lambda path: path.name), 300)
    local = report(str(store), capsys)
    assert local.startswith("2 " if is_damaged else "0 ")
    assert report(uploaded(gcs, store), capsys, *options) == local


def rows_below(gcs: Any, place: str) -> list[dict[str, Any]]:
    from pyarrow import parquet

    gcs.invalidate_cache()
    names = sorted(name for name in gcs.find(place) if name.endswith(".parquet"))
    found = [row for name in names for row in parquet.read_table(gcs.open(name)).to_pylist()]
    return sorted(found, key=lambda row: int(row["physicalOffset"]))


def test_an_export_there_of_a_store_there_has_the_rows_of_a_folder(
    store_of: StoreOf, gcs: Any, options: list[str], tmp_path: Path
) -> None:
    from pyarrow import dataset

    store, target = store_of(CLASSIC), f"gs://{BUCKET}/{uuid4().hex}"
    words = ["--range-bytes", "8192"]
    assert main(["pipeline", "export", str(store), "--to", str(tmp_path / "out"), *words]) == 0
    root = uploaded(gcs, store)
    assert main(["pipeline", "export", root, "--to", target, *words, *options]) == 0
    expected = dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert rows_below(gcs, target) == expected.sort_by("physicalOffset").to_pylist()
    assert expected.num_rows > 200


def test_a_table_there_has_each_message_once(gcs: Any, options: list[str], tmp_path: Path) -> None:
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    target = f"gs://{BUCKET}/{uuid4().hex}"
    words = ["--broker-name", "a", "--table", "parquet", "--to", target, "--range-bytes", "4096"]
    for first in (0, 60):
        rig.write(*range(first, first + 60))
        for _ in range(2):
            assert main(["pipeline", "append", rig.root, *words, *options]) == 0
        bodies = [row["body"] for row in rows_below(gcs, target)]
        assert bodies == [bytes(StoreRig.draft(each).body) for each in range(first + 60)]


def test_the_server_creates_an_object_once(gcs: Any, tmp_path: Path) -> None:
    """Also one that is uploaded in parts."""
    place = f"gs://{BUCKET}/{uuid4().hex}"
    store = ObjectStore(place, {"endpoint_url": gcs._endpoint, "token": "anon"})
    for size in (100, 60 << 20):
        source = tmp_path / f"{size}"
        with source.open("wb") as file:
            file.truncate(size)
        assert store.create_file(str(source), f"{size}")
        assert not store.create_file(str(source), f"{size}")
