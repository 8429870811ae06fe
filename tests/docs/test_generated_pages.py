"""Pages that are generated, or repeat figures of the code and of results, are current."""

from __future__ import annotations

import importlib
import json
import re
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rmqpy.cli.reference_page import command_line_page
from rmqpy.config.loading import load_broker_configuration
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
SERVERS = ("acl", "broker", "dledger", "ha", "model", "namesrv", "net")
"""The packages whose code decides what a server answers."""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def script(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import and return a module of a folder that is no package."""
    monkeypatch.syspath_prepend(str(ROOT / folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_the_command_line_page_is_current() -> None:
    assert read("docs/reference/cli.md") == command_line_page(), (
        "run: python -m rmqpy.cli.reference_page > docs/reference/cli.md"
    )


def test_the_page_of_the_python_api_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    api = script("api", "docs/site", monkeypatch)
    assert read("docs/reference/python-api.md") == api.api_page(), "run: python docs/site/api.py"
    assert "::: rmqpy.client.Producer\n" in api.expanded(read("docs/reference/python-api.md"))


def test_the_performance_page_and_its_pictures_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    performance = script("performance", "bench", monkeypatch)
    assert read("docs/reference/performance.md") == performance.page(), (
        "run: python bench/performance.py"
    )
    for name, text in performance.pictures().items():
        assert read(f"docs/plots/{name}") == text, "run: python bench/performance.py"


def test_a_row_below_one_is_listed_as_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    performance = script("performance", "bench", monkeypatch)
    row: dict[str, Any] = {
        "row": "x",
        "base": {"kind": "java"},
        "sample": {"kind": "rmqpy"},
        "ratio": 4.0,
        "lower_is_better": True,
    }
    assert [gain.times for gain in performance.gains([row])] == [0.25]
    assert ">0.25<" in performance.bars(performance.gains([row]))


def test_loads_below_one_of_every_benchmark_are_listed_as_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    performance = script("performance", "bench", monkeypatch)

    def results(name: str, figure: str, ours: float) -> dict[str, Any]:
        return {"results": {name: {"java": [{figure: 4.0}], "rmqpy": [{figure: ours}]}}}

    brokers = [
        (results("held", performance.RATE, 1.0), Path("a-tailing.json")),
        (results("pull", performance.RATE, 5.0), Path("a-requests.json")),
    ]
    clients = (results("send", performance.CLIENT_RATE, 2.0), Path("a-clients.json"))
    listed = list(performance.slower(([], Path("a.json")), brokers, clients))
    assert [row.split(" | ")[:2] for row in listed] == [
        ["| held", "0.25"],
        ["| of the client: send", "0.50"],
    ]


def test_every_series_of_rmqpy_is_on_the_page_of_metrics() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "rmqpy").rglob("metric*.py"))
    names = set(re.findall(r"\brmqpy_[a-z_]+[a-z]\b", code))
    page = read("docs/reference/metrics.md")
    assert len(names) > 15
    assert sorted(name for name in names if f"`{name}`" not in page) == []


# -- Request codes


def rows_of(page: str) -> dict[int, tuple[str, str]]:
    """Return name and last cell by code of the tables of a page."""
    found = re.findall(r"^\| (\d+) \| (\w+) \|(?: .* \|)? ?([^|]*?) ?\|$", page, re.MULTILINE)
    return {int(code): (name, text) for code, name, text in found}


def test_all_own_requests_and_all_responses_are_listed() -> None:
    found = {
        code: name for code, (name, _) in rows_of(read("docs/reference/request-codes.md")).items()
    }
    own = {code.value: code.name for code in RequestCode if code.name.startswith("RMQPY_")}
    assert found == own | {code.value: code.name for code in ResponseCode}


def test_a_response_is_listed_as_not_sent_if_no_server_sends_it() -> None:
    paths = [path for name in SERVERS for path in (ROOT / "rmqpy" / name).rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    rows = rows_of(read("docs/reference/request-codes.md"))
    wrong = [
        name
        for number, (name, text) in rows.items()
        if number < min(code.value for code in RequestCode if code.name.startswith("RMQPY_"))
        and (text == "not sent") == bool(re.search(rf"ResponseCode\.{name}\b", code))
    ]
    assert wrong == []


# -- Figures


def test_the_limits_are_those_of_the_code() -> None:
    page = read("docs/reference/limits.md")
    settings = load_broker_configuration(None, {"storePathRootDir": "store"}).configuration
    assert f"| {settings.store.max_message_size // 2**20} MiB (`maxMessageSize`) |" in page
    assert f"| {settings.remoting.max_connections:,} (`maxConnections`) |" in page
    assert f"| {TOPIC_LENGTH_MAX}; {GROUP_LENGTH_MAX} characters |" in page
    units = settings.store.mapped_file_size_consume_queue // 20
    assert f"a file holds {units:,} units" in page
    assert f"a file of 420 MB holds {settings.store.max_index_num:,}" in page
    assert f"Retention by default is {settings.store.file_reserved_time} hours" in page
    levels = settings.store.message_delay_level.split()
    assert f"| {len(levels)} levels, {levels[0].replace('s', ' s')} to" in page


def test_the_figures_of_the_first_pages_are_those_of_the_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The three figures of docs/README.md and README.md."""
    performance = script("performance", "bench", monkeypatch)
    runs = json.loads(performance.newest(performance.LIVE).read_text(encoding="utf-8"))["runs"]
    gaps = sorted(
        run["gap_ms"]
        for run in runs
        if run["decided"] and (run["change"], run["gigabytes"]) == ("switch", 100)
    )
    median = gaps[(len(gaps) - 1) // 2]  # the nearest rank, as in bench/live.py
    sends = {
        row["row"]: row["ratio"] for row in json.loads(performance.full_run().read_text())["rows"]
    }
    measured = read("docs/reference/durability.md")
    assert re.search(r"0 of 6,503 \| . \| 829 of 2,865", measured)
    for page in (read("docs/README.md"), read("README.md")):
        assert f"{median:.0f} ms" in page and f"{max(gaps):.0f} ms" in page
        assert f"{sends['send-128']:.1f} \N{MULTIPLICATION SIGN}" in page
        assert "0 of 6,503" in page and "829 of 2,865" in page
        for command in ("python bench/live.py", "tests/crash/test_group_power_cut.py"):
            assert command in page
        assert "python bench/compare.py --rows send-128" in page
    assert sum(run["failed"] for run in runs) == 0


def test_the_measured_limits_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    performance = script("performance", "bench", monkeypatch)
    rows = {row["row"]: row for row in json.loads(performance.full_run().read_text())["rows"]}
    page = read("docs/reference/limits.md")

    def figures(row: str, kind: str) -> list[float]:
        return sorted(float(figure) for figure in rows[row][kind]["figures"])

    memory = [
        f"{statistics.median(figures(row, kind)) / 1024:.0f}"
        for kind in ("sample", "base")
        for row in ("memory-idle-kb", "memory-10m-kb")
    ]
    assert "| {} MiB; {} MiB (Java 4.9.7: {}; {}) |".format(*memory) in page
    slow, fast = (
        statistics.median(figures(row, "sample")) for row in ("failover-s", "failover-fast-s")
    )
    assert f"| {slow:.1f} s; {fast:.1f} s with the [fast profile]" in page
    runs = json.loads(performance.newest(performance.LIVE).read_text(encoding="utf-8"))["runs"]
    gaps = [
        sorted(run["gap_ms"] for run in runs if (run["change"], run["gigabytes"]) == (change, 100))
        for change in ("switch", "leave")
    ]
    typical = [f"{each[(len(each) - 1) // 2]:.0f}" for each in gaps]
    longest = [f"{max(each):.0f}" for each in gaps]
    assert f"| {typical[0]} ms; {typical[1]} ms (median" in page
    assert f"longest {longest[0]}; {longest[1]}) |" in page


def test_every_result_is_named_by_a_page() -> None:
    pages = [*ROOT.glob("bench/*.md"), *ROOT.glob("docs/**/*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    unnamed = [path.name for path in ROOT.glob("bench/results/*.json") if path.name not in text]
    assert not unnamed


def test_the_sums_of_simulated_seeds_are_those_of_the_tables() -> None:
    page = read("docs/reference/simulator.md")

    def seeds(pattern: str, text: str) -> int:
        ranges = re.findall(pattern, text, re.MULTILINE)
        assert ranges, pattern
        return sum(int(last) - int(first) + 1 for first, last in ranges)

    groups, nodes = page.split("\nOf bare nodes:\n")
    in_a_row = r"(?:^\| |, )(\d+) to (\d+)(?=[, |]+)"
    rows = r"^\| \d+ to \d+.*? \|"
    of_groups, of_nodes = (
        seeds(in_a_row, "\n".join(re.findall(rows, part, re.MULTILINE))) for part in (groups, nodes)
    )
    of_fast = seeds(r"[Ss]eeds (\d+) to (\d+) (?:of `fast`|with)", groups)
    of_changes = seeds(r"^\| `(?:switch|leave)` \| (\d+) to (\d+) \|", groups)
    assert (
        f"{of_groups + of_fast + of_changes + of_nodes:,} seeds have been run: {of_groups:,} of"
        f" groups, {of_fast:,} of `fast`, {of_changes:,} of the changes of the log, and"
        f" {of_nodes:,} of bare nodes."
    ) in page
