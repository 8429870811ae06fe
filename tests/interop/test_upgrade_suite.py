"""The regression suite for users' own stores, after which the Java broker opens the store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rmqpy.testing.java import JavaHome
from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.interop

PLUGIN = "rmqpy.testing.plugin"
SECONDS_MAX = 600


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_java_serves_a_store_after_the_suite(
    golden_copy: Callable[[str], Path], tmp_path: Path, version: str
) -> None:
    if JavaHome(version).missing() is not None:
        pytest.skip(str(JavaHome(version).missing()))
    store = golden_copy("B-master-slave-v497") / "master"
    arguments = ["--pyargs", "rmqpy.testing.suite"]
    arguments += ["--rmq-store", str(store), "--rmq-java", version]
    plugin = ["-p", "no:cacheprovider"]
    if PLUGIN not in {each.value for each in entry_points(group="pytest11")}:
        plugin += ["-p", PLUGIN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *plugin, *arguments],
        cwd=tmp_path,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert "9 passed" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]
