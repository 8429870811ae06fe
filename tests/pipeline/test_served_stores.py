"""Stores behind ``rmqpy upgrade serve``: what is exported and appended is that of the directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline import flip_bit
from harness.store import StoreRig

from rmqpy.cli import main
from rmqpy.store.files.disk import OsFileSystem

pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'rmqpy[lake]'")
served = pytest.importorskip("harness.served", reason="rmqpy[upgrade] is not installed").served

pytestmark = pytest.mark.spark
"""The environment of these tests has Spark, pyarrow, deltalake, and pyiceberg."""

StoreOf = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]
LOG = f"commitlog/{0:020d}"


@contextmanager
def address_of(store: Path) -> Iterator[str]:
    """Serve a store in a thread, and yield its address."""
    ports: list[int] = []
    is_ready, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with served(store) as port:
            ports.append(port)
            is_ready.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert is_ready.wait(30)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        is_over.set()
        thread.join(30)


def exported(root: str, target: Path, capsys: Capture) -> tuple[int, str, dict[str, bytes]]:
    """Return exit code, output, and files of an export, without the root."""
    code = main(["pipeline", "export", root, "--to", str(target)])
    shown = capsys.readouterr().out
    files = {path.name: path.read_bytes() for path in target.iterdir()}
    return code, shown, {name: data.replace(root.encode(), b"R") for name, data in files.items()}


@pytest.mark.parametrize(
    "node", ["A-classic-clean-v497", "C-upgraded-v497/n0", "D-dledger-v497/n1"]
)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_export_has_the_files_of_the_directory(
    node: str, is_damaged: bool, copy_of: StoreOf, tmp_path: Path, capsys: Capture
) -> None:
    store = copy_of(node)
    if is_damaged:
        flip_bit(next(each for each in store.glob("**/data/*0" if "D-" in node else LOG)), 300)
    here = exported(str(store), tmp_path / "here", capsys)
    with address_of(store) as address:
        there = exported(address, tmp_path / "there", capsys)
    assert there == here
    assert {"_SUCCESS", "_manifest.json"} < here[2].keys()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_spark_audits_ranges_of_a_served_store(
    is_damaged: bool, copy_of: StoreOf, capsys: Capture, spark: object
) -> None:
    store = copy_of("C-upgraded-v497/n0")
    if is_damaged:
        flip_bit(store / LOG, 300)

    def report(root: str, *words: str) -> tuple[int, str]:
        code = main(["pipeline", "audit", root, "--format", "json", *words])
        return code, capsys.readouterr().out.replace(root, "ROOT")

    here = report(str(store))
    with address_of(store) as address:
        assert report(address, "--engine", "spark", "--range-bytes", "65536") == here
    assert here[0] == (2 if is_damaged else 0)


def rows(kind: str, table: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, as its own library reads them."""
    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(table).to_pyarrow_table()
    else:
        from pyarrow import dataset

        found = dataset.dataset(table, format="parquet").to_table()
    listed: list[dict[str, Any]] = found.sort_by("physicalOffset").to_pylist()
    return listed


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_growing_store_is_appended_once(kind: str, tmp_path: Path, capsys: Capture) -> None:
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))

    def append(root: str, name: str) -> str:
        words = ["--table", kind, "--to", str(tmp_path / name), "--broker-name", "broker-a"]
        assert main(["pipeline", "append", root, *words, "--range-bytes", "4096"]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    for first in (0, 40):
        rig.write(*range(first, first + 40))
        with address_of(Path(rig.root)) as address:
            assert append(address, "there").startswith("appended 40 messages")
            assert append(address, "there").startswith("appended 0 messages in 0 commits")
    assert append(rig.root, "there").startswith("appended 0 messages in 0 commits")
    append(rig.root, "here")
    expected = rows(kind, tmp_path / "here")
    assert rows(kind, tmp_path / "there") == expected
    assert len(expected) == 80


@pytest.mark.parametrize("verb", ["export", "append"])
def test_a_store_that_changes_meanwhile_is_named(
    verb: str, copy_of: StoreOf, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmqpy.upgrade.checks.served_store import ServedStore

    store = copy_of("A-classic-clean-v497")
    read = ServedStore.read

    def read_and_write(self: ServedStore, path: str, start: int, end: int) -> bytes:
        if path == LOG:
            (store / "abort").write_bytes(b"")
        return read(self, path, start, end)

    monkeypatch.setattr(ServedStore, "read", read_and_write)
    words = {
        "export": ["--to", str(tmp_path / "out")],
        "append": ["--table", "parquet", "--to", str(tmp_path / "out"), "--broker-name", "a"],
    }
    with address_of(store) as address:
        assert main(["pipeline", verb, address, *words[verb]]) == 1
    assert "abort: found a file that changed while it was read" in capsys.readouterr().err
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert not (tmp_path / "out" / "_manifest.json").exists()
    assert verb == "export" or not [*(tmp_path / "out").glob("*.parquet")]
