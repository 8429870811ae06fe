"""Measure what the brokers for tests cost, and whether they are ready when they say so.

    python bench/fixtures.py                     # 100 in sequence, 8 side by side, the fixtures
    python bench/fixtures.py --runs 20 --tests 10

===========  =======================================================================================
sequence     ``rmqpy dev``, again and again: the time from exec to the line with the addresses, its
             CPU time, and the time for the first message, sent by a client that connects then
parallel     the same, ``--side-by-side`` processes at a time
fixtures     a new pytest project whose tests send one message each: the time of a test, beside that
             of the same test without a broker, by fixture and scope
===========  =======================================================================================

A run fails if its line does not come within a minute, or the message is not acknowledged at the
first attempt. The output is one JSON line, and a table on stderr. Exit code 1: a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from attrs import asdict, frozen
from stopped import machine

from rmqpy.model.errors import RmqError
from rmqpy.testing.blocking_connection import BlockingConnection, send_request

DEADLINE_S: Final = 60
FIXTURES: Final = (
    ("rmq_broker", "function"),
    ("rmq_broker", "session"),
    ("rmq_group", "function"),
    ("rmq_group", "session"),
)
TEST: Final = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_a_message(number{fixture}):
    {body}
"""


@frozen
class Run:
    """One server: seconds from exec to its line, CPU seconds until then, and seconds for the first
    message; ``error`` is empty if all went well.
    """

    ready_s: float = 0.0
    cpu_s: float = 0.0
    message_s: float = 0.0
    error: str = ""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_run(_: int) -> Run:
    begin = time.monotonic()
    command = [sys.executable, "-m", "rmqpy.cli", "dev"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        ready_s, used_s = time.monotonic() - begin, cpu_seconds(process.pid)
        address = json.loads(line)["brokers"]["broker"]
        before = time.monotonic()
        with BlockingConnection(address, DEADLINE_S) as connection:
            answer = connection.call(send_request("T", 0, [b"first"]))
        if answer.code:
            return Run(error=f"code {answer.code}: {answer.remark}")
        return Run(ready_s, used_s, time.monotonic() - before)
    except (OSError, ValueError, RmqError) as error:
        return Run(error=repr(error))
    finally:
        process.communicate(timeout=DEADLINE_S)


def summary(runs: list[Run]) -> dict[str, Any]:
    good = [run for run in runs if not run.error]
    figures = {
        name: [round(f([getattr(run, name) for run in good]), 3) for f in (statistics.median, max)]
        for name in ("ready_s", "cpu_s", "message_s")
        if good
    }
    return {"runs": len(runs), "failed": [run.error for run in runs if run.error], **figures}


def seconds_of_tests(folder: Path, tests: int, fixture: str, scope: str) -> float:
    """Run a new project and return the seconds of all its tests."""
    folder.mkdir()
    body = f'{fixture}.send("T", b"%d" % number)' if fixture else "pass"
    text = TEST.format(tests=tests, fixture=f", {fixture}" if fixture else "", body=body)
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text(f"[pytest]\nrmq_scope = {scope}\n")
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def fixture_rows(base: Path, tests: int) -> dict[str, Any]:
    """Return the milliseconds that each fixture adds to a test."""
    without = seconds_of_tests(base / "none", tests, "", "function")
    rows = {}
    for fixture, scope in FIXTURES:
        with_it = seconds_of_tests(base / f"{fixture}-{scope}", tests, fixture, scope)
        rows[f"{fixture}, {scope}"] = round(1000 * (with_it - without) / tests, 1)
    return rows


@frozen
class Options:
    runs: int
    side_by_side: int
    tests: int


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="runs of each kind, default 100")
    parser.add_argument("--side-by-side", type=int, default=8, metavar="N", help="default 8")
    parser.add_argument("--tests", type=int, default=20, help="tests per fixture, default 20")
    given = parser.parse_args()
    options = Options(given.runs, given.side_by_side, given.tests)
    result: dict[str, Any] = {"machine": machine(), **asdict(options)}
    one_run(0)  # bytecode and files are in memory afterwards
    result["sequence"] = summary([one_run(each) for each in range(options.runs)])
    with ThreadPoolExecutor(options.side_by_side) as threads:
        result["parallel"] = summary(list(threads.map(one_run, range(options.runs))))
    with tempfile.TemporaryDirectory(prefix="rmqpy-fixtures-") as temporary:
        result["ms per test"] = fixture_rows(Path(temporary), options.tests)
    for name in ("sequence", "parallel", "ms per test"):
        print(f"{name}: {result[name]}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if result["sequence"]["failed"] or result["parallel"]["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
