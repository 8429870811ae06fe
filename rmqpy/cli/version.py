"""``rmqpy --version``: what is installed, as a report of a problem needs it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from os import PathLike
from typing import Final

COMMIT_FILE: Final = f"{os.path.dirname(os.path.dirname(__file__))}/commit.txt"
"""Written when a wheel or an sdist is built, by setup.py. A checkout has none."""
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(\+changes)?")


def version_text() -> str:
    """Return version, core, event loop, Python, and commit, a line each."""
    import platform  # every command imports this module

    from rmqpy import __version__
    from rmqpy.codec import backend
    from rmqpy.net.loop import loop_text

    core = "C" if backend.implementation == "c" else f"Python ({backend.reason})"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return "\n".join(
        (
            f"rmqpy {__version__}",
            f"core: {core}",
            f"event loop: {loop_text()}",
            f"Python: {python} on {platform.system()} {platform.machine()}",
            f"commit: {commit()}",
        )
    )


def commit(path: str | PathLike[str] = COMMIT_FILE) -> str:
    """Return the commit that this package was built from, with ``+changes`` if its sources were
    changed; ``unknown`` if the build could not tell.
    """
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except (OSError, UnicodeDecodeError):
        return "unknown"
    return text if _COMMIT.fullmatch(text) else "unknown"


class PrintVersion(argparse.Action):
    """The option that prints the report and ends the program."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        print(version_text())
        parser.exit()
