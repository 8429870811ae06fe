"""The regression suite that users run on their own stores, run on a store that Java wrote, and the
fixtures of the plug-in.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.crash

PLUGIN = "rmqpy.testing.plugin"
SECONDS_MAX = 600
USER_TEST = """
from rmqpy.testing.blocking_connection import BlockingConnection, read_queue

def test_upgraded(rmq_upgraded_group):
    with BlockingConnection(rmq_upgraded_group.address) as connection:
        assert len(read_queue(connection, "before", 0)) == 50
"""

SESSION = """
import pytest
from rmqpy.client import SendStatus

@pytest.fixture(scope="session")
def rmq_topics():
    return ["orders:2"]

@pytest.fixture(scope="session")
def rmq_settings():
    return {"brokerName": "mine"}

@pytest.mark.parametrize("number", range(6))
def test_send(rmq_broker, rmq_namesrv, number):
    sent = rmq_broker.send("orders", b"%d" % number)
    assert sent.status is SendStatus.SEND_OK
    assert sent.queue.broker_name == "mine"
    assert rmq_broker.name_server == rmq_namesrv.address
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    plugin = ["-p", "no:cacheprovider"]
    if PLUGIN not in {each.value for each in entry_points(group="pytest11")}:
        plugin += ["-p", PLUGIN]  # The checkout is not installed.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *plugin, *arguments],
        cwd=folder,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def test_the_suite_passes_on_a_java_store_and_does_not_change_it(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Two workers share the walk of the store, whatever the order of the tests is."""
    store = golden_copy("B-master-slave-v497") / "master"
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    suite = tmp_path / "suite.toml"
    limits = "switch_pause_s = 120\nfailover_pause_s = 60\nleave_pause_s = 180\nlag_s = 60\n"
    suite.write_text(
        f'[limits]\n{limits}[[store]]\nname = "b"\n[[store.replica]]\npath = "{store}"\n'
    )
    out = run_pytest(tmp_path, "--pyargs", "rmqpy.suite", "-n", "2", "--rmq-suite", str(suite))
    assert "6 passed" in out
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_the_fixture_with_an_upgraded_group_works(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(USER_TEST)
    assert "1 passed" in run_pytest(tmp_path, "test_user.py")


def test_session_scope_serves_each_worker(tmp_path: Path) -> None:
    (tmp_path / "test_session.py").write_text(SESSION)
    (tmp_path / "pytest.ini").write_text("[pytest]\nrmq_scope = session\n")
    assert "6 passed" in run_pytest(tmp_path, "-n", "2", "test_session.py")
