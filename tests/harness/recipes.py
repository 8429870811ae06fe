"""The projects on docs/how-to/test-from-other-languages.md, run in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from attrs import define, evolve

PAGE = Path(__file__).parents[2] / "docs/how-to/test-from-other-languages.md"
SECONDS_MAX = 500
"""The first run downloads and compiles a client."""


@define(frozen=True)
class Recipe:
    """A project: its files by name, and the commands that run its test."""

    files: dict[str, str]
    commands: list[str]

    @property
    def missing(self) -> str | None:
        """Why the commands cannot be run here, or None."""
        program = self.commands[0].split()[0]
        return None if shutil.which(program, path=_path()) else f"{program} is not on the PATH"

    def replaced(self, words: Mapping[str, str]) -> Recipe:
        """Return the project with other words, each of which it must have."""
        text = "\n".join(self.files.values())
        assert all(word in text for word in words), words
        files = {}
        for name, content in self.files.items():
            for old, new in words.items():
                content = content.replace(old, new)
            files[name] = content
        return evolve(self, files=files)

    def run(self, folder: Path, first_on_path: Path | None = None) -> str | None:
        """Run the project in a new folder; return the output of a command that fails, or None."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        before = [str(first_on_path)] if first_on_path else []
        environment = {**os.environ, "PATH": os.pathsep.join([*before, _path()])}
        for command in self.commands:
            argv = command.split()
            if argv[0] == "pytest":
                argv = [sys.executable, "-m", *argv]
            done = subprocess.run(
                argv,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
            if done.returncode != 0:
                return f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return None


def read_recipes() -> dict[str, Recipe]:
    """Return the projects of the page by their language."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        files = dict(re.findall(r"^`([^`\n]+)`\n\n```\w+\n(.*?)^```$", section, flags=re.M | re.S))
        scripts = re.findall(r"^```sh\n(.*?)^```$", section, flags=re.M | re.S)
        if files and scripts:
            found[re.split(r"[,\n]", section)[0]] = Recipe(files, scripts[0].splitlines())
    return found


def _path() -> str:
    return f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
