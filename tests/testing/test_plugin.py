"""The pytest plug-in, in test runs of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-with-rmqpy.md"
PLUGIN = "rmqpy.testing.plugin"
SECRET = "a-secret-of-the-environment"
SECONDS_MAX = 300
EACH = """
def test_one(rmq_broker):
    assert rmq_broker.send("T", b"1").queue_offset == 0

def test_two(rmq_broker):
    assert rmq_broker.send("T", b"1").queue_offset == 0

def test_shown(rmq_broker, rmq_namesrv):
    assert rmq_broker is rmq_namesrv
"""


def run_pytest(folder: Path, *words: str) -> tuple[int, str]:
    plugin = ["-p", "no:cacheprovider"]
    if PLUGIN not in {each.value for each in entry_points(group="pytest11")}:
        plugin += ["-p", PLUGIN]  # The checkout is not installed.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, *words],
        cwd=folder,
        env=python_environment({"A_SECRET": SECRET}),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_function_scope_is_a_new_broker_and_no_assertion_shows_the_environment(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_each.py").write_text(EACH)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    for number, example in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    code, printed = run_pytest(tmp_path, "-vv")
    assert "1 failed" in printed and "NameServer(name server 127" in printed, printed
    assert SECRET not in printed
    assert "4 passed" in printed, "two, and two examples of the page"
    assert code == 1


def test_the_upgrade_suite_without_a_store_does_not_pass(tmp_path: Path) -> None:
    code, printed = run_pytest(tmp_path, "--pyargs", "rmqpy.suite")
    assert "found no store to test; give --rmq-suite FILE" in printed
    assert code == 1


def test_a_wrong_scope_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_each.py").write_text(EACH)
    (tmp_path / "pytest.ini").write_text("[pytest]\nrmq_scope = modul\n")
    code, printed = run_pytest(tmp_path)
    assert "found 'modul', expected one of function, session" in printed
    assert code != 0
