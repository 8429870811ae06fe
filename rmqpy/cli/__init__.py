"""``rmqpy``: the command line.

This module imports nothing that Python has not loaded already: Ctrl-C while a command is still
being imported ends in a sentence and an exit code, too.
"""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130
"""Interrupted by Ctrl-C, as shells report it."""


def main(words: list[str] | tuple[str, ...] | None = None, **given: object) -> int:
    """Run one command and return its exit code; ``given`` are further attributes of its options."""
    try:
        from rmqpy.cli.command_line import run

        return run(sys.argv[1:] if words is None else words, **given)
    except KeyboardInterrupt:
        print("rmqpy: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
