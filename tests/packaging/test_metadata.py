"""What pyproject.toml and setup.py say; tox -e wheel builds and installs the package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rmqpy

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_all_is_every_extra() -> None:
    (union,) = EXTRAS["all"]
    names = re.fullmatch(r"rmqpy\[(.+)\]", union)
    assert names is not None
    assert sorted(names[1].split(",")) == sorted(set(EXTRAS) - {"all"})


def test_the_extras_that_the_documents_name_exist() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("rmqpy/**/*.py")]:
        for names in re.findall(r"rmqpy\[([a-z,-]+)\]", page.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= set(EXTRAS), page


def test_the_versions_of_python_are_those_that_are_tested() -> None:
    said = re.findall(r"Python :: (3\.\d+)'", repr(PROJECT["classifiers"]))
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    assert f"versions = {', '.join('py' + each.replace('.', '') for each in said)}" in tox
    assert f"python: {said!r}".replace("'", '"') in workflow
    assert PROJECT["requires-python"] == f">={said[0]}"
    assert PYPROJECT["tool"]["cibuildwheel"]["build"] == f"cp{said[0].replace('.', '')}-*"


def setup_in_pieces(words: str) -> str:
    """Run a statement after the functions of setup.py, which are not called."""
    source = (ROOT / "setup.py").read_text(encoding="utf-8").partition("\nsetup(")[0]
    source = source.replace("Path(__file__).parent", f"Path({str(ROOT)!r})")
    done = subprocess.run(
        [sys.executable, "-c", f"{source}\n{words}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_link_of_the_description_is_absolute() -> None:
    text = setup_in_pieces("print(index_readme())")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    plain = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) == len(plain) > 10
    base = f"{PROJECT['urls']['Repository']}/blob/v{rmqpy.__version__}/"
    for link, target in zip(links, plain, strict=True):
        if target.startswith("http"):
            assert link == target
        else:
            assert link.removesuffix("?raw=true") == base + target
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    assert all(link.endswith("?raw=true") or "://" in link for link in pictures)


@pytest.mark.slow
def test_the_bill_of_materials_is_about_this_version() -> None:
    import json

    found = json.loads(setup_in_pieces("print(json.dumps(bill_of_materials()))"))
    component = found["metadata"]["component"]
    assert (component["version"], component["purl"]) == (
        rmqpy.__version__,
        f"pkg:pypi/rmqpy@{rmqpy.__version__}",
    )
    refs = {part["bom-ref"] for part in found["components"]}
    assert set(found["dependencies"][0]["dependsOn"]) == refs and len(refs) == 2
