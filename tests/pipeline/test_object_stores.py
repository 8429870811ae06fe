"""Stores below URIs: every report is that of the same store in a directory, and a URI that cannot
be read is refused with one sentence.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from harness.pipeline import flip_bit

from rmqpy.audit.remote import object_store
from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.cli import main
from rmqpy.model.errors import ConfigError, NetworkError

StoreOf = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]
Put = Callable[[Path], str]

CLASSIC = "A-classic-clean-v497"
LOG = "commitlog/00000000000000000000"

pytestmark = pytest.mark.skipif(
    find_spec("fsspec") is None, reason="fsspec is not installed; pip install 'rmqpy[object-store]'"
)


@pytest.fixture
def put() -> Iterator[Put]:
    """Return a function that copies a store into fsspec's memory, and returns its URI."""
    import fsspec

    memory = fsspec.filesystem("memory")
    root = f"/{uuid4().hex}"

    def copy(store: Path) -> str:
        place = f"{root}/{store.name}"
        for path in store.rglob("*"):
            if path.is_file():
                memory.pipe_file(f"{place}/{path.relative_to(store)}", path.read_bytes())
        return f"memory:/{place}"

    yield copy
    if memory.exists(root):
        memory.rm(root, recursive=True)


def reports(store: Path, uri: str, capsys: Capture, *more: str) -> tuple[str, str]:
    """Return the JSON reports of a store in a directory and below a URI, without their root."""
    found = []
    for root in (str(store), uri):
        code = main(["pipeline", "audit", root, "--format", "json", *more])
        shown = capsys.readouterr()
        assert code != 1, shown
        found.append(f"{code} {shown.out}".replace(root, "ROOT"))
    return found[0], found[1]


def refusal(words: list[str], capsys: Capture) -> str:
    assert main(words) == 1
    shown = capsys.readouterr()
    assert "clean" not in shown.out and "EQUAL" not in shown.out
    assert shown.err.startswith("rmqpy: ") and shown.err.count("\n") == 1
    return shown.err


# ------------------------------------------------------------------ the same answers


@pytest.mark.slow
@pytest.mark.parametrize("node", [CLASSIC, "C-upgraded-v497/n0"])
def test_an_audit_has_the_same_report(
    node: str, store_of: StoreOf, put: Put, capsys: Capture
) -> None:
    store = store_of(node)
    local, remote = reports(store, put(store), capsys, "--md5")
    assert local == remote
    assert '"clean": true' in remote


@pytest.mark.slow
def test_damage_has_the_same_report_and_page(
    copy_of: StoreOf, put: Put, tmp_path: Path, capsys: Capture
) -> None:
    store = copy_of(CLASSIC)
    flip_bit(store / LOG, 300)
    uri = put(store)
    local, remote = reports(store, uri, capsys)
    assert local == remote
    assert remote.startswith("2 ")
    pages = []
    for root in (str(store), uri):
        page = tmp_path / "page.html"
        assert main(["pipeline", "audit", root, "--html", str(page)]) == 2
        text = page.read_text().replace(root, "ROOT")
        pages.append(re.sub("…[^<]*/store<", "…<", text))  # a long root is shortened
    assert pages[0] == pages[1]


@pytest.mark.slow
def test_replicas_are_compared_and_certified(
    store_of: StoreOf, put: Put, tmp_path: Path, capsys: Capture
) -> None:
    stores = [store_of(f"B-master-slave-v497/{name}") for name in ("master", "slave")]
    uri = put(stores[1])
    out = tmp_path / "certificate.json"
    assert main(["pipeline", "compare", f"a={stores[0]}", f"b={uri}"]) == 0
    assert "a and b: EQUAL" in capsys.readouterr().out
    assert main(["pipeline", "certify", str(stores[0]), uri, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["pipeline", "certify", "--check", str(out), f"slave={uri}"]) == 0
    assert "HOLDS (slave)" in capsys.readouterr().out
    assert main(["pipeline", "certify", "--check", str(out), f"slave={stores[1]}"]) == 0
    assert "HOLDS (slave)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_difference_is_found_to_the_byte(copy_of: StoreOf, put: Put, capsys: Capture) -> None:
    store = copy_of(CLASSIC)
    uri = put(store)
    flip_bit(store / LOG, 300)
    assert main(["pipeline", "compare", f"a={store}", f"b={uri}"]) == 2
    one = capsys.readouterr().out
    copy = store.parent / "whole"
    store.rename(copy)
    flip_bit(copy / LOG, 300)
    assert main(["pipeline", "compare", f"a={put(copy)}", f"b={copy}"]) == 0
    assert "EQUAL" in capsys.readouterr().out
    assert "differ at offset 300: byte" in one


@pytest.mark.spark
@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_an_export_has_the_same_files(
    store_of: StoreOf, put: Put, tmp_path: Path, capsys: Capture
) -> None:
    store = store_of("C-upgraded-v497/n0")
    uri = put(store)
    trees = []
    for root, name in ((str(store), "local"), (uri, "remote")):
        target = tmp_path / name
        assert main(["pipeline", "export", root, "--to", str(target)]) == 0
        trees.append(
            {
                path.name: path.read_bytes().replace(root.encode(), b"ROOT")
                for path in target.iterdir()
            }
        )
    assert trees[0] == trees[1]
    assert "_SUCCESS" in trees[0] and len(trees[0]) > 3


# ------------------------------------------------------------------ refusals


def test_a_store_that_changes_is_not_called_clean(
    store_of: StoreOf, put: Put, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    uri = put(store_of(CLASSIC))
    read = ObjectStore.read

    def read_and_write(self: ObjectStore, path: str, start: int, end: int) -> bytes:
        if path == "checkpoint":
            memory = fsspec.filesystem("memory")
            memory.pipe_file(f"{uri.removeprefix('memory:/')}/abort", b"")
        return read(self, path, start, end)

    monkeypatch.setattr(ObjectStore, "read", read_and_write)
    found = refusal(["pipeline", "audit", uri], capsys)
    assert "abort: found a file that changed while it was read" in found


@pytest.mark.parametrize(
    "words",
    [
        ["pipeline", "audit", "{uri}"],
        ["pipeline", "compare", "a={uri}", "b={uri}"],
        ["pipeline", "certify", "a={uri}", "b={uri}"],
        ["pipeline", "export", "{uri}", "--to", "{out}"],
        ["pipeline", "sql", "SELECT 1", "--on", "{uri}"],
        ["pipeline", "query", "senders", "--on", "{uri}"],
    ],
    ids=lambda words: words[1],
)
def test_a_uri_without_a_store_is_refused(
    words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    uri, out = f"memory://{uuid4().hex}/none", tmp_path / "out"
    found = refusal([word.format(uri=uri, out=out) for word in words], capsys)
    assert f"{uri}: found no bucket or file of this name, expected a store" in found
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rebuild", "memory://b/store"], "renaming, and rmqpy upgrade rollback takes that back;"),
        (["rebuild", "n0=https://host:1"], "run rebuild on the host of the store"),
        (["plan", "a=memory://b/x", "b=memory://b/y"], "copy the store to a host and plan"),
        (["sql", "SELECT 1", "--on", "https://host:1"], "export that store, and query the export"),
    ],
)
def test_what_needs_a_directory_says_why_and_what_else_to_do(
    words: list[str], sentence: str, capsys: Capture
) -> None:
    found = refusal(["pipeline", *words], capsys)
    assert sentence in found and "found a URI" in found


def test_a_place_without_a_store_is_not_queried(
    store_of: StoreOf, put: Put, capsys: Capture
) -> None:
    uri = put(store_of(CLASSIC)) + "/commitlog"
    found = refusal(["pipeline", "sql", "SELECT 1", "--on", uri], capsys)
    assert f"{uri}: found no store, expected one (an export" in found


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError("Access Denied"), "found no permission to read it"),
        (type("NoCredentialsError", (Exception,), {})("Unable"), "found no permission to read it"),
        (
            ConnectionError("refused by key-of-mine"),
            "found no answer (ConnectionError: refused by …)",
        ),
        (ValueError("what\nlines"), "found no answer (ValueError: what)"),
    ],
)
def test_an_error_of_a_driver_is_one_sentence_without_secrets(
    error: Exception,
    sentence: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def fail(*_given: object, **_more: object) -> Any:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "info", fail)
    words = ["pipeline", "audit", "memory://x/y", "--storage-option", "secret=key-of-mine"]
    found = refusal(words, capsys)
    assert f"memory://x/y: {sentence}" in found
    assert "key-of-mine" not in found


def test_a_place_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    hung = threading.Event()
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_given: hung.wait())
    monkeypatch.setattr(object_store, "REACH_SECONDS", 0.01)
    try:
        with pytest.raises(NetworkError, match="TimeoutError: none within"):
            ObjectStore("memory://x/y").listed()
    finally:
        hung.set()


def test_a_missing_driver_and_an_unknown_scheme_are_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    found = refusal(["pipeline", "audit", "nosuch://bucket/store"], capsys)
    assert "found a URI of nosuch, expected a local path, file:///PATH, or" in found

    with pytest.raises(ConfigError, match="found a URI of https, expected a local path"):
        ObjectStore("https://host/store").listed()

    def missing(_scheme: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    found = refusal(["pipeline", "audit", "s3://bucket/store"], capsys)
    assert "without its driver (Install s3fs to access S3)" in found


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{here}", "--storage-option", "a=b"], "found --storage-option and only directories"),
        (["memory://x", "--storage-option", "a"], "found no KEY=VALUE"),
        (["memory://x", "--storage-option", "a={{"], "found no JSON as the value of a"),
    ],
)
def test_options_of_drivers_are_checked_first(
    words: list[str], sentence: str, store_of: StoreOf, capsys: Capture
) -> None:
    given = [word.format(here=store_of(CLASSIC)) for word in words]
    with pytest.raises(SystemExit, match="1") if "only" not in sentence else nullcontext():
        assert main(["pipeline", "audit", *given]) == 1
    assert sentence in capsys.readouterr().err


def test_a_refusal_as_json_has_its_parts(capsys: Capture) -> None:
    assert main(["pipeline", "audit", "memory://none/at-all", "--format", "json"]) == 1
    tree = json.loads(capsys.readouterr().out)
    assert tree["found"] == "no bucket or file of this name"
    assert tree["exit_code"] == 1
