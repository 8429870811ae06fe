"""The links of the documents, and the commands that CI runs."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install -q tox && .venv/bin/tox run-parallel"
FOLDERS = ("*.md", "docs/**/*.md", "bench/*.md", "native/*.md", "tests/**/README.md")
PAGES = sorted(page for pattern in FOLDERS for page in ROOT.glob(pattern))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_into_the_repository_leads_to_a_file(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        file = page.parent / target.partition("#")[0]
        assert file.exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_readme_has_the_command_that_ci_runs() -> None:
    assert TEST_COMMAND in (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part in ("-m venv .venv", ".venv/bin/pip install -q tox", ".venv/bin/tox run-parallel"):
        assert part in script


def test_every_environment_of_tox_is_described() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    for section in tox.sections():
        if section.startswith("testenv"):
            assert len(tox[section]["description"].splitlines()) == 1, section


def test_ci_adds_up_the_summaries_of_pytest() -> None:
    output = "noise\n12 passed, 1 skipped in 3.50s\n== 2 failed, 3 passed in 1.25s ==\n7 passed\n"
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "summary.py")],
        input=output,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "12 passed, 1 skipped in 3.50s",
        "2 failed, 3 passed in 1.25s",
        "=== 2 failed, 15 passed, 1 skipped in 4.75s ===",
    ]
