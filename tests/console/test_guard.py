"""The protection of the console: host names, token, forms, and headers."""

from __future__ import annotations

import asyncio

import pytest
from harness.console import CountedBrokers, SetClock, browsing, collecting, csrf_of, guard, query

from rmqpy.console.web.sessions import IDLE_MS, SESSIONS_MAX, SessionTable
from rmqpy.model.errors import RmqError

TOKEN = "correct-horse-battery"


def collector() -> collecting.Collector:
    return collecting.Collector(CountedBrokers({}), SetClock())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("console.example:8080", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_a_name_that_was_not_allowed_is_refused(host: str, status: int) -> None:
    async def run() -> None:
        async with browsing(collector(), names=("console.example",)) as client:
            answer = await client.get("/", headers={"Host": host})
            assert answer.status == status
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]

    asyncio.run(run())


def test_every_response_forbids_inline_scripts_and_frames() -> None:
    async def run() -> None:
        async with browsing(collector()) as client:
            for path in ("/", "/static/console.js", "/none"):
                answer = await client.get(path)
                policy = answer.headers["Content-Security-Policy"]
                assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                # With no-referrer, Chromium sends "Origin: null" with every form, which is refused.
                assert answer.headers["Referrer-Policy"] == "same-origin"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/send?topic=a%20b", "/send?topic=a%20b"),
        ("/", "/"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/" + "x" * 4096, "/"),
    ],
)
def test_a_login_leads_back_to_a_page_of_this_console_only(given: str, path: str) -> None:
    assert query.own_path(given) == path


@pytest.mark.parametrize(
    "given",
    [
        {"host": "0.0.0.0"},
        {"host": "10.0.0.1", "token": TOKEN},
        {"host": "::", "certificate": "c.pem"},
        {"host": "console.example"},
        {"token": "short"},
    ],
)
def test_an_open_console_needs_a_token_and_tls(given: dict[str, str]) -> None:
    with pytest.raises(RmqError, match="token"):
        guard.Listening(**given).check()


def test_loopback_needs_neither() -> None:
    guard.Listening().check()
    guard.Listening(host="0.0.0.0", token=TOKEN, certificate="c.pem").check()


def test_nothing_is_shown_without_the_token() -> None:
    async def run() -> None:
        async with browsing(collector(), token=TOKEN) as client:
            for path in ("/", "/rates", "/events", "/?live"):
                assert (await client.get(path)).status == 401
            answer = await client.get("/", headers={"Accept": "text/html"}, allow_redirects=False)
            assert answer.status == 303 and answer.headers["Location"] == "/token"
            assert (await client.get("/static/console.css")).status == 200
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            assert (await client.get("/", headers=bearer)).status == 200
            wrong = {"Authorization": f"Bearer {TOKEN}x"}
            assert (await client.get("/", headers=wrong)).status == 401

    asyncio.run(run())


def test_a_browser_enters_with_the_token_and_gets_a_new_session() -> None:
    async def run() -> None:
        async with browsing(collector(), token=TOKEN) as client:
            csrf = csrf_of(await (await client.get("/token")).text())
            before = client.session.cookie_jar.filter_cookies(client.make_url("/"))
            form = {"csrf": csrf, "token": "wrong"}
            assert (await client.post("/token", data=form)).status == 403
            form["token"] = TOKEN
            answer = await client.post("/token", data=form, allow_redirects=False)
            assert answer.status == 303
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
            after = client.session.cookie_jar.filter_cookies(client.make_url("/"))
            name = "rmqpy-console"
            assert before[name].value != after[name].value
            assert (await client.get("/")).status == 200

    asyncio.run(run())


def test_forged_forms_are_refused() -> None:
    async def run() -> None:
        async with browsing(collector(), token=TOKEN) as client:
            csrf = csrf_of(await (await client.get("/token")).text())
            form = {"token": TOKEN}
            assert (await client.post("/token", data=form)).status == 403
            assert (await client.post("/token", data={**form, "csrf": "x" * 43})).status == 403
            form["csrf"] = csrf
            for origin in ("http://evil.example", "null"):
                foreign = {"Origin": origin}
                assert (await client.post("/token", data=form, headers=foreign)).status == 403
            assert (await client.post("/token", data=form)).status == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "host", "status", "text", "is_page"),
    [
        ("GET", "/none", "localhost", 404, "found no page /none", True),
        ("GET", "/resend", "localhost", 405, "is reached by a button", True),
        ("POST", "/resend", "localhost", 403, "reload the page and repeat", True),
        ("GET", "/", "evil.example", 403, "expected an address or localhost", False),
    ],
)
def test_a_browser_gets_a_refusal_as_a_page(
    method: str, path: str, host: str, status: int, text: str, is_page: bool
) -> None:
    """A page has the way to all screens; a host that is none of ours gets none."""

    async def run() -> None:
        async with browsing(collector(), allow_writes=True) as client:
            headers = {"Accept": "text/html", "Host": host}
            answer = await client.request(method, path, headers=headers)
            found = await answer.text()
            assert (answer.status, text in found) == (status, True)
            assert ("<nav" in found) == is_page
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            answer = await client.request(method, path, headers={"Host": host})
            assert answer.status == status and "<nav" not in await answer.text()

    asyncio.run(run())


def test_a_stranger_gets_no_page_without_the_token() -> None:
    async def run() -> None:
        async with browsing(collector(), token=TOKEN) as client:
            headers = {"Accept": "text/html"}
            answer = await client.post("/resend", headers=headers)
            assert answer.status == 401 and "<nav" not in await answer.text()

    asyncio.run(run())


def test_sessions_are_bounded_and_end() -> None:
    clock = SetClock()
    table = SessionTable(clock)
    entered = table.of("")
    entered.has_token = True
    table.keep(entered)
    for _ in range(2 * SESSIONS_MAX):
        table.keep(table.of(""))
    assert len(table) == SESSIONS_MAX and table.of(entered.id) is entered
    clock.time_ms += IDLE_MS + 1
    assert not table.of(entered.id).has_token
