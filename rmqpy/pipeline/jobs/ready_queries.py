"""Queries that are ready to run: files of SQL, whose comments describe them.

The first line of a file is its description. Further comments name its parameters, whole numbers,
with their defaults: ``-- hours: 72`` for ``${hours}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from attrs import define

from rmqpy.model.errors import ConfigError
from rmqpy.model.near_names import did_you_mean

__all__ = ["ReadyQuery", "find_query", "ready_queries"]

PARAMETER: Final = re.compile(r"^-- (\w+): (\d+)$", re.MULTILINE)


@define(slots=True, frozen=True)
class ReadyQuery:
    """One query. ``parameters`` has the defaults by name."""

    name: str
    description: str
    parameters: Mapping[str, int]
    text: str

    def statement(self, given: Mapping[str, int]) -> str:
        """Return the SQL with its parameters set. Raise ConfigError for an unknown one."""
        for name in given:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise ConfigError(
                    f"found the parameter {name}, expected one of {self.name}: {known}"
                )
        text = self.text
        for name, value in {**self.parameters, **given}.items():
            text = text.replace("${" + name + "}", str(value))
        return text


def ready_queries() -> dict[str, ReadyQuery]:
    """Return all queries by name."""
    found = {}
    for file in sorted(files("rmqpy.pipeline").joinpath("queries").iterdir(), key=lambda f: f.name):
        name, point, kind = file.name.rpartition(".")
        if point and kind == "sql":
            text = file.read_text(encoding="utf-8")
            description = text.splitlines()[0].removeprefix("-- ")
            parameters = {each: int(value) for each, value in PARAMETER.findall(text)}
            found[name] = ReadyQuery(name, description, parameters, text)
    return found


def find_query(name: str) -> ReadyQuery:
    """Return a query. Raise ConfigError if there is none of this name."""
    queries = ready_queries()
    if name not in queries:
        raise ConfigError(
            f"found no query {name!r}{did_you_mean(name, queries)}; rmqpy pipeline query lists them"
        )
    return queries[name]
