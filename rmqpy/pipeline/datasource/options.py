"""The options of ``format("rocketmq")``: texts with case-insensitive names.

Unknown options are refused, so that a misspelled one is noticed. Some options also have the name
that Spark's Kafka source gives them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from rmqpy.model.errors import ConfigError

__all__ = ["Options"]

T = TypeVar("T")

TRUTHS: Final = {"true": True, "false": False}
KAFKA_NAMES: Final = {"subscribe": "topic", "subscribepattern": "topicpattern"}
DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Options:
    """The options of a user. Raises ConfigError for an option that is not in ``known``."""

    def __init__(self, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._given: dict[str, str] = {}
        for name, value in given.items():
            own = KAFKA_NAMES.get(name.lower(), name.lower())
            if own in self._given:
                raise ConfigError(
                    f"found the option {own} twice (also as {name}), expected it once; omit one"
                )
            self._given[own] = value
        unknown = sorted(self._given.keys() - {name.lower() for name in known})
        if unknown:
            raise ConfigError(
                f"format rocketmq has no option {', '.join(unknown)} here; "
                f"the options are: {', '.join(sorted(known))}"
            )

    def text(self, name: str, default: T) -> str | T:
        """Return the text of an option."""
        return self._given.get(name.lower(), default)

    def required(self, name: str) -> str:
        """Return the text of an option. Raise ConfigError if it is missing or empty."""
        value = self.text(name, "")
        if not value:
            raise ConfigError(f"format rocketmq needs the option {name}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false. Raise ConfigError for another value."""
        text = self.text(name, str(default))
        value = TRUTHS.get(text.lower())
        if value is None:
            raise ConfigError(f"the option {name} is {text!r}, expected true or false")
        return value

    def count(self, name: str, default: int, least: int = 1) -> int:
        """Return an option that is a whole number of at least ``least``, else raise ConfigError."""
        text = self.text(name, str(default))
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise ConfigError(
                f"the option {name} is {text!r}, expected a whole number of at least {least}"
            )
        return int(text)

    def milliseconds(self, name: str, default: str) -> int:
        """Return an option that is a time like ``500ms``, ``30s``, ``15m``, or ``1h``, in ms.

        A plain number is in ms. Raise ConfigError for another text.
        """
        text = self.text(name, default)
        found = DURATION.fullmatch(text.strip().lower())
        if found is None or not text.isascii():
            raise ConfigError(f"the option {name} is {text!r}, expected a time like 30s or 15m")
        return int(found[1]) * UNITS_MS[found[2] or "ms"]
