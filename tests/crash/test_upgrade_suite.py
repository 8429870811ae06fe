"""The regression suite that users run on their own stores, run on a store that Java wrote, and the
fixtures of the plug-in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rmqpy.cli import main
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
    recording = tmp_path / "b.rec"
    assert main(["record", str(recording), "--store", str(store)]) == 0
    words = f"{sys.executable} -m rmqpy.cli replay {recording} --to $RMQPY_BROKER --speed 0"
    replay = f"sh -c '{words}'"
    hooks = "".join(
        f'{when} = ["{replay}"]\n' for when in ("before_switch", "after_switch", "after_leave")
    )
    suite.write_text(
        f"[limits]\n{limits}[hooks]\n{hooks}"
        f'[[store]]\nname = "b"\n[[store.replica]]\npath = "{store}"\n'
    )
    out = run_pytest(tmp_path, "--pyargs", "rmqpy.suite", "-n", "2", "--rmq-suite", str(suite))
    assert "6 passed" in out
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "findings"),
    [
        ("C-upgraded-v497", ""),
        # Java had deleted the newest index file of the leader that was killed.
        ("D-dledger-v497", "are found by their keys in only one store"),
    ],
)
def test_a_group_of_java_that_runs_dledger_has_a_suite(
    golden_copy: Callable[[str], Path], tmp_path: Path, name: str, findings: str
) -> None:
    """One with an old log, and one that began with DLedger."""
    group = golden_copy(name)
    replicas = "".join(
        f'[[store.replica]]\npath = "{group / member}"\n' for member in ("n0", "n1", "n2")
    )
    limits = "failover_pause_s = 60\nleave_pause_s = 180\nlag_s = 60\n"
    suite = tmp_path / "suite.toml"
    suite.write_text(f'[limits]\n{limits}[[store]]\nname = "group"\n{replicas}')
    report = tmp_path / "suite.json"
    code = main(["suite", "run", str(suite), "--json", str(report)])
    cases = json.loads(report.read_text())["cases"]
    assert [case["case"] for case in cases] == ["check", "failover", "verify", "leave"]
    failed = [case["case"] for case in cases if case["findings"]]
    assert (code, failed) == ((2, ["verify"]) if findings else (0, [])), report.read_text()
    assert findings in "".join(cases[2]["findings"])
    assert {case["facts"]["lost"] for case in cases if "lost" in case["facts"]} == {0}
    assert cases[2]["facts"]["messages"] > cases[0]["facts"]["messages"] > 500


def test_the_fixture_with_an_upgraded_group_works(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(USER_TEST)
    assert "1 passed" in run_pytest(tmp_path, "test_user.py")


def test_session_scope_serves_each_worker(tmp_path: Path) -> None:
    (tmp_path / "test_session.py").write_text(SESSION)
    (tmp_path / "pytest.ini").write_text("[pytest]\nrmq_scope = session\n")
    assert "6 passed" in run_pytest(tmp_path, "-n", "2", "test_session.py")
