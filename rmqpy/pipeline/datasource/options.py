"""The options of ``format("rocketmq")``: texts, their names in any case. One that nobody knows is
refused, so that a slip of the pen does not go unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from rmqpy.model.errors import ConfigError

__all__ = ["Options"]

T = TypeVar("T")

TRUTHS: Final = {"true": True, "false": False}


class Options:
    def __init__(self, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = sorted(self._given.keys() - {name.lower() for name in known})
        if unknown:
            raise ConfigError(
                f"no option {', '.join(unknown)} of format rocketmq here; "
                f"there are: {', '.join(sorted(known))}"
            )

    def text(self, name: str, default: T) -> str | T:
        return self._given.get(name.lower(), default)

    def required(self, name: str) -> str:
        value = self.text(name, "")
        if not value:
            raise ConfigError(f"format rocketmq needs the option {name}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default))
        value = TRUTHS.get(text.lower())
        if value is None:
            raise ConfigError(f"the option {name} is {text!r}, neither true nor false")
        return value

    def count(self, name: str, default: int, least: int = 1) -> int:
        text = self.text(name, str(default))
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise ConfigError(f"the option {name} is {text!r}, no number from {least} on")
        return int(text)
