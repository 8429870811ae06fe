"""Errors: a sentence on stderr, or with ``--format json`` one object on stdout."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.cli import main
from rmqpy.cli.errors import error_json
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.testing.in_process import name_server_and_broker

KEYS = {"error", "found", "expected", "remedy", "exit_code"}


def failed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run a command that fails, and return the object that it prints."""
    try:
        code: object = main([*words, "--format", "json"])
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    value: dict[str, Any] = json.loads(printed.out)
    assert value.keys() >= KEYS and value["exit_code"] == code
    assert printed.err == ""
    return value


@pytest.mark.parametrize(
    "words",
    [
        ["store", "inspect", "nowhere"],
        ["store", "fsck", "nowhere"],
        ["where", "key", "nowhere"],
        ["why", "slow-start", "nowhere"],
        ["upgrade", "check", "nowhere"],
        ["upgrade", "rollback", "nowhere"],
        ["admin", "topicList", "-n", "127.0.0.1:1"],
        ["admin", "topicRoute"],
        ["store", "fsk", "nowhere"],
        ["no-such-command"],
    ],
    ids=" ".join,
)
def test_every_error_is_an_object(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failed(words, capsys)["exit_code"] == 1


def test_a_refusal_has_the_same_members(
    store_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(store_of("A-classic-clean-v497"))
    value = failed(["upgrade", "check", f"n0={store}", f"n1={store}"], capsys)
    assert value["exit_code"] == 2
    assert value["refused"] == value["error"] and "share the directory" in value["error"]


def test_the_three_parts_of_a_sentence_are_members() -> None:
    parts = {"found": "a", "expected": "b", "remedy": "c; d"}
    for error in (
        StoreError("x", "a", "b", "c; d"),
        RmqError("x: found a, expected b; c; d"),
    ):
        assert error_json(error, 1) == {"error": str(error), **parts, "exit_code": 1}
    nothing = dict.fromkeys(("found", "expected", "remedy"))
    assert error_json("no sentence", 1) == {"error": "no sentence", **nothing, "exit_code": 1}


def test_an_audit_that_fails_halfway_ends_its_document(
    copy_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rmqpy.audit.checks import engine

    def fail(**_: object) -> None:
        raise StoreError("x", "a", "b", "c")

    store = copy_of("A-classic-killed-v497")
    monkeypatch.setattr(engine, "KeyCheck", fail)
    value = failed(["store", "fsck", str(store)], capsys)
    assert (value["found"], value["exit_code"]) == ("a", 1)
    assert main(["pipeline", "audit", str(store), "--format", "json"]) == 1
    (audited,) = json.loads(capsys.readouterr().out)["stores"]
    assert audited["findings"] and (audited["found"], audited["exit_code"]) == ("a", 1)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["stor"], "did you mean store?"),
        (
            ["store", "fsk", "x"],
            "expected one of inspect, fsck, map, backup, dump; did you mean fsck?",
        ),
        (["admin", "topicStats"], "expected one that --help lists; did you mean topicStatus?"),
        (["why", "not-delete", "x"], "did you mean not-deleted?"),
        (["upgrade", "fin"], "did you mean finalize?"),
    ],
)
def test_the_nearest_command_is_suggested(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    assert capsys.readouterr().err.strip().endswith(hint)


@pytest.mark.parametrize("words", ["console", "store map n0 --serve", "upgrade serve n0"])
@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_port_that_does_not_exist_is_refused(
    words: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), f"--port={port}"])
    assert ended.value.code == 1
    expected = f"--port: found {port!r}, expected a port from 0 to 65535; correct it"
    assert capsys.readouterr().err.strip().endswith(expected)


def test_what_is_no_number_has_the_three_parts(capsys: pytest.CaptureFixture[str]) -> None:
    found = failed(["upgrade", "plan", "n0", "n1", "--give-up", "many"], capsys)
    assert found["error"].endswith("--give-up: found 'many', expected a whole number; correct it")


def test_the_nearest_topic_is_suggested_for_a_dump(
    store_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(store_of("A-classic-clean-v497"))
    assert main(["store", "dump", store, "--topic", "Keyd"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "the store has no topic Keyd; did you mean Keyed?\n")
    assert main(["store", "dump", store, "--topic", "Keyed", "--key", "none"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_nearest_topic_is_suggested_by_the_name_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready, ended = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        async with name_server_and_broker(tmp_path) as running:
            address.append(running.name_server)
            ready.set()
            await asyncio.to_thread(ended.wait, 30)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(30)
        code = main(["admin", "topicRoute", "-n", address[0], "-t", "BenchmarkTst"])
        assert code == 1
        assert "did you mean BenchmarkTest?" in capsys.readouterr().err
        at = ["-n", address[0]]
        create = ["updateTopic", *at, "-c", "DefaultCluster", "-t", "%RETRY%orders-app"]
        assert main(["admin", *create]) == 0, "as if the group had been online"
        for words, hint in (
            ("consumerConnection -g orders-ap", "orders-app"),
            ("getBrokerConfig -c DefaultClustr", "DefaultCluster"),
            ("exportMetrics -c DefaultClustr", "DefaultCluster"),
            ("clusterRT -c DefaultClustr", "DefaultCluster"),
            ("updateTopic -t x -c Default", "DefaultCluster"),
        ):
            name, *options = words.split()
            capsys.readouterr()
            assert main(["admin", name, *at, *options]) == 1, words
            assert f"did you mean {hint}?" in capsys.readouterr().err, words
    finally:
        ended.set()
        server.join()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("upgrade status --fromat json", "did you mean --format?"),
        ("upgrade run --untill verified", "did you mean --until?"),
        ("upgrade switch n0 --self_id n0=n0", "did you mean --self-id?"),
        ("store inspect --qqq=1 DIR", "found the option --qqq=1, expected one that --help lists\n"),
        ("upgrade finalize n0 n1", "found 'n1' in excess"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    err = capsys.readouterr().err
    assert ended.value.code == 1 and hint in err and err.startswith("usage: rmqpy " + line[:5])


def test_an_unknown_option_has_the_parts_of_a_refusal_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["upgrade", "plan", "--refernce", "n0", "--format", "json"])
    value = json.loads(capsys.readouterr().out)
    assert value["found"] == "the option --refernce" and "--help lists" in value["expected"]
    assert value["remedy"] == "did you mean --reference?"


def test_replicas_may_follow_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (main(words.split()) for words in ("upgrade check n0 -c n0=a n1 -c n1=b",) * 2)
    assert first == second == 1
    assert "unrecognized" not in capsys.readouterr().err
