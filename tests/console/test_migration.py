"""The migration of a group: its states as a stepper, and the verbs of the command line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.console import (
    OPERATOR,
    CountedBrokers,
    SetClock,
    browsing,
    collecting,
    csrf_of,
    page_of,
    post,
    writable,
)
from harness.upgrade import write_confs

from rmqpy.cli import main
from rmqpy.console.views.migration import migration_page
from rmqpy.upgrade.group.states import BACKWARD, FORWARD, STATES, State

if TYPE_CHECKING:
    from aiohttp.test_utils import TestClient

SECONDS_MAX = 120


@pytest.fixture
def group(golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a stopped master and a lagging slave, with their group.toml."""
    root = golden_copy("B-lagging-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "slave").rename(root / "n1")
    (root / "n2").mkdir()
    write_confs(root)
    monkeypatch.chdir(root)
    assert main(["upgrade", "init", "n0.conf", "n1.conf", "n2.conf"]) == 0
    return root


async def page_with(client: TestClient[Any, Any], text: str) -> str:
    """Return the page once it has this text and no verb runs."""
    page = ""
    async with asyncio.timeout(SECONDS_MAX):
        while text not in page or ">Running" in page:
            page = await page_of(client, "/migration?live")
            await asyncio.sleep(0.05)
    return page


@pytest.mark.slow
def test_a_group_is_shown_and_checked_without_changing_it(group: Path) -> None:
    async def run() -> None:
        collector = collecting.Collector(CountedBrokers({}), SetClock())
        async with browsing(collector, group=group) as client:
            page = await page_of(client, "/migration")
            assert 'aria-current="page">Migration' in page
            assert "is <b>stopped</b>" in page and "<code>rmqpy upgrade plan</code>" in page
            assert page.count('<li class="done"') == FORWARD.index(_state("stopped"))
            assert "There is no plan" in page and "no certificate" in page
            assert "/migrate" not in page
            answer = await client.post("/migrate", data={"csrf": csrf_of(page), "verb": "next"})
            assert answer.status == 404
            answer = await client.post("/check", data={"csrf": "guessed"})
            assert answer.status == 403
            await client.post("/check", data={"csrf": csrf_of(page)})
            page = await page_with(client, "checks passed")
            assert "findings: " in page and 'class="alarm warning"' in page
            assert not (group / "plan.json").exists()
            for path in ("/migration", "/map"):
                page = await page_of(client, path)
                assert "Stores of the members" in page and 'class="store-map"' in page
                assert "the whole log was read for this map" in page
                assert "The blocks that all replicas have are equal" in page

    asyncio.run(run())


@pytest.mark.slow
def test_the_next_step_runs_after_login_and_confirmation(
    group: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        root = tmp_path_factory.mktemp("cluster")
        async with writable(root, checks=True, group=group) as (client, _):
            step = {"verb": "next", "state": "stopped"}
            assert (await post(client, "/migrate", step))[0] == 403
            await post(client, "/login", OPERATOR)
            _, page = await post(client, "/migrate", step)
            assert "operator will run" in page and "<code>rmqpy upgrade plan</code>" in page
            assert not (group / "plan.json").exists()
            assert (await post(client, "/migrate", {**step, "confirmed": "yes"}))[0] == 303
            page = await page_with(client, "is <b>planned</b>")
            assert "align" in page and (group / "plan.json").exists()
            assert "by operator" in page and '<span class="good">done' in page
            _, page = await post(client, "/migrate", {**step, "confirmed": "yes"})
            assert "found the group in the state planned, expected stopped" in page
            assert (await post(client, "/migrate", {"verb": "rm -rf", "state": ""}))[0] == 400
            assert any("'operator' ran rmqpy upgrade next" in each for each in caplog.messages)

    with caplog.at_level(logging.INFO, "rmqpy.console"):
        asyncio.run(run())


@pytest.mark.slow
def test_a_broken_group_file_is_explained(group: Path) -> None:
    (group / "group.toml").write_text("[nonsense")

    async def run() -> None:
        collector = collecting.Collector(CountedBrokers({}), SetClock())
        async with browsing(collector, group=group) as client:
            page = await page_of(client, "/migration")
            assert 'class="alarm critical"' in page and "is not TOML" in page

    asyncio.run(run())


def test_a_directory_without_a_group_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["console", "-n", "127.0.0.1:1", "--group", str(tmp_path)]
    assert main(words) == 1
    assert "expected the directory of a group" in capsys.readouterr().err


@pytest.mark.parametrize("state", STATES, ids=lambda each: each.name)
def test_every_state_has_its_place(state: State) -> None:
    page = migration_page({"state": state.name, "next": state.next.value, "members": [1, {}]})
    current = [each.name for each in page.steps if each.place == "current"]
    assert page.aside == (state not in (*FORWARD, *BACKWARD))
    assert current == ([] if page.aside else [state.name])
    assert page.has_next == (state.next.value not in ("look", "nothing"))


@pytest.mark.parametrize(
    ("state", "first"),
    [("classic", "classic"), ("controller-halted", "controller-halted"), ("left", "halted")],
)
def test_the_way_begins_where_the_group_came_from(state: str, first: str) -> None:
    steps = [each.name for each in migration_page({"state": state}).steps]
    assert steps[0] == first and not {"controller-halted", "halted"} <= {*steps}


def _state(name: str) -> State:
    return next(each for each in STATES if each.name == name)
