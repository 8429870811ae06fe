"""The refusals of the source, so that lists of them are complete: a new one is noticed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import rmqpy
from rmqpy.upgrade.steps import states

ROOT = Path(rmqpy.__file__).parent


def refusals(classes: Collection[str], argument: int) -> Iterator[tuple[str, str]]:
    """Yield module and text of each call of these classes. The text is that argument; {} stands for
    what is only known when it is raised.
    """
    sources = {str(path.relative_to(ROOT)): path for path in ROOT.rglob("*.py")}
    sources |= {f"migrations/{path.name}": path for path in _migrations().glob("*.py")}
    for module, path in sorted(sources.items()):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in classes:
                    text = _shape(node.args[argument])
                    yield module, text


def _migrations() -> Path:
    """Return the folder of the migrations, installed or in a checkout."""
    states.load_step("m0001_baseline")
    return Path(sys.modules[states.MIGRATIONS].__path__[0])


def begins(text: str, begin: str) -> bool:
    """Return whether a refusal is the one with this begin. Placeholders alone are the whole."""
    return text == begin if not begin.strip("{}: ") else text.startswith(begin)


def has_test(place: Path, name: str) -> bool:
    """Return whether the file ``place`` defines the test called ``name``."""
    return f"\ndef {name}(" in place.read_text()


def differences(texts: Iterable[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the texts that no known begin fits, and the begins that are no text's longest one."""
    fits = {
        text: max((each for each in known if begins(text, each)), key=len, default=None)
        for text in texts
    }
    unknown = [text for text, begin in fits.items() if begin is None]
    return unknown, [each for each in known if each not in fits.values()]


def _shape(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp):
        return _shape(node.left) + _shape(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_shape, node.values))
    return "{}"
