"""Errors on the command line: a sentence on stderr, or one JSON object on stdout.

A refusal says what was found, what was expected, and the remedy. With ``--format json`` the three
are members of the object of their own, together with the whole sentence and the exit code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rmqpy.model.errors import StoreError
from rmqpy.model.os_errors import sentence_of

_SENTENCE = re.compile(
    r"found (?P<found>.+?), expected (?P<expected>.+?)(?:; (?P<remedy>.+))?", re.DOTALL
)


def wants_json(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON, even if it cannot be parsed."""
    return "--format=json" in words or ("--format", "json") in pairwise(words)


def error_json(
    error: Exception | str, exit_code: int, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the object for an error. ``found``, ``expected``, and ``remedy`` are null if the
    sentence does not say them.
    """
    parts: dict[str, str | None] = {"found": None, "expected": None, "remedy": None}
    if isinstance(error, StoreError):
        parts |= {"found": error.found, "expected": error.expected, "remedy": error.remedy}
    else:
        start = text_of(error).find("found ")
        match = _SENTENCE.fullmatch(text_of(error)[start:]) if start >= 0 else None
        parts |= match.groupdict() if match is not None else {}
    return {"error": text_of(error), **parts, "exit_code": exit_code, **(more or {})}


def text_of(error: Exception | str) -> str:
    return sentence_of(error) if isinstance(error, OSError) else str(error)


def report_error(error: Exception | str, exit_code: int, *, as_json: bool) -> int:
    """Print an error and return the exit code."""
    if as_json:
        json.dump(error_json(error, exit_code), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        print(f"rmqpy: {text_of(error)}", file=sys.stderr)
    return exit_code
