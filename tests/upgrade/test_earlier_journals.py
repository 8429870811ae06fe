"""Plans that an earlier rmqpy left half done, finished or taken back by today's commands.

Each data/journals-COMMIT.tar.xz was recorded with the command line of that commit on golden stores
below /mnt: it was killed in the middle of ``apply`` (an empty member is filled), of ``switch``, and
of the ``apply`` of ``leave``. It has the files that had changed, and the md5 of every file of the
member before the plan and after the whole plan. Plans have absolute paths, and an edited plan is
refused, so the commands run in a mount namespace in which the stores are at /mnt again.

========  ============================================================================
commit    its journals and plans
========  ============================================================================
267c750   format 1 of the journal; plans without settings
3c97992d  the first with format 2; operations without the space that they take
========  ============================================================================
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmqpy.testing.processes import python_environment

DATA = Path(__file__).parent / "data"
AT = Path("/mnt")
ALL = "n0=n0 n1=n1 n2=n2 -c n0=n0.conf -c n1=n1.conf -c n2=n2.conf"
SPARSE_BYTES_MIN = 1 << 26


def can_mount() -> bool:
    words = ["unshare", "--mount", "mount", "--bind", os.fspath(DATA), os.fspath(AT)]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def recorded(commit: str, name: str, folder: Path) -> dict[str, Any]:
    """Put the recorded files of a case over the stores in ``folder`` and return the case."""
    raw = lzma.decompress((DATA / f"journals-{commit}.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        described = archive.extractfile("cases.json")
        assert described is not None
        case: dict[str, Any] = json.load(described)[name]
        for target, source in case["copies"].items():
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / source, folder / target)
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content is None or not member.name.startswith(f"{name}/"):
                continue
            path = folder / member.name.removeprefix(f"{name}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    return case


def sums(folder: Path, node: str) -> Counter[tuple[str, str]]:
    """Return the md5 of the member's files by path; index files are named after the time."""
    own, found = folder / node, [folder / f"{node}.conf"]
    for path in own.rglob("*"):
        mine = path.is_file() and path.name != "lock" and "rmqpy" not in path.relative_to(own).parts
        if mine and path.stat().st_size < SPARSE_BYTES_MIN:
            found.append(path)
    return named(
        {
            os.fspath(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest()
            for path in found
        }
    )


def named(md5s: dict[str, str]) -> Counter[tuple[str, str]]:
    return Counter(
        (path.rpartition("/")[0] if "/index/" in path else path, md5) for path, md5 in md5s.items()
    )


def command(folder: Path, line: str) -> None:
    """Run a line of ``rmqpy upgrade`` with ``folder`` at /mnt."""
    rmqpy = f"{shlex.quote(sys.executable)} -m rmqpy.cli upgrade"
    mount = f"mount --bind {shlex.quote(os.fspath(folder))} {AT}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f"{mount}; cd {AT}; {rmqpy} {line}"],
        capture_output=True,
        text=True,
        env=python_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["align", "switch", "leave"])
@pytest.mark.parametrize("commit", ["267c750", "3c97992d"])
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_half_done_plan_of_an_earlier_version(
    name: str, commit: str, is_finished: bool, request: pytest.FixtureRequest
) -> None:
    if not can_mount():
        pytest.skip("a directory cannot be mounted in a namespace here")
    folder: Path = request.getfixturevalue("joined" if name == "leave" else "lagging")
    for conf in folder.glob("n*.conf"):
        conf.write_text(conf.read_text().replace(os.fspath(folder), os.fspath(AT)))
    case = recorded(commit, name, folder)
    node, has_settings = case["node"], commit != "267c750"
    if is_finished:
        command(folder, f"apply --resume {node} {'' if has_settings else ALL}")
        assert sums(folder, node) == named(case["after"])
    command(folder, f"rollback {node}")
    assert sums(folder, node) == named(case["before"])
