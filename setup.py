"""The parts of the build that pyproject.toml has no keys for.

* the C core, and a package whose name differs from its folder;
* ``rmqpy/commit.txt``: the commit that sdist and wheel were made from, for ``rmqpy --version``;
* the list of the software of others in the wheel, ``sboms/rmqpy.cdx.json`` (PEP 770);
* README.md with links that work on a package index;
* the same bytes for the same ``SOURCE_DATE_EPOCH``, in whatever folder.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import subprocess
import sysconfig
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
COMMIT = Path("rmqpy", "commit.txt")
VENDORED = ROOT / "rmqpy" / "console" / "static" / "vendor" / "vendored.cdx.json"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = ast.literal_eval(
    (ROOT / "rmqpy" / "__init__.py").read_text(encoding="utf-8").partition("__version__ = ")[2]
)
OLDEST_PYTHON = "cp311"


def commit() -> str:
    """Return the commit of these sources, with ``+changes`` if they were changed; empty outside of
    a repository. An sdist has a file that says it.
    """
    known = ROOT / COMMIT
    if known.is_file():
        return known.read_text(encoding="ascii").strip()
    if not (ROOT / ".git").exists():
        return ""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain", "-uno") else head
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write_commit(folder: Path) -> None:
    found = commit()
    if found:
        (folder / COMMIT).write_text(f"{found}\n", encoding="ascii")


def index_readme() -> str:
    """Return README.md with absolute links."""
    pages = f"{PROJECT['urls']['Repository']}/blob/v{VERSION}/"
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    def absolute(match: re.Match[str]) -> str:
        start, target = match.groups()
        raw = "?raw=true" if start.startswith("!") else ""
        return f"{start}{pages}{target}{raw})"

    return re.sub(r"(!?\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)\)", absolute, text)


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib))


class SourceArchive(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))

    def make_archive(self, base_name: str, format: str, root_dir: Any = None, **given: Any) -> str:
        """Write a ``.tar.gz`` whose bytes depend on names and content only."""
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if format != "gztar" or epoch is None:
            return super().make_archive(base_name, format, root_dir=root_dir, **given)

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid = int(epoch), 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as raw,
            gzip.GzipFile("", "wb", mtime=int(epoch), fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            folder = given["base_dir"]
            archive.add(folder, Path(folder).name, filter=plain)  # sorted by name
        return path


class Wheel(bdist_wheel):
    def write_wheelfile(self, wheelfile_base: str, *given: Any, **named: Any) -> None:
        super().write_wheelfile(wheelfile_base, *given, **named)
        folder = Path(wheelfile_base, "sboms")
        folder.mkdir(exist_ok=True)
        text = json.dumps(bill_of_materials(), indent=2) + "\n"
        (folder / "rmqpy.cdx.json").write_text(text, encoding="utf-8")


def bill_of_materials() -> dict[str, Any]:
    """Return the vendored components as a CycloneDX document about this version."""
    document: dict[str, Any] = json.loads(VENDORED.read_text(encoding="utf-8"))
    purl = f"pkg:pypi/rmqpy@{VERSION}"
    own = {
        "type": "library",
        "bom-ref": purl,
        "name": "rmqpy",
        "version": VERSION,
        "licenses": [{"license": {"id": PROJECT["license"]}}],
        "purl": purl,
    }
    parts = [component["bom-ref"] for component in document["components"]]
    document["metadata"] = {"component": own}
    document["dependencies"] = [
        {"ref": purl, "dependsOn": parts},
        *({"ref": part} for part in parts),
    ]
    return document


# The stable interface does not exist in a Python without its global lock.
has_stable_interface = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    long_description=index_readme(),
    long_description_content_type="text/markdown",
    cffi_modules=["native/build_native.py:ffibuilder"],
    packages=[*find_packages(include=["rmqpy*"]), "rmqpy_migrations"],
    py_modules=["pyspark_rocketmq"],
    package_dir={"rmqpy_migrations": "migrations"},
    cmdclass={"build_py": BuildPy, "sdist": SourceArchive, "bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": OLDEST_PYTHON}} if has_stable_interface else {},
)
