"""``rmqpy upgrade serve`` and its clients: neither trusts the other."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
from harness.pipeline import flip_bit

from rmqpy.cli import main
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.checks.replica import ANSWER_BYTES_MAX, LocalReplica, RemoteReplica
from rmqpy.upgrade.checks.served_store import ServedStore
from rmqpy.upgrade.plan.survey import SurveyPlan

serve = pytest.importorskip("rmqpy.upgrade.serve", reason="rmqpy[upgrade] is not installed")
bounded_http = pytest.importorskip("rmqpy.net.bounded_http")
served = pytest.importorskip("harness.served").served

FILE = f"commitlog/{0:020d}"
LARGE_BYTES = 16 << 20


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def answer_of(port: int, target: str, *headers: str) -> tuple[int, bytes]:
    """Return the status and the body of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {target} HTTP/1.1", "Host: x", *headers, "", ""]
    writer.write("\r\n".join(lines).encode("latin-1"))
    raw = await reader.read()
    writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one log file, which is a hole."""
    path = tmp_path / "store" / FILE
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)
    (tmp_path / "outside").write_text("secret")
    return tmp_path / "store"


@pytest.mark.parametrize(
    "target",
    [
        "range?path=../outside&start=0&end=1",
        "range?path=commitlog/../../outside&start=0&end=1",
        "range?path=%00&start=0&end=1",
        f"range?path={FILE}%00&start=0&end=1",
        f"range?path=//{FILE}&start=0&end=1",
        f"range?path={FILE}&start=-1&end=1",
        f"range?path={FILE}&start=9&end=1",
        f"range?path={FILE}&start=0&end={LARGE_BYTES}",
        f"range?path={FILE}&start={LARGE_BYTES}&end={LARGE_BYTES + 1}",
        f"range?path={FILE}&start={'9' * 5000}&end={'9' * 5000}",
        f"range?path={FILE}&start={1 << 80}&end={(1 << 80) + 1}",
        f"range?path={FILE}&start=0",
        f"digest?path={FILE}&start=x&end=1",
        "range?path=rmqpy/upgrade/journal.json&start=0&end=1",
        "range?path=rmqpy&start=0&end=0",
        "range?path=commitlog&start=0&end=0",
        f"range?path=./{FILE}&start=0&end=1",
        "range?path=%2e%2e/outside&start=0&end=1",
        "digest?path=rmqpy/upgrade/journal.json&start=0&end=1",
        "blocks?path=../outside",
        "blocks",
        "sums?topic=../../outside&queue=0&first=0&end=1025",
        "sums?topic=T&queue=0&first=-5&end=-9",
        "sums?topic=T&queue=x&first=0&end=1",
        "range",
        "anything",
        "..%2f..%2foutside",
    ],
)
@in_loop
async def test_hostile_requests_are_refused_with_a_sentence(store: Path, target: str) -> None:
    async with served(store) as port:
        status, body = await answer_of(port, f"/v1/{target}")
        assert status in (400, 404), body
        assert b"secret" not in body and b"Traceback" not in body and body
        assert await answer_of(port, "/v1/clock") == (200, b"7")


@pytest.mark.parametrize("token", ["", "x", "a" * 20, "\xff\xfe", "a-token-of-enough-characters "])
@in_loop
async def test_only_the_token_opens(store: Path, token: str) -> None:
    good = "a-token-of-enough-characters"
    plan = SurveyPlan(name="n0", root=os.fspath(store), now_ms=lambda: 7)
    with pytest.raises(RmqError, match="TLS"):
        serve.TokenAuth(token=good).check()
    app = serve.application(LocalReplica(OsFileSystem(), plan), good)
    from aiohttp.test_utils import TestClient, TestServer

    async with TestClient(TestServer(app)) as client:
        response = await client.get("/v1/clock", headers={"X-Rmqpy-Token": good})
        assert response.status == 200
        server = client.server
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /v1/clock HTTP/1.1\r\nX-Rmqpy-Token: {token}\r\n".encode("latin-1"))
        writer.write(b"Host: x\r\n\r\n")
        head = (await reader.read()).split(b"\r\n")[0]
        assert (b" 200 " in head) == (token.strip() == good) and b" 500 " not in head
        writer.close()


@in_loop
async def test_connections_are_bounded(store: Path) -> None:
    async with served(store) as port:
        idle = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(serve.CONNECTIONS_MAX)
        ]
        for _ in range(3):
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await reader.read() == b"", "a connection above the limit is closed"
                writer.close()
        # Each connection has one request.
        reader, writer = idle[0]
        writer.write(b"GET /v1/clock HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        assert (await reader.read()).count(b"HTTP/1.1") == 1
        status, _ = await answer_of(port, "/v1/clock")
        assert status == 200
        for _, writer in idle:
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /v1/clock HT", b"GET /v1/clock HTTP/1.1\r\nA: b\r\n"])
@in_loop
async def test_a_client_that_does_not_ask_is_closed(
    store: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.01)
    async with served(store) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            assert await reader.read() == b""
        writer.close()


@in_loop
async def test_a_client_that_does_not_read_is_closed_and_holds_one_piece(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(serve, "RANGE_BYTES_MAX", LARGE_BYTES)
    read: list[int] = []
    whole = LocalReplica.read

    def counted(replica: LocalReplica, path: str, start: int, end: int) -> bytes:
        read.append(end - start)
        return whole(replica, path, start, end)

    monkeypatch.setattr(LocalReplica, "read", counted)
    async with served(store) as port:
        loop = asyncio.get_running_loop()
        closed = loop.create_future()
        aborted = bounded_http.BoundedConnection.connection_lost

        def lost(connection: object, error: BaseException | None) -> None:
            aborted(connection, error)
            if not closed.done():
                closed.set_result(None)

        monkeypatch.setattr(bounded_http.BoundedConnection, "connection_lost", lost)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        target = f"/v1/range?path={FILE}&start=0&end={LARGE_BYTES}"
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await closed
        assert max(read) <= serve.PIECE_BYTES and sum(read) < LARGE_BYTES
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < LARGE_BYTES
        writer.close()


@in_loop
async def test_a_range_is_sent_completely(store: Path) -> None:
    with (store / FILE).open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"content")
    async with served(store) as port:
        status, body = await answer_of(port, f"/v1/range?path={FILE}&start=1&end={4 << 20}")
        assert status == 200 and len(body) == (4 << 20) - 1
        assert body[999_999:1_000_006] == b"content"


# The other side


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RemoteReplica]]:
    """Return a function that makes a replica whose server sends the given bytes to its requests,
    the last ones to all further requests.
    """
    monkeypatch.setattr("rmqpy.upgrade.link.driver.RETRY_SECONDS", (0.0, 0.0))
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(*answers: bytes) -> RemoteReplica:
        left = list(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(left.pop(0) if len(left) > 1 else left[0])

            def log_message(self, *arguments: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        return RemoteReplica("n0", address)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


OK = b"HTTP/1.0 200 OK\r\n\r\n"
BROKEN = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "long line": b"HTTP/1.0 200 OK\r\nA: " + b"x" * 100_000,
    "too long": OK + b"1" * ((1 << 16) + 1),
    "too short": b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n1",
    "html": OK + b"<html>",
    "nested": OK + b"[" * 60_000,
    "null": OK + b"null",
    "list": OK + b"[1]",
    "binary": OK + bytes(range(256)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers_are_refused(answering: Callable[..., RemoteReplica], name: str) -> None:
    replica = answering(BROKEN[name])
    for ask in (
        replica.clock_skew_ms,
        replica.status,
        lambda: replica.digest(FILE, 0, 1),
        lambda: replica.sums("T", 0, 0, 1),
        replica.survey,
        lambda: list(ServedStore(replica).listed()),
    ):
        with pytest.raises(RmqError):
            ask()


def test_a_lost_connection_is_opened_again(answering: Callable[..., RemoteReplica]) -> None:
    replica = answering(BROKEN["nothing"], BROKEN["too short"], OK + b"absent")
    notes: list[str] = []
    replica.note = notes.append
    assert replica.digest(FILE, 0, 1) == "absent"
    assert len(notes) == 2 and all("connecting again in" in each for each in notes)


def test_an_address_where_nobody_listens_is_not_tried_again() -> None:
    notes: list[str] = []
    with pytest.raises(NetworkError, match=r"found no rmqpy upgrade serve .*refused\), expected"):
        RemoteReplica("n0", "http://127.0.0.1:1", note=notes.append).facts()
    assert notes == []


def test_no_answer_is_longer_than_its_kind_allows(
    answering: Callable[..., RemoteReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWER_BYTES_MAX, "survey", 1000)
    with pytest.raises(RmqError, match="found something else as the survey"):
        answering(OK + json.dumps({"x": "y" * 1000}).encode()).survey()


def test_no_redirect_is_followed(answering: Callable[..., RemoteReplica]) -> None:
    """It would take the token to an address of the other side's choice."""
    target = answering(OK + b"5")
    moved = f"HTTP/1.0 302 Found\r\nLocation: {target.address}/v1/clock\r\n\r\n"
    with pytest.raises(RmqError, match="302"):
        answering(moved.encode()).clock_skew_ms()


@in_loop
async def test_the_list_of_files_has_those_of_the_store_only(store: Path) -> None:
    (store / "rmqpy" / "upgrade").mkdir(parents=True)
    (store / "rmqpy" / "upgrade" / "journal.json").write_text("secret")
    (store / "rmqpy" / "format").write_text("1")
    (store / "circle").symlink_to(store)
    (store / "gone").symlink_to(store / "nothing")
    async with served(store) as port:
        status, body = await answer_of(port, "/v1/files?path=commitlog%2f" + FILE[10:])
        assert (status, json.loads(body)["files"][0][:3]) == (200, [FILE, False, LARGE_BYTES])
        own = "rmqpy/upgrade/journal.json"
        for outside in ("../outside", own, f"circle/{own}", "commitlog", "none"):
            status, body = await answer_of(port, f"/v1/files?path={outside}")
            assert (status, json.loads(body)["files"]) == (200, [])
        (store / "gone").unlink()
        status, body = await answer_of(port, "/v1/files")
        names = {row[0] for row in json.loads(body)["files"]}
        assert {"commitlog", FILE, "rmqpy/format"} <= names and status == 200
        assert not [name for name in names if "journal" in name]


@pytest.mark.slow
@pytest.mark.parametrize("node", ["A-classic-clean-v497", "C-upgraded-v497/n1"])
@pytest.mark.parametrize("is_damaged", [False, True])
@in_loop
async def test_an_audit_over_the_network_has_the_report_of_the_directory(
    node: str, is_damaged: bool, copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(node)
    if is_damaged:
        flip_bit(root / FILE, 300)
    async with served(root) as port:
        found = []
        for place in (str(root), f"http://127.0.0.1:{port}"):
            words = ["pipeline", "audit", place, "--format", "json"]
            code = await asyncio.to_thread(main, words)
            found.append(f"{code} {capsys.readouterr().out}".replace(place, "ROOT"))
    assert found[0] == found[1]
    assert found[0].startswith("2" if is_damaged else "0")


@in_loop
async def test_the_store_of_a_running_broker_is_not_audited_over_the_network(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rmqpy.upgrade.checks.requests.find_lock_owner", lambda _path: 1)
    async with served(store) as port:
        words = ["pipeline", "audit", f"http://127.0.0.1:{port}"]
        assert await asyncio.to_thread(main, words) == 1
    assert "found a broker that runs on it, expected a stopped one" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"[]", b"{", b'{"running": false, "files": [[1]]}'])
def test_a_wrong_list_of_files_is_refused(
    answer: bytes, answering: Callable[..., RemoteReplica]
) -> None:
    with pytest.raises(RmqError, match="found something else as the files"):
        [*ServedStore(answering(OK + answer)).listed()]
