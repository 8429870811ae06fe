"""Read TOML tables with checked types; each error names the place, what was found, and what was
expected.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rmqpy.model.errors import ConfigError
from rmqpy.model.near_names import did_you_mean
from rmqpy.model.os_errors import sentence_of


def read_toml(path: Path) -> CheckedTable:
    """Return the top table of a file. Raises ConfigError if it cannot be read."""
    try:
        return CheckedTable(str(path), tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(sentence_of(error)) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: found bytes that are not UTF-8, expected TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: found no valid TOML: {error}; correct that place") from None


class CheckedTable:
    """One table. :meth:`finish` raises for keys that nobody has asked for."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = values
        self._known: list[str] = []

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty. Without ``default`` the key is required."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, value, "a text")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise self.error(key, value, "a number, 0 or more")
        return float(value)

    def count(self, key: str) -> int | None:
        value = self._get(key, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, value, "a whole number, 0 or more")
        return value

    def texts(self, key: str, default: Iterable[str] = ()) -> tuple[str, ...]:
        value = self._get(key, list(default))
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(key, value, "a list of texts")
        return tuple(value)

    def table(self, key: str) -> CheckedTable:
        """Return a table inside this one; an empty one if it is absent."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, value, f"a table [{key}]")
        return CheckedTable(f"{self.where}: [{key}]", value)

    def tables(self, key: str) -> list[CheckedTable]:
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.error(key, value, f"tables [[{key}]]")
        return [
            CheckedTable(f"{self.where}: [[{key}]] {number}", each)
            for number, each in enumerate(value, 1)
        ]

    def keys(self) -> list[str]:
        """Return all keys, and take them as known."""
        self._known += self._values
        return list(self._values)

    def finish(self) -> None:
        """Raise ConfigError for a key that is not known."""
        for key in self._values:
            if key not in self._known:
                expected = ", ".join(self._known)
                hint = did_you_mean(key, self._known)
                raise ConfigError(f"{self.where}: found the key {key!r}, expected {expected}{hint}")

    def error(self, key: str, found: object, expected: str) -> ConfigError:
        if found is None:
            return ConfigError(f"{self.where}: found no {key}, expected {expected}")
        return ConfigError(f"{self.where}: found {key} = {found!r}, expected {expected}")

    def _get(self, key: str, default: Any) -> Any:
        self._known.append(key)
        return self._values.get(key, default)
